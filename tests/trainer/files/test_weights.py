"""The models that -e names."""

from pathlib import Path

import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from tests.trainer.tiny import PARAMETERS, SHAPE, save_model
from trainer.files import checkpoint, weights
from trainer.flags import Flags


def test_pretrained_weights_need_gpt2s_tokens(tmp_path):
    model = weights.open_model("gpt2", vocab=257, seed=1, data_dir=tmp_path)
    assert not model.trained
    assert model.note.startswith(f"{weights.INSTEAD} gpt2's")
    assert model.shape.vocab == 257


def test_a_checkpoint_is_a_model_and_knows_its_tokenizer(tmp_path):
    name = save_model(tmp_path / "run", dropout=0.1)
    model = weights.open_model(name, vocab=5, seed=1, data_dir=tmp_path)
    assert model.trained
    assert model.shape.dropout == 0.1
    assert [piece[0] for piece in model.pieces] == list(PARAMETERS)
    assert weights.tokenizer_of(name) == "bytes"


def saved_again(tmp_path, change):
    """A checkpoint whose state is changed; returns what `-e` takes."""
    tensors, state = checkpoint.load(save_model(tmp_path / "good"), 0)
    change(state)
    reads = {name: (lambda name=name: tensors[name]) for name in tensors}
    checkpoint.save(tmp_path / "again", 0, reads, state)
    return str(tmp_path / "again")


@pytest.mark.parametrize(
    "change",
    [
        {"layers": 3},
        {"heads": 3},
        {"channels": "many"},
        {"dropout": 1.0},
        {"vocab": 10**9},
        {"x": 1},
    ],
)
def test_a_checkpoint_whose_state_does_not_fit_its_tensors_is_refused(tmp_path, change):
    again = saved_again(tmp_path, lambda state: state["shape"].update(change))
    with pytest.raises(LadderError, match="again/step_00000000"):
        weights.open_model(again, vocab=257, seed=1, data_dir=tmp_path)


def test_a_checkpoint_that_names_no_architecture_is_of_gpt2(tmp_path):
    """As those that were written before there was a choice."""
    old = saved_again(tmp_path, lambda state: state.pop("architecture"))
    model = weights.open_model(old, vocab=257, seed=1, data_dir=tmp_path)
    assert model.shape == SHAPE


def test_a_checkpoint_of_an_unknown_architecture_is_refused(tmp_path):
    again = saved_again(tmp_path, lambda state: state.update(architecture="rnn"))
    with pytest.raises(LadderError, match="'rnn'"):
        weights.open_model(again, vocab=257, seed=1, data_dir=tmp_path)


def test_weights_that_are_not_finite_are_refused(tmp_path):
    name = save_model(tmp_path / "bad", factor=np.nan)
    model = weights.open_model(name, vocab=257, seed=1, data_dir=tmp_path)
    with pytest.raises(LadderError, match=r" wte .*NaN"):
        list(model.pieces)


@pytest.mark.parametrize(
    ("name", "instead"), [("gtp2", "gpt2"), ("model.bin", "gpt2"), ("notes.txt", "[.]safetensors")]
)
def test_what_is_no_model_is_refused(tmp_path, monkeypatch, name, instead):
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("no model")
    with pytest.raises(LadderError, match=f"^-e {name}: .*{instead}"):
        weights.open_model(name, vocab=257, seed=1, data_dir=tmp_path)


def test_a_checkpoint_whose_tokenizer_is_no_name_is_refused(tmp_path):
    again = saved_again(tmp_path, lambda state: state.update(tokenizer=[1]))
    with pytest.raises(LadderError, match=r"tokenizer '\[1\]'"):
        weights.open_with_tokenizer(Flags(model=again, data_dir=str(tmp_path)))


def test_a_folder_without_a_model_is_refused_before_a_vocabulary_is_fetched(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "get_tokenizer", None)
    with pytest.raises(LadderError, match=f"{tmp_path}.* model.safetensors;"):
        weights.open_with_tokenizer(Flags(model=str(tmp_path), data_dir=str(tmp_path)))
