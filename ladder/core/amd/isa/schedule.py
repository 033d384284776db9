"""Lets the waves of a launch run to their end.

Waves at the same instruction run together, and wait for others to come there: the set that is
furthest back runs first, so that waves that took different ways meet again behind both. A set that
runs for long without an end, such as one that waits for another block in a loop, gives way.

A barrier is passed when all waves of the block that have not ended have reached it.
"""

import time
from collections.abc import Sequence

import numpy as np

from ladder.core.amd.isa.waits import LDS
from ladder.core.amd.isa.waves import Kind, Machine, Step, Waves
from ladder.core.common.errors import LadderError

PATIENCE = 4096  # steps back that a set takes before another one gets its turn


class Schedule:
    """Sets of waves of some blocks that run at a time.

    waves   all of them, at the first instruction
    blocks  how many blocks they belong to
    """

    def __init__(
        self, steps: Sequence[Step], machine: Machine, waves: Waves, blocks: int, deadline: float
    ):
        self._steps, self._machine, self._deadline = steps, machine, deadline
        self._ready = [waves]
        self._waiting: list[Waves] = []  # at a barrier
        self._alive = np.bincount(waves.blocks, minlength=blocks)  # waves of each block

    def run(self) -> None:
        """Raises LadderError for what an instruction must not do, or where time is up."""
        while self._ready:
            self._run(self._next())
            self._pass_barriers()
        if self._waiting:  # cannot be: waves that ended are not waited for
            raise LadderError(f"{self._place(self._waiting[0])}: a barrier that is never passed")

    def _next(self) -> Waves:
        """The set that is furthest back, together with the others that are at the same place."""
        pc = min(waves.pc for waves in self._ready)
        here = [waves for waves in self._ready if waves.pc == pc]
        self._ready = [waves for waves in self._ready if waves.pc != pc]
        return Waves.join(here)

    def _run(self, waves: Waves) -> None:
        """Until the waves part, wait, end, or come to where others are."""
        steps, machine = self._steps, self._machine
        others = {other.pc for other in self._ready}
        back = 0
        while True:
            step = steps[waves.pc]
            registers = waves.outstanding.registers
            if registers and not step.touches.isdisjoint(registers):
                waves.outstanding.check(step.line, step.touches)
            waves.pc += 1
            jumps = step.run(waves, machine)
            if step.kind is Kind.BRANCH:
                assert jumps is not None
                back += step.target < waves.pc
                if jumps.all():
                    waves.pc = step.target
                elif jumps.any():
                    ahead = waves.take(~jumps)
                    waves = waves.take(jumps)
                    waves.pc = step.target
                    self._ready += [ahead, waves]
                    return
                if back > PATIENCE:
                    self._give_way(waves)
                    return
            elif step.kind is Kind.END:
                self._alive -= np.bincount(waves.blocks, minlength=len(self._alive))
                return
            elif step.kind is Kind.BARRIER:
                self._waiting.append(waves)
                return
            elif step.kind is Kind.SLEEP:
                self._give_way(waves)
                return
            if waves.pc in others:
                self._ready.append(waves)
                return

    def _give_way(self, waves: Waves) -> None:
        """Let all other sets run, before this one does again."""
        if time.monotonic() > self._deadline:
            raise LadderError(f"{self._place(waves)}: the launch has not ended in its time")
        others, self._ready = self._ready, []
        for other in others:
            self._run(other)
            self._pass_barriers()
        self._ready.append(waves)

    def _pass_barriers(self) -> None:
        """Let the blocks go on whose waves are all at a barrier."""
        if not self._waiting:
            return
        races = self._machine.races
        arrived = np.zeros_like(self._alive)
        for waves in self._waiting:
            arrived += np.bincount(waves.blocks, minlength=len(arrived))
        done = (arrived == self._alive) & (arrived > 0)
        waiting, self._waiting = self._waiting, []
        for waves in waiting:
            go = done[waves.blocks]
            if not go.all():
                self._waiting.append(waves.take(~go))
            if go.any():
                some = waves if go.all() else waves.take(go)
                races.finished[some.ids] = some.outstanding.completed(LDS)
                self._ready.append(some)
        races.barriers[done] += 1

    def _place(self, waves: Waves) -> str:
        line = self._steps[min(waves.pc, len(self._steps) - 1)].line
        return f"{line.place}: {line.text!r}"
