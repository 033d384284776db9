"""Which rung of each ladder a run uses: `--rungs` sets all of them, `--rung` one at a time.

A run that goes on from a checkpoint keeps the rungs that it had, unless it is given new ones: other
rungs, or the same ones edited, do not give the same bits. A user's own kernel is named again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from ladder.core.common.errors import LadderError
from ladder.core.contract.device import Device
from ladder.core.contract.dims import Dims
from ladder.core.contract.identity import code_identity
from ladder.core.contract.ladder import find, find_rung
from ladder.core.contract.rung_file import Rung
from ladder.core.measure.pick import compiling_ahead, pick
from ladder.core.verify import sandbox
from ladder.core.verify.check import compile_ahead
from trainer.engine.kernel_settings import KernelSettings, naming_file
from trainer.model.calls import Call
from trainer.model.fusion import (
    DROPPED_JOIN,
    DROPPED_JOIN_BACKWARD,
    FUSIONS,
    JOIN,
    JOIN_BACKWARD,
    makes,
    takes,
)


def say_nothing(part: str) -> None:
    """The default of `told`: nobody hears which part of the work begins."""


@dataclass(frozen=True)
class Choice:
    """The rung that an op runs, and the reason for it."""

    rung: Rung
    reason: str


def choose(
    calls: Iterable[Call],
    settings: KernelSettings,
    device: Device,
    before: Mapping[str, Any] | None = None,
    told: Callable[[str], None] = say_nothing,
) -> dict[str, Choice]:
    """A choice for each op that is called, by the op's name.

    before  the `record` of the run that this one goes on from, to choose the same again
    told    is called with the name of each part of this work before it begins

    A `.cu` file of the user's is checked first, in a process of its own. Raises LadderError for an
    op or rung that does not exist, that the model does not use, or that the device cannot run
    whatever the shape; what depends on the shape is refused when the engine binds the rung.
    """
    shapes: dict[str, list[Dims]] = {}  # of every call, so that frequent shapes count more
    for call in calls:
        shapes.setdefault(call.op, []).append(call.dims)
    for op, which in settings.rung.items():
        _refuse_unused(op, which, shapes)
    listed = {op: which for op, which in settings.from_file.items() if op not in settings.rung}
    _refuse_code(listed, f"--rungs {settings.rungs}: it names")
    named = {op: (which, f"from {settings.rungs}") for op, which in listed.items()}
    if before is not None:
        kept = {op: which for op, which in before["rungs"].items() if op not in settings.rung}
        _refuse_code(kept, "the checkpoint names")
        _refuse_edited(kept, before)
        named = {op: (which, "as before") for op, which in kept.items()}
    named |= {op: (which, "named by --rung") for op, which in settings.rung.items()}
    choices = {}
    console = Console(stderr=True)
    shown = device.is_gpu and console.is_terminal
    for op in track(sorted(shapes), "choosing rungs", console=console, disable=not shown):
        told(f"the choice of a rung for {op}")
        real = find(op).op.real_in(settings.place.real)
        if op not in named:
            choices[op] = _from_set(op, settings, device, real, shapes[op])
            continue
        which, reason = named[op]
        with naming_file(settings.rungs if op in listed else None):
            rung = find_rung(op, which)
            _refuse(op, rung, settings, device, real)
        choices[op] = Choice(rung, reason)
    return choices


def compiling_candidates(
    calls: Iterable[Call], settings: KernelSettings, device: Device
) -> AbstractContextManager[None]:
    """Compile in the background what will be compared for these calls; ends with the context."""
    if not device.is_gpu or settings.rung_set not in ("best", "library"):
        return contextlib.nullcontext()
    named = settings.rung.keys() | settings.from_file.keys()
    questions = [
        (find(op), find(op).op.real_in(settings.place.real).name, shapes)
        for op, shapes in _distinct(calls).items()
        if op not in named
    ]
    return compiling_ahead(questions, device, **settings.picking)


def compile_chosen(
    calls: Iterable[Call], choices: Mapping[str, Choice], settings: KernelSettings, device: Device
) -> None:
    """Begin to compile the chosen kernels, all at once, for the engine that will bind them: what
    was picked without measuring is not compiled yet."""
    if not device.is_gpu:
        return
    pool = ThreadPoolExecutor(os.cpu_count())
    for op, shapes in _distinct(calls).items():
        ladder = find(op)
        dtype = ladder.op.real_in(settings.place.real).name
        compile_ahead(pool, ladder, [choices[op].rung], device, [dtype], shapes)
    pool.shutdown(wait=False)


def _distinct(calls: Iterable[Call]) -> dict[str, list[Dims]]:
    """The different shapes at which each op is called, by the op's name."""
    shapes: dict[str, dict[tuple[tuple[str, int], ...], Dims]] = {}
    for call in calls:
        shapes.setdefault(call.op, {})[tuple(call.dims.items())] = call.dims
    return {op: list(distinct.values()) for op, distinct in shapes.items()}


def _refuse_unused(op: str, which: str, used: Collection[str]) -> None:
    """Raise LadderError where --rung names an op that does not exist, or that does not run."""
    find(op)  # an unknown name is refused with the nearest known ones
    if op in used:
        return
    typed = f"--rung {op}={which}"
    # Only the forward pass is left unfused where the backward pass computes layernorms again.
    dropped = DROPPED_JOIN_BACKWARD.fused[0]
    behind = {JOIN.fused[0]: {JOIN_BACKWARD.fused[0], dropped}, DROPPED_JOIN.fused[0]: {dropped}}
    if op in behind and behind[op] & {*used} and not behind.keys() & {*used}:
        raise LadderError(
            f"{typed}: -r 2 computes layernorms again, by layernorm.forward, so the forward pass "
            "does not fuse them; choose -r 0 or -r 1, or leave this --rung out"
        )
    fused = [name for name in FUSIONS if op in takes(name) | makes(name)]
    remedy = f", and --fuse decides about {fused[0]}" if fused else ""
    raise LadderError(
        f"{typed}: this model does not use {op}; it uses {', '.join(sorted(used))}{remedy}"
    )


def record(choices: Mapping[str, Choice]) -> dict[str, dict[str, Any]]:
    """What a checkpoint keeps, so that the same rungs can be told from edited ones."""
    digests = {op: code_identity(choice.rung) for op, choice in choices.items()}
    return {"rungs": as_json(choices), "digests": digests}


def as_recorded(recorded: Mapping[str, Any], reasons: Mapping[str, str]) -> dict[str, Choice]:
    """The choices of a `record` that another rank of this run has made."""
    choices = {}
    for op, which in recorded["rungs"].items():
        rung = find_rung(op, which)
        if code_identity(rung) != recorded["digests"][op]:
            raise LadderError(
                f"{op} {rung.label} is not the same file here as on rank 0; install the same "
                "version on all machines"
            )
        choices[op] = Choice(rung, reasons[op])
    return choices


def _refuse_code(named: Mapping[str, Any], who: str) -> None:
    """Raise LadderError where a checkpoint or a file of rungs names a kernel file. It may be a
    stranger's, so it is only data: code runs where the user names it."""
    for op, which in named.items():
        if str(which).endswith(".cu"):
            raise LadderError(
                f"{who} a kernel file for {op}, and only the command line can; read that file, and "
                f"give --rung {op}={which!r}"
            )


def _refuse_edited(named: Mapping[str, str], before: Mapping[str, Any]) -> None:
    """Raise LadderError where a rung is gone, or is not what it was at the checkpoint."""
    for op, which in named.items():
        anew = f"choose another by --rung {op}=N, or all by --rungs"
        try:
            rung = find_rung(op, which)
        except LadderError as error:
            raise LadderError(f"the checkpoint's rung is gone: {error}; {anew}") from None
        if code_identity(rung) != before["digests"].get(op):
            raise LadderError(
                f"{op} {rung.label} was edited since the checkpoint, or a file that it includes, "
                f"so the run could not continue bit for bit; restore {rung.path}, or {anew}"
            )


def as_json(choices: Mapping[str, Choice]) -> dict[str, str]:
    """What `--rungs FILE` reads back: the id of each op's rung, a user's file by its path."""
    return {op: choice.rung.id for op, choice in choices.items()}


def _from_set(
    op: str, settings: KernelSettings, device: Device, real: np.dtype, shapes: list[Dims]
) -> Choice:
    """The rung that `--rungs` means for an op that is not named."""
    ladder, deterministic = find(op), settings.deterministic
    rungs = settings.rung_set
    if rungs == "reference" and not device.runs_reference:
        raise LadderError(
            f"--rungs reference is NumPy, which does not run on --device {settings.place.device}"
        )
    if rungs in ("best", "library"):
        if not device.is_gpu:
            raise LadderError(
                f"--rungs {rungs} measures on a GPU, but the device is {device.name}; "
                "choose --rungs reference or naive, or name rungs by --rung"
            )
        choice = pick(ladder, device, real.name, *shapes, **settings.picking)
        return Choice(ladder.rung(choice.rung), choice.reasons[choice.rung])
    if rungs == "naive" and device.runs_kernels:
        target = device.target(real)
        for rung in ladder.on(device):
            kernel = rung.path is not None and rung.claims(target)
            allowed = settings.tf32 or not rung.tf32
            if kernel and allowed and (rung.deterministic or not deterministic):
                return Choice(rung, "the lowest" + (" deterministic one" if deterministic else ""))
        if not device.runs_reference:
            what = "deterministic rung" if deterministic else "rung"
            raise LadderError(f"{op} has no {what} yet that runs in {real.name} on {device.name}")
        return Choice(ladder.rung("0"), "no kernel yet")
    return Choice(ladder.rung("0"), "the default")


def _refuse(op: str, rung: Rung, settings: KernelSettings, device: Device, real: np.dtype) -> None:
    """Raise LadderError where a named rung cannot run on the device, or is wrong."""
    if not rung.is_reference and not device.runs_kernels:
        raise LadderError(
            f"{op} {rung.label} is a kernel, and --device {settings.place.device} runs the NumPy "
            "reference only; add --device emulated, or use a GPU"
        )
    if rung.is_reference and not device.runs_reference:
        raise LadderError(
            f"{op} rung 0 is NumPy; on --device {settings.place.device} choose a rung from 1 on"
        )
    if rung.path is not None and not rung.claims(target := device.target(real)):
        needs = "; ".join(rung.conditions())
        raise LadderError(
            f"{op} {rung.label} needs {needs}, which {target.arch} in {real.name} does not meet; "
            "choose another rung"
        )
    if rung.tf32 and not settings.tf32:
        raise LadderError(
            f"{op} {rung.label} multiplies as TF32, with 10 bits of fraction, and this run keeps "
            "float32; allow it by -f 1, or choose another rung"
        )
    if settings.deterministic and not rung.deterministic:
        raise LadderError(
            f"--deterministic: {op} {rung.label} is not ({rung.header['deterministic'][0]}); "
            "choose another rung"
        )
    if rung.is_own_file:
        sandbox.require(op, rung, settings.place.device)
