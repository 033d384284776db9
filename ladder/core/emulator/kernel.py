"""A compiled kernel: checks its arguments, launches it, and describes what went wrong."""

import ctypes
import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_text
from ladder.core.common.install import cores
from ladder.core.contract.device import aligned_empty
from ladder.core.contract.launch_plan import Launch
from ladder.core.contract.peers import Peers, by_value
from ladder.core.contract.rung_file import MOST_BYTES
from ladder.core.emulator import report, source
from ladder.core.emulator.report import Access, LineCount, Problem, Report, Site, Timeline
from ladder.core.emulator.structures import (
    ACCESSES,
    AGENTS,
    COUNTS,
    KINDS,
    CBuffer,
    COptions,
    CParameter,
    CPlace,
    CProblem,
    CResult,
    CSite,
    CWhere,
)
from ladder.core.emulator.toolchain import INCLUDE, line_tool, name_lines, runtime

MOST_PARAMETERS = 128
PARAMETER_KINDS = {b"p": "a pointer", b"f": "floating point", b"i": "an integer", b"s": "a struct"}
SHARED_BYTES = 227 << 10  # that a block can have, as on Hopper
SHOWN = 3  # problems in an error's message
UNINITIALISED = "uninitialised shared memory"
BLOCKS = "nothing that orders the blocks"  # no barrier is a remedy then
Line = tuple[str, int]  # a file and the number of a line in it; 0 where it is not known
BESIDE = 4096  # bytes from a buffer within which an access was most likely meant for it
MISSING = "source lines need addr2line: install binutils or llvm"


class KernelError(LadderError):
    """A kernel did something that it must not; `problems` has everything that was seen, and `shown`
    the parts of the message, each of a problem and the source lines that it names."""

    def __init__(self, problems: list[Problem]):
        # A thread that comes too early also reads what is not there yet: the race explains it.
        by_cause = sorted(problems, key=lambda problem: problem.kind == UNINITIALISED)
        by_place: dict[Any, Problem] = {}
        for problem in by_cause:
            place = (problem.kind, frozenset({(problem.file, problem.line), problem.other}))
            if BLOCKS in problem.message or place not in by_place:
                by_place[place] = problem
        distinct = list(by_place.values())
        self.shown = [problem.message + problem.excerpt() for problem in distinct[:SHOWN]]
        if (more := len(distinct) - SHOWN) > 0:
            self.shown.append(f"({more} more problem{'s' if more > 1 else ''})")
        super().__init__("\n".join(self.shown))
        self.problems = by_cause


@dataclass(frozen=True)
class Settings:
    """How kernels are run; `Emulated` explains the fields. Those of COptions have its names."""

    multiprocessors: int
    warp: int = 32
    seed: int = 0
    early: bool = False
    counting: bool = False
    workers: int = field(default_factory=cores)
    time_limit: float = 60.0
    trace: int = 8
    zeros: bool = False
    record: bool = False
    last: bool = False


@dataclass
class Record:
    """What was seen since the last reset; the device makes a Report of it."""

    lines: dict[Site, Counter[str]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    timelines: list[Timeline] = field(default_factory=list)

    def report(self) -> Report:
        lines = [LineCount(**{**vars(site), **counts}) for site, counts in self.lines.items()]
        return Report(lines, list(self.problems), list(self.accesses), list(self.timelines))

    def clear(self) -> None:
        for seen in (self.lines, self.problems, self.accesses, self.timelines):
            seen.clear()


class Locator:
    """The source lines that the instructions of one kernel library were compiled from: asked for
    in one go, and remembered."""

    def __init__(self, library: Path, path: Path):
        self.library = library
        self.source = str(path)
        self._known: dict[int, Line] = {}

    def text(self) -> str:
        """The kernel's file without its comments; "" where it cannot be read any more."""
        try:
            return source.without_comments(read_text(self.source, MOST_BYTES))
        except LadderError:
            return ""

    def find(self, addresses: Iterable[int]) -> dict[int, Line]:
        """(file, line) of each return address, relative to the start of the library.

        Where a function was inlined the line that counts is the kernel file's own, else the first
        one outside of the emulator's headers. Line 0: not known.
        """
        wanted = sorted(set(addresses))
        new = [address for address in wanted if address not in self._known]
        if new and line_tool():
            for address, frames in zip(new, self._ask(new), strict=True):
                ours = [frame for frame in frames if frame[0] == self.source]
                others = [frame for frame in frames if not frame[0].startswith(str(INCLUDE))]
                self._known[address] = next(iter(ours or others or frames), (self.source, 0))
        return {address: self._known.get(address, (self.source, 0)) for address in wanted}

    def _ask(self, addresses: list[int]) -> list[list[Line]]:
        """The frames of each address, innermost first."""
        # A return address is behind the call; one byte less is in it.
        text = "".join(f"{address - 1:#x}\n" for address in addresses)
        frames: list[list[Line]] = []
        for line in name_lines(str(self.library), text).splitlines():
            if line.startswith("0x"):
                frames.append([])
                continue
            file, _, number = line.split(" (")[0].rpartition(":")
            if number.isdigit() and file != "??":
                frames[-1].append((file, int(number)))
        if len(frames) != len(addresses):
            return [[] for _ in addresses]
        return frames


@functools.cache
def load_runtime() -> ctypes.CDLL:
    library = ctypes.CDLL(str(runtime()))
    library.emulator_launch.restype = ctypes.c_void_p
    library.emulator_result.restype = ctypes.POINTER(CResult)
    library.emulator_result.argtypes = [ctypes.c_void_p]
    library.emulator_free.argtypes = [ctypes.c_void_p]
    return library


class EmulatedKernel:
    """One kernel of a library, ready to be called with a launch and its arguments."""

    def __init__(
        self,
        declared: source.DeclaredKernel,
        call: Any,
        parameters: Sequence[CParameter],
        locator: Locator,
        settings: Settings,
        record: Record,
        cluster: int = 1,
        bound: int = 0,
    ):
        self.name, self._call, self._parameters = declared.name, call, parameters
        count = len(parameters)
        names = declared.parameters if len(declared.parameters) == count else ("",) * count
        self._names = [name or f"argument {i + 1}" for i, name in enumerate(names)]
        self._names.append("a __device__ variable")  # argument -1
        self._cluster, self._bound = cluster, bound
        self._locator, self._settings, self._record = locator, settings, record

    def __call__(self, launch: Launch, args: tuple[Any, ...]) -> None:
        """Run it to the end. Raises LadderError for a wrong argument list, KernelError for what
        the kernel did wrong."""
        cluster, ranks = self._cluster, 0
        if launch.grid[0] % cluster:
            raise LadderError(
                f"{self.name} is launched with {launch.grid[0]} blocks along x, which are no whole "
                f"number of clusters of {cluster}"
            )
        threads = math.prod(launch.block)
        if self._bound and threads > self._bound:
            raise LadderError(
                f"the kernel {self.name} is launched with blocks of {threads} threads, and its "
                f"__launch_bounds__ allow {self._bound}: let both name the same constant"
            )
        if launch.shared > SHARED_BYTES:  # also if it never reaches the array, as on a GPU
            raise LadderError(
                f"the kernel {self.name} is launched with {launch.shared} bytes of dynamic shared "
                f"memory, and a block of the emulated GPU can have {SHARED_BYTES}: use smaller "
                "tiles, or name the sizes that fit in its header, as in // Needs: 4 * N <= "
                "shared_bytes"
            )
        if any(isinstance(arg, Peers) for arg in args):  # blocks wait for those of other ranks
            cluster, ranks = math.prod(launch.grid), launch.grid[1]
        values, buffers = self._convert(args, launch.prefetch)
        pointers = (ctypes.c_void_p * len(args))(*(value.ctypes.data for value in values))
        settings = vars(self._settings).items()
        options = COptions(
            launch.grid,
            launch.block,
            cluster,
            ranks,
            launch.shared,
            SHARED_BYTES,
            buffer_count=len(buffers),
            prefetches=bool(launch.prefetch),
            **{name: value for name, value in settings if hasattr(COptions, name)},
        )
        library = load_runtime()
        array = (CBuffer * len(buffers))(*buffers)
        handle = library.emulator_launch(self._call, pointers, ctypes.byref(options), array)
        try:
            problems = self._read(library.emulator_result(handle).contents, buffers)
        finally:
            library.emulator_free(handle)
        if problems:
            raise KernelError(problems)

    def _convert(
        self, args: tuple[Any, ...], prefetch: tuple[str, ...]
    ) -> tuple[list[np.ndarray], list[CBuffer]]:
        """Each argument as an array that holds its bytes, and the buffers among them."""
        if len(args) != len(self._parameters):
            raise LadderError(
                f"the kernel {self.name} takes {len(self._parameters)} arguments, and is called "
                f"with {len(args)}"
            )
        values, buffers = [], []
        for i, (arg, parameter) in enumerate(zip(args, self._parameters, strict=True)):
            arg, offset = arg if isinstance(arg, tuple) else (arg, 0)  # bytes from its start
            if arg is None or (isinstance(arg, np.ndarray) and arg.ndim):
                kind = b"p"
                address = 0 if arg is None else arg.ctypes.data
                value = np.array([address + offset], np.uintp)
                if arg is not None:
                    prefetched = self._names[i] in prefetch
                    buffers.append(CBuffer(address, arg.nbytes, i, arg.itemsize, 0, prefetched))
            else:
                if isinstance(arg, Peers):
                    array = arg.array
                    row_bytes = 0 if arg.scratch else array.nbytes // array.shape[0]
                    place = array.ctypes.data, array.nbytes, i, array.itemsize, row_bytes
                    buffers.append(CBuffer(*place))
                value = np.array([by_value(arg)])
                kind = {"f": b"f", "V": b"s"}.get(value.dtype.kind, b"i")
                if kind == b"s":  # it may ask for any alignment
                    aligned = aligned_empty(value.shape, value.dtype)
                    aligned[...] = value
                    value = aligned
                    buffers.append(CBuffer(value.ctypes.data, value.nbytes, i, 0))
            if kind != parameter.kind or value.nbytes != parameter.bytes:
                wanted = f"{PARAMETER_KINDS[parameter.kind]} of {parameter.bytes} bytes"
                given = f"{PARAMETER_KINDS[kind]} of {value.nbytes} bytes"
                raise LadderError(
                    f"the kernel {self.name} declares argument {i + 1} ({self._names[i]}) as "
                    f"{wanted}, and is passed {given}"
                )
            values.append(value)
        return values, buffers

    # ---- results -----------------------------------------------------------------------------

    def _read(self, result: CResult, buffers: Sequence[CBuffer]) -> list[Problem]:
        """Adds a launch's results to the record; returns its problems."""
        if result.printed_bytes:
            printed = ctypes.string_at(result.printed, result.printed_bytes)
            print(printed.decode(errors="replace"), end="", flush=True)  # as host code flushes
        raw = result.problems[: result.problem_count]
        sites = result.sites[: result.site_count]
        events = result.events[: result.event_count]
        places = [place for problem in raw for place in (problem.place, problem.other)]
        places += [event.place for event in events]
        addresses = {place.pc for place in (*places, *sites) if place.pc}
        base = result.library_base
        lines = self._locator.find(address - base for address in addresses)

        def locate(pc: int | None) -> Line:
            return lines[pc - base] if pc else (self._locator.source, 0)

        said = [(p, problem) for p in raw if (problem := self._problem(p, locate, buffers))]
        problems = [problem for _, problem in said]
        self._record.problems += problems
        if self._settings.record:
            said.sort(key=lambda pair: pair[1].kind == UNINITIALISED)  # as in KernelError
            seen = report.timeline_of(self.name, events, self._settings.early, said, locate)
            self._record.timelines.append(seen)
        known = [self._site(site, locate) for site in sites]
        for key, site in zip(known, sites, strict=True):
            if not site.requests:
                continue  # what TMA and wgmma access, which is not counted
            counts = self._record.lines.setdefault(key, Counter())
            counts.update({name: getattr(site, name) for name in COUNTS})
        for request in result.requests[: result.request_count]:
            lanes = tuple(lane for lane in range(64) if request.lanes >> lane & 1)
            offsets = tuple(request.offsets[lane] for lane in lanes)
            at, block = vars(known[request.site]), _triple(request.block)
            self._record.accesses.append(
                Access(**at, block=block, warp=request.warp, lanes=lanes, offsets=offsets)
            )
        return problems

    def _site(self, site: CSite, locate: Callable[[int | None], Line]) -> Site:
        space = "shared" if site.shared_name else "global"
        kind = ACCESSES[site.access]
        return Site(*locate(site.pc), self.name, self._buffer(site), space, kind, site.bytes)

    def _buffer(self, where: CSite | CWhere) -> str:
        """The name of an array in shared memory, or of the parameter that is accessed."""
        shared: bytes | None = where.shared_name
        return shared.decode() if shared else self._names[where.argument]

    def _problem(
        self,
        problem: CProblem,
        locate: Callable[[int | None], Line],
        buffers: Sequence[CBuffer],
    ) -> Problem | None:
        """The problem in words; None if it turns out to be none."""
        kind = KINDS[problem.kind]
        file, line = locate(problem.place.pc)
        other = locate(problem.other.pc) if problem.other.pc else None
        if kind == "divergent barrier" and other == (file, line):
            return None  # one barrier of the source, of which the compiler made two copies
        who = _who(problem.place)
        where = f"{file}:{line}" if line else f"{file} ({self.name})"
        message = f"{where}: {self._say(kind, problem, who, other, buffers)}"
        if not line and not line_tool():
            message += f" ({MISSING})"
        block, thread = _triple(problem.place.block), _triple(problem.place.thread)
        return Problem(kind, message, self.name, file, line, block, thread, other)

    def _say(
        self,
        kind: str,
        problem: CProblem,
        who: str,
        other: Line | None,
        buffers: Sequence[CBuffer],
    ) -> str:
        text, where = problem.text.decode(), problem.where
        action = ACCESSES[problem.place.access]
        there = f" in line {other[1]}" if other else ""
        them = f"thread {tuple(problem.other.thread)}"
        match kind:
            case "race":
                return self._say_race(problem, who, there)
            case "out of bounds" if not text and (where.shared_name or where.argument >= 0):
                end = f"the end of {self._buffer(where)}"
                return f"{who}: {action} of {where.bytes} bytes across {end}"
            case "out of bounds" if not text:
                outside = f"{who}: {action} of {where.bytes} bytes outside of every buffer"
                return outside + self._beside(where.offset, buffers)
            case "divergent barrier" if other is None:
                return f"{who} waits at a barrier, and {them} has returned"
            case "divergent barrier" if text == "cluster":
                return (
                    f"{who} waits at the cluster's barrier, to which {them} of its warp comes "
                    f"apart, after a wait{there}: no __syncwarp comes between"
                )
            case "divergent barrier":
                what = "the same warp operation" if text else "a barrier"
                return f"{who} waits at {what}, and {them} at another one,{there}"
            case "uninitialised shared memory":
                at = f"{self._buffer(where)} at offset {where.offset}"
                return f"{who} reads {at}, which no thread wrote"
            case "ranks":
                return f"{who}: {action} of {self._buffer(where)} {text}"
            case "too early" if not text:
                remedy = "; if none before writes it, name it in Prefetch"
                return (
                    f"{who}: {action} of {self._buffer(where)} before wait_for_previous, when the "
                    f"kernel before may still use it{remedy if action == 'read' else ''}"
                )
            case "time limit":
                limit = f"{self._settings.time_limit:g} s of processor time, the limit of a launch"
                remedy = "Look at what should make its condition false"
                return f"{who} still runs after {limit}: an endless loop? {remedy}"
            case "deadlock":
                return f"deadlock: {who} {text}{there}"
            case "assertion":
                return f"{who}: assertion failed: {text}"
            case "out of bounds" | "crash" | "misaligned" | "too much shared memory":
                return f"{who}: {text}"
        return f"{who} {text}{there}"

    def _beside(self, at: int, buffers: Sequence[CBuffer]) -> str:
        """Which element the address would be of the buffer that it is next to; "" if of none."""

        def gap(buffer: CBuffer) -> int:
            begin: int = buffer.begin
            size: int = buffer.bytes
            return max(begin - at, at - begin - size)

        arrays = [buffer for buffer in buffers if buffer.element_bytes and buffer.bytes]
        nearest = min(arrays, key=gap, default=None)
        if nearest is None or gap(nearest) > BESIDE:
            return ""
        size = nearest.element_bytes
        element, count = (at - nearest.begin) // size, nearest.bytes // size
        what = "byte" if size == 1 else "element"
        return f": {what} {element} of {self._names[nearest.argument]}, which has {count}"

    def _say_race(self, problem: CProblem, who: str, there: str) -> str:
        now, before = problem.place, problem.other
        same_block = tuple(before.block) == tuple(now.block)
        them = f"thread {tuple(before.thread)}" if same_block else _who(before)
        space, place = "shared" if problem.where.shared_name else "global", problem.where
        known = space == "shared" or place.argument >= 0
        where = self._buffer(place) + f" in {space} memory, offset {place.offset}" * known
        text = (
            f"race on {where}: {_access(now)} {who}, and {_access(before)} {them}{there}, with "
            f"{problem.text.decode()} between them"
        )
        if BLOCKS in text:
            return f"{text}; blocks that add to one address need atomicAdd"
        if now.pc == before.pc and _access(now) == _access(before) == "write by":
            remedy = "give each its own (a barrier would only order them)"
            return f"{text}; two threads write the same element: {remedy}"
        return text + self._explain_race({ACCESSES[now.access], ACCESSES[before.access]}, space)

    def _explain_race(self, accesses: set[str], space: str) -> str:
        """What people who wrote such a race most often had in mind, and the way out."""
        code = self._locator.text()
        if accesses == {"read", "atomic"} and re.search(r"\batomicCAS\b", code):
            return (
                "; a first read before a loop of atomicCAS does no harm if the loop compares with "
                "it: read by atomicAdd(address, 0), which says so"
            )
        if space == "shared" and re.search(r"\bvolatile\b", code):
            return (
                "; volatile orders nothing: since Volta the lanes of a warp may run apart, and "
                "__syncwarp() must stand between the write and the read"
            )
        return ""


def _triple(values: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = values
    return x, y, z


def _access(place: CPlace) -> str:
    """What was done: "write by", or "write by a TMA load of"."""
    unit = AGENTS[place.agent]
    return f"{ACCESSES[place.access]}{unit} of" if unit else f"{ACCESSES[place.access]} by"


def _who(place: CPlace) -> str:
    return f"block {tuple(place.block)}, thread {tuple(place.thread)}"


def load(
    path: Path,
    source_path: Path,
    declared: tuple[source.DeclaredKernel, ...],
    settings: Settings,
    record: Record,
) -> dict[str, EmulatedKernel]:
    """The kernels of a compiled library by name."""
    load_runtime()
    library = ctypes.CDLL(str(path))
    locator = Locator(path, source_path)

    def kernel(one: source.DeclaredKernel) -> EmulatedKernel:
        taken = (CParameter * MOST_PARAMETERS)()
        names = (f"emulator_{what}_{one.name}" for what in ("call", "describe", "cluster", "bound"))
        call, describe, cluster, bound = (getattr(library, name) for name in names)
        known = taken[: describe(taken)]
        return EmulatedKernel(one, call, known, locator, settings, record, cluster(), bound())

    return {one.name: kernel(one) for one in declared}
