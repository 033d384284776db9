"""The run of a block on the emulator, step by step: who waits where, for whom, and what is missing.

A row for each warp and each barrier. Whatever a warp does comes a step after what it did before,
and after all that it has waited for (the logical clock of Lamport, 1978).
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from ladder.core.emulator.structures import AGENTS
from ladder.core.emulator.timeline import Event, Mark, Timeline
from ladder.core.show.pictures.drawing import GLYPH, MARGIN, Drawing

STEP, TRACK = 22, 17  # pixels: the width of a step, the height of a bar
SMALL = 10  # size of the text in a bar
LEAST = 880  # pixels: the width of a picture of few steps
ENDLESS = 6  # steps that a wait without an end goes on at the end of the picture
KINDS = {  # of bars: the colour, and what it means
    "waits": ("pale gold", "waits"),
    "arrives": ("pale green", "arrives"),
    "copies": ("pale orange", "copies; a stage is being filled"),
    "filled": ("pale blue", "a stage is filled, until it is freed"),
    "multiplies": ("pale purple", "wgmma"),
    "returns": ("line", "returns"),
    "problem": ("pale red", "the problem"),
}
OF_UNIT = {AGENTS.index(" by wgmma"): "multiplies"}  # others copy
Row = tuple[int, int]  # 0 and a warp, or 1 and a barrier
Phase = tuple[int, int]  # a barrier, and the number of its phase
Lane = tuple[int, int]  # a warp, and a lane of it


class Bar(NamedTuple):
    """Something from one step to another, in the picture; `event`: what began it, an index."""

    row: Row
    start: int
    end: int
    kind: str
    text: str
    event: int = -1
    line: int = 0
    of_unit: bool = False


class Steps:
    """Gives every event its step. `bars` is what there is to draw, `marked` those that the problem
    names, `end` the last step."""

    def __init__(self, seen: Timeline) -> None:
        self.bars: list[Bar] = []
        self._seen = seen
        self._free: dict[Lane, int] = defaultdict(int)
        self._begun: dict[Lane, tuple[int, int]] = {}  # a wait under way: its event and step
        self._units: dict[tuple[int, int, int], Bar] = {}  # under way, by warp, unit and group
        self._ends: dict[Phase, int] = {}
        self._loads: dict[Phase, Bar] = {}
        self._arrived: set[int] = set()  # barriers at which threads arrive
        self._came: dict[Phase, tuple[int, int, int]] = {}  # from, to, how many threads
        self._bytes: dict[Phase, int] = defaultdict(int)  # that have yet to land
        named: dict[Mark, Bar] = {}
        for index, event in [(-1, None), *enumerate(seen.events)]:
            if event is not None and event.kind == "lands":
                self._land(event)
            elif event is not None:
                self._add(index, event)
            for mark in seen.marks:
                if mark.event == index and mark.access and not mark.unit:
                    named[mark] = self._access(mark)
        self._finish()
        for mark in seen.marks:
            own = [bar for bar in self.bars if bar.event == mark.event >= 0]
            if own and (mark.unit or not mark.access):  # of a copy, the time that it takes
                named[mark] = max(own, key=lambda bar: bar.end - bar.start)
        self.marked = [named[mark] for mark in seen.marks if mark in named]

    def _draw(self, *bar: object) -> None:
        self.bars.append(Bar(*bar))  # type: ignore[arg-type]

    def _fly(self, start: Bar, end: int, how: str) -> None:
        """What a unit does for a warp."""
        self.bars.append(start._replace(end=end, text=f"{start.text}: {how}", of_unit=True))

    def _access(self, mark: Mark) -> Bar:
        """A step of its own, for a thread's access that takes part in a race."""
        lanes = [lane for lane in self._free if lane[0] == mark.warp] or [(mark.warp, mark.lane)]
        step, text = max(self._free[lane] for lane in lanes), f"{mark.access}, lane {mark.lane}"
        self._draw((0, mark.warp), step, step + 1, "problem", text, -1, mark.line)
        self._free |= dict.fromkeys(lanes, step + 1)
        return self.bars[-1]

    def _land(self, event: Event) -> None:
        """A copy lands a step after its start, or, if it is late, once nothing else goes on."""
        phase = event.of, event.phase
        late = max(self._free.values(), default=0)
        step = self._loads[phase].end if self._seen.early and phase in self._loads else late
        self._ends[phase] = max(self._ends.get(phase, 0), step)
        self._bytes[phase] -= event.value

    def _add(self, index: int, event: Event) -> None:
        lanes = [(event.warp, lane) for lane in range(64) if event.lanes >> lane & 1]
        phase, row, text = (event.of, event.phase), (0, event.warp), self._text(event)
        step = max(self._free[lane] for lane in lanes)
        end, kind = step + 1, event.kind
        if kind in ("waits", "meets"):
            self._begun |= dict.fromkeys(lanes, (index, step))
        elif kind in ("waited", "met"):
            begun, start = min(self._begun.pop(lane, (index, step)) for lane in lanes)
            end = max(step, self._ends.get(phase, 0))
            self._draw(row, start, end, "waits", text, begun, event.line)
        elif kind == "starts":
            bar = Bar(row, step, end, OF_UNIT.get(event.of, "copies"), text, index, event.line)
            self._units.setdefault((event.warp, *phase), bar)
            self.bars.append(bar)
        elif kind == "joins":
            for warp, unit, group in list(self._units):
                if (warp, unit) == (event.warp, event.of) and group <= event.phase:
                    bar = self._units.pop((warp, unit, group))
                    self._fly(bar, end, "complete")
            self._draw(row, step, end, "waits", text, index, event.line)
        else:
            kind = "copies" if kind == "loads" else kind
            self._draw(row, step, end, kind, text, index, event.line)
        if event.kind == "loads":
            self._loads.setdefault(phase, self.bars[-1])
            self._bytes[phase] += event.value
        if event.kind in ("arrives", "meets"):
            self._ends[phase] = max(self._ends.get(phase, 0), end)
            threads = len(lanes)
            if event.kind == "arrives":
                threads = event.value
                self._arrived.add(event.of)
            first, _, count = self._came.get(phase, (step, 0, 0))
            self._came[phase] = min(first, step), self._ends[phase], count + threads
        self._free |= dict.fromkeys(lanes, end)

    def _finish(self) -> None:
        """What is under way at the end; and the barriers."""
        end = max([*self._free.values(), *self._ends.values(), 1])
        self.end = end = end + ENDLESS * bool(self._begun or self._units)
        stuck = set()
        for index, step in sorted(set(self._begun.values())):
            event = self._seen.events[index]
            phase, text = (event.of, event.phase), self._text(event)
            if self._seen.deadlock:
                stuck.add(phase)
                text += ": for ever" + ", its end was not seen" * self._is_over(phase)
            met = self._is_over(phase) and not self._seen.deadlock  # others went first, to the end
            until = max(step + 1, self._ends.get(phase, 0)) if met else end
            kind = "problem" if self._seen.deadlock else "waits"
            self._draw((0, event.warp), step, until, kind, text, index, event.line)
        for bar in self._units.values():
            self._fly(bar, end, "under way")
        for phase, bar in self._loads.items():
            over, text = self._is_over(phase), f"phase {phase[1]}"
            landed = self._ends[phase] if over else end
            self.bars.append(bar._replace(row=(1, phase[0]), end=landed, text=text, line=0))
            if over:
                self._draw(
                    (1, phase[0]), landed, self._freed(phase, landed), "filled", f"{text}: filled"
                )
        several: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
        for (of, number), (first, last, count) in sorted(self._came.items()):
            if (of, number) not in self._loads and self._seen.barriers[of][0] != "__syncthreads":
                lacks = (of, number) in stuck and not self._is_over((of, number))
                until = end if lacks else last
                several[of, first, until, count].append(number)
        for (of, start, until, count), phases in several.items():
            threads = self._seen.barriers[of][2]
            text = (
                f"phase {phases[0]}" if len(phases) == 1 else f"phases {phases[0]} to {phases[-1]}"
            )
            wrong = count > threads or (until == end and self._seen.deadlock)
            text += f": {count} of {threads} came"
            self._draw((1, of), start, until, "problem" if wrong else "arrives", text)

    def _is_over(self, phase: Phase) -> bool:
        """Whether all threads have come to a barrier in this phase, and all bytes."""
        threads = self._seen.barriers[phase[0]][2]
        _, _, count = self._came.get(phase, (0, 0, 0))
        return phase[1] < 0 or (count >= threads and not self._bytes.get(phase))

    def _freed(self, phase: Phase, landed: int) -> int:
        """Until when a stage is filled: to the end of this phase of the barrier of the same number
        at which threads arrive, or else until it is filled again."""
        of, count = phase
        for other in self._arrived - {of for of, _ in self._loads}:
            same_block = self._seen.barriers[other][1] == self._seen.barriers[of][1]
            if same_block and _number(self._seen, other) == _number(self._seen, of):
                freed = self._ends.get((other, count), 0)
                return freed if self._is_over((other, count)) and freed > landed else self.end
        following = self._loads.get((of, count + 1))
        return following.start if following else self.end

    def _text(self, event: Event) -> str:
        lanes = f"lane {event.lanes.bit_length() - 1}"
        if event.lanes & (event.lanes - 1):
            lanes = f"{bin(event.lanes).count('1')} lanes"
        if event.kind in ("starts", "joins"):
            until = "up to " * (event.kind == "joins")
            return f"{AGENTS[event.of].removeprefix(' by ')}, group {until}{event.phase}, {lanes}"
        if event.of < 0:
            return lanes
        return f"{self._seen.barriers[event.of][0]}, phase {max(event.phase, 0)}, {lanes}"


def of_timeline(seen: Timeline, source: str, title: str) -> Drawing:
    """The picture; `source`: the text of the kernel's file."""
    run = Steps(seen)
    names = _rows(run, seen)
    left = MARGIN + 12 + max(map(len, names.values()), default=0) * GLYPH * 12
    width = max(LEAST, int(left + run.end * STEP + MARGIN))
    drawing = Drawing(f"{title}: who waits for whom", _describe(seen, run), width)
    y = drawing.top
    if seen.problem:
        text = seen.problem.splitlines()[0]
        text = text[text.rfind("/", 0, text.find(": ")) + 1 :]  # without the folder of the file
        y = drawing.paragraph(MARGIN, y + 4, text, LEAST - 2 * MARGIN, colour="red", bold=True) + 4
    for step in range(0, run.end, 10):
        drawing.text(left + step * STEP, y + 8, str(step), SMALL, colour="muted")
    y += 14 + 22 * (len(run.marked) == 2)
    above, marked = y - 20, {}
    for row, name in names.items():
        tracks: list[int] = []  # in each, where the last bar ends
        drawing.text(left - 6, y + 12, name, 12, "end")
        own = sorted((bar for bar in run.bars if bar.row == row), key=_layer)
        for place, bar in enumerate(own):
            track = next((i for i, end in enumerate(tracks) if end <= bar.start), len(tracks))
            tracks[track : track + 1] = [bar.end]
            at = left + bar.start * STEP, y + track * TRACK
            following = own[place + 1].start if place + 1 < len(own) else run.end
            room = max(following, bar.end) if row[0] else bar.end
            _draw_bar(drawing, bar, *at, room, name, bar in run.marked)
            marked[bar] = at[0] + (bar.end - bar.start) * STEP / 2, at[1] + TRACK / 2
        if not own:
            drawing.text(left, y + 12, "no thread has come", SMALL, colour="muted")
        y += max(1, len(tracks)) * TRACK + 4
        drawing.line([(left, y - 2), (left + run.end * STEP, y - 2)], "panel")
    if len(run.marked) == 2:
        one, other = (marked[bar] for bar in run.marked)
        _draw_missing(drawing, one, other, above, seen.missing)
    y = _legend(drawing, run.bars, source, y + 8)
    drawing.paragraph(MARGIN, y + 8, drawing.description, size=12, colour="muted")
    return drawing


def _rows(run: Steps, seen: Timeline) -> dict[Row, str]:
    """The rows with their names. Warps that do the same things in the same steps have one."""
    alike: dict[object, list[int]] = defaultdict(list)
    for warp in sorted({bar.row[1] for bar in run.bars if not bar.row[0]}):
        own = [bar for bar in run.bars if bar.row == (0, warp)]
        here = any(bar in run.marked for bar in own)
        what = frozenset((bar.start, bar.end, bar.kind, bar.line) for bar in own)
        alike[warp // seen.warps, warp if here else -1, what].append(warp)
    found = {}
    for warps in sorted(alike.values()):
        block, first = divmod(warps[0], seen.warps)
        numbers = [str(warp % seen.warps) for warp in warps]
        if len(warps) > 2 and warps[-1] - warps[0] == len(warps) - 1:
            numbers = [f"{first} to {numbers[-1]}"]
        name = f"warp{'s' * (len(warps) > 1)} {', '.join(numbers)}"
        found[0, warps[0]] = name + f", block {block}" * (seen.blocks > 1)
    barriers = range(len(seen.barriers))
    for of in sorted(barriers, key=lambda of: (seen.barriers[of][1], _number(seen, of), of)):
        name, block, _ = seen.barriers[of]
        if name != "__syncthreads":
            found[1, of] = name + f", block {block}" * (seen.blocks > 1)
    return found


def _number(seen: Timeline, barrier: int) -> int:
    """Of full[3], the 3; -1 where it has none."""
    found = re.search(r"\[(\d+)\]", seen.barriers[barrier][0])
    return int(found[1]) if found else -1


def _layer(bar: Bar) -> tuple[bool, int, int]:
    """What a unit does for a warp lies below what the warp does itself."""
    return bar.row[0] == 0 and bar.of_unit, bar.start, -bar.end


def _draw_bar(
    drawing: Drawing, bar: Bar, x: float, y: float, room: int, row: str, wrong: bool
) -> None:
    """A bar with the number of its line, and its text if there is room, which ends at a step."""
    fill = KINDS[bar.kind][0]
    at = f"line {bar.line}: " if bar.line else ""
    until = f" to {bar.end}" if bar.end > bar.start + 1 else ""
    title = f"{row}; {at}{bar.text}; step {bar.start}{until}"
    edge, line = ("red", 2.5) if wrong else ("line", 1)
    drawing.box(x, y, (bar.end - bar.start) * STEP - 1, TRACK - 2, fill, edge, line, title)
    texts = [f"{bar.line} {bar.text}", str(bar.line)] if bar.line else [bar.text]
    texts += [bar.text.rpartition(": ")[2]] if not bar.line else []
    for text in (t for t in texts if GLYPH * SMALL * len(t) < (room - bar.start) * STEP):
        drawing.text(x + 2, y + 11, text, SMALL)
        break


def _draw_missing(
    drawing: Drawing, now: tuple[float, float], before: tuple[float, float], y: float, words: str
) -> None:
    """An arrow from the earlier access of a race to the later one, and at y what is missing."""
    drawing.line([before, now], "red", 2.5)
    drawing.box(now[0] - 4, now[1] - 4, 8, 8, "red")
    wide = GLYPH * 12 * len(words) * 1.15 + 10
    x = max((before[0] + now[0]) / 2, MARGIN + wide / 2)
    drawing.line(
        [(x, y + 16), ((before[0] + now[0]) / 2, (before[1] + now[1]) / 2)], "red", 1, True
    )
    drawing.box(x - wide / 2, y, wide, 18, "paper", "red")
    drawing.text(x, y + 14, words, 12, "middle", "red", bold=True)


def _legend(drawing: Drawing, bars: Sequence[Bar], source: str, y: float) -> float:
    """What the colours mean, and the lines of the source that have numbers; where it ends."""
    x = float(MARGIN)
    for kind in [kind for kind in KINDS if any(bar.kind == kind for bar in bars)]:
        fill, text = KINDS[kind]
        drawing.box(x, y, 13, 13, fill, "line")
        drawing.text(x + 18, y + 11, text, 12)
        x += 40 + GLYPH * 12 * len(text)
    y += 24
    lines, fills = source.splitlines(), {bar.line: KINDS[bar.kind][0] for bar in bars}
    for number in sorted(number for number in fills if 0 < number <= len(lines)):
        drawing.box(MARGIN, y, 30, TRACK - 2, fills[number], "line")
        drawing.text(MARGIN + 26, y + 11, str(number), SMALL, "end")
        drawing.text(MARGIN + 38, y + 12, lines[number - 1].strip()[:96], 11, mono=True)
        y += TRACK + 1
    return y + 8


def _describe(seen: Timeline, run: Steps) -> str:
    copies = "at once" if seen.early else "as late as the program allows"
    left_out = f" {seen.before:,} events before these are left out." if seen.before else ""
    left_out += " Events after these are left out." if seen.after else ""
    return (
        f"Block {seen.block} of {seen.kernel} on the emulator: {run.end} steps. What a warp does "
        "comes a step after what it did before, and after all that it has waited for: steps are "
        f"no time of a GPU. Asynchronous copies land {copies}, and wgmma runs until it is waited "
        f"for. A number in a box is a line of the source.{left_out}"
    )
