"""`python -m trainer profile`: where the time and the memory of a training step go, op by op.

Each op is timed within the step (op_timing.py), in turns with the step as it is. On a GPU, the ops
add up to the step within MOST_GAP, or the profile is refused. They take longer in a step with two
streams (trainer/model/forks.py), whose calls go on beside each other; here they run one by one.
--joules repeats each op for seconds, to measure its energy; --trace writes the step as a time line.

With several ranks (`--gpus 2`), rank 0 also shows each exchange of the step (collective_timing.py).

One more step runs call by call with NVTX ranges, h3.ln_1 and the like, for Nsight Systems:

    nsys profile --trace=cuda,nvtx python -m trainer profile --no-write
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from ladder.core.common import files
from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find
from ladder.core.measure import energy, results
from trainer.commands import collective_timing, gpu_condition, op_timing, step_timing
from trainer.engine.engine import Engine
from trainer.engine.rung_map import rung_of
from trainer.flags import Flags
from trainer.model.calls import Call, Collective, in_order
from trainer.plots.style import GRID, INK, figure_of
from trainer.ranks.group import ALONE, Group
from trainer.ranks.join import join
from trainer.ranks.launch import wants_supervisor
from trainer.ranks.supervise import supervise
from trainer.report import Display, open_console

MOST_GAP = 0.01  # of the step, between it and the sum of its ops


def main(argv: Sequence[str] = ()) -> int:
    """Measure, print, and write doc/results/training/<device>-profile-<job>.json and .svg."""
    parser = step_timing.parser_of(
        "profile", "Time and memory of a step by op.", "ranks", "zero", "overlap", "exchange"
    )
    parser.add_argument(
        "--joules", action="store_true", help="of each op, too; takes 4 seconds for each"
    )
    parser.add_argument(
        "--trace", metavar="FILE", help="write the step as a time line, for Perfetto and Chrome"
    )
    options = vars(parser.parse_args(argv))
    write, joules, trace = not options.pop("no_write"), options.pop("joules"), options.pop("trace")
    flags = Flags(**options)
    if wants_supervisor(flags, os.environ):
        return supervise(["profile", *argv], flags.value("ranks"))
    with join(flags, step_timing.FOLDER) as group:
        profile, events = measure(flags, group, joules, write)
    if not group.leads:
        return 0
    screen = Display(open_console(), 0)
    show(profile, screen)
    refuse_gap(profile)
    if trace is not None:
        files.write_json(Path(trace), events)
        screen.say(f"\nwritten to {trace}; open it in https://ui.perfetto.dev or chrome://tracing")
    if write:
        kind = "profile" if group.size == 1 else f"{group.size}-ranks"
        step_timing.write_result(kind, profile, profile, draw, screen)
    return 0


def measure(
    flags: Flags, group: Group = ALONE, joules: bool = False, write: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The content of the result file, as one rank measures it, and that of a trace."""
    job = step_timing.open_job(flags, "profile", group=group)
    engine = job.engine(write=write and group.leads)
    with job.device.sensors() as sensors:
        if group.size == 1:
            timed = op_timing.time_in_step(engine, job.config.steps, sensors.begin)
            step_ms, sensed = timed.step_ms, sensors.end()
        else:
            step_ms = collective_timing.time_steps(job, engine, group, 1, sensors.begin)
            sensed = sensors.end()
            timed = op_timing.time_in_step(engine)
    ops = op_timing.rows_of(engine, timed, roof := step_timing.roof_of(job.device, job.config.real))
    trace = op_timing.trace_of(engine, timed.parts)
    if joules:
        if group.leads:
            print(energy.forecast(job.device, len(ops)), file=sys.stderr)
        op_timing.add_joules(engine, ops)
    spent = op_timing.energy_of_step(engine, job.tokens)
    launches = sum(_launches(engine, call) for call in job.program.training_step)
    run_with_ranges(engine)
    exchanges = collective_timing.time_collectives(engine)
    memory = engine.memory_by_kind()
    compute_ms = [step_ms]
    if job.peers is not None:
        compute_ms = collective_timing.time_without_collectives(job, engine, group)
    ops_ms = sum(row["ms"] for row in ops)
    exposed_ms = step_ms - max(compute_ms)
    profile = {
        "machine": step_timing.machine_of(job.device),
        **job.description(),
        **results.of_step(engine.rungs),
        "step_ms": step_ms,
        "tokens_per_second": 1e3 * job.tokens * group.size / step_ms,
        "ranks": group.size,
        **job.exchange,
        "exchanges": exchanges,
        "compute_ms": compute_ms,  # of each rank, without exchanges
        "exposed_ms": exposed_ms,
        **gpu_condition.entry(sensed, group),
        **spent,
        "ops_ms": ops_ms,
        "gaps_ms": step_ms - exposed_ms - ops_ms,
        "mark_us": timed.mark_us,
        "adds_up": job.device.marks_in_graphs and job.program.last_backward == job.program.backward,
        "launches": launches,
        "empty_launch_us": 1e6 * op_timing.empty_launch(job.device) if job.device.is_gpu else None,
        "floor_ms": sum(row["floor_ms"] for row in ops),
        **step_timing.in_giga(roof),
        "memory": memory,
        "ops": ops,
    }
    return profile, {**trace, "otherData": {"step": _title(profile)}}


def refuse_gap(p: dict[str, Any]) -> None:
    """Raise LadderError where the ops should add up to the step, and do not."""
    if p["adds_up"] and abs(p["gaps_ms"]) > MOST_GAP * p["step_ms"]:
        raise LadderError(
            f"the ops take {p['ops_ms']:,.3f} ms and the step {p['step_ms']:,.3f}, which is not "
            f"the same within {100 * MOST_GAP:g} %: something else used the GPU. Nothing is "
            "written; measure again"
        )


def _launches(engine: Engine, call: Call) -> int:
    """The number of kernels that a call launches; a library call counts as one."""
    rung, real = rung_of(engine.rungs, call), find(call.op).op.real_in(engine.real)
    if rung.path is None:
        return 1
    return len(rung.plan(call.dims, engine.device.target(real)).launches)


def run_with_ranges(engine: Engine) -> None:
    """Run a step call by call, each in a range that Nsight shows under its name."""
    ranges = engine.device.annotate
    program = engine.program
    with ranges("step"):
        engine.zero_gradients()
        for part, items in (
            ("forward", program.forward),
            ("backward", program.last_backward),
            ("update", (*program.reduce, *program.apply)),
        ):
            with ranges(part):
                for call in in_order(items):
                    with ranges(name_in_ranges(call)):
                        engine.bound[call]()
    engine.device.synchronize()


def name_in_ranges(call: Call | Collective) -> str:
    """What Nsight shows: "h3.ln_1 layernorm.forward", "all_gather parameters.2"."""
    if isinstance(call, Collective):
        return f"{call.kind} {call.buffers[0]}" + " ..." * (len(call.buffers) > 1)
    return f"{call.where} {call.op}"


def show(p: dict[str, Any], screen: Display) -> None:
    screen.say(f"{_title(p)}: {p['step_ms']:,.2f} ms, {p['tokens_per_second']:,.0f} tokens/s")
    for line in gpu_condition.lines(p):
        screen.say(line)
    screen.say(
        f"{op_timing.energy_in_words(p['machine']['name'], p)}\n{step_timing.data_in_words(p)}"
    )
    op_timing.show_ops(p["ops"], p["step_ms"], screen)
    share = 100 * p["gaps_ms"] / p["step_ms"]
    joules = [row["joules"] for row in p["ops"] if "joules" in row]
    used = f", alone {sum(joules):,.2f} J" if joules else ""
    screen.say(
        f"\nops {p['ops_ms']:,.2f} ms{used}; the step less its ops {p['gaps_ms']:,.2f} ms "
        f"({share:.1f} %)\neach op within the step, from the end of the one before; marks between "
        f"them, {p['mark_us']:.2f} us each, are taken off"
    )
    if p["empty_launch_us"] is not None:
        empty = p["launches"] * p["empty_launch_us"] / 1e3
        screen.say(
            f"{p['launches']} launches; as many empty ones in a graph take {empty:.2f} ms, "
            f"{p['empty_launch_us']:.2f} us each"
        )
    if p["exchanges"]:
        _show_collectives(p, screen)
    total = sum(p["memory"].values())
    memory = [(kind, f"{size / 2**20:,.1f}") for kind, size in p["memory"].items()]
    screen.table(("memory", "MiB>"), [*memory, ("together", f"{total / 2**20:,.1f}")])


def _show_collectives(p: dict[str, Any], screen: Display) -> None:
    screen.say(
        f"\n{p['ranks']} ranks, -z {p['zero']} --overlap {p['overlap']:d}, by {p['exchanged_by']}:"
    )
    rows = [
        (
            row["kind"],
            row["bucket"],
            f"{row['bytes'] / 1e6:,.1f}",
            f"{row['ms']:,.3f}",
            row["behind"],
            row["beside"] or "nothing",
        )
        for row in p["exchanges"]
    ]
    columns = ("exchange", "bucket>", "MB>", "ms alone>", "waits for", "begins beside")
    screen.table(columns, rows)
    alone = sum(row["ms"] for row in p["exchanges"])
    screen.say(
        f"\nalone, one after the other, they take {alone:,.3f} ms. Without them the slowest rank's "
        f"step takes {max(p['compute_ms']):,.2f} ms, so {p['exposed_ms']:,.3f} ms are exposed and "
        f"{alone - p['exposed_ms']:,.3f} ms hidden"
    )


def draw(p: dict[str, Any]) -> Figure:
    """Draw stacked bars: the time of the step and its floor by op, the memory by kind."""
    title = f"{_title(p)}: {p['step_ms']:.2f} ms"
    figure, panels = figure_of(title, 4.6, rows=2, height_ratios=(2, 1))
    colours = [colormaps["tab20"](index) for index in range(20)]
    times: list[tuple[str, list[float], Any]] = [
        (f"{row['op']} {row['ms']:.2f}", [row["ms"], row["floor_ms"]], colour)
        for row, colour in zip(p["ops"], colours, strict=False)
    ]
    if p["ranks"] > 1:
        exposed = f"exchange, exposed {p['exposed_ms']:.2f}"
        times.append((exposed, [max(0.0, p["exposed_ms"]), 0.0], INK))
    times.append((f"between ops {p['gaps_ms']:.2f}", [max(0.0, p["gaps_ms"]), 0.0], GRID))
    sizes: list[tuple[str, list[float], Any]] = [
        (f"{kind} {size / 2**30:.2f}", [size / 2**30], colour)
        for (kind, size), colour in zip(p["memory"].items(), colours, strict=False)
    ]
    for axes, names, parts, unit in (
        (panels[0], ["step", "floor"], times, "ms"),
        (panels[1], ["memory"], sizes, "GiB"),
    ):
        left = np.zeros(len(names))
        for label, widths, colour in parts:
            axes.barh(names, widths, left=left, color=colour, label=label)
            left += widths
        axes.set_xlabel(unit, color=INK)
        axes.invert_yaxis()
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=7, frameon=False)
    return figure


def _title(p: dict[str, Any]) -> str:
    each = f" on each of {p['ranks']} ranks" if p["ranks"] > 1 else ""
    return f"{p['model']}, B={p['B']} T={p['T']}{each}, {p['dtype']}, {p['machine']['name']}"
