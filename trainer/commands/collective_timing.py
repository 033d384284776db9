"""The time of the collectives of a training step, and of the step with and without them.

Each is timed alone, in a graph of its own. What a step takes beyond the slowest rank's
step without them is the part that nothing hides: it is exposed.
"""

import dataclasses
import functools
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from trainer.commands import step_timing
from trainer.commands.step_timing import Job
from trainer.engine.engine import Engine
from trainer.model.calls import Call, Collective, Fork, op_calls
from trainer.model.program import Program
from trainer.ranks.group import Group

COLLECTIVES = 10  # in one graph
SAMPLES = 5
HEATING = 2.0  # seconds of steps before a GPU is timed


def schedule(program: Program) -> Iterator[tuple[Collective, Call, Call | None]]:
    """What a step of a program exchanges, in order: the collective, the call that it waits for, and
    the call that begins at the same time; None where nothing goes beside it."""
    last = program.forward[-1]
    for items in (program.last_backward, program.reduce, program.apply):
        for index, item in enumerate(items):
            if isinstance(item, Call):
                last = item
            elif isinstance(item, Collective):
                yield item, last, None
            elif isinstance(item, Fork):
                later = (call for call in items[index + 1 :] if isinstance(call, Call))
                beside = next(later, None)
                for inner in item.calls:
                    if isinstance(inner, Collective):
                        yield inner, last, beside
        last = [last, *op_calls(items)][-1]  # all of the list is done, also what went beside it


def time_collectives(engine: Engine) -> list[dict[str, Any]]:
    """A row for each collective of a step: kind, bytes, place, milliseconds alone. All ranks call
    this together."""
    engine.zero_gradients()  # which would be added up again and again
    rows = []
    for collective, behind, beside in schedule(engine.program):
        arrays = [engine.arrays[name] for name in collective.buffers]
        parts = [name.partition(".") for name in collective.buffers]
        rows.append(
            {
                "kind": f"{collective.kind} {parts[0][0]}",
                "bucket": ", ".join(bucket for *_, bucket in parts),
                "bytes": sum(array.nbytes for array in arrays),
                "behind": label(behind),
                "beside": "" if beside is None else label(beside),
                "ms": _time_collective(engine, engine.bound[collective]),
            }
        )
    return rows


def label(call: Call) -> str:
    """Its place in the model, or, of an update, the first tensor, and its op."""
    return f"{call.where.split()[0]} {call.op}"


def _time_collective(engine: Engine, collective: Callable[[], None]) -> float:
    def several() -> None:
        for _ in range(COLLECTIVES):
            collective()

    several()
    replay = engine.device.capture(several)
    times = [1e3 * engine.device.time(replay) for _ in range(SAMPLES)]
    return float(np.median(times)) / COLLECTIVES


def time_steps(
    job: Job,
    engine: Engine,
    group: Group,
    micro_steps: int,
    begin: Callable[[], None] = lambda: None,
) -> float:
    """The median milliseconds of an optimizer step of so many micro-batches on each rank. All
    ranks take the same number of steps. `begin`: is called before the steps that are timed."""

    heating = HEATING if engine.device.is_gpu else 0.0
    steps = functools.partial(step_timing.time_steps, micro_steps=micro_steps, heating=heating)
    return statistics.median(steps(engine, job.config.steps, begin=begin, group=group))


def time_without_collectives(job: Job, engine: Engine, group: Group) -> list[float]:
    """Of each rank, the milliseconds of a step that exchanges nothing, all at the same time. Closes
    the engine and the job's communicator before, since both engines need not fit."""
    assert job.peers is not None
    engine.close()
    engine.arrays.clear()  # the next engine needs the memory
    job.peers.close()
    return _times_of(dataclasses.replace(job, peers=Silent()), group, "a step without exchange")


def time_alone(job: Job, group: Group) -> list[float]:
    """Of each rank, the milliseconds of the step of a process that trains alone, all at the same
    time: GPUs of one kind differ in their clock, and a group cannot be faster than its slowest."""
    return _times_of(job.alone(), group, "a step alone")


def _times_of(job: Job, group: Group, what: str) -> list[float]:
    engine = job.engine()
    times = group.collect(what, time_steps(job, engine, group, 1))
    engine.close()
    engine.arrays.clear()  # the next engine needs the memory
    return times


class Silent:
    """A `Communicator` of ranks that do not exchange anything."""

    name = "nothing"

    def all_reduce(self, *arrays: Any) -> None:
        pass

    close = reduce_scatter = all_gather = all_reduce
