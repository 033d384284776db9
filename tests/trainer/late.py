"""A device that does forked work as late as it may: when somebody waits for it."""

from collections.abc import Callable

from ladder.core.device.open import Cpu

End = tuple[bool, int]  # whether the work is urgent, and its number among those


def fork(
    device: Cpu, work: Callable[[], None], urgent: bool = False, behind: End | None = None
) -> End:
    queue = device.__dict__.setdefault(f"late {urgent}", [])
    queue.append((work, behind))
    return urgent, len(queue)


def join(device: Cpu, end: End) -> None:
    urgent, number = end
    queue = device.__dict__[f"late {urgent}"]
    for place, waiting in enumerate(queue[:number]):
        if waiting is not None:
            queue[place] = None
            work, behind = waiting
            if behind is not None:
                join(device, behind)
            work()


class Late(Cpu):
    fork = fork
    join = join
