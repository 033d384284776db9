"""`python -m trainer climb`: what each ladder is worth to the whole.

The first measured step has every op on its lowest rung. Then the ops are raised to their best rung
one after the other, the slowest first, and the step is measured after each. Last, the fusions that
the run would use are added one by one. The gain of an op depends on the ops that were raised before
(Amdahl's law): the less time the other ops take, the larger it is.
"""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from ladder.core.common.errors import LadderError
from ladder.core.contract.rung_file import Rung
from ladder.core.measure import results
from trainer.commands import step_timing
from trainer.commands.op_timing import rows_of, time_in_step
from trainer.engine.engine import Engine
from trainer.engine.rung_map import op_of
from trainer.flags import Flags
from trainer.model.fusion import makes
from trainer.plots.style import BLUE, GRID, INK, ORANGE, figure_of
from trainer.report import Display, open_console

SECONDS = 2.0  # most time for the steps of one stage, once three are timed


def main(argv: Sequence[str] = ()) -> int:
    """Measure, print, and write doc/results/training/<device>-climb-<job>.json and .svg."""
    parser = step_timing.parser_of(
        "climb", "Raise one op after the other from its lowest rung to its best."
    )
    parser.set_defaults(rungs="best")
    options = vars(parser.parse_args(argv))
    write = not options.pop("no_write")
    screen = Display(open_console(), 0)
    climb = measure(Flags(**options), screen, write)
    show(climb, screen)
    if write:
        step_timing.write_result("climb", climb, climb["job"], draw, screen)
    return 0


def measure(flags: Flags, screen: Display, write: bool = False) -> dict[str, Any]:
    """What the result file holds: machine, job, and the stages of the climb."""
    goal = flags.value("rungs", gpu=True)
    if goal not in ("best", "library"):
        raise LadderError(f"--rungs {goal}: climb goes from naive to best or library")
    whole = step_timing.open_job(flags, "climb", needs_gpu=True)
    for note in whole.notes:
        screen.say(f"note: {note}")
    job = whole.fused(())
    lowest = whole.fused((), rungs="naive", rung={}).kernels.rungs
    best = job.kernels.rungs
    stages: list[dict[str, Any]] = []

    def stage(
        job: step_timing.Job, rungs: Mapping[str, Rung], name: str, what: dict[str, Any]
    ) -> Engine:
        """Measure the step; `what`: the difference from the stage before."""
        engine = job.engine(rungs, write and not stages)
        ms = statistics.median(step_timing.time_steps(engine, job.config.steps, seconds=SECONDS))
        speed = 1e3 * job.tokens / ms
        stages.append({**what, "ms": ms, "tokens_per_second": speed})
        screen.say(f"{name}: {ms:,.2f} ms, {speed:,.0f} tokens/s")
        return engine

    engine = stage(job, lowest, "every op on its lowest rung", {"op": None})
    table = rows_of(engine, time_in_step(engine), step_timing.roof_of(job.device, job.config.real))
    order = [row["op"] for row in table if row["op"] in lowest]
    del engine  # its memory is needed for the next one
    rungs = dict(lowest)
    for op in order:
        raised = {key: rung for key, rung in best.items() if op_of(key) == op}
        if raised != {op: lowest[op]}:
            rungs |= raised
            ids = {key: rung.id for key, rung in raised.items()}
            to = ids if len(ids) > 1 else ids[op]  # by shape, where they differ
            stage(job, rungs, op, {"op": op, "from": lowest[op].id, "to": to})
    for number, name in enumerate(whole.program.fusions, 1):
        fused = whole.fused(whole.program.fusions[:number])
        rungs = fused.kernels.rungs
        made = {key: rung.id for key, rung in rungs.items() if op_of(key) in makes(name)}
        stage(fused, rungs, name, {"fusion": name, "to": made})
    return {
        "machine": step_timing.machine_of(job.device),
        "job": {**whole.description(), "goal": goal},
        "lowest": {op: rung.id for op, rung in lowest.items()},
        **results.of_step(rungs),
        "stages": stages,
    }


def show(climb: dict[str, Any], screen: Display) -> None:
    rows, before = [], None
    for stage in climb["stages"]:
        name, rungs = _change(stage)
        gain = f"{before['ms'] / stage['ms']:.2f} x" if before else ""
        saved = f"{before['ms'] - stage['ms']:,.2f}" if before else ""
        speed = f"{stage['tokens_per_second']:,.0f}"
        rows.append((name, rungs.replace("→", "->"), f"{stage['ms']:,.2f}", saved, speed, gain))
        before = stage
    screen.table(("raised", "rung", "ms/step>", "saved>", "tokens/s>", "gain>"), rows)
    first, last = climb["stages"][0], climb["stages"][-1]
    screen.say(f"\ntogether {first['ms'] / last['ms']:,.1f} x, {_title(climb)}")


def draw(climb: dict[str, Any]) -> Figure:
    """The climb as a waterfall: from one stage's tokens per second to the next one's."""
    stages = climb["stages"]
    speeds = [stage["tokens_per_second"] for stage in stages]
    figure, (axes,) = figure_of(_title(climb), 4.8)
    steps = [*itertools.pairwise(speeds)]
    first, last = speeds[0], speeds[-1]
    low = [0, *map(min, steps), 0]
    high = [first, *map(max, steps), last]
    colours = [INK, *(BLUE if after >= before else ORANGE for before, after in steps), INK]
    factors = (f"{after / before:.2f}×" for before, after in steps)
    labels = [f"{first:,.0f}", *factors, f"{last:,.0f}\n"]  # above the factor beside it
    height = [top - bottom for top, bottom in zip(high, low, strict=True)]
    bars = axes.bar(range(len(height)), height, 0.7, low, color=colours, edgecolor=colours)
    axes.bar_label(bars, labels, padding=2, fontsize=8, color=INK)
    raised = ["\nrung ".join(_change(stage)) for stage in stages[1:]]
    names = ["every op on its\nlowest rung", *raised, f"all {climb['job']['goal']}"]
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=8)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylabel("tokens per second", color=INK)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    return figure


def _change(stage: Mapping[str, Any]) -> tuple[str, str]:
    """What a stage raises or fuses, and the rungs after it."""
    if stage.get("op", "") is None:
        return "every op", "lowest"
    to = stage["to"]
    if isinstance(to, Mapping):
        shapes = ((key.partition("@")[2], id) for key, id in to.items())
        to = ", ".join(f"{id} at {shape}" if shape else id for shape, id in shapes)
    return (stage["fusion"], to) if "fusion" in stage else (stage["op"], f"{stage['from']} → {to}")


def _title(climb: Mapping[str, Any]) -> str:
    job = climb["job"]
    return f"{job['model']}, B={job['B']} T={job['T']}, {job['dtype']}, {climb['machine']['name']}"
