"""What a run leaves at its end: its model, for other commands, programs and runs."""

import re
from dataclasses import replace

import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from tests.trainer.parallel_run import run_ranks
from tests.trainer.tiny import SHAPE, run, settings
from trainer.commands import plot, sample
from trainer.commands.parser import parse
from trainer.data.tokenizers import ByteTokenizer, CharTokenizer
from trainer.files import checkpoint, kept_model, weights
from trainer.flags import Flags
from trainer.open import of_newest_run


def arrays(model):
    return {(name, layer): array for name, layer, array in model.pieces}


def opened(folder, tmp_path):
    return weights.open_file(folder)


def test_a_run_leaves_the_model_that_its_checkpoint_would_hold(tmp_path):
    _, screen = run(tmp_path, keep_model=True, checkpoint_every=6)
    kept = opened(tmp_path / "run" / "model", tmp_path)
    tensors = checkpoint.load(tmp_path / "run", 6)[0]
    for (name, layer), array in arrays(kept).items():
        whole = tensors[name] if layer is None else tensors[name][layer]
        np.testing.assert_array_equal(array[tuple(map(slice, whole.shape))], whole)
    assert (kept.tokenizer, kept.shape.layers) == ("bytes", SHAPE.layers)
    assert "model, 0 MB" in screen


def test_ranks_leave_the_model_that_they_share(tmp_path):
    flags = settings(tmp_path, total_tokens=128, steps=2, dtype="bf16", keep_model=True)
    for ranks in (1, 2):
        run_ranks(ranks, Flags(**{**flags, "output": str(tmp_path / f"run{ranks}")}))
    one, two = (arrays(opened(tmp_path / f"run{ranks}", tmp_path)) for ranks in (1, 2))
    assert one.keys() == two.keys()
    for key, array in one.items():
        np.testing.assert_allclose(two[key], array, atol=2 * flags["lr"])


@pytest.mark.slow
def test_the_model_before_is_kept_beside_it_and_no_model_means_none(tmp_path):
    folder = tmp_path / "run"
    run(tmp_path, keep_model=False)
    assert kept_model.find(folder) is None
    run(tmp_path, keep_model=True, steps=1)
    first = arrays(opened(folder, tmp_path))
    for steps in (2, 3):
        _, screen = run(tmp_path, keep_model=True, steps=steps)
        assert "model.previous" in screen
    second = arrays(opened(folder / "model.previous", tmp_path))
    last = arrays(opened(folder, tmp_path))
    key = ("qkvw", 0)
    assert not np.array_equal(first[key], second[key])
    assert not np.array_equal(second[key], last[key])


def test_samples_come_from_the_newest_run_unless_e_names_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["--prompt", "a", "--sample-tokens", "2", "--device", "cpu"]
    assert of_newest_run(Flags()) == Flags()
    assert "[-e gpt2; " in capsys.readouterr().err
    for name in ("old", "new"):
        run(tmp_path, keep_model=True, steps=1, output=f"runs/{name}")
    assert sample.main(words) == 0
    assert re.search(r"\[-e runs/new; .*runs/old\]", capsys.readouterr().err)
    with pytest.raises(LadderError, match=r"^-e runs .*: runs/new, runs/old"):
        sample.main(["-e", "runs", *words])
    for wrong in ("runs/odl", "old1"):  # the nearest first
        with pytest.raises(LadderError, match=f"^-e {wrong}: .* runs/old, runs/new"):
            sample.main(["-e", wrong, *words])
        for command in (plot.main, lambda words: parse(["--config", *words])):
            with pytest.raises(LadderError, match=f"{wrong}.* runs/old, runs/new"):
                command([wrong])
    assert sample.main(["-e", "runs/old", *words]) == 0
    assert "runs/new" not in capsys.readouterr().err


def test_a_model_brings_the_characters_of_its_text(tmp_path):
    tokenizer = CharTokenizer(list("b\nai"), "chars:of a text that is elsewhere")
    shape = replace(SHAPE, vocab=4, padded_vocab=128)
    kept_model.keep(
        tmp_path, shape, lambda name: np.zeros(shape.parameter_shapes()[name]), tokenizer
    )
    for name in (tmp_path, tmp_path / "model", tmp_path / "model" / "model.safetensors"):
        flags = Flags(model=str(name), data_dir=str(tmp_path / "data"))
        _, opened_with = weights.open_with_tokenizer(flags)
        assert (opened_with.name, opened_with.symbols) == (tokenizer.name, tokenizer.symbols)
    (tmp_path / "model/tokenizer.json").write_text("{}")
    with pytest.raises(LadderError, match=str(tmp_path / "model/tokenizer.json")):
        weights.open_with_tokenizer(flags)


def test_the_newer_of_model_and_checkpoint_is_read(tmp_path):
    run(tmp_path, keep_model=True, steps=2, checkpoint_every=2)
    run(tmp_path, keep_model=True, steps=4, resume=True)
    assert opened(tmp_path / "run", tmp_path).source.endswith("run/model")
    run(tmp_path, steps=6, checkpoint_every=6, resume=True)
    assert opened(tmp_path / "run", tmp_path).source.endswith("run, step 6")


def test_a_broken_export_leaves_the_model_that_was_there(tmp_path):
    def fails(name):
        raise OSError(28, "No space left on device")

    kept_model.keep(
        tmp_path, SHAPE, lambda name: np.zeros(SHAPE.parameter_shapes()[name]), ByteTokenizer()
    )
    with pytest.raises(LadderError, match="No space left on device"):
        kept_model.keep(tmp_path, SHAPE, fails, ByteTokenizer())
    assert opened(tmp_path, tmp_path).tokenizer == "bytes"
