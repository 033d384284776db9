"""The chain of addresses by which the latency of memory is measured."""

import numpy as np
import pytest

from ladder.core.emulator.emulated import Emulated
from ladder.core.measure.latency import AT_ONCE, LINE, VECTOR, Chase, chain

LINKS = 37


def after(steps):
    """The word to which so many steps from the first one lead."""
    words, at = chain(LINKS), 0
    for _ in range(steps % LINKS):
        at = int(words[at])
    return at


def test_a_chain_goes_through_all_lines_before_it_comes_back():
    words = chain(LINKS)
    at, seen = 0, []
    for _ in range(LINKS):
        seen.append(at)
        at = int(words[at])
    assert at == 0
    assert sorted(seen) == [line * LINE // 4 for line in range(LINKS)]


@pytest.mark.emulator
def test_the_thread_goes_on_where_it_stopped():
    chase = Chase(Emulated(), LINKS * LINE)
    chase.go(5)
    chase.go(6)
    assert chase.position[0] == after(5 + 6)


@pytest.mark.emulator
def test_the_steps_of_a_chase_beside_readers_are_counted():
    device = Emulated()
    chase = Chase(device, LINKS * LINE)
    blocks, threads = 3, 64
    stream = device.empty((2 * AT_ONCE * blocks * threads * VECTOR // 4,), np.dtype(np.float32))
    device.zero(stream)
    _, steps = chase.go_beside(stream, blocks, threads, rounds=5)
    assert chase.position[0] == after(steps)  # on one core, the readers come last: a billion steps
