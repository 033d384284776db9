"""What Nsight Compute (`ncu`) should count of a rung, and how to make it count.

The emulator's counts and the compiler's report predict some of its metrics to the digit. So a
profile begins as a measurement does here: with a prediction. Where the two differ, the compiler or
the hardware did something that the source does not say.

Names and meanings of metrics and sections:
https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html
"""

import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ladder.core.contract.op import Dims, format_dims
from ladder.core.emulator.report import LineCount
from ladder.core.show import trace
from ladder.core.show.machine import Built

# Metrics that the emulator counts: in which memory, of which accesses, and what of them.
COUNTS = {
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": ("global", "read", "requests"),
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": ("global", "read", "sectors"),
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum": ("global", "write", "requests"),
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": ("global", "write", "sectors"),
    "l1tex__t_sectors_pipe_lsu_mem_global_op_red.sum": ("global", "atomic", "sectors"),
    "l1tex__t_sectors_pipe_lsu_mem_global_op_atom.sum": ("global", "atomic", "sectors"),
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum": ("shared", "read", "wavefronts"),
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum": ("shared", "write", "wavefronts"),
}
OPERATIONS = {"read": "loads", "write": "stores", "atomic": "atomics"}
REDUCTIONS, EXCHANGES = {"RED", "REDG"}, {"ATOM", "ATOMG"}  # atomics without and with a result
LEAST_REGISTERS = 16  # that a launch gives each thread
LOCAL = {"LDL", "STL"}
ASYNCHRONOUS = {"LDGSTS", "UBLKCP", "UTMALDG", "UTMASTG", "UTMAREDG"}  # cp.async and TMA
TENSOR_CORES = {"HMMA", "HGMMA", "UTCHMMA"}
WIDE = 16  # bytes that a lane can access with one instruction
LOW = 0.5  # of the warps that an SM has room for
OFTEN = 0.02  # of the instructions


class Prediction(NamedTuple):
    metric: str
    value: float
    meaning: str


class Advice(NamedTuple):
    """A section of a report, and why to open it."""

    section: str
    why: str


def predictions(kernel: Built, counts: Sequence[LineCount]) -> Iterator[Prediction]:
    """The metrics of a kernel that are known beforehand. `counts`: of the rung, at its shape.

    Copies by cp.async or TMA have metrics of their own, so of a kernel with these no access is
    predicted.
    """
    registers = max(kernel.takes.registers, LEAST_REGISTERS)
    yield Prediction("launch__registers_per_thread", registers, "registers")
    yield Prediction("launch__waves_per_multiprocessor", float(f"{kernel.waves:.3g}"), "waves")
    share = round(100 * kernel.occupancy.share)
    yield Prediction("sm__maximum_warps_per_active_cycle_pct", share, "% occupancy, at most")
    if not kernel.opcodes.keys() & LOCAL:
        yield Prediction("l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum", 0, "sectors of spills")
    if kernel.opcodes.keys() & ASYNCHRONOUS:
        return
    mine = [line for line in counts if line.kernel == kernel.launch.kernel]
    for metric, (space, kind, attribute) in COUNTS.items():
        chosen = [line for line in mine if (line.space, line.kind) == (space, kind)]
        if chosen and (kind != "atomic" or metric == _atomic_metric(kernel)):
            total = sum(getattr(line, attribute) for line in chosen)
            yield Prediction(metric, total, f"{attribute} of {OPERATIONS[kind]}")


def _atomic_metric(kernel: Built) -> str | None:
    """The one that counts all atomics of a kernel; None if there are both kinds."""
    kinds = [
        name
        for name, opcodes in (("red", REDUCTIONS), ("atom", EXCHANGES))
        if opcodes & kernel.opcodes.keys()
    ]
    return f"l1tex__t_sectors_pipe_lsu_mem_global_op_{kinds[0]}.sum" if len(kinds) == 1 else None


def advice(kernel: Built, counts: Sequence[LineCount]) -> Iterator[Advice]:
    """The sections of a report that say what limits a kernel, and what to look for in them."""
    mine = [line for line in counts if line.kernel == kernel.launch.kernel]
    yield Advice("SpeedOfLight", "which is nearer to its peak, memory or compute?")
    if kernel.waves < 1:
        yield Advice("LaunchStats", f"{kernel.waves:.2g} waves: most SMs have room for more blocks")
    if kernel.occupancy.share < LOW:
        limit = f"{kernel.occupancy.share:.0%}, limited by {kernel.occupancy.limited_by}"
        yield Advice("Occupancy", f"theoretical occupancy is {limit}")
    yield from _memory_advice(kernel, mine)
    if reasons := "; ".join(_reasons_to_wait(kernel, mine)):
        yield Advice("WarpStateStats", f"why warps wait: {reasons}")
    if kernel.opcodes.keys() & TENSOR_CORES:
        yield Advice("ComputeWorkloadAnalysis", "how busy the tensor pipelines are")
    elif kernel.opcodes["MUFU"] > OFTEN * kernel.opcodes.total():
        yield Advice("ComputeWorkloadAnalysis", "how busy the XU pipeline is (exponentials, roots)")


def _memory_advice(kernel: Built, lines: Sequence[LineCount]) -> Iterator[Advice]:
    section = "MemoryWorkloadAnalysis_Tables"
    for line in lines:
        takes, ideal, unit = trace.per_request(line)
        if takes > 1.5 * ideal:
            what = f"line {line.line}, {line.kind} of {line.buffer}"
            yield Advice(section, f"{what}: {takes:.0f} {unit} per request, not {ideal:.0f}")
    if kernel.opcodes.keys() & ASYNCHRONOUS:
        yield Advice(section, "the rows of cp.async and TMA copies")
    if kernel.takes.spill:
        yield Advice(section, f"local memory: {kernel.takes.spill} bytes of spills per thread")


def _reasons_to_wait(kernel: Built, lines: Sequence[LineCount]) -> Iterator[str]:
    loads = [line for line in lines if line.kind == "read"]
    wide = any(line.bytes >= WIDE for line in lines if line.space == "global")
    if any(line.space == "global" for line in loads):
        yield "Long Scoreboard (loads from memory)"
    if not wide or any(line.kind == "atomic" for line in lines):
        yield "LG Throttle (many requests)"
    if any(line.space == "shared" for line in loads):
        yield "Short Scoreboard and MIO Throttle (shared memory)"
    if kernel.opcodes["BAR"]:
        yield "Barrier"


def count_command(
    op: str, which: str, dtype: str, dims: Dims, kernels: Sequence[Built], metrics: Sequence[str]
) -> str:
    """Prints these metrics, at a small shape."""
    shape = format_dims(dims).replace(" ", ",")
    program = ["check", op, which, "--device", "cuda", "--dtype", dtype, "--shape", shape]
    # The checker runs a file that is no rung in a child process.
    return _command(kernels, ["--target-processes", "all", "--metrics", ",".join(metrics)], program)


def report_command(op: str, which: str, dtype: str, dims: Dims, kernels: Sequence[Built]) -> str:
    """Writes all that Nsight Compute collects to a file, to open in its window."""
    shape = format_dims(dims).replace(" ", ",")
    file = f"{op}-{which.removesuffix('.cu').replace('/', '-')}"
    program = ["bench", op, "--rung", which, "--dtype", dtype, "--shape", shape]
    options = ["--target-processes", "application-only", "--set", "full", "--import-source", "yes"]
    return _command(kernels, [*options, "--force-overwrite", "--export", file], program)


def _command(kernels: Sequence[Built], options: Sequence[str], program: Sequence[str]) -> str:
    names = list(dict.fromkeys(kernel.launch.kernel for kernel in kernels))
    which = names[0] if len(names) == 1 else f"regex:^({'|'.join(names)})$"
    chosen = ["--kernel-name", which, "--launch-count", str(len(kernels))]
    return shlex.join(["ncu", *chosen, *options, "python", "-m", "ladder", *program])
