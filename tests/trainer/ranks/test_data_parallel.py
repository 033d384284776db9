"""Several ranks train as one process does that accumulates: ranks as threads, on a tiny model."""

import re
import shutil

import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.device.open import Cpu
from tests.trainer.parallel_run import run_ranks, together
from tests.trainer.tiny import SHAPE, parameters, save_model, settings
from trainer import report
from trainer.engine import memory
from trainer.files import checkpoint, logs
from trainer.flags import Flags
from trainer.model.program import build
from trainer.model.sharding import ALIGNMENT, Sharding, cut
from trainer.open import open_run
from trainer.ranks import group as group_module
from trainer.ranks.group import HostSums
from trainer.train import take_step, train

STEPS = 4
TOKENS = 2 * 16 * 6  # of a step: six micro-batches, for 1, 2 or 3 ranks


@pytest.fixture(autouse=True)
def no_roof(monkeypatch):
    """A second of matrix products for every run."""
    monkeypatch.setattr(report, "measured_roof", lambda device, real, tf32: 1e9)


def course(directory, name="train_loss"):
    return [e[name] for e in logs.read(directory / "log.jsonl") if name in e]


def flags_of(tmp_path, ranks, **changes):
    if not (tmp_path / "model").exists():
        save_model(tmp_path / "model", dropout=0.2)
    common = {
        "model": str(tmp_path / "model"),
        "total_tokens": TOKENS,
        "steps": STEPS,
        "checkpoint_every": 2,
        "val_batches": 3,  # fewer than 4 ranks
        "grad_clip": 0.5,
        "weight_decay": 0.1,
        "output": str(tmp_path / f"run{ranks}"),
    }
    return Flags(**settings(tmp_path, **{**common, **changes}))


# Between the first and the last step, rounding to 16 bits makes more of a difference in the last
# bit of a float32 sum.
KINDS = {
    "all-reduce": ({"zero": 0}, 1e-6),
    "bf16 with masters, recomputed": ({"dtype": "bf16", "recompute": 2}, 2e-3),
    "bf16 rounded at random": ({"dtype": "bf16", "stochastic_rounding": True}, 2e-3),
    "in order, no dropout": ({"shuffle": False}, 1e-6),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [3, pytest.param(4, marks=pytest.mark.sweep)])
def test_ranks_train_as_accumulated_micro_batches_do(tmp_path, kind, ranks):
    changes, tolerance = KINDS[kind]
    changes = {"total_tokens": 2 * TOKENS, **changes} if ranks == 4 else changes
    run_ranks(1, flags_of(tmp_path, 1, **changes))
    outcomes, screen = run_ranks(ranks, flags_of(tmp_path, ranks, **changes))
    one, several = tmp_path / "run1", tmp_path / f"run{ranks}"
    np.testing.assert_allclose(course(several), course(one), rtol=tolerance)
    np.testing.assert_allclose(course(several, "norm"), course(one, "norm"), rtol=10 * tolerance)
    np.testing.assert_allclose(course(several, "val_loss"), course(one, "val_loss"), rtol=tolerance)
    assert course(several)[0] == course(one)[0]  # the same batches, the same dropout
    assert [outcome.val_losses for outcome in outcomes] == [outcomes[0].val_losses] * ranks
    a, b = parameters(one, STEPS), parameters(several, STEPS)
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].shape == b[name].shape
    np.testing.assert_allclose(b["wpe"], a["wpe"], atol=200 * tolerance * 1e-2)
    states = [checkpoint.load(run, STEPS)[1] for run in (one, several)]
    assert states[0]["train"] == states[1]["train"]
    assert f"{ranks} on here" in screen


@pytest.mark.sweep
@pytest.mark.emulator
def test_kernels_update_shares_as_they_update_whole_tensors(tmp_path):
    """The emulator watches every access, at the ends of pieces, too."""
    kernels = {
        "device": "emulated",
        "rungs": "naive",
        "rung": {"adamw.update": "3", "global_norm.forward": "3"},
        "steps": 2,
        "dtype": "bf16",
    }
    run_ranks(1, flags_of(tmp_path, 1, **kernels))
    run_ranks(3, flags_of(tmp_path, 3, **kernels))
    np.testing.assert_allclose(course(tmp_path / "run3"), course(tmp_path / "run1"), rtol=2e-3)


def test_a_resumed_run_names_the_numbers_of_ranks_that_can_share_its_steps(tmp_path):
    run_ranks(1, flags_of(tmp_path, 1, steps=2))
    rest = flags_of(tmp_path, 1, resume=True, total_tokens=None)
    with pytest.raises(LadderError, match=r"-d 192, .* -b 2 -t 16, .* 4 .*--ranks 6 "):
        together(4, lambda group: open_run(rest, group))


@pytest.mark.slow
def test_a_run_goes_on_bit_for_bit_on_as_many_ranks_and_nearly_on_others(tmp_path):
    whole = flags_of(tmp_path, 2, dtype="bf16")
    run_ranks(2, whole)
    expected = parameters(tmp_path / "run2", STEPS)
    half = flags_of(tmp_path, 2, dtype="bf16", steps=2, output=str(tmp_path / "half"))
    run_ranks(2, half)
    for ranks in (2, 3, 1):
        folder = shutil.copytree(tmp_path / "half", tmp_path / f"again{ranks}")
        rest = flags_of(tmp_path, 2, dtype="bf16", output=str(folder), resume=True)
        outcomes, _ = run_ranks(ranks, rest)
        assert [step for step, _ in outcomes[0].val_losses] == [STEPS]
        tensors = parameters(folder, STEPS)
        assert tensors.keys() == expected.keys()
        for name in expected:
            if ranks == 2:
                assert tensors[name].tobytes() == expected[name].tobytes(), name
        tolerance = 0 if ranks == 2 else 2e-3
        np.testing.assert_allclose(course(folder), course(tmp_path / "run2"), rtol=tolerance)


@pytest.mark.slow
def test_ranks_share_moments_and_masters_and_the_memory_table_says_so(tmp_path):
    whole = build(SHAPE, 2, 16)
    shares = [build(SHAPE, 2, 16, sharding=Sharding(rank, 3, 1)) for rank in range(3)]

    def elements(program, kind):
        buffers = (
            b for b in program.buffers.values() if b.kind == kind and b.inside is b.pieces is None
        )
        return sum(int(np.prod(buffer.shape)) for buffer in buffers)

    for kind, copies in (("moment", 2), ("master", 1)):
        vector = shares[0].vector
        tensors = sum(len(bucket.slices) for bucket in vector.buckets)
        padding = copies * ALIGNMENT * (tensors + 3 * len(vector.buckets))
        for program in shares:
            assert elements(program, kind) == copies * vector.size // 3
        assert 0 <= copies * vector.size - elements(whole, kind) <= padding
    _, screen = run_ranks(3, flags_of(tmp_path, 3, dtype="bf16", checkpoint_every=0))
    assert "moment, 1/3 " in screen
    assert "master, 1/3 " in screen
    assert "(-z 1)" in screen


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_shares_hold_every_element_of_every_parameter_once(size):
    """With 64 ranks some of them own nothing at all."""
    sharding = Sharding(0, size, stage=1, overlaps=True)
    vector = cut(SHAPE, build(SHAPE, 2, 16).backward, sharding)
    places = np.zeros((size, vector.size // size), int)
    for name, shape in SHAPE.parameter_shapes().items():
        seen = np.zeros(int(np.prod(shape)), int)
        for rank in range(size):
            for piece, place in vector.pieces(rank, name):
                assert piece.start % ALIGNMENT == place % ALIGNMENT == 0
                seen[piece.first : piece.first + piece.count] += 1
                places[rank, place : place + piece.count] += 1
        assert (seen == 1).all()
    assert places.max() == 1


@pytest.mark.parametrize("piece", [8, 1 << 18])
def test_sums_of_the_host_are_those_of_the_ranks_in_order(monkeypatch, piece):
    monkeypatch.setattr(group_module, "PIECE", piece)  # bytes of a message
    arrays = [np.float32([1e8, 1.0, -3.0]) * (rank + 1) for rank in range(3)]

    def work(group):
        sums = HostSums(group)
        whole, share, parts = (arrays[group.rank].copy() for _ in range(3))
        sums.all_reduce(whole)
        sums.reduce_scatter(share)
        sums.all_gather(parts)
        return whole, share[group.rank], parts

    total = (arrays[0] + arrays[1]) + arrays[2]
    for rank, (whole, share, parts) in enumerate(together(3, work)):
        np.testing.assert_array_equal(whole, total)
        assert share == total[rank]
        np.testing.assert_array_equal(parts, [arrays[0][0], arrays[1][1], arrays[2][2]])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_updates_are_skipped_on_all_ranks_or_on_none(tmp_path, monkeypatch):
    """A loss scale that overflows on one rank only: the sum of the gradients does on all."""
    flags = flags_of(tmp_path, 2, dtype="fp16", checkpoint_every=0, nonfinite="skip")

    def work(group):
        setup = open_run(flags, group)
        forward = setup.engine.forward

        def overflow():
            if group.rank == 1 and number == 1:
                setup.engine.write("dloss", np.array([np.inf]))
            forward()

        setup.engine.forward = overflow
        steps = []
        for number in range(3):  # which `overflow` looks at
            steps += [take_step(setup.steps, setup.train, number)]
        weights = setup.engine.arrays["parameters"].tobytes()
        return [step.skipped for step in steps], setup.steps.scale.value, weights

    (skipped, scale, weights), other = together(2, work)
    assert skipped[0] is None and f"{scale:g}" in skipped[1] and skipped[2] is None
    assert other == (skipped, scale, weights)


@pytest.mark.slow
def test_before_a_sample_of_rank_0_all_ranks_wait_for_the_step_under_way(tmp_path, monkeypatch):
    monkeypatch.setattr(Cpu, "asynchronous", True)  # so steps overlap
    samples = {"sample_every": 1, "sample_tokens": 2, "checkpoint_every": 0}
    run_ranks(2, flags_of(tmp_path, 2, **samples))
    assert len(course(tmp_path / "run2", "sample")) == STEPS
    assert len(course(tmp_path / "run2")) == STEPS


def test_tokens_of_a_step_are_divided_among_the_ranks(tmp_path):
    with pytest.raises(LadderError, match=r"-d 192 .* 160"):
        run_ranks(5, flags_of(tmp_path, 5))
    _, screen = run_ranks(2, flags_of(tmp_path, 2, total_tokens=None, steps=1))
    assert re.search(" 1 .*64 .*B=2 T=16 .* 2 ranks", screen)


def test_ranks_of_one_machine_share_its_memory(tmp_path, monkeypatch):
    """Enough for one rank, not for two."""
    needed = memory.by_kind(build(SHAPE, 2, 16), np.dtype(np.float32)).total()
    monkeypatch.setattr(memory, "available_on_host", lambda: int(1.5 * needed))
    run_ranks(1, flags_of(tmp_path, 1, steps=1))
    with pytest.raises(LadderError, match=r"-b 2 -t 16 .* 2 ranks"):
        run_ranks(2, flags_of(tmp_path, 2, zero=0))


def test_ranks_that_differ_are_refused(tmp_path):
    flags = [flags_of(tmp_path, 2, batch=batch, total_tokens=2 * TOKENS) for batch in (2, 4)]

    def work(group):
        return train(flags[group.rank], group=group)

    with pytest.raises(LadderError, match=r"^rank 1 of 2 .* 'B': 4.* 'B': 2"):
        together(2, work)
