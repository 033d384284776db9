"""Runs whose 16-bit weights are rounded at random, with float32 masters and without."""

import dataclasses
import re

import ml_dtypes
import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find
from tests.trainer.tiny import (
    PARAMETERS,
    SHAPE,
    assert_same,
    losses,
    needs_compiler,
    parameters,
    resolved,
    run,
    save_model,
    settings,
)
from trainer.files import checkpoint
from trainer.files.weights import open_model
from trainer.flags import Flags
from trainer.model.program import build
from trainer.open import open_run

OWN_MASTERS = {"dtype": "bf16", "master_weights": False}
DROPPING = dataclasses.replace(SHAPE, dropout=0.1)
WITH_MASTERS = {"dtype": "bf16", "stochastic_rounding": True}


EMULATED = pytest.param(
    "emulated", OWN_MASTERS, marks=(needs_compiler, pytest.mark.emulator), id="emulated"
)


@pytest.mark.costly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "rounding"), [("cpu", OWN_MASTERS), ("cpu", WITH_MASTERS), EMULATED]
)
def test_a_resumed_run_is_the_same_to_the_bit(tmp_path, device, rounding):
    """Dropout included, which draws from the same counters; a batch of two micro-batches."""
    model = save_model(tmp_path / "dropping", dropout=0.2)
    common = {"model": model, "total_tokens": 64, "checkpoint_every": 1, "device": device}
    common |= {**rounding, "val_batches": 1, "rungs": "reference" if device == "cpu" else "naive"}
    run(tmp_path, steps=2, **common, output=str(tmp_path / "straight"))
    run(tmp_path, steps=1, **common)
    run(tmp_path, steps=2, **common, resume=True)
    assert losses(tmp_path / "run") == losses(tmp_path / "straight") != []
    assert_same(parameters(tmp_path / "run", 2), parameters(tmp_path / "straight", 2))


@pytest.mark.costly
@pytest.mark.emulator
@needs_compiler
def test_without_masters_the_losses_stay_near_those_with_them(tmp_path):
    common = {"steps": 3, "lr": 1e-3, "device": "emulated", "rungs": "naive"}
    _, kept = run(tmp_path, **common, dtype="bf16", output=str(tmp_path / "masters"))
    _, spared = run(tmp_path, **common, **OWN_MASTERS, output=str(tmp_path / "alone"))
    with_masters, alone = losses(tmp_path / "masters"), losses(tmp_path / "alone")
    np.testing.assert_allclose(alone, with_masters, rtol=2e-3)
    assert alone != with_masters and len(alone) == 3
    assert re.search("(?m)^master ", kept) and not re.search("(?m)^master ", spared)


def test_without_masters_their_memory_is_not_allocated(tmp_path):
    kept = open_run(Flags(**settings(tmp_path, **WITH_MASTERS)))
    spared = open_run(Flags(**settings(tmp_path, **OWN_MASTERS)))
    before, after = (setup.engine.memory_by_kind() for setup in (kept, spared))
    assert before.pop("master") == before["moment"] // 2
    assert after == before
    assert spared.engine.read("wte").dtype == ml_dtypes.bfloat16


def test_a_checkpoint_holds_the_weights_in_float32_and_can_be_trained_on_and_exported(tmp_path):
    run(tmp_path, steps=2, checkpoint_every=2, **OWN_MASTERS)
    tensors, _ = checkpoint.load(tmp_path / "run", 2)
    for name in PARAMETERS:
        assert tensors[name].dtype == np.float32
        narrow = tensors[name].astype(ml_dtypes.bfloat16)
        np.testing.assert_array_equal(narrow.astype(np.float32), tensors[name])
    model = open_model(str(tmp_path / "run"), vocab=257, seed=0, data_dir=tmp_path)
    pieces = [(name, layer) for name, layer, array in model.pieces if array.dtype == np.float32]
    assert {name for name, _ in pieces} == set(PARAMETERS)
    again = {"model": str(tmp_path / "run"), "output": str(tmp_path / "again"), "steps": 1}
    run(tmp_path, **again)


def test_each_tensor_and_each_dropout_has_random_words_of_its_own():
    program = build(DROPPING, 2, 5, stochastic_rounding=True)
    calls = {call for part in (program.forward, program.update) for call in part}
    streams = [call.scalars["stream"] for call in calls if "stream" in call.scalars]
    assert len(set(streams)) == len(streams) == len(PARAMETERS) + 1 + 2 * SHAPE.layers


@pytest.mark.parametrize("stochastic", [False, True])
def test_the_update_rounds_at_random_only_where_it_is_asked_to(stochastic):
    """Dropout's random state is there in both cases."""
    program = build(DROPPING, 2, 5, stochastic_rounding=stochastic)
    names = [arg.name for arg in find("adamw.update").op.args]
    given = {call.args[names.index("rng")] for call in program.update if "adamw" in call.op}
    assert given == {("rng", None) if stochastic else None}


@pytest.mark.parametrize(
    ("changes", "masters", "stochastic"),
    [
        ({}, True, False),
        ({"master_weights": False}, False, False),
        ({"dtype": "bf16"}, True, False),
        ({"dtype": "fp16", "stochastic_rounding": True}, True, True),
        (OWN_MASTERS, False, True),
        ({**OWN_MASTERS, "stochastic_rounding": True}, False, True),
    ],
)
def test_rounding_follows_from_dtype_and_masters(changes, masters, stochastic):
    config = resolved("cpu", 64, **changes)
    assert (config.master_weights, config.stochastic_rounding) == (masters, stochastic)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"stochastic_rounding": True}, "--stochastic-rounding: .*--dtype bf16"),
        ({"dtype": "fp16", "master_weights": False}, "-w 0: .*--dtype bf16"),
        ({**OWN_MASTERS, "stochastic_rounding": False}, "-w 0 --stochastic-rounding 0: "),
    ],
)
def test_impossible_rounding_settings_are_refused(changes, names):
    with pytest.raises(LadderError, match=names):
        resolved("cpu", 64, **changes)
