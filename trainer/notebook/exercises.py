"""The checkers of the exercises on the whole model: the order of a backward pass, and the floor."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ladder.core.contract.ladder import find
from ladder.core.device.open import Cpu
from ladder.core.measure.roofline import Roof
from ladder.core.show import progress
from trainer.engine.engine import Engine
from trainer.model.calls import Call
from trainer.model.gpt2 import GPT2Config
from trainer.model.program import Program, build

SMALL = GPT2Config(context=5, vocab=7, padded_vocab=7, layers=1, heads=2, channels=4)
BATCH = 2
CHANGE = 1e-5  # of a weight, up and down, for the finite difference of the loss
APART = 1e-5  # most that a gradient may differ from the slope of the loss, relative to its tensor
MLP = ("fcproj", "gelu", "fc", "ln_2")


def label(call: Call) -> str:
    """ "fc matmul.backward_input": a call by its place in its layer, and its op."""
    return f"{call.where.partition('.')[2]} {call.op}"


def mlp_backward() -> list[str]:
    """The backward calls of a layer's MLP branch, in the model's order."""
    labels = (label(call) for call in build(SMALL, BATCH, SMALL.context).backward)
    return [line for line in labels if line.split()[0] in MLP]


def wrong_gradients(order: Sequence[str]) -> dict[str, float]:
    """The parameters whose gradients are wrong if the MLP branch goes backward in this order, and
    by how much: the largest difference from the loss's slope (central finite differences, in
    float64), relative to the largest slope in the tensor.

    Raises ValueError where the order is none: a line that is unknown, missing, or there twice.
    """
    engine = _ready()
    backward = _in_order(engine.program, order)
    for call in backward:
        engine.bound[call]()
    wrong = {}
    for name in SMALL.parameter_shapes():
        got, slopes = engine.read("d" + name).reshape(-1), _slopes(engine, name)
        worst = np.abs(got - slopes).max() / np.abs(slopes).max()
        if not worst < APART:  # NaN is wrong too
            wrong[name] = float(worst)
    return wrong


def early_read(order: Sequence[str]) -> tuple[str, str] | None:
    """The first call that reads a buffer before a call has written it, and that buffer; None if
    each buffer is written first. Raises ValueError as wrong_gradients does."""
    engine = _ready()
    backward = _in_order(engine.program, order)
    for call in backward:
        args = zip(find(call.op).op.args, call.args, engine.arguments(call), strict=True)
        for arg, ref, array in args:
            if arg.role != "out" and ref and np.isnan(np.asarray(array)).any():
                return label(call), ref[0]
        engine.bound[call]()
    return None


def _in_order(program: Program, order: Sequence[str]) -> list[Call]:
    """The backward calls of the small model, those of the MLP branch in the given order."""
    known = mlp_backward()
    for line in (*order, *known):
        if line not in known:
            raise ValueError(f"{line!r} is none of the calls: {', '.join(known)}")
        if (times := order.count(line)) != 1:
            amiss = f"is there {times} times" if times else "is missing"
            raise ValueError(f"{line!r} {amiss}; write each of the {len(known)} calls once")
    calls = program.backward
    at = {label(call): i for i, call in enumerate(calls)}
    backward = list(calls)
    for place, line in zip(sorted(at[line] for line in order), order, strict=True):
        backward[place] = calls[at[line]]
    return backward


def _ready() -> Engine:
    """The small model after a forward pass in float64. What the backward pass has to write before
    it reads it is NaN."""
    program = build(SMALL, BATCH, SMALL.context)
    rungs = {call.op: find(call.op).rung(0) for call in program.training_step}
    engine = Engine(program, Cpu(), np.dtype(np.float64), rungs)
    rng = np.random.default_rng(0)
    for name, shape in SMALL.parameter_shapes().items():
        engine.write(name, rng.standard_normal(shape) / 2)
    for name in ("tokens", "targets"):
        engine.write(name, rng.integers(0, SMALL.vocab, (BATCH, SMALL.context)))
    engine.write("dloss", np.array([1 / (BATCH * SMALL.context)]))
    engine.zero_gradients()
    engine.forward()
    for name, buffer in program.buffers.items():
        if buffer.kind == "scratch":
            array = engine.arrays[name]
            engine.device.upload(array, np.full(array.shape, np.nan))
    return engine


def _slopes(engine: Engine, name: str) -> np.ndarray:
    """The slope of the loss in each element of a parameter, by finite differences."""
    weights = engine.arrays[name].reshape(-1)  # a view, in NumPy
    slopes: np.ndarray = np.empty_like(weights)

    def loss() -> float:
        engine.evaluate()
        return float(engine.read("losses").mean())

    for i, weight in enumerate(weights.tolist()):
        weights[i] = weight + CHANGE
        above = loss()
        weights[i] = weight - CHANGE
        slopes[i] = (above - loss()) / (2 * CHANGE)
        weights[i] = weight
    return slopes


def check_order(text: str) -> None:
    """Print the verdict on an order of the MLP branch's backward calls, one in a line."""
    order = [line.strip() for line in text.strip().splitlines()]
    try:
        wrong = wrong_gradients(order)
    except ValueError as error:
        print(f"✗ {error}")
        return
    if not wrong:
        print("✓ every gradient is the slope of the loss")
        say_progress("check_order")
        return
    print(f"✗ {len(wrong)} of {len(SMALL.parameters())} gradients are not the slope of the loss:")
    print("  wrong:", " ".join(f"d{name}" for name in wrong if np.isfinite(wrong[name])) or "none")
    print("  nan:  ", " ".join(f"d{name}" for name in wrong if np.isnan(wrong[name])) or "none")
    if early := early_read(order):
        call, buffer = early
        print(f"  {call} reads {buffer}, which no call has written yet: move the call that writes")
        print(f"  {buffer} before it")
    else:
        print(
            "  each buffer is written before it is read: so a call has overwritten one that a later"
        )
        print("  call was to read as it was")


FloorOf = Callable[[Sequence[Call], float, float], float]


def check_floor(
    floor_ms: FloorOf, calls: Sequence[Call], real: np.dtype, profile: Mapping[str, Any]
) -> None:
    """Print the verdict on a function of calls, bytes/s and FLOP/s: the least ms of a step."""
    bandwidth, rate = 1e9 * profile["bandwidth_gbs"], 1e9 * profile["matrix_gflops"]
    roof = Roof(bandwidth, rate)
    right = 1e3 * sum(roof.floor(find(call.op).op, call.dims, real) for call in calls)
    mine = floor_ms(calls, bandwidth, rate)
    if not isinstance(mine, (int, float)):
        print(f"✗ floor_ms returns {mine!r}; return one number, the milliseconds of the step")
    elif abs(mine - right) < 1e-3 * right:
        step_ms = profile["step_ms"]
        print(f"✓ {right:.2f} ms, {100 * right / step_ms:.0f} % of the {step_ms:.2f} ms measured")
        say_progress("check_floor")
    else:
        why = _mistake(mine, calls, real, bandwidth, rate)
        print(f"✗ {mine:.2f} ms is not the floor of this step: {why}")


def _mistake(
    mine: float, calls: Sequence[Call], real: np.dtype, bandwidth: float, rate: float
) -> str:
    """What a wrong floor in milliseconds is instead, as far as that can be told."""
    ops = [(find(call.op).op, call.dims) for call in calls]
    memory = [1e3 * op.least_bytes(dims, real) / bandwidth for op, dims in ops]
    arithmetic = [1e3 * op.flops(dims) / rate for op, dims in ops]
    last = max(memory[-1], arithmetic[-1])
    known = {
        "the loop adds nothing to seconds": 0.0,
        "this is the time of all bytes; some calls take longer for their FLOPs": sum(memory),
        "this is the time of all FLOPs; some calls take longer for their bytes": sum(arithmetic),
        "bytes and FLOPs are added, but both go on at the same time": sum(memory + arithmetic),
        "this takes the smaller of the two times for each call, but the slower one decides": sum(
            map(min, memory, arithmetic)
        ),
        "this is the time of the last call alone; add up all of them (+=)": last,
    }
    for what, ms in known.items():
        if math.isclose(mine, ms, rel_tol=1e-3):
            return what
    return "add up, over all calls, the longer of the times for its bytes and for its FLOPs"


def say_progress(exercise: str) -> None:
    """Keep that an exercise is solved, and print how far the reader has come."""
    if said := progress.record(exercise):
        print(said)
