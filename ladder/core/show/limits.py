"""The limits of an exercise: what a kernel may ask of memory at most, counted by the emulator.

A right result does not show that a kernel has the idea that an exercise is about. A kernel that
loads everything again and again computes the same numbers. The counts tell the two apart.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ladder.core.common.errors import LadderError
from ladder.core.common.install import install
from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import DTYPES, Dims, format_dims
from ladder.core.contract.rung_file import Rung
from ladder.core.device.cuda import compiler, nvrtc
from ladder.core.emulator.emulated import Emulated
from ladder.core.emulator.report import LineCount, Report
from ladder.core.show import trace
from ladder.core.show.pictures import links, recording, ring
from ladder.core.show.pictures.accesses import touched_sectors
from ladder.core.show.trace import ALL, recorded
from ladder.core.verify.check import check_case

WARP = 32  # lanes, whose multiply-adds are one instruction


@dataclass(frozen=True)
class Run:
    """A kernel, and what the emulator counted in one run of it."""

    ladder: Ladder
    rung: Rung
    dtype: str
    dims: Dims
    report: Report


Costs = dict[str, float]  # what is counted, by place: a sentence on where the most of it is


def _of_lines(count: Callable[[LineCount], int]) -> Callable[[Run, str], Costs]:
    """What each line of the source adds, of one array or of all ("")."""

    def costs(run: Run, array: str) -> Costs:
        lines = [line for line in run.report.lines if array in ("", line.buffer)]
        counts: Counter[tuple[str, int, str]] = Counter()
        for line in lines:
            counts[Path(line.file).name, line.line, _does(line)] += count(line)
        total = sum(counts.values())
        return {
            f"Most of them are in {file}:{number}, which {does}."
            if 2 * n > total
            else f"Line {number} of {file} has the most: it {does}.": n
            for (file, number, does), n in counts.items()
        }

    return costs


def _sectors_per_block(run: Run, array: str) -> Costs:
    """What the busiest block asks of global memory."""
    blocks: Counter[tuple[str, tuple[int, int, int]]] = Counter()
    for access in run.report.accesses:
        if access.space == "global" and array in ("", access.buffer):
            blocks[access.kernel, access.block] += len(touched_sectors(access))
    return {
        f"Those are of block {block} of {kernel}, the busiest of {len(blocks)}.": most
        for (kernel, block), most in blocks.most_common(1)
    }


def _requests_per_warp(run: Run, array: str) -> Costs:
    """What the busiest warp asks of global memory: it asks again and again, where others could."""
    warps = Counter(
        (access.kernel, access.block, access.warp)
        for access in run.report.accesses
        if access.space == "global" and array in ("", access.buffer)
    )
    return {
        f"Those are of warp {warp} of block {block} of {kernel}, the busiest of {len(warps)}.": most
        for (kernel, block, warp), most in warps.most_common(1)
    }


def _loads_per_multiply_add(run: Run, array: str) -> Costs:
    per = run.ladder.op.flops(run.dims) / 2 / WARP
    loads = _of_lines(lambda line: line.requests if line.kind == "read" else 0)(run, array)
    return {where: count / per for where, count in loads.items()}


def _shared_bytes(run: Run, array: str) -> Costs:
    """Up to the last byte of each array that a lane accesses, padding included."""
    ends: dict[str, int] = {}
    for access in run.report.accesses:
        if access.space == "shared" and array in ("", access.buffer):
            end = max(access.offsets) + access.bytes
            ends[access.buffer] = max(end, ends.get(access.buffer, 0))
    return {f"The largest array is {name}, with {end:,}.": end for name, end in ends.items()}


def _steps_without_a_copy(run: Run, array: str) -> Costs:
    """Steps that read a tile while no copy by cp.async is in flight."""
    seen = ring.record(run.ladder, run.rung, run.dtype, run.dims)
    idle = [number for number, step in enumerate(seen.steps) if step.flight == 0]
    return {
        f"In step {number - 1}, for one, it multiplies while no copy is in flight.": 1
        for number in idle
    }


def _early_waits(run: Run, array: str) -> Costs:
    """Tiles that a step waits for although a later one reads them."""
    seen = ring.record(run.ladder, run.rung, run.dtype, run.dims)
    return {
        f"In step {number - 1}, it waits for tile {step.arrived}, and reads tile {last}.": early
        for number, step in enumerate(seen.steps)
        for last in (max(step.read, default=step.arrived),)
        if (early := step.arrived - last) > 0
    }


def _waits_for_all_products(run: Run, array: str) -> Costs:
    """Waits of a warp that leave no wgmma in flight, in block 0."""
    events = recording.record(run.ladder.op.name, run.rung, run.dtype, run.dims)
    mine = [event for event in events if (event.block, event.thread) == (0, 0)]
    waits = sum(event.name == "product-wait" and event.value == 0 for event in mine)
    return {"In each step, it waits until the tensor cores have nothing to do.": waits}


def _bytes_read_by_tma(run: Run, array: str) -> Costs:
    """What TMA reads from L2: a multicast reads once for all blocks that receive it."""
    events = recording.record(run.ladder.op.name, run.rung, run.dtype, run.dims)
    costs: Costs = {}
    for copy in recording.copies(events, run.rung, run.dtype, run.dims):
        if array in ("", copy.array):
            where = f"Block {copy.asks} asks for rows of {copy.array}."
            costs[where] = costs.get(where, 0) + copy.bytes
    return costs


def _link_bytes(run: Run, array: str) -> Costs:
    """What the peers of one rank send to it, and what it reads from them."""
    crossed = links.crossed(run.report, run.ladder, run.rung, run.dtype, run.dims)
    busiest = int(crossed.sum(axis=0).argmax())
    parts = (f"{n:,} from rank {peer}" for peer, n in enumerate(crossed[:, busiest]) if n)
    return {f"Rank {busiest} receives {', '.join(parts)}.": int(crossed[:, busiest].sum())}


BARRIER = r"""
#define __syncthreads()                                            \
    (blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x == 0       \
         ? (void)emulator::emulator_print("@ %d\n", __LINE__)      \
         : (void)0,                                                \
     __syncthreads())
"""
CALL = r"""
#define {0}(...) ((void)emulator::emulator_print("@ %d\n", __LINE__), {0}(__VA_ARGS__))
"""


def _marked_lines(run: Run, macro: str) -> list[int]:
    """The lines that a copy of the kernel prints when it comes by what the macro replaces."""
    printed = recorded(run.ladder, run.rung, macro, run.dtype, run.dims)
    return [int(line) for (line,) in printed]


def _barriers(run: Run, array: str) -> Costs:
    """How often the first thread waits at __syncthreads."""
    met = _marked_lines(run, BARRIER)
    return {f"They are in lines {', '.join(map(str, sorted(set(met))))}.": len(met)}


def _calls(run: Run, function: str) -> Costs:
    """How often all threads together call a function of a header or of the C library."""
    if not function:
        raise LadderError("calls of what? Name a function: 'calls of tanhf'")
    calls = Counter(_marked_lines(run, CALL.format(function)))
    return {f"Line {line} calls {function} {n:,} times.": n for line, n in calls.items()}


def _uses(run: Run, word: str) -> Costs:
    """Lines of the kernel that have a word outside of comments."""
    lines = enumerate(re.sub(r"//.*", "", run.rung.source).splitlines(), 1)
    return {
        f"Line {i} is one.": 1 for i, text in lines if re.search(rf"\b{re.escape(word)}\b", text)
    }


def _local_bytes(run: Run, array: str) -> Costs:
    """What a thread keeps in local memory, as NVRTC compiles the kernel for an H100."""
    target = compiler.typical_target("sm_90a", DTYPES[run.dtype])
    constants = run.rung.plan(run.dims, target).constants
    cubin = compiler.compile_cubin(run.rung, constants, target.real, target.arch)
    kernels = compiler.resources(cubin).items()
    return {f"They are in the machine code of {kernel}.": takes.stack for kernel, takes in kernels}


MEASURES: dict[str, Callable[[Run, str], Costs]] = {
    "sectors": _of_lines(lambda line: line.sectors),
    "sectors per block": _sectors_per_block,
    "requests": _of_lines(lambda line: line.requests),
    "requests per warp": _requests_per_warp,
    "wavefronts": _of_lines(lambda line: line.wavefronts),
    "extra wavefronts": _of_lines(lambda line: line.wavefronts - line.ideal_wavefronts),
    "atomics": _of_lines(lambda line: line.lanes if line.kind == "atomic" else 0),
    "loads per multiply-add": _loads_per_multiply_add,
    "shared bytes": _shared_bytes,
    "barriers": _barriers,
    "calls": _calls,
    "uses": _uses,
    "local bytes": _local_bytes,
    "steps without a copy": _steps_without_a_copy,
    "early waits": _early_waits,
    "waits for all products": _waits_for_all_products,
    "bytes read by TMA": _bytes_read_by_tma,
    "bytes into a rank": _link_bytes,
}


LESSONS = {  # what most kernels that break a limit have to learn
    "sectors": "Access each element once.",
    "coalesce": "Coalesce: neighbouring lanes take neighbouring elements.",  # where they do not
    "requests": "Load and store vectors: fewer accesses, each as wide as it can be.",
    "sectors per block": "Share the work: more blocks, and each takes less.",
    "requests per warp": "Share the work: launch more warps, and let each take its part.",
    "wavefronts": "Whole warps work, and few of them in each step; registers take none.",
    "barriers": "A barrier is for what one warp writes and another reads; leave out others.",
    "extra wavefronts": "Lanes of a request meet in a bank: let neighbours take neighbouring "
    "words, pad the rows, or swizzle them.",
    "loads per multiply-add": "Keep factors in registers, where each serves several outputs.",
    "steps without a copy": "Start the next copy before the products.",
    "waits for all products": "Wait for the products of the step before; those of this one run on.",
    "local bytes": "An array is in registers only if the compiler knows each index: loops over j "
    "from 0 to a constant, unrolled.",
    "atomics": "Reduce first: add up in registers or shared memory, and do few atomics at the end.",
}


def judge(
    ladder: Ladder,
    rung: Rung,
    dims: Dims,
    at_most: Mapping[str, float],
    at_least: Mapping[str, float],
    dtype: str = "float32",
) -> tuple[bool, list[str]]:
    """Whether a kernel keeps all limits in one real type, and a sentence on each, broken first; or
    what is wrong with its result where it is counted.

    at_most  the most of each measure: of all arrays, or of one ("sectors of inp"). Sectors are
             those of global memory, sectors per block those of the block with the most, and
             requests per warp those to global memory of the warp with the most. Wavefronts are
             those of shared memory; extra wavefronts are due to bank conflicts. Atomics are
             counted lane by lane; requests, loads and multiply-adds are the instructions of a warp.
             Shared bytes are those of a block, barriers those that a thread waits at. Calls are
             those of a function ("calls of tanhf") by all threads. Steps and early waits are those
             of a ring (pictures/ring.py), waits for all products those of one warp. Bytes into a
             rank are those that come over its link. Uses are the lines of code that have a word
             ("uses of double"). Local bytes are those of a thread's arrays and spills in machine
             code; without NVRTC they are not counted, and a sentence says so.
    at_least the least of each measure

    Raises LadderError for an unknown measure, and where the kernel cannot run at this shape.
    """
    counted = check_case(ladder.op, rung, Emulated(), dtype, dims, brief=True)
    if counted.status != "passed":
        return False, [
            f"{ladder.op.name} {rung.label}: FAILED at {counted.label}: {counted.detail}"
        ]
    copied = ", rung " in rung.source.partition("\n")[0]  # whose title is not the exercise's
    about = "" if copied else f"The exercise is about this: {rung.idea}."
    run = Run(ladder, rung, dtype, dims, trace.trace(ladder, rung, dtype, dims, keep=ALL))
    kept: list[str] = []
    broken: list[str] = []
    for name, limit in (*at_most.items(), *at_least.items()):
        what, _, array = name.partition(" of ")
        if what not in MEASURES:
            raise LadderError(f"nothing counts {what!r}; there are {', '.join(MEASURES)}")
        if what == "local bytes" and not nvrtc.installed():
            kept.append(f"{name}: not counted, NVRTC is not installed: {install('compile')}")
            continue
        names = {line.buffer for line in run.report.lines}
        if rung.host and array in {arg.name for arg in ladder.op.args} - names:
            there = ", ".join(sorted(names))
            raise LadderError(f"{name!r}: no kernel accesses {array} by this name, but {there}")
        costs = MEASURES[what](run, array)
        total = sum(costs.values())
        text = f"{name}: {total:,.4g}" if total != round(total) else f"{name}: {total:,.0f}"
        bound = "at least" if name in at_least else "the limit is"
        text += f" at {format_dims(dims)}; {bound} {limit:,g}"
        if name in at_least and total < limit:
            broken.append(
                f"The result is right, but the kernel takes too few {text}. {about}".rstrip()
            )
        elif name in at_most and total > limit:
            worst = max(reversed(costs), key=lambda where: costs[where])  # of equals the last
            text = f"The result is right, but the kernel takes too many {text}. {worst}"
            conflicts = sum(MEASURES["extra wavefronts"](run, array).values())
            if what == "wavefronts" and total - conflicts <= limit:  # they alone break it
                what = "extra wavefronts"
            lines = [line for line in run.report.lines if array in ("", line.buffer)]
            wasted = any(line.sectors > line.ideal_sectors for line in lines)
            alone = sum(line.sectors - 2 * line.requests for line in lines) < 0  # or one address
            again = _again(run, array) if what == "sectors" else ""
            apart = what == "sectors" and (wasted or alone) and not again
            lessons = [LESSONS.get(what, about), again, LESSONS["coalesce"] if apart else ""]
            broken.append(" ".join(filter(None, [text, *lessons])))
        else:
            kept.append(text)
    return not broken, broken + kept


def _again(run: Run, array: str) -> str:
    """The line that loads most often what its warp has loaded there before, if one does."""
    loads = Counter(
        (access.line, access.kernel, access.block, access.warp, access.offsets)
        for access in run.report.accesses
        if (access.space, access.kind, access.buffer) == ("global", "read", array)
    )
    return "".join(
        f"Line {line} loads the same again in each step: load it once, before the loop."
        for (line, *_), n in loads.most_common(1)
        if n > 2
    )


def _does(line: LineCount) -> str:
    """What a line does with an array."""
    space = "shared memory" if line.space == "shared" else "global memory"
    verb = {"read": "reads", "write": "writes"}.get(line.kind, "adds to")
    return f"{verb} {line.buffer} in {space}"
