"""The kernels of a model: its program with the chosen fusions, and a rung for every call."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ladder.core.contract.device import Device
from ladder.core.contract.rung_file import Rung
from trainer.engine import fusion_choice, rung_choice
from trainer.engine.kernel_settings import KernelSettings
from trainer.engine.rung_choice import Choice, say_nothing
from trainer.flags import FUSIONS
from trainer.model.fusion import applicable
from trainer.model.program import Program


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
        """What a checkpoint keeps, as JSON; `choose` takes it as `before`, and `follow`."""
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
            plain = built(()).calls
            names = applicable({call.op for call in plain})
            open_to = [name for name in FUSIONS if settings.considers(name) and name in names]
            sets = itertools.accumulate(((name,) for name in open_to), initial=())
            calls = [call for fusions in sets for call in built(fusions).calls]
            background.enter_context(rung_choice.compiling_candidates(calls, settings, device))
        fusions, notes = fusion_choice.choose(settings, device, built, before, on_progress)
        program = built(fusions)
        choices = rung_choice.choose(program.calls, settings, device, before, on_progress)
    kernels = Kernels(program, choices, settings, [*notes, *_notes_on_tf32(settings, choices)])
    rung_choice.compile_chosen(program.calls, kernels.rungs, settings, device)
    return kernels


def _notes_on_tf32(settings: KernelSettings, choices: Mapping[str, Choice]) -> list[str]:
    """Why a run that allows TF32 does not use it; nothing if it does, or does not allow it."""
    if not settings.tf32 or any(choice.rung.tf32 for choice in choices.values()):
        return []
    why = "none of the chosen rungs multiplies as TF32"
    if settings.choice.dtype != "fp32":
        why = f"TF32 is for factors in fp32, and this run computes in {settings.choice.dtype}"
    return [f"-f 1 has no effect: {why}"]


def follow(
    recorded: Mapping[str, Any],
    settings: KernelSettings,
    build: Callable[[Collection[str]], Program],
) -> Kernels:
    """The kernels that another rank has chosen. Raises LadderError where this rank has another
    version of one."""
    choices = rung_choice.as_recorded(recorded)
    return Kernels(build(recorded["fusions"]), choices, settings, [])
