"""One kernel of a code object: what its waves find in their registers, and its launches."""

import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ladder.core.amd.isa.memory import PACKET, Bytes, Memory, Races, Region, region
from ladder.core.amd.isa.program import Code
from ladder.core.amd.isa.translate import steps
from ladder.core.amd.isa.waits import LDS, Outstanding
from ladder.core.amd.isa.waves import EXEC, SCALARS, TTMP, UNSET, Kind, Machine, Ready, Waves
from ladder.core.common.errors import LadderError
from ladder.core.contract.device import aligned_empty
from ladder.core.contract.launch_plan import Launch
from ladder.core.contract.peers import Peers, by_value

MOST_LANES = 1 << 14  # that run together: more make NumPy's arrays larger than the caches
_NARROW = re.compile(r"ds_\w+_[uib](8|16)(_|\s)")  # accesses of less than 4 bytes
PATIENCE = 4096  # steps back that a set takes before another one gets its turn
GARBAGE = 0xA5  # what LDS and scratch memory hold before they are written


@dataclass(eq=False)
class InterpretedKernel:
    """Ready to be called with a launch and its arguments.

    names  of the parameters, for messages
    """

    code: Code
    names: Sequence[str]
    arch: str
    lanes: int
    lds_bytes: int
    time_limit: float

    def __post_init__(self) -> None:
        self._steps = steps(self.code, self.arch)
        narrow = any(_NARROW.match(line.text) for line in self.code.lines)
        self._granule = 1 if narrow else 4  # bytes of LDS that races are looked for in

    def __call__(self, launch: Launch, args: tuple[Any, ...]) -> None:
        """Run it to the end. Raises LadderError for what an instruction does that it must not."""
        explicit = [a for a in self.code.arguments if not a.kind.startswith("hidden_")]
        if len(explicit) != len(args):
            raise LadderError(
                f"the kernel {self.code.name} takes {len(explicit)} arguments, and is called with "
                f"{len(args)}"
            )
        lds = self.code.descriptor["group_segment_fixed_size"] + launch.shared
        if lds > self.lds_bytes:
            raise LadderError(
                f"{self.code.name} takes {lds:,} bytes of LDS; {self.arch} has {self.lds_bytes:,}"
            )
        arguments, regions = self._arguments(launch, args)
        deadline = time.monotonic() + self.time_limit
        blocks, together = math.prod(launch.grid), max(1, MOST_LANES // math.prod(launch.block))
        with np.errstate(all="ignore"):
            for first in range(0, blocks, together):
                some = range(first, min(first + together, blocks))
                self._run(launch, some, lds, arguments, regions, deadline)

    def _arguments(self, launch: Launch, args: tuple[Any, ...]) -> tuple[np.ndarray, list[Region]]:
        """The bytes of the kernel's arguments, and the arrays that they point to."""
        layout = self.code.arguments
        end = max((a.offset + a.size for a in layout), default=0)
        whole = -(-end // 16) * 16 + 16  # scalar loads may read on to the end of 16 bytes
        buffer = aligned_empty((whole,), np.dtype(np.uint8))
        buffer[:] = 0
        regions = [region("the kernel's arguments", buffer)]
        hidden = {}
        for axis, name in enumerate("xyz"):
            hidden[f"hidden_block_count_{name}"] = launch.grid[axis]
            hidden[f"hidden_group_size_{name}"] = launch.block[axis]
        values = iter(zip(args, self.names, strict=True))
        for offset, size, kind in layout:
            if kind.startswith("hidden_"):
                content = hidden.get(kind, 0).to_bytes(size, "little")
            else:
                arg, name = next(values)
                array = arg.array if isinstance(arg, Peers) else arg
                if isinstance(array, np.ndarray) and array.ndim:
                    regions.append(region(name, array))
                if arg is None or (isinstance(arg, np.ndarray) and arg.ndim):
                    address = 0 if arg is None else arg.ctypes.data
                    content = address.to_bytes(8, "little")
                else:
                    content = np.array([by_value(arg)]).tobytes()
                if len(content) != size:
                    raise LadderError(
                        f"the kernel {self.code.name} takes {size} bytes as {name}, and gets "
                        f"{len(content)}"
                    )
            buffer[offset : offset + size] = np.frombuffer(content, np.uint8)
        return buffer, regions

    def _run(
        self,
        launch: Launch,
        blocks: range,
        lds: int,
        arguments: np.ndarray,
        regions: Sequence[Region],
        deadline: float,
    ) -> None:
        threads = math.prod(launch.block)
        per_block = -(-threads // self.lanes)
        number = len(blocks) * per_block
        scratch = self.code.descriptor["private_segment_fixed_size"]
        room = -(-lds // 16) * 16 + 16
        granules, packet = room * len(blocks) // self._granule, self._packet(launch)
        machine = Machine(
            Memory([*regions, region(PACKET, packet)]),
            Bytes(np.full(room * len(blocks), GARBAGE, np.uint8)),
            lds,
            room,
            Races(granules, self._granule, number, len(blocks), self.code.lines),
            Bytes(np.full(number * self.lanes * scratch, GARBAGE, np.uint8)),
            scratch,
        )
        waves = self._start(launch, blocks, per_block, arguments, packet)
        Schedule(self._steps, machine, waves, len(blocks), deadline).run()

    def _packet(self, launch: Launch) -> np.ndarray:
        """The part of the dispatch packet that kernels read: sizes of block and grid.

        https://llvm.org/docs/AMDGPUUsage.html#kernel-dispatch
        """
        packet = aligned_empty((64,), np.dtype(np.uint8))
        packet[:] = 0
        packet[4:10].view(np.uint16)[:] = launch.block
        packet[12:24].view(np.uint32)[:] = np.multiply(launch.grid, launch.block)
        return packet

    def _start(
        self,
        launch: Launch,
        blocks: range,
        per_block: int,
        arguments: np.ndarray,
        packet: np.ndarray,
    ) -> Waves:
        """The waves of some blocks, with the registers that the hardware sets.

        https://llvm.org/docs/AMDGPUUsage.html#initial-kernel-execution-state
        """
        descriptor = self.code.descriptor
        number = len(blocks) * per_block
        waves = Waves(
            np.full((max(descriptor["next_free_vgpr"], 1), number, self.lanes), UNSET, np.uint32),
            np.full((SCALARS, number, 1), UNSET, np.uint32),
            np.zeros((number, 1), bool),
            np.arange(number),
            np.arange(number) // per_block,
            Outstanding(number),
        )
        thread = np.arange(per_block * self.lanes).reshape(per_block, self.lanes)
        x, y, _ = launch.block
        places = [thread % x, thread // x % y, thread // (x * y)]
        axes = places[: descriptor["system_vgpr_workitem_id"] + 1]
        if not self.arch.startswith("gfx10"):  # RDNA 2 has a register for each; others, one of all
            axes = [np.bitwise_or.reduce([place << (10 * i) for i, place in enumerate(axes)])]
        for register, place in enumerate(axes):
            waves.v[register] = np.tile(place.astype(np.uint32), (len(blocks), 1))
        there = np.tile(thread < math.prod(launch.block), (len(blocks), 1))
        waves.set_lanes(EXEC, there)
        waves.refresh()

        user: list[int] = []
        if descriptor.get("user_sgpr_private_segment_buffer"):  # its address counts from 0 here
            user += [0] * 4
        for name, address in (
            ("dispatch_ptr", packet.ctypes.data),
            ("queue_ptr", 0),
            ("kernarg_segment_ptr", arguments.ctypes.data),
            ("dispatch_id", 0),
            ("flat_scratch_init", 0),
        ):
            if descriptor.get(f"user_sgpr_{name}"):
                user += [address & 0xFFFFFFFF, address >> 32]
        if descriptor.get("user_sgpr_private_segment_size"):
            user.append(descriptor["private_segment_fixed_size"])
        preloaded = descriptor.get("user_sgpr_kernarg_preload_length", 0)
        start = descriptor.get("user_sgpr_kernarg_preload_offset", 0)
        user += arguments[4 * start : 4 * (start + preloaded)].view(np.uint32).tolist()
        for register, value in enumerate(user):
            waves.s[register] = value
        block = np.asarray(blocks)[waves.blocks][:, None]
        gx, gy, _ = launch.grid
        ids = [block % gx, block // gx % gy, block // (gx * gy)]
        if self.arch.startswith("gfx12"):
            waves.s[TTMP + 9] = ids[0]
            waves.s[TTMP + 7] = ids[1] | ids[2] << 16
            return waves
        register = descriptor["user_sgpr_count"]
        for axis, name in enumerate("xyz"):
            if descriptor[f"system_sgpr_workgroup_id_{name}"]:
                waves.s[register] = ids[axis]
                register += 1
        if descriptor.get("system_sgpr_private_segment_wavefront_offset"):
            waves.s[register] = 0
        return waves


class Schedule:
    """Sets of waves of some blocks that run at a time, to their end.

    Waves at the same instruction run together, and wait for others to come there: the set that is
    furthest back runs first, so that waves that took different ways meet again behind both. A set
    that runs for long without an end, such as one that waits for another block in a loop, gives
    way. A barrier is passed when all waves of the block that have not ended have reached it.

    waves   all of them, at the first instruction
    blocks  how many blocks they belong to
    """

    def __init__(
        self, steps: Sequence[Ready], machine: Machine, waves: Waves, blocks: int, deadline: float
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
                races.finished[some.ids] = some.outstanding.done.get(LDS, 0)
                self._ready.append(some)
        races.barriers[done] += 1

    def _place(self, waves: Waves) -> str:
        line = self._steps[min(waves.pc, len(self._steps) - 1)].line
        return f"{line.place}: {line.text!r}"
