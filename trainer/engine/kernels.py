"""The kernels of a model: its program with the chosen fusions, and a rung for every call."""

import contextlib
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ladder.core.common.errors import LadderError
from ladder.core.contract.device import Device
from ladder.core.contract.ladder import find
from ladder.core.contract.rung_file import Rung
from ladder.core.measure.pick import pick
from trainer.engine import rung_choice
from trainer.engine.kernel_settings import KernelSettings
from trainer.engine.rung_choice import Choice, say_nothing
from trainer.engine.rung_map import matches, names_any, ops_of
from trainer.flags import FUSIONS, RUNG_SETS, Fusion
from trainer.model.fusion import FOR_BFLOAT16, applicable, makes, needs, takes
from trainer.model.program import Program

Calls = Counter[tuple[str, tuple[tuple[str, int], ...]]]  # (op, its dimensions) -> how many


@dataclass(frozen=True)
class Kernels:
    """A program, and for its calls the rungs and the reasons for them; settled, for an engine.

    choices   by the keys of rung_map.py
    settings  what it was chosen by
    notes     on fusions that do not pay, and on TF32 that is not used, a line each
    """

    program: Program
    choices: Mapping[str, Choice]
    settings: KernelSettings
    notes: Sequence[str]

    @property
    def rungs(self) -> dict[str, Rung]:
        return {key: choice.rung for key, choice in self.choices.items()}

    def record(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON; `choose` takes it as `before`."""
        return {**rung_choice.record(self.choices), "fusions": self.program.fusions}


def choose(
    settings: KernelSettings,
    device: Device,
    build: Callable[[Collection[str]], Program],
    before: Mapping[str, Any] | None = None,
    on_progress: Callable[[str], None] = say_nothing,
) -> Kernels:
    """The kernels that the settings ask for.

    build   the program with some fusions; it is called once for each set that is compared
    before  the `record` of the run that this one goes on from
    on_progress  is called with the name of each part of this work before it begins

    Raises LadderError as `rung_choice.choose`.
    """

    @functools.cache
    def built(fusions: tuple[str, ...]) -> Program:
        return build(fusions)

    with contextlib.ExitStack() as background:
        if before is None and settings.compares(device):
            names = applicable({call.op for call in built(()).calls})
            open_to = [name for name in FUSIONS if settings.considers(name) and name in names]
            sets = itertools.accumulate(((name,) for name in open_to), initial=())
            calls = [call for fusions in sets for call in built(fusions).calls]
            background.enter_context(rung_choice.compiling_candidates(calls, settings, device))
        fusions, notes = choose_fusions(settings, device, built, before, on_progress)
        program = built(fusions)
        choices = rung_choice.choose(program.calls, settings, device, before, on_progress)
    notes += [*_notes_on_unused(settings, program), *_notes_on_tf32(settings, choices)]
    kernels = Kernels(program, choices, settings, notes)
    rung_choice.compile_chosen(program.calls, kernels.rungs, settings, device)
    return kernels


def _notes_on_unused(settings: KernelSettings, program: Program) -> list[str]:
    """What --rung names and no training step calls, as attention.forward where dropout acts."""
    own = {call.op for call in program.forward} - {call.op for call in program.evaluate}
    return [
        f"--rung {key}={which}: no training step calls it, but {', '.join(sorted(own))}"
        for key, which in settings.rung.items()
        if program.backward and not names_any(key, program.training_step)
    ]


def _notes_on_tf32(settings: KernelSettings, choices: Mapping[str, Choice]) -> list[str]:
    """Why a run that allows TF32 does not use it; nothing if it does, or does not allow it."""
    if not settings.tf32 or any(choice.rung.tf32 for choice in choices.values()):
        return []
    why = "none of the chosen rungs multiplies as TF32"
    if settings.choice.dtype != "fp32":
        why = f"TF32 is for factors in fp32, and this run computes in {settings.choice.dtype}"
    return [f"-f 1 has no effect: {why}"]


# ---- which fusions the program goes through: --fuse, and what the rungs ask for -----------------


def choose_fusions(
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
