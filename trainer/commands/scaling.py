"""`python -m trainer scaling --gpus 1,2,4,8`: the time of a training step on several numbers of
ranks, with what they exchange.

    weak scaling    each rank has B * T tokens, so a step of more ranks has more tokens
    strong scaling  a step has as many tokens as the largest group has in the former, and fewer
                    ranks accumulate more micro-batches

Each rank's step without exchanges, and as a process alone, is timed as well (collective_timing.py).
An efficiency is against the smallest group, usually the first GPU alone, and a second one against
the slowest process alone. Clock and power are those of weak scaling (gpu_condition.py).

Every number of ranks runs in processes of its own, and twice: 1, 2, 4, 4, 2, 1. A GPU that was idle
runs at a higher clock than one at its power limit, so each also takes steps for a while before it
is timed.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_json, write_json
from ladder.core.measure import results
from trainer.commands import gpu_condition
from trainer.commands.collective_timing import (
    time_alone,
    time_collectives,
    time_steps,
    time_without_collectives,
)
from trainer.commands.step_timing import machine_of, open_job, parser_of, write_result
from trainer.flags import Flags
from trainer.plots.style import BLUE, GREY, INK, ORANGE, figure_of
from trainer.ranks.group import Group
from trainer.ranks.join import join
from trainer.ranks.launch import in_group
from trainer.ranks.supervise import supervise
from trainer.report import Display, open_console


def main(argv: Sequence[str] = ()) -> int:
    """Measure, print, and write doc/results/training/<device>-scaling-<job>.json and .svg."""
    parser = parser_of(
        "scaling", "Time a training step on 1, 2, ... ranks.", "zero", "overlap", "exchange"
    )
    parser.add_argument(
        "--gpus",
        "--ranks",
        dest="counts",
        type=_counts,
        default=(1, 2),
        metavar="N,N",
        help="numbers of GPUs, or of processes on a CPU; default 1,2",
    )
    parser.add_argument("--part", help=argparse.SUPPRESS)  # a rank: where rank 0 puts its result
    options = vars(parser.parse_args(argv))
    write, counts, part = not options.pop("no_write"), options.pop("counts"), options.pop("part")
    flags = Flags(**options)
    if part is not None:
        with join(flags, Path(part).parent) as group:
            measured = measure(flags, group, max(counts), alone=1 in counts, write=write)
            if group.leads:
                write_json(Path(part), measured)
        return 0
    if in_group(os.environ):
        raise LadderError("scaling starts its ranks itself; start it as one process")
    parts, turns = [], (*counts, *reversed(counts))
    begin, left = time.perf_counter(), ""
    with tempfile.TemporaryDirectory(prefix="kernel-ladder-scaling-") as folder:
        for turn, count in enumerate(turns):
            ranks = f"{count} rank{'s' if count > 1 else ''}"
            print(f"timing {ranks}, turn {turn + 1} of {len(turns)}{left} ...", file=sys.stderr)
            path = Path(folder) / f"{turn}.json"
            quiet = ["--no-write"] * (turn > 0)  # the first one says that the result is written
            if status := supervise(["scaling", *argv, *quiet, "--part", str(path)], count):
                return status
            parts.append(read_json(path))
            each = (time.perf_counter() - begin) / len(parts)
            left = f" ({each:.0f} s a turn, about {each * (len(turns) - len(parts)):.0f} s left)"
    result = gather(parts)
    screen = Display(open_console(), 0)
    show(result, screen)
    if write:
        write_result("scaling", result, result, draw, screen)
    return 0


def _counts(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise argparse.ArgumentTypeError(f"must be numbers such as 1,2,4, not {text!r}")
    return tuple(sorted({int(word) for word in words}))


def measure(
    flags: Flags, group: Group, most: int, alone: bool, write: bool = False
) -> dict[str, Any]:
    """What one rank measures.

    most   ranks of the largest group, which set the tokens of strong scaling
    alone  whether each rank also takes steps as a process alone, which needs more memory than its
           share of a group's step
    """
    if most % group.size:
        raise LadderError(f"--gpus: {group.size} ranks do not divide the work of {most}")
    job = open_job(flags, "scaling", group=group)
    engine = job.engine(write=write and group.leads)
    with job.device.sensors() as sensors:
        weak = time_steps(job, engine, group, 1, sensors.begin)
        sensed = sensors.end()
    strong = weak if most == group.size else time_steps(job, engine, group, most // group.size)
    exchanges: dict[str, float] = {}
    for row in time_collectives(engine):
        exchanges[row["kind"]] = exchanges.get(row["kind"], 0.0) + row["ms"]
    memory = engine.memory_by_kind()
    condition = gpu_condition.entry(sensed, group)
    compute = [weak] if job.peers is None else time_without_collectives(job, engine, group)
    each = ([weak] if job.peers is None else time_alone(job, group)) if alone else []
    return {
        "machine": machine_of(job.device),
        **job.description(),
        **results.of_step(job.kernels.rungs),
        **job.exchange,
        "ranks": group.size,
        "tokens": job.tokens,
        "most": most,
        "weak_ms": weak,
        "strong_ms": strong,
        "compute_ms": compute,
        "alone_ms": each,
        "exchange_ms": exchanges,
        "memory": memory,
        **condition,
    }


def gather(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The content of the result file: what all parts share, and a row for each number of ranks, of
    the mean of its turns."""
    own = (
        *("ranks", "weak_ms", "strong_ms", "compute_ms", "alone_ms", "exchange_ms", "memory"),
        gpu_condition.KEY,
    )
    largest = max(parts, key=lambda part: part["ranks"])
    common = {key: value for key, value in largest.items() if key not in own}
    rows: list[dict[str, Any]] = []
    for ranks in sorted({part["ranks"] for part in parts}):
        turns = [part for part in parts if part["ranks"] == ranks]
        weak, strong = (fmean([turn[key] for turn in turns]) for key in ("weak_ms", "strong_ms"))
        exchanges = {
            name: fmean([turn["exchange_ms"][name] for turn in turns])
            for name in turns[0]["exchange_ms"]
        }
        compute, alone = (
            [fmean(of_rank) for of_rank in zip(*(t[key] for t in turns), strict=True)]
            for key in ("compute_ms", "alone_ms")
        )
        first = rows[0] if rows else {"ranks": ranks, "weak_ms": weak, "strong_ms": strong}
        rows.append(
            {
                "ranks": ranks,
                "weak_ms": weak,
                "weak_ms_of_turns": [turn["weak_ms"] for turn in turns],
                "weak_tokens_per_second": 1e3 * ranks * common["tokens"] / weak,
                # Against the smallest group, which usually is one rank.
                "weak_efficiency": first["weak_ms"] / weak,
                "alone_ms": alone,  # of each rank, as a process alone
                "slowest_efficiency": max(alone) / weak if alone else None,
                "strong_ms": strong,
                "strong_tokens_per_second": 1e3 * common["most"] * common["tokens"] / strong,
                "strong_efficiency": first["ranks"] * first["strong_ms"] / (ranks * strong),
                "compute_ms": compute,  # of each rank, without exchange
                "exposed_ms": weak - max(compute),
                "exchange_ms": exchanges,
                "memory": turns[0]["memory"],
                **gpu_condition.of_turns(turns),
            }
        )
    return {**common, "rows": rows}


def show(result: dict[str, Any], screen: Display) -> None:
    r = result
    flags = "no exchange"  # of one rank
    if r["exchanged_by"] is not None:
        flags = f"-z {r['zero']} --overlap {r['overlap']:d}, by {r['exchanged_by']}"
    screen.say(
        f"{r['model']}, B={r['B']} T={r['T']} on each rank, {r['dtype']}, {flags}, "
        f"{r['machine']['name']}"
    )
    rows = [
        (
            str(row["ranks"]),
            f"{row['weak_ms']:,.2f}",
            f"{row['weak_tokens_per_second']:,.0f}",
            f"{100 * row['weak_efficiency']:.1f}",
            f"{100 * row['slowest_efficiency']:.1f}" if row["alone_ms"] else "-",
            f"{row['strong_ms']:,.2f}",
            f"{row['strong_tokens_per_second']:,.0f}",
            f"{100 * row['strong_efficiency']:.1f}",
            f"{sum(row['exchange_ms'].values()):.3f}",
            f"{row['exposed_ms']:.3f}",
            f"{sum(row['memory'].values()) / 2**30:.2f}",
        )
        for row in r["rows"]
    ]
    weak = ("weak ms>", "tokens/s>", "% of ideal>", "% of slowest>")
    strong = ("strong ms>", "tokens/s>", "% of ideal>")
    screen.table(("ranks>", *weak, *strong, "exchange ms>", "exposed>", "GiB each>"), rows)
    several = [row for row in r["rows"] if row["ranks"] > 1]
    parts = [
        (str(row["ranks"]), name, f"{ms:.3f}")
        for row in several
        for name, ms in (
            *((f"{name}, alone", ms) for name, ms in row["exchange_ms"].items()),
            *((f"step without exchange, rank {i}", ms) for i, ms in enumerate(row["compute_ms"])),
            *((f"step as a process alone, rank {i}", ms) for i, ms in enumerate(row["alone_ms"])),
        )
    ]
    if parts:
        screen.table(("ranks>", "part", "ms>"), parts)
    for row in r["rows"]:
        for line in gpu_condition.lines(row):
            screen.say(f"ranks: {row['ranks']}, {line}")


def draw(result: dict[str, Any]) -> Figure:
    """Draw tokens per second against ranks: measured, and what the smallest group promises."""
    title = (
        f"{result['model']}, B={result['B']} T={result['T']} on each rank, {result['dtype']}, "
        f"{result['machine']['name']}"
    )
    figure, panels = figure_of(title, 3.4, columns=2)
    rows = result["rows"]
    ranks = [row["ranks"] for row in rows]
    for axes, kind, colour in ((panels[0], "weak", BLUE), (panels[1], "strong", ORANGE)):
        speeds = [row[f"{kind}_tokens_per_second"] for row in rows]
        ideal = [speeds[0] / ranks[0] * count for count in ranks]
        axes.plot(ranks, ideal, color=GREY, lw=1, label="ideal")
        axes.plot(ranks, speeds, "o-", color=colour, label=f"{kind} scaling")
        for row, speed in zip(rows, speeds, strict=True):
            share = f"{100 * row[f'{kind}_efficiency']:.0f} %"
            axes.annotate(share, (row["ranks"], speed), (4, -12), textcoords="offset points")
        axes.set_xticks(ranks)
        axes.set_xlabel("ranks", color=INK)
        axes.set_ylabel("tokens/s", color=INK)
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8, frameon=False)
    return figure
