"""What notebook 11 calls: predict a climb, count a step, compare gradients, check the exercises.

Nothing that it shows of measurements is typed: it is read from doc/results. No checker compares an
answer with a stored one: an op that is named as slow is swapped and the step counted again; an op
that is named as wrong goes to the reference, and the gradients are compared again.
"""

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_json
from ladder.core.contract.ladder import find
from ladder.core.contract.op import DTYPES, Dims, Op
from ladder.core.contract.rung_file import Rung
from ladder.core.emulator.report import SECTOR
from ladder.core.measure import results
from ladder.core.measure.roofline import compute_bound
from ladder.core.show import trace
from ladder.core.show.notebook import draw, rung_of
from trainer.commands import step_timing
from trainer.engine import rung_map
from trainer.engine.engine import Engine
from trainer.engine.rung_map import key_for, op_of, ops_of, with_rung
from trainer.model.calls import Call, Ref
from trainer.model.program import Program, build
from trainer.model.registry import SIZES
from trainer.notebook.exercises import say_progress
from trainer.notebook.small_run import Run
from trainer.plots.style import BESIDE, BLUE, GREY, INK, ORANGE, figure_of

FLOAT32 = DTYPES["float32"]
BF16 = DTYPES["bfloat16"]
APART = 1e-3  # relative difference from which rounding in float32 is no excuse

Profile = Mapping[str, Any]
NextClimb = Callable[[Profile], tuple[str, float]]
Bisect = Callable[[Sequence[str], Callable[[Collection[str]], bool]], str]


# ---- what a climb should save --------------------------------------------------------------------

# `python -m ladder bench` times a rung alone; `python -m trainer climb` times the whole step before
# and after an op is raised. The first should predict the second: a step is a list of calls, and its
# time is their sum.


@dataclass(frozen=True)
class Bench:
    """What a rung alone takes at one shape, and the rung that the climb raised its op to."""

    dims: Dims
    low_us: float
    high_us: float


@dataclass(frozen=True)
class Saving:
    """The milliseconds that raising an op saves in a step.

    bench      the times of the two rungs alone that `predicted` is made of
    predicted  their difference, times the work of the step's calls by that of the bench
    measured   the difference between the steps before and after
    """

    op: str
    bench: Bench
    predicted: float
    measured: float


def measured_climb() -> dict[str, Any]:
    """The climb of GPT-2 124M in doc/results; trainer/commands/climb.py says what is in it.

    Raises LadderError where none has been measured.
    """
    paths = sorted(step_timing.FOLDER.glob("*-climb-gpt2-*.json"))
    if not paths:
        raise LadderError("no climb has been measured yet: `make climb`, on a machine with a GPU")
    return dict(read_json(paths[0]))


def savings(climb: Mapping[str, Any], exact: bool = True) -> list[Saving]:
    """For each op that the climb raises, in its order; without those whose two rungs have not been
    timed alone.

    exact  prefer a bench at a shape of the step; else the largest shape is scaled down
    """
    job = climb["job"]
    shape = SIZES[job["model"]].config
    program = build(shape, job["B"], job["T"])
    content = results.load_all()[results.slug(climb["machine"]["name"])]
    rows = []
    for before, stage in zip(climb["stages"], climb["stages"][1:], strict=False):
        if stage.get("op") is None:
            continue
        calls = [call for call in program.training_step if call.op == stage["op"]]
        benches = [*_benches(content["measurements"], stage)]
        if not benches:
            continue
        op = find(stage["op"]).op
        same = [b for b in benches if any(b.dims == dict(call.dims) for call in calls)]
        largest = max(benches, key=lambda bench: _work(op, bench.dims))
        chosen = same[0] if same and exact else largest
        share = sum(_work(op, call.dims) for call in calls) / _work(op, chosen.dims)
        predicted = share * (chosen.low_us - chosen.high_us) / 1e3
        rows.append(Saving(op.name, chosen, predicted, before["ms"] - stage["ms"]))
    return rows


def _benches(
    measurements: Sequence[Mapping[str, Any]], stage: Mapping[str, Any]
) -> Iterator[Bench]:
    """The shapes at which both rungs of a stage were timed, in 16 bits where there is such."""
    of_op = [m for m in measurements if m["op"] == stage["op"]]
    for m in [m for m in of_op if m["dtype"] == "bfloat16"] or of_op:
        times = {row.get("rung"): row.get("median_us") for row in m["rows"]}
        to = stage["to"]  # one rung, or some by shape
        if not isinstance(to, str):
            to = to[key_for(to, stage["op"], m["dims"]) or stage["op"]]
        low, high = times.get(stage["from"]), times.get(to)
        if low and high:
            yield Bench(m["dims"], low, high)


def _work(op: Op, dims: Dims) -> float:
    """What the time of a call should be proportional to: its FLOPs or its bytes."""
    return op.flops(dims) if compute_bound(op, dims, BF16) else op.least_bytes(dims, BF16)


def show_savings(rows: Sequence[Saving]) -> None:
    """What climbs should save in a step, from times of their rungs alone, and what they saved; on
    logarithmic axes."""
    machine = measured_climb()["machine"]["name"]
    title = f"What raising an op saves in a step of GPT-2 124M, {machine}"
    figure, (axes,) = figure_of(title, 1.0 + 0.29 * len(rows))
    names = [row.op for row in rows]
    predicted = np.array([row.predicted for row in rows], float)
    measured = np.array([row.measured for row in rows], float)
    axes.hlines(names, predicted, measured, color=GREY, lw=2, zorder=1)
    axes.scatter(measured, names, color=BLUE, s=45, label="saved in the step", zorder=2)
    axes.scatter(
        predicted, names, facecolor="none", edgecolor=ORANGE, s=45, lw=1.6, zorder=3,
        label="predicted from the rungs alone",
    )  # fmt: skip
    for place, row in enumerate(rows):
        apart = f"{round(100 * (row.predicted / row.measured - 1)):+d} %"
        axes.annotate(apart, (max(row.predicted, row.measured), place), **BESIDE)
    axes.set_xscale("log")
    axes.set_xlim(right=5 * max(predicted.max(), measured.max()))
    axes.set_xlabel("ms of a step", fontsize=9)
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    draw(figure)


# ---- the sectors of memory that a step asks for --------------------------------------------------

# The emulator counts a call of each op at each of the step's shapes, on random inputs. What a step
# asks for is the sum over its calls: caches do not hide any of it.


@dataclass(frozen=True)
class OpCount:
    """Sectors of 32 bytes that all calls of an op in a step ask for, and the least possible."""

    op: str
    calls: int
    sectors: int
    least: int


def count_step(step: Sequence[Call], rungs: Mapping[str, Rung]) -> list[OpCount]:
    """A row for each op of a step's calls, in float32, that with the most sectors first.

    Raises LadderError where a rung is no kernel, or cannot run at a shape of the step.
    """
    rows = []
    for name in dict.fromkeys(call.op for call in step):
        calls = [call for call in step if call.op == name]
        op, sectors = find(name).op, 0
        for call in calls:
            rung = rung_map.rung_of(rungs, call)
            kernel = rung.id if rung.number else rung.source
            sectors += _sectors(name, kernel, rung_map.shape_of(call))
        least = sum(op.least_bytes(call.dims, FLOAT32) for call in calls) // SECTOR
        rows.append(OpCount(name, len(calls), sectors, least))
    return sorted(rows, key=lambda row: -row.sectors)


@functools.lru_cache(maxsize=512)
def _sectors(op: str, kernel: str, dims: tuple[tuple[str, int], ...]) -> int:
    """Of one call. `kernel`: the id of a rung, or the source of another kernel."""
    report = trace.trace(find(op), rung_of(op, kernel), "float32", dict(dims), keep=1)
    return sum(line.sectors for line in report.lines)


def sectors(run: Run) -> list[OpCount]:
    """The sectors that a step of a run asks for, by op, the most first, and a picture of them: in
    front, the least possible."""
    rows = count_step(run.program.training_step, run.engine.rungs)
    setting = f"B={run.program.B} T={run.program.T}, float32"
    title = f"A training step, {setting}, counted by the emulator"
    figure, (axes,) = figure_of(title, 1.0 + 0.27 * len(rows))
    names, total = [row.op for row in rows], sum(row.sectors for row in rows)
    axes.barh(names, [row.sectors for row in rows], color="#b7cde3", height=0.72, label="asked for")
    axes.barh(names, [row.least for row in rows], color=BLUE, height=0.36, label="least possible")
    for place, row in enumerate(rows):
        share, times = 100 * row.sectors / total, row.sectors / row.least
        text = f"{row.sectors:,}: {share:.1f} % of the step, {times:.1f} x least"
        axes.annotate(text, (max(row.sectors, row.least), place), **BESIDE)
    axes.set_xlim(0, 1.5 * max(row.sectors for row in rows))
    axes.set_xlabel(f"sectors of 32 bytes: {total:,} in the whole step", fontsize=9)
    axes.set_xticks([])
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    draw(figure)
    return rows


# ---- which gradients are wrong -------------------------------------------------------------------

# One backward pass goes on the kernels of a run, one on the reference, from the same weights and
# the same batch. So the only difference is rounding, or a wrong kernel.


def differences(run: Run, ops: Collection[str]) -> dict[str, float]:
    """The relative difference of every gradient from the reference's, if the named ops are on the
    kernels of the run and all others on the reference.

    The gradients are in the order in which the backward pass completes them. Each is compared by
    the largest difference in its tensor, relative to the largest element; NaN where there is one.
    """
    got, right = _gradients(run, ops), _gradients(run, ())
    return {
        name: float(np.abs(got[name] - right[name]).max() / np.abs(right[name]).max())
        for name in right
    }


def goes_wrong(run: Run, ops: Collection[str]) -> bool:
    """Whether a gradient is wrong if the named ops are on the kernels of the run."""
    return any(not apart < APART for apart in differences(run, ops).values())


def _gradients(run: Run, ops: Collection[str]) -> dict[str, np.ndarray]:
    """Of the first B * T tokens of the text, by tensor, and for a stacked one by layer."""
    rungs = {
        key: rung if op_of(key) in ops else find(op_of(key)).rung(0)
        for key, rung in run.engine.rungs.items()
    }
    engine = Engine(run.program, run.engine.device, run.engine.real, rungs, weights_of=run.engine)
    B, T = run.program.B, run.program.T
    engine.write("tokens", run.text[: B * T].reshape(B, T))
    engine.write("targets", run.text[1 : B * T + 1].reshape(B, T))
    engine.write("dloss", np.array([1 / (B * T)]))
    engine.zero_gradients()
    engine.forward()
    engine.backward()
    gradients = {}
    for name, layer in _completed(run.program):
        place = "" if layer is None else f"h{layer}."
        gradients[place + name.removeprefix("d")] = engine.read(name, layer)
    return gradients


def _completed(program: Program) -> list[Ref]:
    """The gradients in the order in which the backward pass writes them for the last time."""
    last: dict[Ref, int] = {}
    for number, call in enumerate(program.backward):
        for arg, ref in zip(find(call.op).op.args, call.args, strict=True):
            if ref is not None and arg.role != "in" and program.buffers[ref[0]].kind == "gradient":
                last[ref] = number
    return sorted(last, key=lambda ref: last[ref])


def gradients(run: Run) -> None:
    """How far each gradient of a run is from the one that the reference computes."""
    apart = differences(run, ops_of(run.engine.rungs))
    title = "Gradients on the kernels beside those of the reference: left, what is completed first"
    figure, (axes,) = figure_of(title, 3.0)
    names, heights = list(apart), np.array(list(apart.values()))
    shown = np.clip(np.nan_to_num(heights, nan=np.inf), 1e-8, 10)
    colours = np.where(shown < APART, BLUE, ORANGE)
    axes.vlines(range(len(names)), 1e-9, shown, color=colours, lw=2)
    axes.scatter(range(len(names)), shown, color=colours, s=25, zorder=2)
    axes.axhline(APART, color=GREY, ls=":", lw=1.2)
    beside = {"fontsize": 8, "color": INK, "va": "bottom", "transform": axes.get_yaxis_transform()}
    axes.text(0.01, APART, "more than rounding", **beside)
    axes.set_yscale("log")
    axes.set_ylim(1e-9, 20)
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right")
    axes.set_ylabel("relative difference", fontsize=9)
    draw(figure)


# ---- what to climb next -------------------------------------------------------------------------


def made_up(seed: int) -> Profile:
    """A profile in which the op with the most time, the one farthest above its floor in
    proportion, and the one with the most to gain are three different ones."""
    rng = np.random.default_rng(seed)
    near, far, gain = rng.uniform(1.01, 1.05), rng.uniform(8, 12), rng.uniform(2, 3)
    floors = {"long": 10.0, "small": 0.01, "right": 1.5, "other": 2.0}
    times = {"long": 10.0 * near, "small": 0.01 * far, "right": 1.5 * gain, "other": 2.1}
    names = rng.permutation(list(floors))
    ops = [{"op": f"op {i}", "ms": times[n], "floor_ms": floors[n]} for i, n in enumerate(names)]
    return {"step_ms": sum(times.values()) + rng.uniform(0, 0.2), "ops": ops}


def check_next_climb(next_climb: NextClimb, measured: Sequence[Profile]) -> None:
    """Print the verdict on a function of a profile: the op whose climb to its floor gains the step
    most, and the factor by which the step becomes faster."""
    made = [made_up(seed) for seed in range(5)]
    for profile in (*made, *measured):
        if fault := _fault(next_climb(profile), profile):
            where = ", made up" if profile in made else ""
            print(f"✗ a step of {profile['step_ms']:.2f} ms{where}: {fault}")
            return
    for mark, profile in zip("✓" + " " * len(measured), measured, strict=False):
        (op, factor), step = next_climb(profile), profile["step_ms"]
        print(f"{mark} {step:.2f} -> {step / factor:.2f} ms, {factor:.3f} times as fast: {op}")
    say_progress("check_next_climb")


def _fault(answer: Any, profile: Profile) -> str:
    """What is wrong with an answer; "" if nothing is."""
    match answer:
        case (str(name), int() | float() as factor):
            step = profile["step_ms"]
        case _:
            return (
                f"next_climb returns {answer!r}; return the op's name, row['op'], and the factor, "
                f"a number: return row['op'], factor"
            )
    gains = {row["op"]: row["ms"] - row["floor_ms"] for row in profile["ops"]}
    best = max(gains, key=lambda op: gains[op])
    if name not in gains:
        return f"{name!r} is none of its ops; these are: {', '.join(gains)}"
    if name != best:
        return f"at its floor, {name} would save {gains[name]:.3f} ms, {best} {gains[best]:.3f} ms"
    after = step - gains[best]
    if not abs(factor * after / step - 1) < 1e-3:
        return f"{best} is the op, but {step:.2f} -> {after:.2f} ms is no factor of {factor:.4g}"
    return ""


# ---- which op is slow ---------------------------------------------------------------------------


def check_swap(run: Run, swap: Mapping[str, int | str], at_most: int) -> None:
    """Print the verdict on one op and the rung to swap it to: whether the step then asks for at
    most so many sectors."""
    try:
        if not isinstance(swap, Mapping) or len(swap) != 1:
            raise LadderError(f'swap one op, as in {{"adamw.update": 2}}; this is {swap!r}')
        ((op, kernel),) = swap.items()
        if op not in run.engine.rungs:
            raise LadderError(
                f"no call of the step is a {op}; its ops: {' '.join(run.engine.rungs)}"
            )
        rung = find(op).rung(str(kernel))
        step, rungs = run.program.training_step, run.engine.rungs
        before, after = count_step(step, rungs), count_step(step, with_rung(rungs, op, rung))
    except LadderError as error:
        print(f"✗ {error}")
        return
    sums = [sum(row.sectors for row in rows) for rows in (before, after)]
    passed = sums[1] <= at_most
    share = next(row.sectors for row in before if row.op == op) / sums[0]
    print(f"{'✓' if passed else '✗'} {op}, {rung.name}: {sums[0]:,} -> {sums[1]:,} sectors", end="")
    print("" if passed else f"; the limit is {at_most:,}")
    print(f"  it had {share:.1%} of the step, which is now {sums[0] / sums[1]:.3f} times as light")
    if passed:
        say_progress("check_swap")


# ---- which op is wrong --------------------------------------------------------------------------


def check_culprit(run: Run, op: str) -> None:
    """Print whether all gradients are right once this op, and no other, is on the reference."""
    rungs = run.engine.rungs
    kernels = ops_of(key for key, rung in rungs.items() if not rung.is_reference)
    if op not in kernels:
        print(f"✗ {op!r} is not on a kernel; these are: {' '.join(sorted(kernels))}")
        return
    apart = differences(run, [name for name in kernels if name != op])
    wrong = [name for name, difference in apart.items() if not difference < APART]
    if wrong:
        print(
            f"✗ with {op} on the reference, {len(wrong)} of {len(apart)} gradients are still wrong"
        )
    elif goes_wrong(run, [op]):
        print(f"✓ {op}: with it, gradients are wrong, and without it, all {len(apart)} are right")
        say_progress("check_culprit")
    else:
        print("✗ no gradient of this run is wrong")


def check_bisect(culprit: Bisect) -> None:
    """Print the verdict on a function that finds the wrong one of several ops: for each of them,
    and with as few steps as halving takes."""
    for size in (8, 1, 2, 3, 13, 17):
        ops, most = [f"op {i}" for i in range(size)], (size - 1).bit_length()
        for wrong in ops:
            steps: list[Collection[str]] = []  # the ops on kernels in each
            try:
                answer = culprit(list(ops), functools.partial(_goes_wrong, wrong, steps, size + 1))
            except _TooMany:
                print(
                    f"✗ of {size} ops, with {wrong!r} wrong: still searching after {size + 1} steps"
                )
                return
            if answer != wrong:
                form = "" if isinstance(answer, str) else "; return one op, such as ops[0]"
                print(f"✗ of {size} ops, {wrong!r} is wrong, but it returns {answer!r}{form}")
                return
            if len(steps) > most:
                print(f"✗ {wrong!r} of {size} takes {len(steps)} steps, where {most} are enough")
                return
    print(f"✓ finds each of {size} ops in at most {most} steps")
    say_progress("check_bisect")


class _TooMany(Exception):
    """More steps than there are ops."""


def _goes_wrong(wrong: str, steps: list[Collection[str]], limit: int, ops: Collection[str]) -> bool:
    """Whether a step with some ops on kernels goes wrong; each is noted in `steps`."""
    steps.append(ops)
    if len(steps) > limit:
        raise _TooMany
    return wrong in ops
