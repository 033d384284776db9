"""A model at a prompt: one text to which line and answer are added by turns."""

import io
import os
import signal

import pytest

from tests.trainer.tiny import save_model
from trainer.commands import chat, sample
from trainer.data.tokenizers import ByteTokenizer
from trainer.engine.generation import Generator

EOT = ByteTokenizer.eot


def talk(monkeypatch, capsys, folder, typed, *words):
    """What is printed where these lines come through a pipe."""
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    where = ["-e", save_model(folder / "model", factor=5.0), "--device", "cpu"]
    assert chat.main([*where, "--data-dir", str(folder), *words]) == 0
    return capsys.readouterr().out


@pytest.fixture
def drawn(monkeypatch):
    """What the model writes behind each line, and the texts that it was given."""
    answers, texts = [], []

    def generate(self, prompts, tokens, rngs, stop):
        texts.append(list(prompts[0]))
        for token in answers.pop(0)[:tokens]:
            if stop():
                return
            yield [token]

    monkeypatch.setattr(Generator, "generate", generate)
    return answers, texts


def test_a_line_is_continued_as_sample_continues_it(tmp_path, monkeypatch, capsys):
    said = talk(monkeypatch, capsys, tmp_path, "RO\n", "-g", "40", "--seed", "2")
    words = ["-e", str(tmp_path / "model"), "--device", "cpu", "--data-dir", str(tmp_path)]
    sample.main([*words, "--prompt", "RO", "-g", "40", "--seed", "2"])
    assert "RO" + said == capsys.readouterr().out


def test_lines_and_answers_are_one_text(tmp_path, monkeypatch, capsys, drawn):
    drawn[0][:] = [b"one", b"two\n", [*b"end", EOT, *b"lost"], b"new"]
    said = talk(monkeypatch, capsys, tmp_path, "a\n\nb\nc")
    assert said == "one\ntwo\n\nend\nnew\n"
    whole = [EOT, *b"aonetwo\nbend", EOT, *b"c"]
    assert drawn[1] == [whole[:2], whole[:5], whole[:10], whole]


def test_ctrl_c_stops_the_answer_and_not_the_program(tmp_path, monkeypatch, capsys, drawn):
    class Interrupted(bytes):
        def __getitem__(self, _):
            yield from b"on"
            os.kill(os.getpid(), signal.SIGINT)
            yield from b"ce more"

    drawn[0][:] = [Interrupted(), b"again"]
    assert talk(monkeypatch, capsys, tmp_path, "a\nb\n") == "on\nagain\n"
