"""What is known of one kernel, joined in one HTML file. It loads nothing and runs nothing: whatever
comes from the kernel, its file or its process is escaped, and a policy in it forbids the rest.
"""

import argparse
import string
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any

from ladder.core.commands import findings, shared
from ladder.core.common import machine_code
from ladder.core.common.errors import LadderError
from ladder.core.common.files import atomic_write, read_text
from ladder.core.contract.device_code import code_identity
from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import DTYPES, Dims, Op, format_dims
from ladder.core.contract.rung_file import Rung
from ladder.core.device.cuda import compiler, sass
from ladder.core.emulator.emulated import Emulated
from ladder.core.emulator.report import Report as Seen
from ladder.core.measure import results
from ladder.core.show import source_code, trace
from ladder.core.show.pictures import accesses, measured, waits
from ladder.core.show.pictures.drawing import COLOURS
from ladder.core.verify import sandbox
from ladder.core.verify.check import LAST_BLOCK, Report

Code = Sequence[machine_code.Instruction]
ARCH = "sm_90a"  # of the machine code


def write(
    options: argparse.Namespace, ladder: Ladder, report: Report, said: Sequence[str], failed: bool
) -> None:
    """What `check` with these options has found; `said` and `failed`: of its limits, too."""
    rung, large = ladder.find(options.rung), shared.shape_of(ladder, options)
    rights = options.unconfined or not rung.is_own_file
    with sandbox.distrusted():
        text = "\n".join([str(report), *said]).replace(f"{Path.cwd()}/", "")
        seen, dims, dtype, counted = _run(ladder, rung, report, options, rights)
        code, listing = _machine_code(rung, large, dtype, rights)
        parts = {
            "source": _source(rung, text, seen, code),
            "pictures": _pictures(rung, seen, f"{rung.name}, {format_dims(dims)}, {dtype}"),
            "code": listing,
            "times": _times(ladder.op, rung, large, dtype, options.times),
        }
        least = trace.beside_least(ladder.op, seen, dims, dtype, rung.host) if seen.lines else ""
    parts["rungs"] = ""
    with suppress(LadderError):  # of an op that has no FLOPs, or was not measured
        parts["rungs"] = measured.roofline(measured.kept(ladder.op.name)).svg()
    for index, scheme in enumerate(("light", "dark")):
        pairs = ((name.replace(" ", "-"), pair[index]) for name, pair in COLOURS.items())
        parts[scheme] = "; ".join(f"--{name}: {value}" for name, value in pairs)
    words = {"name": rung.name, "idea": rung.idea, "op": ladder.op.name, "counted": counted}
    words |= {"verdict": text, "least": least, "outcome": "failed" if failed else "passed"}
    parts |= {name: escape(word) for name, word in words.items()}
    page = string.Template(read_text(Path(__file__).with_suffix(".html"))).substitute(parts)
    with atomic_write(options.report) as target:
        target.write(page.encode(errors="xmlcharrefreplace"))


def _row(cells: Iterable[object], kind: str = "") -> str:
    return f'\n<tr class="{kind}">' + "".join(f"<td>{escape(str(cell))}" for cell in cells)


def _run(
    ladder: Ladder, rung: Rung, report: Report, options: argparse.Namespace, rights: bool
) -> tuple[Seen, Dims, str, str]:
    """A run that counts and records, of a failed call if one did; its shape, type, and remark."""
    op, target_of = ladder.op, Emulated(warp=options.warp).target
    dtype = shared.dtype_of(ladder, rung, options, target_of)
    dims = options.shape or source_code.small_shape(op)
    passed = [o.dims for o in report.outcomes if (o.status, o.dtype) == ("passed", dtype)]
    if passed and rung.plan(dims, target_of(DTYPES[dtype])).refusal:
        dims = passed[-1]
    for failed in [o for o in report.failures if o.dims and o.inputs != LAST_BLOCK][:1]:
        dims, dtype = failed.dims, failed.dtype
    given = options.reference or op.name, rung.file, dtype, dims, rights
    try:
        seen = sandbox.trace(*given, warp=options.warp, record=not op.ranks)
    except LadderError as error:
        return Seen(), dims, dtype, f"Not counted: {error}."
    until = ", until something wrong stopped it" * any(each.problem for each in seen.timelines)
    return seen, dims, dtype, f"Counted in one call at {format_dims(dims)}, {dtype}{until}."


def _source(rung: Rung, text: str, seen: Seen, code: Code) -> str:
    """The lines, those marked that `text` names, each with what it asks of memory."""
    lines, notes = rung.source.splitlines(), defaultdict[int, list[str]](list)
    for said in map(str.strip, text.splitlines()):
        if (place := findings.PLACE.match(said)) and Path(place[1]).name == rung.file.name:
            notes[int(place[2])].append(said[place.end() :])
        elif said in {f"{number} | {line.strip()}" for number, line in enumerate(lines, 1)}:
            notes[int(said.split()[0])] += []
    counts, instructions = trace.own_lines(seen, rung), Counter(each.line for each in code)
    rows = ["<thead>", _row(["", "SASS", "source", *trace.COLUMNS]), "<tbody>"]
    for number, line in enumerate(lines, 1):
        first, marked = [str(number), instructions[number] or "", line], number in notes
        of_line = [trace.row(count) for count in counts if count.line == number]
        for cells, over in of_line or [([], False)]:
            rows.append(_row([*first, *cells], "marked " * marked + "over" * over))
            first = [""] * 3
        rows += [_row(["", "", note], "note") for note in notes.get(number, ())]
    return "".join(rows)


def _pictures(rung: Rung, seen: Seen, title: str) -> str:
    drawn = []
    with suppress(LadderError):
        drawn.append(accesses.of_report(seen, rung, title))
    kinds = {event[0] for launch in seen.timelines for event in launch.events}
    if kinds & {*waits.WAITS, "problem"}:
        drawn.append(waits.of_report(seen, rung, title))
    return "".join(f"<figure>{drawing.svg()}</figure>" for drawing in drawn) or "none"


def _machine_code(rung: Rung, dims: Dims, dtype: str, rights: bool) -> tuple[Code, str]:
    """The instructions and their listing; none, and a sentence on what is in the way."""
    try:
        if not rights:
            raise LadderError("NVRTC is not confined (SECURITY.md): it needs --unconfined")
        target = compiler.typical_target(ARCH, DTYPES[dtype])
        plan = rung.plan(dims, target)
        if plan.refusal:
            raise LadderError(plan.refusal)
        cubin = compiler.compile_cubin(rung, plan.constants, target.real, ARCH)
        instructions = sass.instructions(cubin, rung.file)
    except LadderError as error:
        return [], f"<p>None for {ARCH}: {escape(str(error))}.</p>"
    takes = "\n".join(f"{name}: {each}" for name, each in compiler.resources(cubin).items())
    listing = "\n".join(
        f'<span class="{line.spans[0].style if line.spans else ""}">{escape(line.plain)}</span>'
        for line in machine_code.listing(instructions, rung.source).split("\n")
    )
    return instructions, f"<pre>{escape(takes)}</pre><pre>{listing}</pre>"


def _times(op: Op, rung: Rung, large: Dims, dtype: str, saved: Path | None) -> str:
    """The least time of a call on each card with measured roofs, and the times of this code."""

    def call(gpu: str, roof: Any, dims: Dims, dtype: str, us: float = 0) -> str:
        size, flops = op.least_bytes(dims, DTYPES[dtype]), 0 if op.own else op.flops(dims)
        copy, rate = roof["copy_gbps"], 0 if rung.tf32 else roof["matrix_tflops"] or 0
        least = max(size / copy / 1e3, flops / rate / 1e6 if rate else 0)
        numbers = (f"{number:,.0f}" if number else "" for number in (size, flops, copy, rate))
        timed = f"{us:,.2f}, {least / us:.0%} of the roof" if us else ""
        return _row([gpu, f"{format_dims(dims)}, {dtype}", *numbers, f"{least:,.2f}", timed])

    rows, kept = [], results.load_all().values()
    for content in kept:
        if roofs := [m["roof"] for m in content["measurements"] if m["dtype"] == dtype]:
            best = max(roofs, key=lambda roof: (roof["matrix_tflops"] or 0, roof["copy_gbps"]))
            rows.append(call(content["device"]["gpu"], best, large, dtype))
    for content in [results.load(saved)] if saved else kept:
        for m in content["measurements"]:
            for row in m["rows"]:
                if (m["op"], row.get("code")) == (op.name, code_identity(rung)):
                    given = m["roof"], m["dims"], m["dtype"], row["median_us"]
                    rows.append(call(content["device"]["gpu"], *given))
    return "".join(rows)
