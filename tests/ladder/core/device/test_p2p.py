"""Exchange by P2P between processes: the order of what ranks do, without a GPU."""

import copy
import ctypes
import functools
import itertools
import random
import re
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_text
from ladder.core.contract.launch_plan import Launch
from ladder.core.contract.peers import MOST_RANKS, FirstRank, Peers
from ladder.core.contract.rung_file import Rung
from ladder.core.device.cupy import p2p
from ladder.core.emulator.emulated import Emulated

FLOAT = np.dtype(np.float32)


class Fault(RuntimeError):
    """CuPy's CUDARuntimeError."""


class Array:
    """A CuPy array in the memory of the host."""

    def __init__(self, host, of=None):
        self.host, self.of = host, of or self
        self.size, self.itemsize, self.nbytes = host.size, host.itemsize, host.nbytes
        self.data = SimpleNamespace(ptr=host.ctypes.data)

    def __getitem__(self, where):
        return Array(self.host[where], self.of)


class Machine:
    """GPUs that all processes of a machine see, and what the processes tell each other."""

    def __init__(self, ranks, reach=True):
        self.ranks, self.reach, self.fails = ranks, reach, None
        self.parts, self.barrier = [b""] * ranks, threading.Barrier(ranks, timeout=10)
        self.open = []  # addresses of handles

    def exchange(self, rank):
        def meet(what, data):
            self.parts[rank] = data
            self.barrier.wait()
            parts = list(self.parts)
            self.barrier.wait()
            return parts

        return meet

    # cupy.cuda.runtime

    CUDARuntimeError = Fault
    is_hip = False

    def deviceGetByPCIBusId(self, bus):
        if bus == "hidden":
            raise Fault("invalid device ordinal")
        return int(bus)

    def deviceCanAccessPeer(self, device, other):
        assert device != other
        return self.reach

    def ipcGetMemHandle(self, address):
        return address.to_bytes(64, "little")

    def ipcOpenMemHandle(self, handle):
        if self.fails:
            raise Fault(self.fails)
        self.open.append(int.from_bytes(handle, "little"))
        return self.open[-1]

    def ipcCloseMemHandle(self, address):
        self.open.remove(address)


class Gpu:
    """One of them. Work waits in `queue` until somebody runs it; work that returns False has to
    wait."""

    name, warp = "GPU", 32

    def __init__(self, machine, bus):
        self.cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=machine))
        self.device = Device(bus)
        self.queue, self.memory = [], []
        self.stream = SimpleNamespace(ptr=self.queue)

    def empty(self, shape, dtype):
        self.memory.append(np.full(shape, 7, dtype))
        return Array(self.memory[-1])

    def zero(self, array):
        array.host[...] = 0

    def synchronize(self):
        pass

    def allocation(self, array):
        return array.of.data.ptr

    def compile(self, rung, defines, real):
        return {"meet": self._meet, "reduce_scatter": self._sum, "all_gather": self._gather}

    def _meet(self, launch, args):
        peers, R, rank = args
        flags = rows(peers, R, R, ctypes.c_uint32)

        def signal():
            count = flags[rank][rank] + 1
            for row in flags:
                row[rank] = count

        self.queue.append(signal)
        self.queue.append(lambda: bool((flags[rank] >= flags[rank][rank]).all()))

    def _sum(self, launch, args):
        peers, (R, rank, n, part) = args[0], map(int, args[1:])
        vectors, share = rows(peers, R, n, ctypes.c_float), slice(rank * part, (rank + 1) * part)

        def add():
            vectors[rank][share] = sum(vector[share] for vector in vectors)

        self.queue.append(add)

    def _gather(self, launch, args):
        peers, (R, rank, n, part) = args[0], map(int, args[1:])
        vectors, share = rows(peers, R, n, ctypes.c_uint16), slice(rank * part, (rank + 1) * part)

        def write():
            for vector in vectors:
                vector[share] = vectors[rank][share]

        self.queue.append(write)


class Device:
    def __init__(self, bus):
        self.pci_bus_id = bus
        self.id = int(bus) if bus.isdecimal() else 0

    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


def rows(peers, R, count, element):
    """The arrays of all ranks, of which a kernel gets the addresses."""
    addresses = np.frombuffer(peers.tobytes(), np.uint64)[:R]
    arrays = ((element * int(count)).from_address(int(address)) for address in addresses)
    return [np.ctypeslib.as_array(array) for array in arrays]


def on_ranks(machine, work):
    """What `work` returns for each rank; ranks are threads."""
    results = [None] * machine.ranks

    def run(rank):
        try:
            results[rank] = work(rank)
        except LadderError as error:
            results[rank] = str(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(machine.ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def run_in_some_order(gpus, seed):
    """Each GPU's work in order, all of them side by side."""
    choose, left = random.Random(seed), [list(gpu.queue) for gpu in gpus]
    blocked = 0
    while any(left):
        queue = choose.choice([queue for queue in left if queue])
        if queue[0]() is False:
            blocked += 1
            assert blocked < 10_000, "all ranks wait"
        else:
            blocked, _ = 0, queue.pop(0)


SIZES = (24, 20)  # of two buckets
STEPS = 3


def train(ranks, seed, exchanges="sums and weights", forgets=None):
    """Whether every rank has the right sums or weights after each step of ZeRO-1 on made-up
    gradients, in an order of the GPUs' work that `seed` chooses.

    exchanges  without "sums", each rank knows the sum of its share; without "weights", none need
               those of others
    forgets    the number of a meeting of every step that the ranks leave out
    """
    machine = Machine(ranks)
    seen = []

    def program(rank):
        gpu = Gpu(machine, str(rank))
        peers = p2p.join(gpu, machine.exchange(rank), rank, ranks, beside=False)
        sums, passes_on = "sums" in exchanges, "weights" in exchanges
        forget(peers, forgets, 2 * (len(SIZES) * sums + passes_on))
        gradients, weights = ([gpu.empty((n,), FLOAT) for n in SIZES] for _ in range(2))
        shares = [slice(rank * n // ranks, (rank + 1) * n // ranks) for n in SIZES]

        def backward(step):
            given = gradients_of(step, rank) if sums else total(step, ranks)
            for gradient, values in zip(gradients, given, strict=True):
                gradient.host[...] = values

        def update():
            for weight, gradient, share in zip(weights, gradients, shares, strict=True):
                weight.host[share] = gradient.host[share]

        def look(step):
            own = [slice(None)] * len(SIZES) if passes_on else shares
            pairs = zip(weights, total(step, ranks), own, strict=True)
            seen.append(all(np.array_equal(w.host[part], t[part]) for w, t, part in pairs))

        for step in range(STEPS):
            gpu.queue.append(functools.partial(backward, step))
            for gradient in gradients if sums else ():
                peers.reduce_scatter(gradient)
            gpu.queue.append(update)
            if passes_on:
                peers.all_gather(*weights)
            gpu.queue.append(functools.partial(look, step))
        return gpu

    run_in_some_order(on_ranks(machine, program), seed)
    assert len(seen) == ranks * STEPS
    return all(seen)


def gradients_of(step, rank):
    return [np.arange(n, dtype=FLOAT) * (1 + rank) + 100 * step + n for n in SIZES]


def total(step, ranks):
    return [
        sum(parts) for parts in zip(*(gradients_of(step, r) for r in range(ranks)), strict=True)
    ]


def forget(peers, number, count):
    """Leave out one of the `count` meetings of a step, of which each exchange has two."""
    real, numbers = peers._meet, itertools.count()

    def meet():
        if next(numbers) % count != number:
            real()

    peers._meet = meet


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_weights_are_right_in_every_order(ranks):
    assert all(train(ranks, seed) for seed in range(30))


@pytest.mark.parametrize(
    ("exchanges", "number", "what"),
    [
        ("sums and weights", 0, "a gradient is added up before it is complete"),
        ("sums", 3, "a gradient is overwritten before it was added up"),
        ("weights", 0, "weights are overwritten before they were used"),
        ("sums and weights", 5, "weights are used before they have come"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_without_a_meeting(exchanges, number, what):
    assert not all(train(2, seed, exchanges, number) for seed in range(100)), what


@pytest.mark.parametrize("ranks", [2, 3])
def test_an_all_reduce_sums_arrays_that_have_no_equal_shares(ranks):
    machine = Machine(ranks)
    rows = [np.arange(10, dtype=FLOAT) * (1 + rank) for rank in range(ranks)]

    def program(rank):
        gpu = Gpu(machine, str(rank))
        peers = p2p.join(gpu, machine.exchange(rank), rank, ranks, beside=False)
        arrays = [Array(rows[rank].copy()), Array(np.full(2, rank, FLOAT))]
        peers.all_reduce(*arrays)
        return gpu, arrays

    results = on_ranks(machine, program)
    run_in_some_order([gpu for gpu, _ in results], 0)
    for _, (first, second) in results:
        assert np.array_equal(first.host, sum(rows))
        assert np.array_equal(second.host, [sum(range(ranks))] * 2)


def test_handles_are_opened_once_and_all_are_closed_at_the_end():
    machine = Machine(2)

    def program(rank):
        gpu = Gpu(machine, str(rank))
        peers = p2p.join(gpu, machine.exchange(rank), rank, 2, beside=False)
        arena = gpu.empty((64,), FLOAT)
        for _ in range(2):
            peers.all_gather(arena[:32], arena[32:])
        mapped = len(machine.open)
        machine.barrier.wait()
        peers.close()
        return mapped

    assert on_ranks(machine, program) == [4, 4]  # the flags and the arena of two ranks
    assert machine.open == []


@pytest.mark.parametrize(
    ("buses", "changes", "names"),
    [
        (("0", "0"), {}, "rank 0: .* one GPU"),
        (("1", "hidden"), {}, "rank 0: .* rank 1 .*CUDA_VISIBLE_DEVICES"),
        (("0", "1"), {"reach": False}, "rank 0: .* memory of rank 1"),
        (("0", "1"), {"is_hip": True}, "rank 0: .* NVIDIA"),
        (("0", "1"), {"fails": "invalid handle"}, "rank 0: .* invalid handle.*--exchange nccl"),
        (tuple("012345678"), {}, f"rank 0: .* 9 ranks, .* {MOST_RANKS} "),
    ],
)
def test_all_ranks_learn_why_p2p_is_not_possible(buses, changes, names):
    machine = Machine(len(buses))
    vars(machine).update(changes)

    def program(rank):
        gpu, exchange = Gpu(machine, buses[rank]), machine.exchange(rank)
        p2p.join(gpu, exchange, rank, len(buses), beside=False)

    for message in on_ranks(machine, program):
        assert re.search(names, message)


@pytest.mark.parametrize("name", ["ipcGetMemHandle", "ipcOpenMemHandle"])
def test_no_rank_goes_on_where_one_cannot_share_its_memory_or_open_that_of_another(name):
    """Else the others would wait for this one, which tries NCCL instead (--exchange auto)."""
    machine = Machine(3)

    def fail(*_):
        raise Fault("not permitted")

    fail.__name__ = name  # which the message tells

    def program(rank):
        gpu = Gpu(machine, str(rank))
        if rank == 1:
            gpu.cupy.cuda.runtime = copy.copy(machine)
            setattr(gpu.cupy.cuda.runtime, name, fail)
        p2p.join(gpu, machine.exchange(rank), rank, 3, beside=False)

    for message in on_ranks(machine, program):
        assert re.search(f"rank 1: GPU: not permitted, .*{name}", message)


@pytest.fixture(scope="module")
def kernels():
    device = Emulated(seed=1, counting=True)
    rung = Rung("p2p", "exchange between ranks", p2p.SOURCE, read_text(p2p.SOURCE))
    return device, device.compile(rung, {}, FLOAT)


@pytest.mark.emulator
def test_ranks_meet_again_and_again(kernels):
    device, compiled = kernels
    flags = device.empty((3, 3), np.dtype(np.uint32))
    flags[...] = 0
    for _ in range(2):
        arguments = (Peers(flags, scratch=True), np.int32(3), FirstRank())
        compiled["meet"](Launch("meet", (1, 3, 1), (32, 1, 1)), arguments)
    assert (flags == 2).all()


CUTS = pytest.mark.parametrize(
    ("R", "part", "last"),
    [
        (3, 2 * 8 * p2p.BLOCK * 8 + 8, 16),  # each of two blocks has more than one round
        (2, 8, 6),  # the last share is no multiple of 16 bytes
        (4, 3, 3),  # shares do not begin at 16 bytes
        (3, 8, 0),  # the last share is empty
    ],
)


def cut(R, part, last):
    """The number of elements of a vector, and the share of each rank."""
    n = (R - 1) * part + last
    return n, [slice(rank * part, min((rank + 1) * part, n)) for rank in range(R)]


def launched(kernels, name, given, n, part):
    """What a kernel leaves in the vectors `given`, of which `n` elements count. What orders the
    ranks are the meetings before and behind, launches of their own."""
    device, compiled = kernels
    R = len(given)
    vectors = device.empty(given.shape, given.dtype)
    vectors[...] = given
    arguments = (Peers(vectors, scratch=True), np.int32(R), FirstRank())
    launch = Launch(name, (2, R, 1), (p2p.BLOCK, 1, 1))
    compiled[name](launch, (*arguments, np.uint64(n), np.uint64(part)))
    return vectors


@pytest.mark.emulator
@CUTS
def test_each_rank_sums_its_share_from_its_own_on(kernels, R, part, last):
    n, shares = cut(R, part, last)
    room = n + 8 + -n % 8  # rows begin at a multiple of 16 bytes; nothing behind n may change
    given = np.random.default_rng(0).standard_normal((R, room)).astype(FLOAT)
    right = given.copy()
    for rank, share in enumerate(shares):
        every = [given[(rank + step) % R, share] for step in range(R)]
        right[rank, share] = np.add.accumulate(every)[-1]
    assert np.array_equal(launched(kernels, "reduce_scatter", given, n, part), right)


@pytest.mark.emulator
@CUTS
def test_each_rank_writes_its_share_to_all(kernels, R, part, last):
    n, shares = cut(R, part, last)
    room = n + 8 + -n % 8
    given = np.random.default_rng(0).integers(0, 2**16, (R, room)).astype(np.uint16)
    right = given.copy()
    for rank, share in enumerate(shares):
        right[:, share] = given[rank, share]
    assert np.array_equal(launched(kernels, "all_gather", given, n, part), right)
