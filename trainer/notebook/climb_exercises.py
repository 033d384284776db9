"""The checkers of notebook 11: what to climb next, which op is slow, which one is wrong.

None of them compares an answer with a stored one. An op that is named as slow is swapped and the
step counted again; an op that is named as wrong goes to the reference, and the gradients are
compared again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find
from trainer.engine.rung_map import ops_of, with_rung
from trainer.notebook.exercises import say_progress
from trainer.notebook.gradient_differences import APART, differences, goes_wrong
from trainer.notebook.small_run import Run
from trainer.notebook.step_counts import count

Profile = Mapping[str, Any]
NextClimb = Callable[[Profile], tuple[str, float]]
Bisect = Callable[[Sequence[str], Callable[[Collection[str]], bool]], str]


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
    if not (
        isinstance(answer, tuple)
        and len(answer) == 2
        and isinstance(answer[0], str)
        and isinstance(answer[1], (int, float))
    ):
        return (
            f"next_climb returns {answer!r}; return the op's name, row['op'], and the factor, a "
            f"number: return row['op'], factor"
        )
    (name, factor), step = answer, profile["step_ms"]
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
        before, after = count(step, rungs), count(step, with_rung(rungs, op, rung))
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
            oracle = _Oracle(wrong, limit=size + 1)
            try:
                found = culprit(list(ops), oracle)
            except _TooMany:
                print(
                    f"✗ of {size} ops, with {wrong!r} wrong: still searching after {size + 1} steps"
                )
                return
            if found != wrong:
                form = "" if isinstance(found, str) else "; return one op, such as ops[0]"
                print(f"✗ of {size} ops, {wrong!r} is wrong, but it returns {found!r}{form}")
                return
            if oracle.steps > most:
                print(f"✗ {wrong!r} of {size} takes {oracle.steps} steps, where {most} are enough")
                return
    print(f"✓ finds each of {size} ops in at most {most} steps")
    say_progress("check_bisect")


class _TooMany(Exception):
    """More steps than there are ops."""


@dataclasses.dataclass
class _Oracle:
    """Says whether a step with some ops on kernels goes wrong, and counts the steps."""

    wrong: str
    limit: int
    steps: int = 0

    def __call__(self, ops: Collection[str]) -> bool:
        self.steps += 1
        if self.steps > self.limit:
            raise _TooMany
        return self.wrong in ops
