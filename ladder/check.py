"""Is a rung right? Run it on awkward shapes and compare with the float64 reference.

    report = check(find("layernorm.forward"), rung, device)
    assert report.passed, report

What a rung must survive, for each dtype and shape:

    inputs      random, rounded to the run's dtype; the reference computes from the rounded values
    outputs     start as NaN where they are to be overwritten, as random numbers where they
                accumulate; a NaN left in the result never passes
    scratch     starts as NaN
    guards      16 KiB of NaN before and after every buffer: still there afterwards, and whatever
                was computed from them is NaN
    inputs      unchanged afterwards
    twice       the second run gives the same bits, unless the header says `Deterministic: no`; on
                the emulator under another order of threads and blocks, and again with warps of 64
    hard        the op's extreme inputs, unless the header says `Accurate: no`

How far a result may be from the reference, and why, stands in ladder/expect.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ladder.bind import bind
from ladder.contract import DTYPES, REAL, Dims, Ladder, Op, resolve_dtype
from ladder.device import ALIGNMENT, Device
from ladder.errors import LadderError
from ladder.expect import Arrays, Expected, cases, scalars
from ladder.rungfile import REALS, Rung

GUARD = 64 * ALIGNMENT  # bytes before and after each buffer; keeps the buffer aligned
POISON = 0xFF  # as a byte; repeated it is NaN in float32, float16 and bfloat16, and -1 in int32


@dataclass(frozen=True)
class Outcome:
    """What came of one shape and dtype. `error`: the largest one, as a fraction of the tolerance"""

    dims: dict[str, int]
    dtype: str
    inputs: str  # "normal", or the name of the op's hard inputs
    status: str  # "passed", "refused", "failed"
    detail: str = ""
    error: float = 0.0

    @property
    def label(self) -> str:
        hard = "" if self.inputs == "normal" else f", {self.inputs}"
        return f"{format_dims(self.dims)}, {self.dtype}{hard}"


@dataclass(frozen=True)
class Report:
    """All outcomes of one rung on one device."""

    op: str
    rung: str
    device: str
    outcomes: tuple[Outcome, ...]

    @property
    def passed(self) -> bool:
        """Something ran, and nothing failed: a rung that refuses everything has shown nothing."""
        statuses = {outcome.status for outcome in self.outcomes}
        return "passed" in statuses and "failed" not in statuses

    @property
    def failures(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.status == "failed"]

    def __str__(self) -> str:
        head = f"{self.op} {self.rung} on {self.device}"
        if self.failures:
            first = self.failures[0]
            return f"{head}: FAILED at {first.label}: {first.detail}"
        if not self.passed:
            why = f": {self.outcomes[0].detail}" if self.outcomes else ""
            return f"{head}: FAILED: it refuses every shape and dtype{why}"
        counts = [
            sum(o.status == status for o in self.outcomes) for status in ("passed", "refused")
        ]
        worst = max(outcome.error for outcome in self.outcomes)
        refused = f", {counts[1]} refused" if counts[1] else ""
        return f"{head}: {counts[0]} passed{refused}; largest error {worst:.0%} of the tolerance"


def check(
    ladder: Ladder,
    rung: Rung,
    device: Device,
    dtypes: Sequence[str] | None = None,
    shapes: Sequence[Dims] | None = None,
    seed: int = 0,
) -> Report:
    """Check a rung.

    dtypes  by default all three real types, or float32 for an op without real arguments
    shapes  by default the op's own, and on a GPU GPT-2's as well
    """
    op = ladder.op
    if dtypes is None:
        dtypes = REALS if any(arg.dtype == REAL for arg in op.args) else ("float32",)
    if shapes is None:
        shapes = [*op.shapes, *([gpt2_shape(op)] if device.kind == "cuda" else [])]
    kinds = ("normal", *(op.hard_inputs if _accurate(rung) else ()))
    outcomes = tuple(
        check_case(op, rung, device, dtype, dict(dims), inputs, seed)
        for dtype in dtypes
        for dims in shapes
        for inputs in kinds
    )
    return Report(op.name, rung_label(rung), device.name, outcomes)


def check_case(
    op: Op, rung: Rung, device: Device, dtype: str, dims: dict[str, int], inputs: str, seed: int
) -> Outcome:
    """Check one shape and dtype with one kind of inputs, under every variant of the device.

    Raises LadderError where the rung does not compile or does not fit its contract.
    """
    real = DTYPES[dtype]
    refusals, ran, worst = [], False, 0.0
    tests = None
    for variant in variants(device):
        if (why := rung.refusal(dims, variant[0].target(real))) is not None:
            refusals.append(why)
            continue
        tests = tests or list(cases(op, dims, real, inputs, seed))
        for values, expected in tests:
            trial = _Trial(op, rung, dims, real, values)
            before = None
            for again in variant:
                problem, got, error = trial.run(again, expected)
                if problem is None and before is not None and rung.deterministic:
                    problem = _difference(before, got)
                if problem is not None:
                    detail = f"{problem} [{again.name}]"
                    return Outcome(dims, dtype, inputs, "failed", detail)
                before, ran, worst = got, True, max(worst, error)
    if not ran:
        return Outcome(dims, dtype, inputs, "refused", refusals[0])
    return Outcome(dims, dtype, inputs, "passed", error=worst)


def variants(device: Device) -> list[tuple[Device, Device]]:
    """The devices to run on; each pair must give the same bits, if the rung is deterministic."""
    if device.kind != "emulated":
        return [(device, device)]
    return [
        tuple(device.variant(warp=warp, seed=seed) for seed in seeds)
        for warp, seeds in ((32, (1, 2)), (64, (3, 4)))
    ]


def gpt2_shape(op: Op) -> Dims:
    """The smallest of the shapes that the op is measured at: GPT-2's own, with few rows."""
    return min(op.bench.values(), key=lambda dims: op.least_bytes(dims, np.dtype(np.float32)))


def rung_label(rung: Rung) -> str:
    return f"{rung.path} ({rung.idea})" if rung.number < 0 else f"rung {rung.number} ({rung.idea})"


def format_dims(dims: Dims) -> str:
    return " ".join(f"{name}={size}" for name, size in dims.items())


def _accurate(rung: Rung) -> bool:
    return not rung.header.get("accurate", ("yes",))[0].startswith("no")


# ---- running a rung between guards --------------------------------------------------------------


class Guarded:
    """A device array with poisoned bytes before and after it."""

    def __init__(self, device: Device, name: str, shape: tuple[int, ...], dtype: np.dtype):
        self.device, self.name = device, name
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.bytes = math.prod(shape) * self.dtype.itemsize
        self._raw = device.empty((self.bytes + 2 * GUARD,), np.dtype(np.uint8))
        self.array = self._raw[GUARD : GUARD + self.bytes].view(self.dtype).reshape(shape)

    def fill(self, content: np.ndarray | None) -> None:
        """Write the content, or NaN everywhere, and renew the guards."""
        host = np.full(self.bytes + 2 * GUARD, POISON, np.uint8)
        if content is not None:
            host[GUARD : GUARD + self.bytes] = np.ascontiguousarray(content).view(np.uint8).ravel()
        self.device.upload(self._raw, host)

    def read(self) -> tuple[np.ndarray, str | None]:
        """The content, and what was written outside it, if anything."""
        host = self.device.download(self._raw)
        content = host[GUARD : GUARD + self.bytes].view(self.dtype).reshape(self.shape)
        after = np.flatnonzero(host[GUARD + self.bytes :] != POISON)
        before = np.flatnonzero(host[:GUARD] != POISON)
        if after.size:
            return content, f"it wrote past the end of {self.name}, {after[0]} bytes behind it"
        if before.size:
            distance = GUARD - before[-1]
            return content, f"it wrote before the start of {self.name}, {distance} bytes ahead"
        return content, None


class _Trial:
    """One rung on one set of inputs; buffers are made anew for each run."""

    def __init__(self, op: Op, rung: Rung, dims: Dims, real: np.dtype, values: Arrays):
        self.op, self.rung, self.dims, self.real, self.values = op, rung, dims, real, values

    def run(
        self, device: Device, expected: Sequence[Expected]
    ) -> tuple[str | None, dict[str, np.ndarray], float]:
        """A problem or None, the outputs, and the largest error over the tolerance."""
        buffers, scratch = {}, []
        for arg in self.op.args:
            if arg.role == "out" or arg.name in self.values:
                dtype = resolve_dtype(arg.dtype, self.real)
                buffers[arg.name] = Guarded(device, arg.name, arg.resolve_shape(self.dims), dtype)

        def allocate(shape: tuple[int, ...], dtype: np.dtype) -> Any:
            scratch.append(Guarded(device, f"scratch buffer {len(scratch) + 1}", shape, dtype))
            return scratch[-1].array

        arrays = {arg.name: None for arg in self.op.args}
        arrays.update((name, buffer.array) for name, buffer in buffers.items())
        constants = scalars(self.op)
        run = bind(
            self.op, self.rung, device, self.real, self.dims, arrays, constants, scratch=allocate
        )
        for name, buffer in buffers.items():
            buffer.fill(self.values.get(name))
        for buffer in scratch:
            buffer.fill(None)
        try:
            run()
            device.synchronize()
        except LadderError as fault:
            return str(fault), {}, math.inf
        return self._verify(buffers, scratch, expected)

    def _verify(
        self,
        buffers: Mapping[str, Guarded],
        scratch: Sequence[Guarded],
        expected: Sequence[Expected],
    ) -> tuple[str | None, dict[str, np.ndarray], float]:
        contents, outside = {}, None
        for buffer in (*buffers.values(), *scratch):
            contents[buffer.name], problem = buffer.read()
            outside = outside or problem
        outputs = {e.arg.name: contents[e.arg.name] for e in expected}
        for arg in self.op.args:
            if arg.role == "in" and arg.name in self.values:
                old, new = (x.view(np.uint8) for x in (self.values[arg.name], contents[arg.name]))
                if not np.array_equal(old, new):
                    return f"it changed its input {arg.name}", outputs, math.inf
        worst = 0.0
        for e in expected:
            problem, error = e.verify(outputs[e.arg.name])
            if problem is not None:
                return (f"{outside}; {problem}" if outside else problem), outputs, math.inf
            worst = max(worst, error)
        return outside, outputs, worst


def _difference(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> str | None:
    """Where two runs on the same input differ; None if every bit is the same."""
    for name, first in before.items():
        second = after[name]
        differ = first != second
        if differ.any():
            index = np.unravel_index(np.argmax(differ), differ.shape)
            where = ", ".join(map(str, index))
            return (
                f"two runs on the same input differ: {name}[{where}] is {first[index]}, then "
                f"{second[index]}; a rung that may do so says 'Deterministic: no' in its header"
            )
    return None
