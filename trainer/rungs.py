"""Which rung of each ladder a run uses: `--rungs` sets all of them, `--rung` one at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ladder import rungfile
from ladder.contract import Ladder, Target, find
from ladder.device import Device
from ladder.errors import LadderError
from ladder.rungfile import Rung
from trainer.config import RUNG_SETS, TrainConfig


@dataclass(frozen=True)
class Choice:
    """The rung that an op runs, and why that one."""

    rung: Rung
    reason: str


def choose(
    ops: Iterable[str], config: TrainConfig, device: Device, real: np.dtype
) -> dict[str, Choice]:
    """A choice for each of the model's `ops`.

    Raises LadderError for an op or rung that does not exist, that the model does not use, or that
    the device cannot run whatever the shape. What depends on the shape is refused when the engine
    binds the rung.
    """
    ops = sorted(set(ops))
    target = device.target(real)
    if config.rungs in RUNG_SETS:
        choices = {op: _from_set(find(op), config.rungs, device, target) for op in ops}
    else:
        named = _read(Path(config.rungs))
        choices = {
            op: _named(op, named[op], f"from {config.rungs}")
            if op in named
            else _from_set(find(op), "reference", device, target)
            for op in ops
        }
    for entry in config.rung:
        op, _, which = entry.partition("=")
        find(op)  # an unknown name is refused with the nearest known ones
        if op not in choices:
            raise LadderError(
                f"--rung {entry}: this model does not use {op}; it uses {' '.join(ops)}"
            )
        choices[op] = _named(op, which, "named by --rung")
    for op, choice in choices.items():
        _refuse_device(op, choice.rung, device, target)
    return choices


def as_json(choices: Mapping[str, Choice]) -> dict[str, int | str]:
    """What `--rungs FILE` reads back: the number of each op's rung, or a user's file."""
    return {
        op: str(choice.rung.path.resolve()) if choice.rung.number < 0 else choice.rung.number
        for op, choice in choices.items()
    }


def _from_set(ladder: Ladder, name: str, device: Device, target: Target) -> Choice:
    reference = ladder.rung(0)
    if name == "reference":
        return Choice(reference, "--rungs reference")
    steps = [
        rung
        for rung in ladder.rungs
        if rung.number > 0 and not rung.library and rung.claims(target)
    ]
    if name == "library":
        libraries = [rung for rung in ladder.rungs if rung.library]
        if libraries and device.kind == "cuda":
            return Choice(libraries[0], "--rungs library")
        name = "naive"  # an op that no library has
    if name == "best" and device.kind != "cuda":
        raise LadderError(
            f"--rungs best measures on a GPU, and the device is {device.kind}; "
            "choose --rungs reference or naive, or name rungs by --rung"
        )
    if not steps:
        if device.kind == "cuda":
            raise LadderError(
                f"{ladder.op.name} has no rung yet that runs on {target.arch} in "
                f"{target.real.name}; use --device cpu"
            )
        return Choice(reference, "no kernel yet")
    if name == "naive":
        return Choice(steps[0], "the lowest")
    paying = [rung for rung in steps if rung.pays] or steps
    return Choice(paying[-1], "the highest that pays")


def _named(op: str, which: int | str, reason: str) -> Choice:
    """The rung that a number or the path of a `.cu` file names."""
    ladder, which = find(op), str(which)
    if which.isdigit():
        return Choice(ladder.rung(int(which)), reason)
    if which.endswith(".cu"):
        return Choice(rungfile.parse(Path(which), ladder.op.kernel), reason)
    raise LadderError(f"--rung {op}={which}: give a rung's number, or the path of a .cu file")


def _refuse_device(op: str, rung: Rung, device: Device, target: Target) -> None:
    reference = rung.path is None and rung.run is None
    if device.kind == "cpu" and not reference:
        raise LadderError(
            f"--rung {op}={rung.number}: --device cpu runs the NumPy reference only (rung 0); "
            "add --device emulated, or use a GPU"
        )
    if device.kind == "cuda" and reference:
        raise LadderError(f"{op} rung 0 is NumPy; on --device cuda choose a rung from 1 on")
    if rung.path is not None and not rung.claims(target):
        needs = "; ".join(rung.conditions())
        raise LadderError(
            f"{op} rung {rung.number} needs {needs}, which {target.arch} in {target.real.name} "
            "does not meet; choose another rung"
        )


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
