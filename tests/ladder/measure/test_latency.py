"""The chain of addresses by which the latency of memory is measured."""

import numpy as np
import pytest

from ladder.emulator.emulated import Emulated
from ladder.measure.latency import AT_ONCE, LINE, VECTOR, Chase, chain

LINKS = 37


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
    chase, words = Chase(Emulated(), LINKS * LINE), chain(LINKS)
    chase.go(5)
    chase.go(6)
    at = 0
    for _ in range(11):
        at = int(words[at])
    assert chase.position == at


@pytest.mark.emulator
def test_readers_end_the_chase_and_the_steps_are_counted():
    device = Emulated()
    chase, words = Chase(device, LINKS * LINE), chain(LINKS)
    blocks, threads = 3, 64
    stream = device.empty((2 * AT_ONCE * blocks * threads * VECTOR // 4,), np.dtype(np.float32))
    device.zero(stream)
    _, steps = chase.go_beside(stream, blocks, threads, rounds=5)
    at = 0
    for _ in range(steps):
        at = int(words[at])
    assert chase.position == at
