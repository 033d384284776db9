"""Which fusions a run's program goes through: `--fuse`, and what its rungs ask for."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ladder.core.common.errors import LadderError
from ladder.core.contract.device import Device
from ladder.core.contract.ladder import find
from ladder.core.measure.pick import pick
from trainer.engine.kernel_settings import KernelSettings
from trainer.engine.rung_choice import say_nothing
from trainer.flags import FUSIONS, RUNG_SETS, Fusion
from trainer.model.fusion import makes, needs, takes
from trainer.model.program import Program

Calls = Counter[tuple[str, tuple[tuple[str, int], ...]]]  # (op, its dimensions) -> how many


def choose(
    settings: KernelSettings,
    device: Device,
    build: Callable[[Collection[str]], Program],
    before: Mapping[str, Any] | None = None,
    told: Callable[[str], None] = say_nothing,
) -> tuple[tuple[str, ...], list[str]]:
    """The fusions of a run in the order of FUSIONS, and notes: which one does not pay, and why.

    build   the run's program with some fusions
    before  the kernels that a checkpoint records, of a run that goes on with them
    told    is called with the name of each part of this work before it begins

    Raises LadderError where --fuse names a fusion and leaves out one that it needs.
    """
    for name, needed in itertools.product(FUSIONS, FUSIONS):
        if needed in needs(name) and settings.fuse[name] == "yes" and settings.fuse[needed] == "no":
            raise LadderError(
                f"--fuse: {name} fuses what {needed} makes; choose --fuse {needed},{name}"
            )
    chosen: list[str] = []
    notes: list[str] = []
    for name in FUSIONS:
        wanted = _asked_for(name, settings, before)
        if wanted is None and device.is_gpu and settings.rung_set in ("best", "library"):
            plain, fused = _calls(build(chosen)), _calls(build((*chosen, name)))
            if plain == fused:  # the program has none of its ops
                continue
            why_not = _loses(name, settings, device, plain, fused, told)
            wanted = why_not is None
            notes += [] if wanted else [f"{name} is not fused: {why_not}"]
        if wanted:
            chosen.append(name)
    return tuple(chosen), notes


def _asked_for(
    name: Fusion, settings: KernelSettings, before: Mapping[str, Any] | None
) -> bool | None:
    """Whether the settings want a fusion; None where they leave it open."""
    if settings.fuse[name] != "auto":
        return settings.fuse[name] == "yes"
    # What only this fusion makes, or one that needs it.
    made = set().union(*(makes(other) for other in FUSIONS if name in {other, *needs(other)}))
    if settings.rung.keys() & made:
        return True
    if settings.rung.keys() & takes(name):  # fused, it would run less often or not at all
        return False
    if before is not None:
        return name in before.get("fusions", ())
    if settings.rungs not in RUNG_SETS:
        return bool(made & settings.from_file.keys())
    return None


def _calls(program: Program) -> Calls:
    both = (*program.forward, *program.backward)
    return Counter((call.op, tuple(call.dims.items())) for call in both)


def _loses(
    name: Fusion,
    settings: KernelSettings,
    device: Device,
    plain: Calls,
    fused: Calls,
    told: Callable[[str], None],
) -> str | None:
    """Why a step is faster without a fusion, on the best rungs; None if it is not faster."""

    def seconds(counted: Calls) -> float:
        total = 0.0
        for (op, dims), count in counted.items():
            told(f"the choice of a rung for {op}, with and without the fusion {name}")
            ladder = find(op)
            dtype = ladder.op.real_in(settings.place.real).name
            total += count * pick(ladder, device, dtype, dict(dims), **settings.picking).seconds
        return total

    try:
        together, apart = seconds(fused - plain), seconds(plain - fused)
    except LadderError as error:  # no rung of an op can run here
        return str(error)
    if together <= apart:
        return None
    return f"it takes {1e3 * together:.3g} ms a step, and its parts {1e3 * apart:.3g} ms"
