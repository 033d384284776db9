"""Times each rung of a ladder, beside the roof, its neighbours, the library and PyTorch.

    for measurement in bench(find("layernorm.forward"), open_device("cuda")):
        results.record(device.description(), measurement)

After a rung was timed, its result is checked on the same buffers. A time below the floor
(ladder/core/measure/roofline.py) is an error: the kernel skipped work, or the timing is wrong.
"""

import contextlib
import datetime
import functools
import importlib.metadata
import math
import platform
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.common.install import ROOT
from ladder.core.contract.binding import refuse_group
from ladder.core.contract.device import NO_LINK, Device
from ladder.core.contract.device_code import code_identity
from ladder.core.contract.ladder import PACKAGE, Ladder, find
from ladder.core.contract.op import DTYPES, Dims, Op
from ladder.core.contract.rung_file import Rung
from ladder.core.measure import energy, torch_timing
from ladder.core.measure.roofline import ALLOWANCE, Roof, compute_bound, copy_bandwidth, matrix_rate
from ladder.core.measure.timing import MOST_SETS, ROTATED_BYTES, BufferSets, Timing, measure
from ladder.core.measure.torch_baselines import BASELINES
from ladder.core.verify.check import check_case, gpt2_shape, measured_shapes
from ladder.core.verify.inputs import Arrays, make_inputs
from ladder.core.verify.tolerance import expect

MOST_CPU_SECONDS = 600
CPU_TURNS = 40  # of the sets: 15 are timed, the others stand for inputs, warming up and the check
VERIFIED_ELEMENTS = 1 << 28  # beyond this, the float64 reference takes more memory than most have

Say = Callable[[str, bool], None]


def tell(line: str, wrong: bool = False) -> None:
    """Print one line about a rung; `wrong`: it reports an error."""
    print(line, flush=True)


class Roofs:
    """The roofs of a device, each measured when it is first asked for."""

    def __init__(self, device: Device):
        self._rate = functools.cache(functools.partial(matrix_rate, device))
        self._bandwidth = functools.cache(functools.partial(copy_bandwidth, device))
        self._link = functools.cache(device.link_bandwidth)

    def of(self, op: Op, dims: Dims, dtype: str, tf32: bool = False) -> Roof:
        """The roof of an op; `tf32`: of its TF32 rungs, too."""
        if op.ranks:
            return Roof(self._link())
        real = DTYPES[dtype]
        if not compute_bound(op, dims, real):
            return Roof(self._bandwidth())
        rates = self._rate(real), self._rate(real, tf32=True) if tf32 else None
        return Roof(self._bandwidth(), *rates)


def bench(
    ladder: Ladder,
    device: Device,
    dtypes: Sequence[str] | None = None,
    shapes: dict[str, Dims] | None = None,
    rungs: Sequence[Rung] | None = None,
    roofs: Roofs | None = None,
    say: Say = tell,
    joules: bool = False,
) -> Iterator[dict[str, Any]]:
    """Measure a ladder; one measurement for each dtype and shape.

    dtypes, shapes, rungs  by default all of the op
    roofs                  measured before, used again
    say                    called with each line about what was measured, refused, or wrong
    joules                 measure the energy of a call, too
    """
    refuse_emulated(device)
    op = ladder.op
    refuse_group(op, device)
    if op.ranks and device.group_size == 1:
        say(f"{op.name}: left out: {NO_LINK}", False)
        return
    roofs, rungs = roofs or Roofs(device), rungs or ladder.on(device)
    for dtype in dtypes or op.reals:
        target = device.target(DTYPES[dtype])
        tf32 = any(rung.tf32 and rung.claims(target) for rung in rungs)
        for name, dims in (shapes or measured_shapes(op, device)).items():
            roof = roofs.of(op, dims, dtype, tf32)
            sets = functools.partial(BufferSets, op, device, target.real, dims)
            yield _measurement(sets(), name, rungs, roof, say, joules)  # held only while it runs


def forecast(
    chosen: Iterable[tuple[Ladder, dict[str, Dims] | None]],
    device: Device,
    dtypes: Sequence[str] | None = None,
) -> float:
    """About how many seconds `bench` takes on the CPU for ladders at shapes, from one call of the
    reference in each type at a small shape. Raises LadderError where they are too many."""
    seconds = 0.0
    for ladder, shapes in chosen:
        op = ladder.op
        for real in (DTYPES[dtype] for dtype in dtypes or op.reals):
            small = gpt2_shape(op, device)
            (call, *_) = BufferSets(op, device, real, small).bind(ladder.rung(0))
            one = device.time(call) / (op.flops(small) + op.least_bytes(small, real))
            for dims in (shapes or measured_shapes(op, device)).values():
                moved = op.least_bytes(dims, real)
                sets = min(max(1, ROTATED_BYTES / moved), MOST_SETS)
                seconds += CPU_TURNS * sets * (op.flops(dims) + moved) * one
        if seconds > MOST_CPU_SECONDS:
            raise LadderError(
                f"on the CPU it takes about {seconds / 60:,.0f} minutes until {op.name} is timed, "
                f"more than {MOST_CPU_SECONDS // 60}; give one --dtype, and a smaller --shape"
            )
    return seconds


COUNTS = "'python -m ladder trace OP N' counts the memory accesses instead"


def refuse_emulated(device: Device, instead: str = COUNTS) -> None:
    """Raise LadderError where there is no GPU to measure. `instead`: what helps without one."""
    if not device.measurable:
        raise LadderError(
            "measuring needs a GPU: the time that the emulator takes says nothing about a GPU; "
            f"{instead}, and 'python -m trainer doctor' says which GPUs were found"
        )


def _measurement(
    buffers: BufferSets, shape: str, rungs: Sequence[Rung], roof: Roof, say: Say, joules: bool
) -> dict[str, Any]:
    op, real, dims, device = buffers.op, buffers.real, buffers.dims, buffers.device
    dtype, target = real.name, device.target(real)
    in_cache = buffers.bytes < 2 * device.l2_bytes
    verify = _verifier(buffers)
    rows, timed = [], []
    for rung in rungs:
        label = f"{op.name} {rung.label}, {shape}, {dtype}"
        if (why := rung.plan(dims, target).refusal) is not None:
            say(f"{label}: refused: {why}", False)
            continue
        try:
            row = _row(rung, buffers, roof, in_cache, verify)
        except LadderError as error:
            say(f"{label}: {error}", True)
            continue
        rows.append(row)
        timed.append(rung)
        rate = op.least_bytes(dims, real) / row["median_us"] / 1e3
        say(f"{label}: {row['median_us']:.2f} us, {rate:,.0f} GB/s", False)
    if joules:
        _add_joules(timed, rows, buffers, say)
    if op.name in BASELINES and device.is_gpu:
        rows += _torch_rows(op, dims, dtype, buffers.inputs, say)
    return {
        "op": op.name,
        "dtype": dtype,
        "shape": shape,
        "dims": dict(dims),
        "bytes": op.least_bytes(dims, real),
        "flops": op.flops(dims),
        "inputs": f"random, the same in each of {len(buffers.sets)} sets of buffers in turn",
        "in_cache": in_cache,
        "roof": {
            "copy_gbps": round(roof.bandwidth / 1e9, 1),
            "matrix_tflops": roof.matrix_rate and round(roof.matrix_rate / 1e12, 1),
            **({"tf32_tflops": round(roof.tf32_rate / 1e12, 1)} if roof.tf32_rate else {}),
        },
        "date": today(),
        "commit": commit(),
        "software": software(),
        "rows": rows,
    }


def _add_joules(
    rungs: Sequence[Rung], rows: Sequence[dict[str, Any]], buffers: BufferSets, say: Say
) -> None:
    """Add to the row of each rung the energy of a call, the power and the clock."""
    say(energy.forecast(buffers.device, 2 * len(rungs)), False)
    energies = energy.in_turns(buffers.device, [buffers.bind(rung) for rung in rungs])
    for rung, row, spent in zip(rungs, rows, energies, strict=False):
        row |= spent
        used = f"{row['millijoules']:,.4g} mJ a call, {row['watts']:.0f} W"
        say(f"{buffers.op.name} {rung.label}: {used}", False)


def _row(
    rung: Rung,
    buffers: BufferSets,
    roof: Roof,
    in_cache: bool,
    verify: Callable[[Rung, Callable[[], None]], None],
) -> dict[str, Any]:
    calls = buffers.bind(rung)
    timing = measure(buffers.device, calls)
    verify(rung, calls[0])
    floor = roof.floor(buffers.op, buffers.dims, buffers.real, rung.tf32)
    if timing.median < floor * (1 - ALLOWANCE) and not in_cache:
        raise LadderError(
            f"its {timing.median * 1e6:.2f} us are below the floor of {floor * 1e6:.2f} us: "
            "something is not computed, or not measured"
        )
    entry = {"rung": rung.id, "idea": rung.idea, "library": rung.library}
    return {**entry, "code": code_identity(rung), **as_microseconds(timing)}


def renew_baselines(measurement: Mapping[str, Any]) -> dict[str, Any]:
    """The same measurement with PyTorch timed again, and its rungs' rows as they were.

    Raises LadderError where PyTorch cannot be measured.
    """
    if (why := torch_timing.available()) is not None:
        raise LadderError(f"there is nothing to measure: {why}")
    op, dims, dtype = find(measurement["op"]).op, measurement["dims"], measurement["dtype"]
    drawn = make_inputs(op, dims, DTYPES[dtype], np.random.default_rng(0))
    inputs = {name: array for name, array in drawn.items() if name not in op.unmeasured}
    rows = [row for row in measurement["rows"] if "peer" not in row]
    return {**measurement, "rows": rows + _torch_rows(op, dims, dtype, inputs, tell)}


def _torch_rows(op: Op, dims: Dims, dtype: str, inputs: Arrays, say: Say) -> list[dict[str, Any]]:
    if (why := torch_timing.available()) is not None:
        say(f"{op.name}: no comparison: {why}", False)
        return []
    rows = []
    for name, timing in torch_timing.measure_torch(op, dims, inputs):
        if isinstance(timing, Timing):
            when = {"date": today(), "software": software()}
            rows.append({"peer": name, **when, **as_microseconds(timing)})
            say(f"{op.name} {name}, {dtype}: {timing.median * 1e6:.2f} us", False)
        else:
            say(f"{op.name} {name}, {dtype}: {timing}", False)
    return rows


def _verifier(buffers: BufferSets) -> Callable[[Rung, Callable[[], None]], None]:
    """A function that raises LadderError where a rung's result on the first set is wrong.

    The expected result is computed once for all rungs. Where a shape is too large for the
    reference, the op's smallest measured shape is checked instead.
    """
    op, dims, real = buffers.op, buffers.dims, buffers.real
    elements = sum(math.prod(arg.resolve_shape(dims)) for arg in op.args)
    expected = functools.cache(lambda: expect(op, dims, real, buffers.inputs))

    def verify(rung: Rung, call: Callable[[], None]) -> None:
        if elements > VERIFIED_ELEMENTS:
            small = gpt2_shape(op, buffers.device)
            outcome = check_case(op, rung, buffers.device, real.name, small)
            if outcome.status in ("failed", "fault"):
                raise LadderError(f"its result is wrong: {outcome.detail}")
            return
        contents = buffers.run_once(call)
        for output in expected():
            problem, _ = output.verify(contents[output.arg.name], rung.rounds, tf32=rung.tf32)
            if problem is not None:
                raise LadderError(f"its result is wrong: {problem}")

    return verify


def as_microseconds(timing: Timing) -> dict[str, float | int]:
    return {
        "median_us": round(timing.median * 1e6, 3),
        "low_us": round(timing.low * 1e6, 3),
        "high_us": round(timing.high * 1e6, 3),
        "repetitions": timing.repetitions,
    }


def today() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")


def software() -> dict[str, str]:
    """The versions of the installed software that a measurement depends on."""
    versions = {"python": platform.python_version()}
    for name in ("numpy", "torch", "triton"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def commit() -> str | None:
    """The commit of the repository, with a + where the kernels differ from it; None outside git."""
    if ROOT:  # the repository around an installed wheel is another one
        return None

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(PACKAGE), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", ".")
        return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
