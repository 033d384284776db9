"""Which rung of each ladder a run uses: `--rungs` sets all of them, `--rung` one at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ladder import own
from ladder.contract import Dims, find
from ladder.device import Device
from ladder.errors import LadderError
from ladder.pick import pick
from ladder.rungfile import Rung
from reference.program import Call
from trainer.config import RUNG_SETS, TrainConfig


@dataclass(frozen=True)
class Choice:
    """The rung that an op runs, and why that one."""

    rung: Rung
    reason: str


def choose(
    calls: Iterable[Call], config: TrainConfig, device: Device, real: np.dtype
) -> dict[str, Choice]:
    """A choice for each op that is called, by the op's name.

    A `.cu` file of the user's is checked first, in a process of its own. Raises LadderError for an
    op or rung that does not exist, that the model does not use, or that the device cannot run
    whatever the shape; what depends on the shape is refused when the engine binds the rung.
    """
    shapes: dict[str, list[Dims]] = {}
    for call in calls:
        known = shapes.setdefault(call.op, [])
        if call.dims not in known:
            known.append(call.dims)
    named = {} if config.rungs in RUNG_SETS else _read(Path(config.rungs))
    reasons = dict.fromkeys(named, f"from {config.rungs}")
    for entry in config.rung:
        op, _, which = entry.partition("=")
        find(op)  # an unknown name is refused with the nearest known ones
        if op not in shapes:
            used = ", ".join(sorted(shapes))
            raise LadderError(f"--rung {entry}: this model does not use {op}; it uses {used}")
        named[op], reasons[op] = which, "named by --rung"
    choices = {}
    for op in sorted(shapes):
        if op in named:
            choices[op] = Choice(own.find_rung(op, named[op]), reasons[op])
            _refuse(op, choices[op].rung, device, real)
        else:
            choices[op] = _from_set(op, config.rungs, device, real, shapes[op])
    return choices


def as_json(choices: Mapping[str, Choice]) -> dict[str, int | str]:
    """What `--rungs FILE` reads back: the number of each op's rung, or a user's file."""
    return {
        op: str(choice.rung.path.resolve()) if choice.rung.number < 0 else choice.rung.number
        for op, choice in choices.items()
    }


def _from_set(op: str, rungs: str, device: Device, real: np.dtype, shapes: list[Dims]) -> Choice:
    """The rung that `--rungs` means for an op. A file of rungs leaves the others to the default."""
    ladder = find(op)
    if device.kind == "cuda":
        if rungs == "reference":
            raise LadderError("--rungs reference is NumPy, which --device cuda does not run")
        if rungs != "naive":
            choice = pick(ladder, device, real.name, *shapes, library=rungs == "library")
            return Choice(ladder.rung(choice.rung), choice.reasons[choice.rung])
    elif rungs in ("best", "library"):
        raise LadderError(
            f"--rungs {rungs} measures on a GPU, and the device is {device.kind}; "
            "choose --rungs reference or naive, or name rungs by --rung"
        )
    if rungs == "naive" and device.kind != "cpu":
        target = device.target(real)
        for rung in ladder.on(device.kind):
            if rung.number > 0 and not rung.library and rung.claims(target):
                return Choice(rung, "the lowest")
    if device.kind == "cuda":
        raise LadderError(f"{op} has no rung yet that runs in {real.name} on {device.name}")
    return Choice(ladder.rung(0), "no kernel yet" if rungs == "naive" else "the default")


def _refuse(op: str, rung: Rung, device: Device, real: np.dtype) -> None:
    """Raise LadderError where a named rung cannot run on the device, or is wrong."""
    reference = rung.path is None and rung.run is None
    if device.kind == "cpu" and not reference:
        raise LadderError(
            f"{op} {rung.label} is a kernel, and --device cpu runs the NumPy reference only; "
            "add --device emulated, or use a GPU"
        )
    if device.kind == "cuda" and reference:
        raise LadderError(f"{op} rung 0 is NumPy; on --device cuda choose a rung from 1 on")
    if rung.path is not None and not rung.claims(target := device.target(real)):
        needs = "; ".join(rung.conditions())
        raise LadderError(
            f"{op} {rung.label} needs {needs}, which {target.arch} in {real.name} does not meet; "
            "choose another rung"
        )
    if rung.number < 0:
        own.require(op, rung.path, device.kind)


def _read(path: Path) -> dict[str, int | str]:
    try:
        named = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        sets = ", ".join(RUNG_SETS)
        raise LadderError(f"--rungs {path}: neither one of {sets} nor a file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise LadderError(f"--rungs {path}: cannot be read as JSON: {error}") from None
    if not isinstance(named, dict) or not all(isinstance(v, (int, str)) for v in named.values()):
        raise LadderError(f'--rungs {path}: it must be an object such as {{"gelu.forward": 1}}')
    for op in named:
        find(op)
    return named
