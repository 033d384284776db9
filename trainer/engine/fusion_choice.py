"""Which fusions a run's program goes through: `--fuse`, and what its rungs ask for."""

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from ladder.core.common.errors import LadderError
from ladder.core.contract.device import Device
from ladder.core.contract.ladder import find
from ladder.core.measure.pick import pick
from trainer.engine.kernel_settings import KernelSettings
from trainer.engine.rung_choice import say_nothing
from trainer.engine.rung_map import matches, ops_of
from trainer.flags import FUSIONS, RUNG_SETS, Fusion
from trainer.model.fusion import FOR_BFLOAT16, applicable, makes, needs, takes
from trainer.model.program import Program

Calls = Counter[tuple[str, tuple[tuple[str, int], ...]]]  # (op, its dimensions) -> how many


def choose(
    settings: KernelSettings,
    device: Device,
    build: Callable[[tuple[str, ...]], Program],
    before: Mapping[str, Any] | None = None,
    on_progress: Callable[[str], None] = say_nothing,
) -> tuple[tuple[str, ...], list[str]]:
    """The fusions of a run in the order of FUSIONS, and notes: which one does not pay, and why.

    build   the run's program with some fusions
    before  the kernels that a checkpoint records, of a run that goes on with them

    Raises LadderError where --fuse names a fusion and leaves out one that it needs, or one that the
    run's type does not hold.
    """
    for name, needed in itertools.product(FUSIONS, FUSIONS):
        if needed in needs(name) and settings.fuse[name] == "yes" and settings.fuse[needed] == "no":
            raise LadderError(
                f"--fuse: {name} fuses what {needed} makes; choose --fuse {needed},{name}"
            )
    there = applicable(op for op, _ in _calls(build(()))) if settings.compares(device) else ()
    chosen: list[str] = []
    notes: list[str] = []
    for name in FUSIONS:
        wanted = _asked_for(name, settings, before)
        if wanted and name in FOR_BFLOAT16 and settings.choice.dtype == "fp16":
            why = "stores exponentials, which float16 does not hold"
            raise LadderError(f"--fuse: {name} {why}; choose --dtype bf16")
        if wanted is None and name in there and settings.considers(name):
            plain = _calls(build(tuple(chosen)))
            fused = _calls(build((*chosen, name)))
            lost = any(_has(plain, key) and not _has(fused, key) for key in settings.rung)
            if plain == fused or lost:  # it would change nothing, or a call that --rung names
                continue
            why_not = _loses(name, settings, device, plain, fused, on_progress)
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
    if ops_of(settings.rung) & made:
        return True
    if settings.rung.keys() & takes(name):  # fused, it would run less often or not at all
        return False
    if before is not None:
        return name in before.get("fusions", ())
    if settings.rungs not in RUNG_SETS:
        return bool(made & ops_of(settings.from_file))
    return None


def _calls(program: Program) -> Calls:
    both = (*program.forward, *program.backward)
    return Counter((call.op, tuple(call.dims.items())) for call in both)


def _has(calls: Calls, key: str) -> bool:
    return any(matches(key, op, dict(dims)) for op, dims in calls)


def _loses(
    name: Fusion,
    settings: KernelSettings,
    device: Device,
    plain: Calls,
    fused: Calls,
    on_progress: Callable[[str], None],
) -> str | None:
    """Why a step is faster without a fusion, on the best rungs; None if it is not faster."""

    def seconds(counted: Calls) -> float:
        total = 0.0
        for (op, dims), count in counted.items():
            on_progress(f"the choice of a rung for {op}, with and without the fusion {name}")
            ladder = find(op)
            dtype = ladder.op.real_in(settings.choice.real).name
            (choice,) = pick(ladder, device, dtype, dict(dims), **settings.picking)
            total += count * choice.seconds
        return total

    try:
        together, apart = seconds(fused - plain), seconds(plain - fused)
    except LadderError as error:  # no rung of an op can run here
        return str(error)
    if together <= apart:
        return None
    return f"it takes {1e3 * together:.3g} ms a step, and its parts {1e3 * apart:.3g} ms"
