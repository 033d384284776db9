"""What notebook 11 calls: predict a climb, count a step, compare gradients, check the exercises.

    from trainer.notebook import climbing

    climbing.show_savings(rows) a picture: what each climb should save, and what it did save
    climbing.sectors(run)       a picture: the profile of a step, counted by the emulator
    climbing.gradients(run)     a picture: which gradients of a run are not those of the reference

Nothing that it shows of measurements is typed: it is read from doc/results.
"""

from __future__ import annotations

from collections.abc import Sequence

from ladder.core.show.notebook import draw
from trainer.engine.rung_map import ops_of
from trainer.notebook import step_counts
from trainer.notebook.climb_exercises import (
    check_bisect,
    check_culprit,
    check_next_climb,
    check_swap,
)
from trainer.notebook.climb_prediction import Saving, measured_climb, savings
from trainer.notebook.gradient_differences import APART, differences, goes_wrong
from trainer.notebook.small_run import Run
from trainer.notebook.step_counts import OpCount
from trainer.plots import climb_pictures

# what the notebook calls from here although it stands elsewhere
__all__ = [
    "check_bisect",
    "check_culprit",
    "check_next_climb",
    "check_swap",
    "goes_wrong",
    "measured_climb",
    "savings",
]


def show_savings(rows: Sequence[Saving]) -> None:
    """What climbs should save in a step, from times of their rungs alone, and what they saved."""
    machine = measured_climb()["machine"]["name"]
    title = f"What raising an op saves in a step of GPT-2 124M, {machine}"
    named = [(row.op, row.predicted, row.measured) for row in rows]
    draw(climb_pictures.savings(named, title), title)


def count(run: Run) -> list[OpCount]:
    """The sectors that a step of a run asks for, by op, the most first."""
    return step_counts.count(run.program.training_step, run.engine.rungs)


def sectors(run: Run) -> list[OpCount]:
    """The same, and a picture of it."""
    rows = count(run)
    setting = f"B={run.program.B} T={run.program.T}, float32"
    title = f"A training step, {setting}, counted by the emulator"
    named = [(row.op, row.sectors, row.least) for row in rows]
    draw(climb_pictures.sectors(named, title), title)
    return rows


def gradients(run: Run) -> None:
    """How far each gradient of a run is from the one that the reference computes."""
    apart = differences(run, ops_of(run.engine.rungs))
    title = "Gradients on the kernels beside those of the reference: left, what is completed first"
    draw(climb_pictures.gradients(apart, APART, title), title)
