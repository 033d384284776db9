"""`python -m trainer export`: what other programs get is what was trained."""

import dataclasses
import json
import struct

import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from reference import gpt2
from tests.trainer.tiny import PARAMETERS, SHAPE, add_size, assert_same, save_model
from trainer.commands import export
from trainer.data.datasets import prepare
from trainer.data.download import DownloadError
from trainer.data.token_files import TokenLoader
from trainer.data.tokenizers import ByteTokenizer, CharTokenizer
from trainer.files import huggingface, llmc_files, weights


@pytest.fixture
def run_folder(tmp_path):
    return save_model(tmp_path / "run", dropout=0.1, factor=3.0)


def call(tmp_path, model, to, output, *words):
    path = tmp_path / output
    where = ["-o", str(path), "--data-dir", str(tmp_path)]
    assert export.main([model, "--to", to, *where, *words]) == 0
    return path


def whole(name, tmp_path):
    """The config and the whole parameters of whatever -e takes."""
    model = weights.open_model(str(name), vocab=257, seed=1, data_dir=tmp_path)
    read = export.whole_parameters(model)
    return model.shape, {name: read(name) for name in PARAMETERS}


def test_hugging_faces_folder_holds_the_weights_the_tokenizer_and_how_to_generate(
    tmp_path, run_folder, capsys
):
    folder = call(tmp_path, run_folder, "hf", "hf")
    shape, tensors = whole(folder, tmp_path)
    assert shape == SHAPE  # files do not keep the dropout
    assert_same(tensors, whole(run_folder, tmp_path)[1])
    settings = {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}
    assert settings.keys() == {
        *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    }
    assert settings["config.json"]["resid_pdrop"] == 0.1
    assert settings["config.json"]["eos_token_id"] == ByteTokenizer.eot
    assert settings["generation_config.json"]["eos_token_id"] == ByteTokenizer.eot
    assert settings["tokenizer_config.json"]["eos_token"] == "<|endoftext|>"
    assert settings["tokenizer_config.json"]["model_max_length"] == SHAPE.context
    said = capsys.readouterr().out
    assert said.startswith(f"{folder}: {SHAPE.summary}, ") and f"{run_folder}, step 0\n" in said


def test_a_folder_that_was_exported_before_is_written_again_and_another_is_not(
    tmp_path, run_folder
):
    folder = call(tmp_path, run_folder, "hf", "hf")
    (folder / "config.json").unlink()
    call(tmp_path, run_folder, "hf", "hf")
    assert (folder / "config.json").exists()
    with pytest.raises(LadderError, match=r"^-o .*/run "):
        call(tmp_path, run_folder, "hf", "run")


@pytest.mark.parametrize(("to", "dtype"), [("llmc", "float32"), ("llmc-bf16", "bfloat16")])
def test_llmcs_file_is_the_one_that_save_model_writes(tmp_path, run_folder, to, dtype):
    path = call(tmp_path, run_folder, to, "model.bin")
    _, tensors = whole(run_folder, tmp_path)
    llmc_files.save_model(tmp_path / "expected.bin", SHAPE, tensors.__getitem__, dtype)
    assert path.read_bytes() == (tmp_path / "expected.bin").read_bytes()


def test_every_kind_of_model_is_exported(tmp_path, run_folder):
    """From a run, llm.c's file, Hugging Face's folder; each time the same file."""
    first = call(tmp_path, run_folder, "llmc", "first.bin")
    folder = call(tmp_path, str(first), "hf", "hf", "--tokenizer", "bytes")
    again = call(tmp_path, str(folder), "llmc", "again.bin", "--tokenizer", "bytes")
    assert again.read_bytes() == first.read_bytes()


def test_a_debug_state_holds_a_batch_and_the_models_results_on_it(tmp_path, run_folder):
    B, T = 2, 8
    words = ("-b", str(B), "-t", str(T), "--dataset", "play")
    path = call(tmp_path, run_folder, "debug-state", "state.bin", *words)
    raw = path.read_bytes()
    assert struct.unpack("<4i", raw[:16]) == (20240327, 2, B, T)
    batch = np.frombuffer(raw, "<i4", 2 * B * T, 1024).reshape(2, B, T)
    val = prepare("play", tmp_path, "bytes").val
    expected = TokenLoader(val, B, T, vocab=257, shuffle=False).next_batch()
    np.testing.assert_array_equal(batch, expected)
    rest = np.frombuffer(raw, "<f4", offset=1024 + 4 * batch.size)

    _, tensors = whole(run_folder, tmp_path)
    tensors = {name: array.astype(np.float64) for name, array in tensors.items()}
    tensors["wte"] = tensors["wte"][: SHAPE.vocab]
    logits, loss, kept = gpt2.forward(tensors, *batch, SHAPE.heads)
    gradients = gpt2.backward(tensors, kept)
    padding = ((0, SHAPE.padded_vocab - SHAPE.vocab), (0, 0))
    gradients["wte"] = np.pad(gradients["wte"], padding)
    flat = [logits.ravel(), [loss], *(gradients[name].ravel() for name in PARAMETERS)]
    np.testing.assert_allclose(rest, np.concatenate(flat), rtol=2e-4, atol=2e-6)


def test_a_tokenizer_is_exported_for_the_model_that_uses_it(tmp_path, run_folder):
    path = call(tmp_path, run_folder, "tokenizer", "tokenizer.bin")
    llmc_files.save_tokenizer(tmp_path / "expected.bin", ByteTokenizer())
    assert path.read_bytes() == (tmp_path / "expected.bin").read_bytes()


def test_a_size_without_weights_is_exported_with_random_ones_by_seed(tmp_path, monkeypatch):
    add_size(monkeypatch, "d1", layers=1, channels=4, heads=1, context=8)
    words = ("--tokenizer", "bytes")
    files = [
        call(tmp_path, "d1", "llmc", f"{i}.bin", *words, "--seed", seed).read_bytes()
        for i, seed in enumerate("112")
    ]
    assert files[0] == files[1] != files[2]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["nothing", "--to", "hf", "-o", "x"], "^-e nothing: "),
        (["run", "--to", "hf"], "^-o .*--to hf"),
        (["run", "--to", "onnx", "-o", "x"], "--to: .*'onnx'"),
        (["run", "--to", "llmc", "-o", "run"], "^-o run "),
        (["run", "--to", "hf", "-o", "file"], "^-o file "),
        (["run", "--to", "hf", "-o", "x", "--tokenizer", "chars"], "^--tokenizer chars: run "),
        (["run", "--to", "debug-state", "-o", "x", "-t", "33"], "-t 33 .* -t 32"),
        (["gpt2", "--to", "llmc", "-o", "x"], "^gpt2: cannot download gpt2; put it there$"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_line(
    tmp_path, monkeypatch, run_folder, words, names
):
    def offline(name, data_dir):
        raise DownloadError(f"cannot download {name}; put it there")

    monkeypatch.setattr(huggingface, "find_pretrained", offline)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    size = dataclasses.replace(weights.SIZES["gpt2"], tokenizer="bytes", config=SHAPE)
    monkeypatch.setitem(weights.SIZES, "gpt2", size)
    if "chars" in words:
        monkeypatch.setattr(weights, "get_tokenizer", lambda *_: CharTokenizer.of_text("ab"))
    more = ["--data-dir", str(tmp_path), "--dataset", "play"]
    with pytest.raises(LadderError, match=names):
        export.main([*words, *more])
    assert not (tmp_path / "x").exists()
