"""The run of a block on the emulator, step by step: who waits where, for whom, and what is missing.

A row for each warp and each barrier. Whatever a warp does comes a step after what it did before,
and after all that it has waited for (the logical clock of Lamport, 1978).
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

from ladder.core.contract.rung_file import Rung
from ladder.core.emulator.report import Event, Report, Timeline
from ladder.core.show.pictures.drawing import GLYPH, MARGIN, Drawing

STEP, TRACK = 22, 17  # pixels: the width of a step, the height of a bar
SMALL = 10  # size of the text in a bar
LEAST = 880  # pixels: the width of a picture of few steps
ENDLESS = 6  # steps that a wait without an end goes on at the end of the picture
KINDS = {  # of bars: what they mean, and the colour
    "waits": ("waits", "pale gold"),
    "arrives": ("arrives", "pale green"),
    "loads": ("copies: a stage is being filled", "pale orange"),
    "filled": ("a stage is filled, until it is freed", "pale blue"),
    "starts": ("wgmma, or a copy, until a thread has waited for it", "pale purple"),
    "returns": ("returns", "line"),
    "problem": ("the problem", "pale red"),
}
# The kinds of problems that the picture makes clear.
SHOWN = {"race", "deadlock", "divergent barrier", "barrier misuse", "in flight", "cluster"}
WAITS = ("waits", "meets", "waited", "joins")  # the events that are waits in the picture
Row = tuple[int, int] | str  # a block and its warp, or the name of a barrier


class Bar(NamedTuple):
    """Something from one step to another."""

    row: Row
    start: int
    end: int
    kind: str
    text: str
    line: int = 0


@dataclass
class Phase:
    """A phase of a barrier: from when until when threads and copies come to it."""

    start: int
    end: int = 0
    loads: bool = False
    over: bool = False
    came: int = 0


class Steps:
    """Gives every event its step. `bars` is what there is to draw, `end` the last step."""

    def __init__(self, seen: Timeline) -> None:
        self.bars: list[Bar] = []
        self._early = seen.early
        self._free: dict[Any, int] = defaultdict(int)  # when a lane goes on
        self._begun: dict[Any, tuple[int, Event]] = {}  # by lane, or by unit and group
        self._phases: dict[tuple[str, int], Phase] = {}
        for event in seen.events:  # those of a child process are lists
            self._add(Event._make(event))
        self.end = max([1, *self._free.values()]) + ENDLESS * bool(self._begun)
        self._finish(seen.kind == "deadlock")

    def _add(self, event: Event) -> None:
        lanes = [(event.block, event.warp, lane) for lane in range(64) if event.lanes >> lane & 1]
        start = max((self._free[lane] for lane in lanes), default=0)
        end, kind, unit = start + 1, event.kind, (event.block, event.warp, event.of)
        phase = self._phases.get((event.of, event.phase), Phase(start))
        if kind in ("arrives", "meets", "loads"):
            self._phases[event.of, event.phase] = phase
            phase.end, phase.came = max(phase.end, end), event.came
            phase.loads |= kind == "loads"
        if kind in ("waits", "meets"):
            self._begun |= dict.fromkeys(lanes, (start, event))
        elif kind == "starts":
            self._begun.setdefault((*unit, event.phase), (start, event))
        elif kind == "ends":
            phase.over = True
            if phase.loads and not self._early:  # a late copy lands once nothing else goes on
                phase.end = max(self._free.values())
        elif kind == "waited":
            start = min(self._begun.pop(lane, (start, event))[0] for lane in lanes)
            end, phase.over = max(end, phase.end), True
            self._draw(start, end, event)
        else:
            for key in [key for key in self._begun if kind == "joins" and key[:3] == unit]:
                if key[3] <= event.phase:
                    began, started = self._begun.pop(key)
                    self._draw(began, end, started)
            self._draw(start, end, event)
        self._free |= dict.fromkeys(lanes, end)

    def _finish(self, deadlock: bool) -> None:
        """What is under way at the end; and the barriers."""
        stuck = {}
        for start, event in dict.fromkeys(self._begun.values()):
            at, end, kind = (event.of, event.phase), self.end, ""
            if deadlock and event.kind != "starts":
                stuck[at], kind = event.threads, "problem"
                self._phases.setdefault(at, Phase(start))
            elif at in self._phases and self._phases[at].over:  # others went first, to the end
                end = self._phases[at].end
            self._draw(start, end, event, kind)
        for (of, number), phase in self._phases.items():
            if of.startswith("__syncthreads"):
                continue
            kind, text = "loads" if phase.loads else "arrives", f"phase {number}"
            if (of, number) in stuck:
                kind = "problem"
                text += f": {phase.came} of {stuck[of, number]} came"
            late = kind == "problem" or (phase.loads and not phase.over)
            end = self.end if late else phase.end
            self.bars.append(Bar(of, phase.start, end, kind, text))
            if phase.loads and not late:
                after = [
                    other.start if name == of else other.end
                    for (name, which), other in self._phases.items()
                    if (name, which) == (of, number + 1)
                    or (_block_and_stage(name), which) == (_block_and_stage(of), number)
                ]  # it is filled again; or the barrier beside it says that it is free
                until = min([step for step in after if step > end], default=self.end)
                self.bars.append(Bar(of, end, until, "filled", f"{text}: filled"))

    def _draw(self, start: int, end: int, event: Event, kind: str = "") -> None:
        kind = kind or ("waits" if event.kind in WAITS else event.kind)
        words = [event.of] if event.of else []
        if event.of and event.kind != "problem":
            of_unit = event.kind in ("starts", "joins")
            words += [f"{'group' if of_unit else 'phase'} {event.phase}"] * (event.phase >= 0)
        lanes = bin(event.lanes).count("1")
        words += [f"{lanes} lanes" if lanes > 1 else f"lane {event.lanes.bit_length() - 1}"]
        row = event.block, event.warp
        self.bars.append(Bar(row, start, end, kind, ", ".join(words), event.line))


def of_report(report: Report, rung: Rung, title: str) -> Drawing:
    """The launch that does something wrong, or the longest one."""
    seen = max(report.timelines, key=lambda seen: (bool(seen.problem), len(seen.events)))
    run = Steps(seen)
    rows = _rows(run.bars)
    left = MARGIN + 12 + max(map(len, rows.values())) * GLYPH * 12
    width = max(LEAST, int(left + run.end * STEP + MARGIN))
    drawing = Drawing(f"{title}: who waits for whom", _describe(seen, run.end), width)
    text = seen.problem.partition("\n")[0]
    text = text[text.rfind("/", 0, text.find(": ")) + 1 :]  # without the folder of the file
    y = drawing.paragraph(
        MARGIN, drawing.top + 4, text, LEAST - 2 * MARGIN, colour="red", bold=True
    )
    for step in range(0, run.end, 10):
        drawing.text(left + step * STEP, y + 8, str(step), SMALL, colour="muted")
    missing = re.search(r"with (no.*) between them", text)
    y += 36 if missing else 14
    above, accesses = y - 20, list[tuple[float, float]]()
    for row, name in rows.items():
        tracks: list[int] = []  # in each, where the last bar ends
        drawing.text(left - 6, y + 12, name, 12, "end")
        own = [bar for bar in run.bars if bar.row == row]
        for bar in sorted(own, key=lambda bar: (bar.kind == "starts", bar.start, -bar.end)):
            track = next((i for i, end in enumerate(tracks) if end <= bar.start), len(tracks))
            tracks[track : track + 1] = [bar.end]
            x, top, wide = left + bar.start * STEP, y + track * TRACK, (bar.end - bar.start) * STEP
            _draw_bar(drawing, bar, x, top, wide - 1, name)
            if bar.kind == "problem":
                accesses.append((x + wide / 2, top + TRACK / 2))
        y += len(tracks) * TRACK + 4
        drawing.line([(left, y - 2), (left + run.end * STEP, y - 2)], "panel")
    if missing and len(accesses) == 2:
        before, now = sorted(accesses)  # an arrow, and what would have ordered them
        middle = ((before[0] + now[0]) / 2, (before[1] + now[1]) / 2)
        drawing.line([before, now], "red", 2.5)
        drawing.box(now[0] - 4, now[1] - 4, 8, 8, "red")
        drawing.line([(middle[0], above + 4), middle], "red", dashed=True)
        drawing.text(middle[0], above, missing[1], 12, "middle", "red", bold=True)
    kinds = {bar.kind for bar in run.bars}
    y = drawing.legend(y + 20, [KINDS[kind] for kind in KINDS if kind in kinds]) + 12
    lines, fills = rung.source.splitlines(), {bar.line: KINDS[bar.kind][1] for bar in run.bars}
    for number in sorted(number for number in fills if 0 < number <= len(lines)):
        drawing.box(MARGIN, y, 30, TRACK - 2, fills[number], "line")
        drawing.text(MARGIN + 26, y + 11, str(number), SMALL, "end")
        drawing.text(MARGIN + 38, y + 12, lines[number - 1].strip()[:96], 11, mono=True)
        y += TRACK + 1
    drawing.paragraph(MARGIN, y + 16, drawing.description, size=12, colour="muted")
    return drawing


def _rows(bars: list[Bar]) -> dict[Row, str]:
    """The rows with their names. Warps that do the same things in the same steps have one."""
    alike: dict[Any, list[int]] = defaultdict(list)
    for block, warp in sorted({bar.row for bar in bars if not isinstance(bar.row, str)}):
        own = frozenset(bar._replace(row="") for bar in bars if bar.row == (block, warp))
        alike[block, own].append(warp)
    of_warps: dict[Row, str] = {}
    for (block, _), warps in alike.items():
        several = warps[-1] - warps[0] == len(warps) - 1 > 1
        numbers = f"{warps[0]} to {warps[-1]}" if several else ", ".join(map(str, warps))
        name = f"warp{'s' * (len(warps) > 1)} {numbers}"
        of_warps[block, warps[0]] = name + f", block {block}" * (max(alike)[0] > 0)
    barriers = dict.fromkeys(bar.row for bar in bars if isinstance(bar.row, str))
    return {**of_warps, **{name: name for name in sorted(barriers, key=_block_and_stage)}}


def _block_and_stage(barrier: str) -> tuple[str, str]:
    """full[1] stands beside empty[1]."""
    name, _, block = barrier.partition(", block ")
    return block, name.partition("[")[2]


def _draw_bar(drawing: Drawing, bar: Bar, x: float, y: float, wide: float, row: str) -> None:
    """A bar with the number of its line, and its text if there is room."""
    number = str(bar.line or "")
    title = f"{row}; {number and f'line {number}: '}{bar.text}; steps {bar.start} to {bar.end}"
    edge, line = ("red", 2.5) if bar.kind == "problem" else ("line", 1)
    drawing.box(x, y, wide, TRACK - 2, KINDS[bar.kind][1], edge, line, title)
    whole = f"{number} {bar.text}".strip()
    drawing.text(x + 2, y + 11, whole if GLYPH * SMALL * len(whole) < wide else number, SMALL)


def _describe(seen: Timeline, steps: int) -> str:
    copies = "at once" if seen.early else "as late as the program allows"
    left_out = f" {seen.left_out:,} more events are left out." * bool(seen.left_out)
    return (
        f"A block of {seen.kernel} on the emulator: {steps} steps. What a warp does comes a step "
        "after what it did before, and after all that it has waited for: steps are no time of a "
        f"GPU. Asynchronous copies land {copies}, and wgmma runs until it is waited for. A number "
        f"in a box is a line of the source.{left_out}"
    )
