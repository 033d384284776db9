"""Steps on a device that works beside the host: the same numbers, and no waiting."""

import dataclasses

import numpy as np
import pytest

from ladder.core.contract.ladder import find
from ladder.core.device.open import Cpu
from tests.trainer.deferred import Clocked, Deferred, deferred_rungs
from tests.trainer.tiny import PARAMETERS, SHAPE, parameters, resolved, run, save_model, settings
from trainer import open as opening
from trainer.data.datasets import prepare
from trainer.data.token_files import TokenLoader
from trainer.engine import rung_choice
from trainer.engine.engine import Engine, watch_of
from trainer.engine.passes import validate
from trainer.engine.steps import GROWTH_INTERVAL, NOT_FINITE, LossScale, Steps
from trainer.files import checkpoint, logs
from trainer.flags import DeviceChoice
from trainer.model.program import build, initial_parameters
from trainer.train import take_step

SHAPE = dataclasses.replace(SHAPE, dropout=0.1)


@pytest.fixture
def loader(tmp_path):
    data = prepare("play", tmp_path, "bytes")
    return lambda: TokenLoader(data.train, 2, 16, vocab=257, shuffle=True, seed=1)


class Stepper(Steps):
    """Steps, and the batches that they are taken on."""

    def __init__(self, config, engine, train):
        super().__init__(config, engine)
        self.train = train

    def step(self, number):
        return take_step(self, self.train, number)


def stepper_on(device, train, tmp_path, real=np.float32, **changes):
    config = resolved("cpu", 32, **settings(tmp_path, **{"model": "d6", "steps": 8, **changes}))
    deferred = isinstance(device, Deferred)
    program = build(SHAPE, 2, 16)
    ops = {call.op for call in program.calls}
    later = deferred_rungs()
    rung_choice = {op: later[op] if deferred else find(op).rung(0) for op in ops}
    watch = watch_of(config.debug_nan, config.debug_sync)
    engine = Engine(program, device, np.dtype(real), rung_choice, watch=watch)
    for name, tensor in initial_parameters(SHAPE, 1):
        engine.write(name, tensor)
    return Stepper(config, engine, train)


def take(stepper, count, start=0):
    """The outcomes of `count` steps, late or not."""
    outcomes = [stepper.step(number) for number in range(start, start + count)]
    return [step for step in (*outcomes, stepper.finish()) if step is not None]


def known(step):
    """All of a step but its time."""
    return dataclasses.replace(step, ms=0.0, warmed_up=True)


@pytest.mark.parametrize("total_tokens", [32, 96])
def test_steps_that_overlap_give_the_same_bits(tmp_path, loader, total_tokens):
    changes = {"total_tokens": total_tokens, "warmup": 3, "grad_clip": 1.0}
    now = stepper_on(Cpu(), loader(), tmp_path, **changes)
    later = stepper_on(Deferred(), loader(), tmp_path, **changes)
    assert later.overlaps and not now.overlaps
    assert [*map(known, take(now, 6))] == [*map(known, take(later, 6))]
    assert now.state() == later.state()
    for name in PARAMETERS:
        a, b = now.engine.read(name), later.engine.read(name)
        assert a.tobytes() == b.tobytes(), name


def test_the_host_waits_only_for_the_step_before(tmp_path, loader):
    stepper = stepper_on(Deferred(), loader(), tmp_path)
    device = stepper.engine.device
    assert stepper.step(0) is None
    assert device.waits == 0 and device.queue
    for number in (1, 2):  # in the first of them the graphs are recorded
        stepper.step(number)
    for number in range(3, 6):
        waits = device.waits
        assert stepper.step(number).number == number - 1
        assert device.waits - waits == 2  # for its loss and its norm; its end has no clock here
        assert device.queue, "the step that was submitted last is still to be computed"
    assert stepper.finish().number == 5
    assert stepper.finish() is None


def test_a_step_is_replayed_from_graphs_after_the_first(tmp_path, loader):
    stepper = stepper_on(Deferred(), loader(), tmp_path)
    device = stepper.engine.device
    take(stepper, 1)
    calls = device.launches
    program = stepper.engine.program
    assert calls == len(program.forward) + len(program.backward) + len(program.update)
    assert device.graphs == 0
    take(stepper, 5, start=1)
    assert (device.launches, device.graphs) == (calls, 4)  # forward, backward, norm, update


def test_a_step_waits_where_the_host_decides_on_the_update(tmp_path, loader):
    for changes in ({"loss_outlier": 5.0}, {"grad_outlier": 5.0}, {"nonfinite": "skip"}):
        stepper = stepper_on(Deferred(), loader(), tmp_path, **changes)
        assert stepper.step(0).number == 0


def test_a_loss_that_is_not_finite_is_reported_one_step_late(tmp_path, loader):
    stepper = stepper_on(Deferred(), loader(), tmp_path)
    stepper.engine.write("wpe", np.full((32, 16), np.nan))
    assert stepper.step(0) is None
    assert stepper.step(1).skipped == NOT_FINITE


# ---- time ----


@pytest.fixture
def clocked(tmp_path, loader):
    """A stepper on a device with a clock of its own, and the ms that a step takes this device."""

    def make(**changes):
        device = Clocked()
        stepper = stepper_on(device, loader(), tmp_path, **changes)
        launches = len(stepper.engine.program.training_step)
        return stepper, 1e3 * launches * device.DEVICE

    return make


def test_a_step_takes_the_time_of_the_device_and_the_first_ones_that_of_their_graphs(clocked):
    stepper, ms = clocked()
    steps = take(stepper, 8)
    assert [step.warmed_up for step in steps] == [False] * 2 + [True] * 6
    assert steps[0].ms == pytest.approx(ms, rel=1e-2)
    assert steps[1].ms > 3 * 1e3 * Clocked.RECORD  # three of its four graphs, and some of the first
    assert [step.ms for step in steps[2:]] == pytest.approx([ms] * 6, rel=1e-3)


def test_a_step_after_a_break_is_timed_from_its_own_start(clocked):
    stepper, ms = clocked()
    take(stepper, 5)
    stepper.engine.device.now += 100.0  # a validation, say
    assert [step.ms for step in take(stepper, 3, start=5)] == pytest.approx([ms] * 3, rel=1e-2)


@pytest.mark.slow
def test_a_host_that_is_slower_than_the_device_counts_in_full(clocked):
    stepper, ms = clocked()
    take(stepper, 4)
    device = stepper.engine.device
    device.HOST, start = 1.0, device.now
    times = [step.ms for step in take(stepper, 6, start=4)]
    assert sum(times) == pytest.approx(1e3 * (device.now - start), rel=1e-2)
    assert min(times) > ms


def test_a_step_whose_update_the_host_decides_on_is_timed_from_the_step_before(clocked):
    stepper, ms = clocked(nonfinite="skip")
    steps = take(stepper, 6)
    assert steps[0].ms is None  # it would lack its update
    assert [step.warmed_up for step in steps] == [False] * 3 + [True] * 3
    assert [step.ms for step in steps[3:]] == pytest.approx([ms] * 3, rel=1e-2)
    assert [step.ms for step in take(stepper, 2, start=6)] == [None, pytest.approx(ms, rel=1e-2)]


def test_where_every_call_is_waited_for_every_step_is_timed_alone(clocked, tmp_path, loader):
    assert all(
        step.warmed_up and step.ms > 0 for step in take(stepper_on(Cpu(), loader(), tmp_path), 2)
    )
    stepper, ms = clocked(debug_sync=True)
    assert [step.ms for step in take(stepper, 3)] == pytest.approx([ms] * 3, rel=2e-2)


def test_validation_overlaps_too_and_is_the_same(tmp_path, loader):
    now = stepper_on(Cpu(), loader(), tmp_path)
    later = stepper_on(Deferred(), loader(), tmp_path)
    losses = [validate(s.engine, s.train, 5, lambda: False) for s in (now, later)]
    assert losses[0] == losses[1]
    assert later.engine.device.graphs == 1
    assert later.engine.device.waits == 5


@pytest.mark.slow
def test_a_whole_run_logs_the_same_lines_in_the_same_order(tmp_path, monkeypatch):
    """Validations, samples and checkpoints see the weights of their step, and no step is lost."""
    every = {"val_every": 2, "sample_every": 3, "checkpoint_every": 2, "sample_tokens": 4}
    common = {"model": save_model(tmp_path / "dropping", dropout=0.2), "steps": 7, **every}
    run(tmp_path, **common, output=str(tmp_path / "now"))
    device, later = Deferred(), deferred_rungs()

    def choose(calls, *others):
        return {call.op: rung_choice.Choice(later[call.op], "later") for call in calls}

    monkeypatch.setattr(
        opening, "open_for", lambda *typed: (device, DeviceChoice("cpu", False, "fp32"), [])
    )
    monkeypatch.setattr(rung_choice, "choose", choose)
    run(tmp_path, **common, output=str(tmp_path / "later"))

    def untimed(name):
        entries = logs.read(tmp_path / name / "log.jsonl")
        changing = ("ms", "tokens_per_second", "roof_share", "checkpoint")
        return [{k: v for k, v in entry.items() if k not in changing} for entry in entries]

    assert untimed("later") == untimed("now")
    now, later = (parameters(tmp_path / name, 7) for name in ("now", "later"))
    assert all(now[name].tobytes() == later[name].tobytes() for name in now)
    states = [checkpoint.load(tmp_path / name, 4)[1] for name in ("now", "later")]
    assert states[0]["stepper"] == states[1]["stepper"]
    assert states[0]["train"] == states[1]["train"]


# ---- float16 ----


def test_the_scale_halves_on_overflow_and_doubles_after_2000_good_steps():
    scale = LossScale()
    assert scale.value == 65536
    scale.update(overflow=True)
    scale.update(overflow=True)
    assert scale.value == 16384
    for _ in range(GROWTH_INTERVAL - 1):
        scale.update(overflow=False)
    assert scale.value == 16384
    scale.update(overflow=False)
    assert scale.value == 32768
    for _ in range(5):
        scale.update(overflow=False)
    again = LossScale(**dataclasses.asdict(scale))  # from a checkpoint
    for each in (scale, again):
        for _ in range(GROWTH_INTERVAL - 5):
            each.update(overflow=False)
        assert each.value == 65536


def test_float16_steps_are_near_those_of_float32(tmp_path, loader):
    exact = take(stepper_on(Cpu(), loader(), tmp_path), 4)
    scaled = stepper_on(Cpu(), loader(), tmp_path, real=np.float16, dtype="fp16")
    for a, b in zip(exact, take(scaled, 4), strict=True):
        assert b.loss == pytest.approx(a.loss, rel=1e-3)
        # The first updates of AdamW are nearly ± lr. A gradient near 0 that rounds to the other
        # side moves its weight the other way, and the norms behind it differ more.
        assert b.norm == pytest.approx(a.norm, rel=1e-3 if a.number == 0 else 5e-2)
        assert b.skipped is None
    dlogits = scaled.engine.read("logits")
    assert np.abs(dlogits.astype(np.float32)).max() > 100, "the gradients are not scaled"


def test_an_overflow_skips_the_update_and_halves_the_scale_until_it_fits(tmp_path, loader):
    stepper = stepper_on(Cpu(), loader(), tmp_path, real=np.float16, dtype="fp16")
    stepper.scale.value = 2.0**24  # dlogits would be 2^19, and float16 ends at 2^16
    before = stepper.engine.read("fcw")
    with np.errstate(all="ignore"):
        first = stepper.step(0)
        assert "8.38861e+06" in first.skipped
        assert np.isfinite(first.loss) and stepper.updates == 0
        np.testing.assert_array_equal(stepper.engine.read("fcw"), before)
        steps = take(stepper, 7, start=1)
    assert steps[0].skipped and steps[-1].skipped is None
    assert stepper.updates == sum(step.skipped is None for step in steps)
    assert np.isfinite(stepper.engine.read("fcw")).all()
    assert stepper.state()["scale"]["value"] == 2.0 ** (24 - 8 + stepper.updates)


def test_without_any_scale_that_fits_the_gradient_is_not_finite(tmp_path, loader):
    stepper = stepper_on(Cpu(), loader(), tmp_path, real=np.float16, dtype="fp16")
    stepper.scale.value = 1.0
    stepper.engine.compute_norm = lambda: stepper.engine.write("norm", np.array([np.inf]))
    assert stepper.step(0).skipped == NOT_FINITE
