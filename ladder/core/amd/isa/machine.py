"""What the waves of a launch share: memory, LDS, scratch memory, the program."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from ladder.core.amd.isa.memory import Bytes, Memory, Races
from ladder.core.amd.isa.program import Line
from ladder.core.amd.isa.waves import Waves


@dataclass
class Machine:
    """
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
    lines: list[Line]


class Kind(Enum):
    """What the scheduler does after an instruction."""

    PLAIN = 0  # it goes on with the next one
    BRANCH = 1  # `run` returns which waves go to `target`
    BARRIER = 2
    END = 3
    SLEEP = 4  # other waves take their turn


Run = Callable[[Waves, Machine], np.ndarray | None]


class Step(NamedTuple):
    """An instruction, ready to be executed.

    touches  keys of registers that it reads or writes: their loads must have been waited for
    """

    run: Run
    touches: frozenset[int]
    line: Line
    kind: Kind = Kind.PLAIN
    target: int = 0
