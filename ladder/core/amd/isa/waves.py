"""The state of waves that are at the same instruction: registers, masks, and what they wait for.

An array has one axis for the waves and one for the lanes, so that one NumPy operation computes an
instruction for all of them. Where waves take different ways they are parted (`take`), and where
these meet again they are joined (`join`); each set has arrays of its own.

Machine is what all waves of a launch share, Ready an instruction that they can execute.

Scalar registers are numbered as AMD's instructions encode them: VCC is 106 and 107, EXEC 126, 127.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from ladder.core.amd.isa.memory import Bytes, Memory, Races
from ladder.core.amd.isa.program import Line
from ladder.core.amd.isa.waits import Outstanding

VCC, TTMP, NULL, M0, EXEC = 106, 108, 124, 125, 126
SCALARS = 128
UNSET = 0x7FE5A5A5  # a NaN: what registers hold before they are written


@dataclass(eq=False)
class Waves:
    """
    v       (registers, waves, lanes), vector registers, as uint32; vi and vf are the same bytes
    s       (registers, waves, 1), scalar registers, as uint32; si and sf as well
    scc     (waves, 1), the scalar condition code
    active  (waves, lanes): EXEC
    full    every lane is active
    ids     (waves), numbers of the waves; `blocks` those of their blocks
    pc      the index of the next instruction
    """

    v: np.ndarray
    s: np.ndarray
    scc: np.ndarray
    ids: np.ndarray
    blocks: np.ndarray
    outstanding: Outstanding
    pc: int = 0

    def __post_init__(self) -> None:
        self.vi, self.vf = self.v.view(np.int32), self.v.view(np.float32)
        self.si, self.sf = self.s.view(np.int32), self.s.view(np.float32)
        self.wide = self.v.shape[2] == 64
        self.refresh()

    def __len__(self) -> int:
        return len(self.ids)

    def refresh(self) -> None:
        """Take over what an instruction has written to EXEC."""
        self.active = self.lanes(EXEC)
        self.full = bool(self.active.all())
        self._rows: np.ndarray | None = None

    @property
    def rows(self) -> np.ndarray:
        """For each active lane, the place of its wave in this set."""
        if self._rows is None:
            self._rows = np.nonzero(self.active)[0]
        return self._rows

    def lanes(self, register: int) -> np.ndarray:
        """The bits of a scalar register, or with 64 lanes of a pair, as (waves, lanes)."""
        words = self.s[register]
        if self.wide:
            words = np.concatenate((words, self.s[register + 1]), axis=1)
        return np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").view(bool)

    def set_lanes(self, register: int, mask: np.ndarray) -> None:
        words = np.packbits(mask, axis=1, bitorder="little").view(np.uint32)
        self.s[register] = words[:, :1]
        if self.wide:
            self.s[register + 1] = words[:, 1:]

    def take(self, which: np.ndarray) -> Waves:
        """Some of the waves, by a mask or by their places here."""
        return Waves(
            self.v[:, which],
            self.s[:, which],
            self.scc[which],
            self.ids[which],
            self.blocks[which],
            self.outstanding.take(which),
            self.pc,
        )

    @staticmethod
    def join(parts: Sequence[Waves]) -> Waves:
        """All waves of several sets that are at the same instruction."""
        if len(parts) == 1:
            return parts[0]
        return Waves(
            np.concatenate([part.v for part in parts], axis=1),
            np.concatenate([part.s for part in parts], axis=1),
            np.concatenate([part.scc for part in parts]),
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.blocks for part in parts]),
            Outstanding.join([part.outstanding for part in parts]),
            parts[0].pc,
        )


@dataclass
class Machine:
    """What the waves of a launch share.

    lds        of all blocks that run at a time, one after the other
    lds_size   bytes of one block that it may use; lds_room: from one block to the next
    scratch    of all lanes, one after the other
    scratch_size  bytes of one lane
    """

    memory: Memory
    lds: Bytes
    lds_size: int
    lds_room: int
    races: Races
    scratch: Bytes
    scratch_size: int


class Kind(Enum):
    """What the scheduler does after an instruction."""

    PLAIN = 0  # it goes on with the next one
    BRANCH = 1  # `run` returns which waves go to `target`
    BARRIER = 2
    END = 3
    SLEEP = 4  # other waves take their turn


Run = Callable[[Waves, Machine], np.ndarray | None]


class Ready(NamedTuple):
    """An instruction, ready to be executed.

    touches  keys of registers that it reads or writes: their loads must have been waited for
    """

    run: Run
    touches: frozenset[int]
    line: Line
    kind: Kind = Kind.PLAIN
    target: int = 0
