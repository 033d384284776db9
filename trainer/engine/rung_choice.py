"""Which rung each call of a run takes: `--rungs` sets all of them, `--rung` one at a time.

A run that goes on from a checkpoint keeps the rungs that it had, unless it is given new ones: other
rungs, or the same ones edited, do not give the same bits. A user's own kernel is named again.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from ladder.core.common import confine
from ladder.core.common.errors import LadderError
from ladder.core.contract.device import Device
from ladder.core.contract.device_code import code_identity
from ladder.core.contract.ladder import find, find_rung
from ladder.core.contract.op import key_of
from ladder.core.contract.rung_file import Rung
from ladder.core.measure.pick import Choice as Picked
from ladder.core.measure.pick import compiling_ahead, pick
from ladder.core.measure.timing import compile_ahead
from ladder.core.verify import sandbox
from trainer.engine.kernel_settings import KernelSettings, naming_file
from trainer.engine.rung_map import Shape, key_for, keys_of, names_any, op_of, rung_of, shape_of
from trainer.model import fusion
from trainer.model.calls import Call

# Rungs that once held the kernel of another one, too, for the shapes that they do not fit. Where
# one is named for all shapes, it means that other one there. By op and id: the other's id, and the
# identity of the code that held both, which computed the same bits.
FORMERLY_BOTH = {
    ("matmul.forward", "16bit-17"): ("16bit-16", "2248041e434f601d"),
    ("matmul.backward_input", "16bit-15"): ("16bit-14", "fcfa43875dc7f246"),
}

# Layers whose ops no model calls, and words of those that do their work on the way.
INSIDE = {"softmax": ("attention", "crossentropy"), "crossentropy": ("crossentropy",)}


def say_nothing(part: str) -> None:
    """The default of `on_progress`: nobody hears which part of the work begins."""


@dataclass(frozen=True)
class Choice:
    """The rung that calls of an op run, and the reason for it."""

    rung: Rung
    reason: str


BY_FLAG, AS_BEFORE = "named by --rung", "as before"  # reasons

# Rungs by key, the reason that they give, and the file that an error is in.
_Named = tuple[Mapping[str, str], str, str | None]


def choose(
    calls: Iterable[Call],
    settings: KernelSettings,
    device: Device,
    before: Mapping[str, Any] | None = None,
    on_progress: Callable[[str], None] = say_nothing,
) -> dict[str, Choice]:
    """A choice for every call, by the keys of rung_map.py: one for each op that is called, and
    further ones where another rung is chosen at some of its shapes.

    before  the `record` of the run that this one goes on from, to choose the same again

    A `.cu` file of the user's is checked first, in a process of its own. Raises LadderError for an
    op, rung or shape that does not exist, that the model does not use, or that the device cannot
    run whatever the shape; what depends on the shape is refused when the engine binds the rung.
    """
    calls = [*calls]
    shapes = _shapes(calls)
    for key, which in settings.rung.items():
        _refuse_unused(key, which, calls)
    old, who = settings.from_file, f"--rungs {settings.rungs}: it names"
    if before is not None:
        old, who = before["rungs"], "the checkpoint names"
    old = {key: it for key, it in old.items() if not {key, op_of(key)} & settings.rung.keys()}
    _refuse_code(old, who)
    named: list[_Named] = [(settings.rung, BY_FLAG, None)]
    if before is None:
        named.append((old, f"from {settings.rungs}", settings.rungs))
    else:
        _refuse_edited(old, before)
        named.append((old, AS_BEFORE, None))
    choices: dict[str, Choice] = {}
    console = Console(stderr=True)
    shown = device.is_gpu and console.is_terminal
    for op in track(sorted(shapes), "choosing rungs", console=console, disable=not shown):
        on_progress(f"the choice of a rung for {op}")
        choices |= _choices_of(op, shapes[op], named, settings, device)
    return choices


def _choices_of(
    op: str,
    counts: Counter[Shape],
    named: Iterable[_Named],
    settings: KernelSettings,
    device: Device,
) -> dict[str, Choice]:
    """The choices of one op. `counts`: how many calls each shape has."""
    real = find(op).op.real_in(settings.choice.real)
    rungs: dict[Shape, Rung] = {}
    reasons: dict[Shape, str | Picked] = {}
    for shape in counts:
        for ids, reason, file in named:
            if key := key_for(ids, op, dict(shape)):
                with naming_file(file):
                    rung = find_rung(op, ids[key])
                    if rung not in rungs.values():
                        _refuse(op, rung, settings, device, real)
                    rungs[shape] = _fitting(op, key, rung, shape, device, real)
                reasons[shape] = reason
                break
    left = [shape for shape in counts if shape not in rungs]
    for shape, (rung, why) in _from_set(op, left, settings, device, real).items():
        rungs[shape], reasons[shape] = rung, why
    return {
        key: Choice(rungs[alike[0]], _reason([(reasons[s], counts[s]) for s in alike]))
        for key, alike in sorted(keys_of(op, rungs, counts).items())
    }


def _fitting(op: str, key: str, rung: Rung, shape: Shape, device: Device, real: np.dtype) -> Rung:
    """The rung that a name means at a shape: see FORMERLY_BOTH."""
    other, _ = FORMERLY_BOTH.get((op, rung.id), ("", ""))
    if other and key == op and rung.plan(dict(shape), device.target(real)).refusal is not None:
        return find(op).rung(other)
    return rung


def _reason(counted: Sequence[tuple[str | Picked, int]]) -> str:
    """Why some shapes have their rung, each with its number of calls: the time of all these calls,
    where it was measured."""
    picked = [(why, count) for why, count in counted if isinstance(why, Picked)]
    if len(picked) < len(counted):
        return "; ".join(dict.fromkeys(why for why, _ in counted if isinstance(why, str)))
    seconds = sum(count * choice.seconds for choice, count in picked)
    calls = sum(count for _, count in picked)
    of_calls = f" for {calls} calls" if calls > 1 else ""
    kept = " (doc/results/picks)" if any(choice.kept for choice, _ in picked) else ""
    return f"the fastest: {seconds * 1e6:.1f} us{of_calls}{kept}"


def compiling_candidates(
    calls: Iterable[Call], settings: KernelSettings, device: Device
) -> AbstractContextManager[None]:
    """Compile in the background what will be compared for these calls; ends with the context."""
    named = settings.rung.keys() | settings.from_file.keys()
    questions = [
        (find(op), find(op).op.real_in(settings.choice.real).name, [dict(s) for s in shapes])
        for op, shapes in _shapes(calls).items()
        if op not in named
    ]
    return compiling_ahead(questions, device, **settings.picking)


def compile_chosen(
    calls: Iterable[Call], rungs: Mapping[str, Rung], settings: KernelSettings, device: Device
) -> None:
    """Begin to compile the chosen kernels, all at once, for the engine that will bind them: what
    was picked without measuring is not compiled yet."""
    if not device.is_gpu:
        return

    def dtype(call: Call) -> str:
        return str(find(call.op).op.real_in(settings.choice.real).name)

    pool = ThreadPoolExecutor(os.cpu_count())
    jobs = [(device, rung_of(rungs, call), dtype(call), call.dims) for call in calls]
    compile_ahead(pool, jobs)
    pool.shutdown(wait=False)


def _shapes(calls: Iterable[Call]) -> dict[str, Counter[Shape]]:
    shapes: dict[str, Counter[Shape]] = {}
    for call in dict.fromkeys(calls):  # passes share calls
        shapes.setdefault(call.op, Counter())[shape_of(call)] += 1
    return shapes


def _refuse_unused(key: str, which: str, calls: Sequence[Call]) -> None:
    """Raise LadderError where --rung names an op that does not exist, or calls that do not run."""
    if names_any(key, calls):
        return
    op, used, typed = op_of(key), {call.op for call in calls}, f"--rung {key}={which}"
    find(op)  # an unknown name is refused with the nearest known ones
    if op in used:
        there = sorted({key_of(op, call.dims) for call in calls if call.op == op})
        raise LadderError(f"{typed}: no call has this shape; there are {', '.join(there)}")
    # Only the forward pass is left unfused where the backward pass computes layernorms again.
    dropped = fusion.DROPPED_JOIN_BACKWARD.fused[0]
    behind = {
        fusion.JOIN.fused[0]: {fusion.JOIN_BACKWARD.fused[0], dropped},
        fusion.DROPPED_JOIN.fused[0]: {dropped},
    }
    if op in behind and behind[op] & used and fusion.JOIN.first[0] in used:
        raise LadderError(
            f"{typed}: -r 2 computes layernorms again, by layernorm.forward, so the forward pass "
            "does not fuse them; choose -r 0 or -r 1, or leave this --rung out"
        )
    fused = [name for name in fusion.FUSIONS if op in fusion.takes(name) | fusion.makes(name)]
    remedy = f", and --fuse decides about {fused[0]}" if fused else ""
    words = INSIDE.get(op.partition(".")[0], ())
    if inside := sorted(name for name in used if any(word in name for word in words)):
        remedy = f"; its work is done inside {', '.join(inside)}, each of which takes a --rung"
    raise LadderError(
        f"{typed}: this model does not use {op}; it uses {', '.join(sorted(used))}{remedy}"
    )


def record(choices: Mapping[str, Choice]) -> dict[str, dict[str, Any]]:
    """What a checkpoint keeps, so that the same rungs can be told from edited ones."""
    digests = {key: code_identity(choice.rung) for key, choice in choices.items()}
    return {"rungs": as_json(choices), "digests": digests}


def as_recorded(recorded: Mapping[str, Any]) -> dict[str, Choice]:
    """The choices of a `record` that another rank of this run has made."""
    choices = {}
    for key, which in recorded["rungs"].items():
        rung = find_rung(op_of(key), which)
        if code_identity(rung) != recorded["digests"][key]:
            raise LadderError(
                f"{key} {rung.label} is not the same file here as on rank 0; install the same "
                "version on all machines"
            )
        choices[key] = Choice(rung, "as on rank 0")
    return choices


def _refuse_code(named: Mapping[str, Any], who: str) -> None:
    """Raise LadderError where a checkpoint or a file of rungs names a kernel file. It may be a
    stranger's, so it is only data: code runs where the user names it."""
    for key, which in named.items():
        if str(which).endswith(".cu"):
            raise LadderError(
                f"{who} a kernel file for {key}, and only the command line can; read that file, "
                f"and give --rung {key}={which!r}"
            )


def _refuse_edited(named: Mapping[str, str], before: Mapping[str, Any]) -> None:
    """Raise LadderError where a rung is gone, or some are not what they were at the checkpoint."""
    edited = []
    for key, which in named.items():
        try:
            op = op_of(key)
            rung = find_rung(op, which)
        except LadderError as error:
            raise LadderError(
                f"the checkpoint's rung is gone: {error}; choose another by --rung {key}=N, or all "
                "by --rungs"
            ) from None
        digest = code_identity(rung)
        _, same_bits = FORMERLY_BOTH.get((op, rung.id), ("", digest))
        if before["digests"].get(key) not in (digest, same_bits):
            edited.append(f"{key} {rung.label}")
    if edited:
        raise LadderError(
            f"since the checkpoint, the code of {', '.join(edited)} has changed, so the run could "
            "not continue bit for bit; to go on with the code as it is now, add --rungs and the "
            "path of rungs.json in the run's folder"
        )


def as_json(choices: Mapping[str, Choice]) -> dict[str, str]:
    """What `--rungs FILE` reads back: the id of each choice's rung, a user's file by its path."""
    return {key: choice.rung.id for key, choice in choices.items()}


def _from_set(
    op: str, shapes: Sequence[Shape], settings: KernelSettings, device: Device, real: np.dtype
) -> dict[Shape, tuple[Rung, str | Picked]]:
    """The rungs that `--rungs` means for shapes that are not named, and why."""
    if not shapes:
        return {}
    if not settings.compares(device):
        return dict.fromkeys(shapes, _not_compared(op, settings, device, real))
    ladder = find(op)
    picked = pick(ladder, device, real.name, *map(dict, shapes), **settings.picking)
    return {s: (ladder.rung(p.rung), p) for s, p in zip(shapes, picked, strict=True)}


def _not_compared(
    op: str, settings: KernelSettings, device: Device, real: np.dtype
) -> tuple[Rung, str]:
    """The rung of a set in which no times count, and why."""
    ladder, deterministic = find(op), settings.deterministic
    rungs = settings.rung_set
    if rungs == "reference" and not device.runs_reference:
        raise LadderError(
            f"--rungs reference is NumPy, which does not run on --device {settings.choice.device}"
        )
    if rungs in ("best", "library"):
        raise LadderError(
            f"--rungs {rungs} measures on a GPU, but the device is {device.name}; "
            "choose --rungs reference or naive, or name rungs by --rung"
        )
    if rungs == "naive" and device.runs_kernels:
        target = device.target(real)
        for rung in ladder.on(device):
            kernel = rung.path is not None and rung.claims(target)
            allowed = settings.tf32 or not rung.tf32
            if kernel and allowed and (rung.deterministic or not deterministic):
                return rung, "the lowest" + (" deterministic one" if deterministic else "")
        if not device.runs_reference:
            what = "deterministic rung" if deterministic else "rung"
            raise LadderError(f"{op} has no {what} yet that runs in {real.name} on {device.name}")
        return ladder.rung("0"), "no kernel yet"
    return ladder.rung("0"), "the default"


def _refuse(op: str, rung: Rung, settings: KernelSettings, device: Device, real: np.dtype) -> None:
    if not rung.is_reference and not device.runs_kernels:
        raise LadderError(
            f"{op} {rung.label} is a kernel, and --device {settings.choice.device} runs the NumPy "
            "reference only; add --device emulated, and -e char-small for a quick run"
        )
    if rung.is_reference and not device.runs_reference:
        raise LadderError(
            f"{op} rung 0 is NumPy; on --device {settings.choice.device} choose a rung from 1 on"
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
        why = "a run cannot confine it" if device.kind == "emulated" else ""
        unconfined = confine.admit(rung.file, settings.unconfined, why)
        sandbox.require(op, rung, settings.choice.device, unconfined)
