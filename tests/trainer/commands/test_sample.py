"""Choosing tokens, streaming text, and the sample command."""

import dataclasses
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find
from ladder.core.device.open import Cpu
from tests.trainer.tiny import SHAPE, run, save_model
from trainer.commands import sample
from trainer.data import download
from trainer.data.tokenizers import CHARS_VOCABULARY, ByteTokenizer, CharTokenizer
from trainer.engine import generation
from trainer.engine.engine import Engine
from trainer.engine.generation import (
    Generator,
    NoChoice,
    Predictor,
    decode_stream,
    encode_prompt,
    generate,
)
from trainer.files import huggingface, weights
from trainer.flags import Flags
from trainer.model import registry
from trainer.model.program import build, initial_parameters
from trainer.report import printable


def draw(logits, temperature, top_k, n=4000):
    how = {"temperature": temperature, "top_k": top_k, "rng": np.random.default_rng(0)}
    tokens = generate(lambda ids: np.array(logits), [0], n, **how)
    return np.bincount([*tokens], minlength=len(logits)) / n


def test_tokens_come_as_often_as_the_softmax_says():
    logits = np.log([0.1, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(draw(logits, 1.0, 0), [0.1, 0.2, 0.3, 0.4], atol=0.03)
    squares = np.array([1, 4, 9, 16]) / 30  # temperature 1/2 squares the odds
    np.testing.assert_allclose(draw(logits, 0.5, 0), squares, atol=0.03)


def test_top_k_keeps_k_tokens_even_among_equals():
    logits = np.log([0.1, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(draw(logits, 1.0, 2), [0, 0, 3 / 7, 4 / 7], atol=0.03)
    assert np.count_nonzero(draw([1.0, 1.0, 1.0, 1.0], 1.0, 3)) == 3
    np.testing.assert_allclose(draw(logits, 1.0, 9), [0.1, 0.2, 0.3, 0.4], atol=0.03)


def test_temperature_0_takes_the_most_likely_token():
    assert draw([0.0, 3.0, 2.0], 0, 0, n=5)[1] == 1.0


def test_very_large_logits_do_not_overflow():
    assert draw([1e4, 2e4, 2e4 - 1e3], 1e-3, 0, n=5)[1] == 1.0


@pytest.mark.parametrize("broken", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_logits_that_are_not_finite_give_no_token(broken, temperature):
    with pytest.raises(NoChoice):
        draw([0.0, broken, 1.0], temperature, 0, n=1)


def test_a_model_that_overflows_gives_no_sample_and_the_run_decides_what_follows(tmp_path):
    overflow = dict(dtype="fp16", lr=1e3, sample_every=1, steps=2)
    outcome, screen = run(tmp_path, nonfinite="skip", **overflow)
    assert outcome.status == 0
    assert f" step 2: {NoChoice()}" in screen
    with pytest.raises(LadderError, match=r"^step 2: loss nan"):
        run(tmp_path, output=str(tmp_path / "other"), **overflow)


def test_a_character_of_several_tokens_comes_whole():
    ids = ByteTokenizer().encode("aé€")
    assert list(decode_stream(ByteTokenizer(), iter(ids))) == ["a", "é", "€"]
    assert "".join(decode_stream(ByteTokenizer(), iter(ids[:-1]))) == "aé\ufffd"


def test_a_sample_begins_as_a_document_does():
    assert encode_prompt(ByteTokenizer(), "a") == [256, 97]
    assert encode_prompt(ByteTokenizer(), "") == [256]
    assert encode_prompt(CharTokenizer(["\n", "a"]), "a") == [1]
    assert encode_prompt(CharTokenizer(["\n", "a"]), "") == [0]


def test_a_prompt_that_is_no_text_is_refused():
    for tokenizer in (ByteTokenizer(), CharTokenizer(["\n", "a"])):
        with pytest.raises(LadderError, match=r"^--prompt '\\udcff' .*UTF-8"):
            encode_prompt(tokenizer, "\udcff")


def make_engine(T):
    program = build(SHAPE, 1, T, training=False)
    rungs = {call.op: find(call.op).rung(0) for call in program.evaluate}
    return Engine(program, Cpu(), np.dtype(np.float32), rungs)


def test_the_window_slides_and_tokens_before_it_do_not_count():
    engine = make_engine(8)
    for name, array in initial_parameters(SHAPE, 0):
        engine.write(name, array * 20)  # so that the logits differ plainly
    predict = Predictor(engine, 257)
    ids = list(range(40, 52))
    np.testing.assert_array_equal(predict(ids), predict(ids[-8:]))
    assert not np.array_equal(predict(ids), predict(ids[:-1]))
    # A short text is padded at its end; the same positions in a full window say the same.
    engine.write("tokens", np.array([ids[:8]], np.int32))
    engine.predict()
    np.testing.assert_allclose(predict(ids[:3]), engine.read("logits")[0, 2, :257], rtol=1e-5)


def test_only_ids_that_the_tokenizer_knows_are_drawn():
    engine = make_engine(8)
    for name, array in initial_parameters(SHAPE, 0):
        engine.write(name, array)
    predict = Predictor(engine, 100)
    rng = np.random.default_rng(0)
    ids = list(generate(predict, [1], 40, temperature=5.0, top_k=0, rng=rng))
    assert len(ids) == 40
    assert max(ids) < 100


@pytest.mark.slow
def test_the_command_continues_a_prompt_and_repeats_itself_by_seed(tmp_path, capsys):
    words = ["-e", save_model(tmp_path / "model"), "--data-dir", str(tmp_path), "--device", "cpu"]
    words += ["--prompt", "ROMEO", "-g", "40"]
    told = []
    for more in ([], [], ["--seed", "7"]):
        assert sample.main([*words, *more]) == 0
        told.append(capsys.readouterr())
    assert told[0].out.startswith("ROMEO")
    assert told[0].out == told[1].out != told[2].out
    assert re.search(r"^\[40 .* [\d,]+ tokens/s.*\]$", told[0].err)


def test_prompts_of_a_file_are_continued_together(tmp_path, capsys):
    model, file = save_model(tmp_path / "model", factor=5.0), tmp_path / "prompts"
    words = ["-e", model, "--device", "cpu", "--data-dir", str(tmp_path), "-g", "9"]
    assert sample.main([*words, "--prompt", "RO"]) == 0
    alone = capsys.readouterr().out
    file.write_text("RO\nJULIET\n")
    assert sample.main([*words, "--prompts", str(file)]) == 0
    first, second = capsys.readouterr().out.split("--- 2 of 2 ---\n")
    assert first == "--- 1 of 2 ---\n" + alone
    assert second.startswith("JULIET")
    with pytest.raises(LadderError, match=r"^--prompt .*--prompts"):
        sample.main([*words, "--prompts", str(file), "--prompt", "RO"])
    file.write_text("")
    with pytest.raises(LadderError, match=rf"^--prompts {file}: "):
        sample.main([*words, "--prompts", str(file)])
    with pytest.raises(LadderError, match=r"^--prompts: .*/none"):
        sample.main([*words, "--prompts", str(tmp_path / "none")])


@pytest.mark.slow
def test_a_terminal_that_lacks_a_character_shows_a_question_mark(tmp_path):
    words = ["-e", save_model(tmp_path / "model"), "--prompt", "a→é", "-g", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "trainer", "sample", "--device", "cpu", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("a??")


def test_control_characters_of_a_sample_do_not_reach_the_terminal():
    assert printable("a\tb\nc é→\u00a0") == "a\tb\nc é→\u00a0"
    for code in (*range(32), *range(127, 160)):
        shown = printable(f"<{chr(code)}>")
        assert shown == (f"<{chr(code)}>" if chr(code) in "\t\n" else "<\ufffd>"), code


def test_the_sample_command_prints_no_control_characters(tmp_path, monkeypatch, capsys):
    word = "a\x1b]0;title\x07\x9b2J\rz"
    drawn = [[token] for token in word.encode()]
    monkeypatch.setattr(Generator, "generate", lambda *_, **__: iter(drawn))
    words = ["-e", save_model(tmp_path / "model"), "--device", "cpu", "--prompt", "\x1b[2J"]
    assert sample.main([*words, "--data-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "\ufffd[2J" + "a\ufffd]0;title\ufffd\ufffd2J\ufffdz\n"


def test_a_run_prints_no_control_characters_and_its_log_keeps_them(tmp_path, monkeypatch):
    monkeypatch.setattr(generation, "generate", lambda *_, **__: iter(b"a\x1b[2Jz"))
    outcome, screen = run(tmp_path, steps=1, sample_every=1)
    assert "a\ufffd[2Jz" in screen and "\x1b" not in screen
    lines = (outcome.directory / "log.jsonl").read_text().splitlines()
    samples = [json.loads(line)["sample"] for line in lines if "sample" in line]
    assert samples and all(text.endswith("a\x1b[2Jz") for text in samples)


def test_missing_weights_are_not_sampled_from(tmp_path, monkeypatch):
    def offline(*_):
        raise download.DownloadError("cannot download it")

    monkeypatch.setattr(huggingface, "find_pretrained", offline)
    flags = Flags(model="gpt2", device="cpu", tokenizer="bytes", data_dir=str(tmp_path))
    size = dataclasses.replace(registry.SIZES["gpt2"], config=SHAPE)
    monkeypatch.setitem(registry.SIZES, "gpt2", size)
    with pytest.raises(LadderError, match=r"^-e gpt2: cannot download it"):
        sample.open_generator(flags)


@pytest.mark.parametrize(
    ("model", "tokenizer", "names"),
    [
        ("d12", "bytes", "^-e d12: .* by -e$"),
        ("nothing", "bytes", "^-e nothing: "),
        ("model", "gpt2", "^--tokenizer gpt2: model .*bytes;"),
    ],
)
def test_what_cannot_be_sampled_is_refused(tmp_path, monkeypatch, model, tokenizer, names):
    save_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    if tokenizer == "gpt2":
        from trainer.data.tokenizers import GPT2Tokenizer

        monkeypatch.setattr(weights, "get_tokenizer", lambda *_: GPT2Tokenizer("unread"))
    flags = Flags(model=model, device="cpu", tokenizer=tokenizer, data_dir=str(tmp_path))
    with pytest.raises(LadderError, match=names):
        sample.open_generator(flags)


def test_another_tokenizer_than_that_of_the_run_is_refused(tmp_path):
    """One of fewer tokens, too: a forward pass takes its ids, but they mean other text."""
    CharTokenizer(["\n", "a"]).save(
        download.writable_place(tmp_path, f"tinyshakespeare/{CHARS_VOCABULARY}")
    )
    words = {"device": "cpu", "data_dir": str(tmp_path)}
    run_of_bytes = Flags(model=save_model(tmp_path / "run"), tokenizer="chars", **words)
    with pytest.raises(LadderError, match=r"^--tokenizer chars: .*run .*bytes;"):
        sample.open_generator(run_of_bytes)


@pytest.mark.parametrize(
    ("vocab", "names"), [(257, None), (384, None), (385, "bytes .* 257 .* 385; .*--tokenizer")]
)
def test_a_file_may_round_its_vocabulary_up_and_no_more(tmp_path, monkeypatch, vocab, names):
    """A file names no tokenizer, so only the number of its tokens can tell."""
    shape = dataclasses.replace(SHAPE, vocab=vocab, padded_vocab=512)
    model = dataclasses.replace(weights.random_model(shape, seed=0), trained=True)
    monkeypatch.setattr(weights, "open_file", lambda *_: model)
    flags = Flags(model="model.bin", device="cpu", tokenizer="bytes", data_dir=str(tmp_path))
    if names is None:
        sample.open_generator(flags)
    else:
        with pytest.raises(LadderError, match=names):
            sample.open_generator(flags)
