"""The kernels of a model: its program with the chosen fusions, and a rung for every op."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ladder.core.contract.device import Device
from ladder.core.contract.rung_file import Rung
from trainer.engine import fusion_choice, rung_choice
from trainer.engine.kernel_settings import KernelSettings
from trainer.engine.rung_choice import Choice, say_nothing
from trainer.model.calls import Call
from trainer.model.fusion import FUSIONS
from trainer.model.program import Program


@dataclass(frozen=True)
class Kernels:
    """A program, and for each of its ops the rung and the reason for it; settled, for an engine.

    settings  what it was chosen by
    notes     on fusions that do not pay, and on TF32 that is not used, a line each
    """

    program: Program
    choices: Mapping[str, Choice]
    settings: KernelSettings
    notes: Sequence[str]

    @property
    def rungs(self) -> dict[str, Rung]:
        """The rung of every op."""
        return {op: choice.rung for op, choice in self.choices.items()}

    def describe(self) -> dict[str, Any]:
        """All of it for `follow`, as JSON."""
        reasons = {op: choice.reason for op, choice in self.choices.items()}
        return {**self.record(), "reasons": reasons, "notes": list(self.notes)}

    def record(self) -> dict[str, Any]:
        """What a checkpoint keeps; `choose` takes it as `before`."""
        return {**rung_choice.record(self.choices), "fusions": self.program.fusions}


def choose(
    settings: KernelSettings,
    device: Device,
    build: Callable[[Collection[str]], Program],
    calls_of: Callable[[Program], Iterable[Call]] = lambda program: program.calls,
    before: Mapping[str, Any] | None = None,
    told: Callable[[str], None] = say_nothing,
) -> Kernels:
    """The kernels that the settings ask for.

    build     the program with some fusions
    calls_of  the calls that count where rungs are compared by their time, of ops that are among
              them; an engine needs a rung for the others, too
    before    the `record` of the run that this one goes on from
    told      is called with the name of each part of this work before it begins

    Raises LadderError as `rung_choice.choose`.
    """
    with contextlib.ExitStack() as background:
        if before is None:
            calls = [call for fused in ((), FUSIONS) for call in calls_of(build(fused))]
            background.enter_context(rung_choice.compiling_candidates(calls, settings, device))
        fusions, notes = fusion_choice.choose(settings, device, build, before, told)
        program = build(fusions)
        counted = tuple(calls_of(program))
        known = {call.op for call in counted}
        called = (*counted, *(call for call in program.calls if call.op not in known))
        choices = rung_choice.choose(called, settings, device, before, told)
    rung_choice.compile_chosen(called, choices, settings, device)
    return Kernels(program, choices, settings, [*notes, *_notes_on_tf32(settings, choices)])


def _notes_on_tf32(settings: KernelSettings, choices: Mapping[str, Choice]) -> list[str]:
    """Why a run that allows TF32 does not use it; nothing if it does, or does not allow it."""
    if not settings.tf32 or any(choice.rung.tf32 for choice in choices.values()):
        return []
    why = "none of the chosen rungs multiplies as TF32"
    if settings.place.dtype != "fp32":
        why = f"TF32 is for factors in fp32, and this run computes in {settings.place.dtype}"
    return [f"-f 1 has no effect: {why}"]


def follow(
    described: Mapping[str, Any],
    settings: KernelSettings,
    build: Callable[[Collection[str]], Program],
) -> Kernels:
    """The kernels that another rank has chosen. Raises LadderError where this rank has another
    version of one."""
    choices = rung_choice.as_recorded(described, described["reasons"])
    return Kernels(build(described["fusions"]), choices, settings, described["notes"])
