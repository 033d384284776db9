"""`python -m trainer doctor`: what this machine has, what runs on it, and what to install.
ladder/core/device/open.py has the part on compiling and running kernels."""

import os
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from ladder.core.common.command_line import Parser
from ladder.core.common.install import Finding, cores, pip
from ladder.core.device.open import GPUS, Cpu, device_findings
from ladder.core.measure.roofline import measured_roof
from trainer.data.download import GPT2_MERGES, TINYSHAKESPEARE, data_directory, places
from trainer.engine.memory import GIB, available_on_host

MEMORY_124M = 3 * GIB  # the quick start's peak is a little below
CHECKPOINT_124M = 1.5e9  # bytes: weights and two moments in float32


def main(argv: Sequence[str] = ()) -> int:
    Parser(
        prog="python -m trainer doctor",
        description="What this machine has, what will run on it, and what to do about the rest.",
    ).parse_args(argv)
    findings = examine()
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row("--" if finding.remedy else "ok", finding.what, finding.state)
        if finding.remedy:
            table.add_row("", "", f"-> {finding.remedy}")
    console = Console(highlight=False, markup=False)
    console.print(table)
    console.print()
    for device, what, lacks in verdict(findings):
        state = f"does not run: see {', '.join(lacks)}" if lacks else f"runs: {what}"
        console.print(f"--device {device:9} {state}")
    return 0


def examine() -> list[Finding]:
    version, system = platform.python_version(), f"{platform.system()} {platform.machine()}"
    return [
        Finding("Python", f"{version}, {system} ({sys.executable})"),
        numpy(),
        Finding("CPU", f"{cores()} cores to use, {processor_name()}"),
        memory(available_on_host()),
        disk(Path.cwd()),
        *data(data_directory()),
        *device_findings(),
    ]


def verdict(findings: Sequence[Finding]) -> list[tuple[str, str, list[str]]]:
    """Each device, what runs on it, and what it lacks on this machine; nothing where it runs."""
    missing = {finding.what for finding in findings if finding.remedy}
    needs = (
        ("emulated", "the kernels, on the CPU, small models", ("C++ compiler",)),
        ("isa:ARCH", "AMD's machine code, on the CPU, single rungs", ("AMD compiler",)),
        *((name, "the kernels", kind.needed) for name, kind in GPUS.items()),
    )
    return [("cpu", "the NumPy reference, rung 0 of every ladder", [])] + [
        (device, what, sorted({"kernel cache", *of_it} & missing)) for device, what, of_it in needs
    ]


def numpy() -> Finding:
    """NumPy, the library behind its matrix products, and how fast these are."""
    try:
        blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        library = f"{blas['name']} {blas.get('version', '')}".strip()
    except (KeyError, TypeError):
        library = "an unknown BLAS"
    rate = measured_roof(Cpu(), np.dtype(np.float32)) / 1e9
    versions = f"{np.__version__} with {library}, float32 products at {rate:.0f} GFLOP/s"
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        if name in os.environ:
            versions += f", {name}={os.environ[name]}"
    remedy = f"that is slow; to get NumPy's own wheel: {pip('install --force-reinstall numpy')}"
    if (load := os.getloadavg()[0]) > cores():
        remedy = f"that is slow, but {load:.0f} programs share {cores()} cores; look again later"
    return Finding("NumPy", versions, remedy if rate < 10 else None)


def processor_name() -> str:
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(errors="replace").splitlines()
        names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        name = next(names, name)
    return name


def memory(available: int | None) -> Finding:
    if available is None:
        return Finding("memory", "unknown")
    remedy = "GPT-2 124M needs 3 GiB: make room, or train -e d6 or -e char"
    little = available < MEMORY_124M
    return Finding("memory", f"{available / GIB:.1f} GiB available", remedy if little else None)


def disk(directory: Path) -> Finding:
    if not os.access(directory, os.W_OK):
        return Finding("disk", f"{directory} is not writable", "choose another folder by -o")
    free = shutil.disk_usage(directory).free
    remedy = "two checkpoints of GPT-2 124M take 3 GB: free some space, or leave out -n"
    little, room = free < 2 * CHECKPOINT_124M, f"{free / GIB:.1f} GiB free in {directory}"
    return Finding("disk", room, remedy if little else None)


def data(directory: Path) -> list[Finding]:
    """The files that a run downloads where they are missing."""
    findings = []
    for what, source, instead in (
        ("tinyshakespeare", TINYSHAKESPEARE, "the embedded play"),
        ("GPT-2 tokens", GPT2_MERGES, "the byte tokenizer"),
        ("GPT-2 weights", None, "random weights"),
    ):
        path = "gpt2/model.safetensors" if source is None else source.path
        files = [place for place in places(directory, path) if place.is_file()]
        if files:
            findings.append(Finding(what, str(files[0])))
        else:
            remedy = f"a run downloads it; without a network it uses {instead}"
            findings.append(Finding(what, f"not in {directory}", remedy))
    return findings
