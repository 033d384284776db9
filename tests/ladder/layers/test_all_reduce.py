"""Ranks: kernels that run for several GPUs at once, on one device and on a group of them."""

import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.contract.binding import bind
from ladder.core.contract.device import aligned_empty
from ladder.core.contract.ladder import find
from ladder.core.contract.launch_plan import Launch
from ladder.core.contract.op import DTYPES
from ladder.core.contract.peers import FirstRank, Peers, Rows, by_value
from ladder.core.contract.rung_file import Rung
from ladder.core.device.cuda.group import CudaGroup, GroupKernel
from ladder.core.device.open import Cpu
from ladder.core.emulator.emulated import Emulated
from ladder.core.emulator.kernel import KernelError
from ladder.core.verify.check import check
from ladder.core.verify.guards import guarded
from tests.ladder import emulation

LADDER = find("all_reduce.sum")
KERNELS = [rung for rung in LADDER.rungs if rung.path]
FLOAT = DTYPES["float32"]


def group(size=2):
    """A group without GPUs: its members are CPUs, which hold arrays as GPUs do."""
    made = CudaGroup.__new__(CudaGroup)
    made.gpus, made.group_size, made.name = [Cpu() for _ in range(size)], size, f"{size} x CPU"
    return made


@pytest.mark.emulator
@pytest.mark.parametrize("rung", KERNELS, ids=lambda rung: rung.id)
def test_all_ranks_get_the_same_bits(rung):
    """Or replicas of a model would drift apart."""
    dims, device, real = {"R": 3, "N": 1024}, Emulated(seed=1), DTYPES["bfloat16"]
    inp = np.random.default_rng(0).standard_normal((3, 1024)).astype(real)
    arrays = {"out": device.empty((3, 1024), real), "inp": device.empty((3, 1024), real)}
    device.upload(arrays["inp"], inp)
    run = bind(LADDER.op, rung, device, real, dims, arrays)
    for _ in range(3):  # flags go on from call to call
        arrays["out"][...] = np.nan
        run()
        out = arrays["out"].view(np.uint16)
        assert (out == out[0]).all()
        assert np.allclose(arrays["out"][0].astype(float), inp.astype(float).sum(0), atol=0.1)


RACE = """
#include "peers.cuh"
extern "C" __global__ void k(
    Peers<float> a, Peers<unsigned> flag, int first_rank, int early, int late) {
    int rank = first_rank + blockIdx.y, other = 1 - rank;
    if (early) a[other][0] = 1.0f;  // EARLY
    signal_flag(flag[other], 1);
    wait_flag(flag[rank], 1);
    a[rank][1] = 1.0f;
    if (late) a[other][2] = 1.0f;  // LATE
}
"""


@pytest.mark.emulator
@pytest.mark.parametrize(("early", "late", "mark"), [(1, 0, "EARLY"), (0, 1, "LATE")])
def test_memory_of_a_rank_is_used_only_between_its_beginning_and_its_end(
    tmp_path, early, late, mark
):
    def run(early, late):
        a, flag = emulation.zeros(2, 3), emulation.zeros(2, 1, dtype=np.uint32)
        args = Peers(a), Peers(flag, scratch=True), FirstRank(), np.int32(early), np.int32(late)
        emulation.run(Emulated(counting=True), tmp_path, RACE, (1, 2), 1, *args)

    run(0, 0)
    with pytest.raises(KernelError) as caught:
        run(early, late)
    problems = {(problem.kind, problem.line) for problem in caught.value.problems}
    assert problems == {("ranks", emulation.line(RACE, mark))}


WORDS = """
#include "peers.cuh"
extern "C" __global__ void k(Peers<unsigned> inbox, int first_rank, int flag, int word, int hears) {
    int rank = first_rank + blockIdx.y;
    for (int now = hears ? 2 : word; now >= word; now -= 2 - word) {
        send_word(inbox[1 - rank] + 4 * now, {1, 2}, flag);  // BUG
        receive_word(inbox[rank] + 4 * now, flag);
    }
}
"""


@pytest.mark.emulator
def test_a_word_does_not_come_where_the_launch_before_has_sent_one(tmp_path):
    """Its reader may be a launch behind; it is not, once a word of this launch has come from it."""
    inbox = Peers(emulation.zeros(2, 12, dtype=np.uint32), scratch=True)

    def run(*numbers):
        args = inbox, FirstRank(), *map(np.int32, numbers)
        emulation.run(Emulated(counting=True), tmp_path, WORDS, (1, 2), 1, *args)

    for flag in range(1, 6):
        run(flag, flag % 2, 0)
    run(6, 1, 1)
    with pytest.raises(KernelError) as caught:
        run(7, 1, 0)
    problems = {(problem.kind, problem.line) for problem in caught.value.problems}
    assert problems == {("in flight", emulation.line(WORDS, "BUG"))}


def test_peers_are_the_addresses_of_the_rows():
    array = aligned_empty((3, 5), FLOAT)
    begin = array.ctypes.data
    assert Peers(array).addresses() == [begin, begin + 20, begin + 40]
    rows = Rows([aligned_empty((5,), FLOAT) for _ in range(2)])
    assert Peers(rows).addresses() == [row.ctypes.data for row in rows.rows]
    assert by_value(Peers(rows)).nbytes == 64
    assert by_value(FirstRank(2)) == np.int32(2)


def test_a_group_launches_each_gpus_ranks_on_it():
    calls = []

    def kernel(name):
        return lambda launch, args: calls.append((name, launch.grid, args[1].rank))

    GroupKernel([kernel("a"), kernel("b")])(
        Launch("k", (3, 4, 1), (32, 1, 1)), (np.int32(7), FirstRank())
    )
    assert calls == [("a", (3, 2, 1), 0), ("b", (3, 2, 1), 2)]


def test_rows_of_a_group_are_guarded_one_by_one():
    buffer = guarded(group(), "out", (4, 6), FLOAT)
    content = np.arange(24, dtype=np.float32).reshape(4, 6)
    buffer.fill(content)
    assert buffer.array.shape == (4, 6)
    assert buffer.array.flags.c_contiguous
    got, problem = buffer.read()
    assert (got == content).all()
    assert problem is None
    row = buffer.array.rows[1]
    np.lib.stride_tricks.as_strided(row, (7,), row.strides)[6] = 0  # the guard's first element
    assert "row 1 of out" in buffer.read()[1]


def test_a_group_is_checked_at_numbers_of_ranks_that_it_can_share_out():
    def add(device, arrays, dims, scalars):
        total = np.sum([row.astype(np.float64) for row in arrays["inp"].rows], axis=0)
        for row in arrays["out"].rows:
            row[...] = total

    device = group()
    device.target = Cpu().target
    device.synchronize = lambda: None
    report = check(LADDER, Rung("sum", "NumPy", run=add), device, ["float32"])
    shapes = [outcome.dims["R"] for outcome in report.outcomes]
    assert report.passed, report
    assert set(shapes) == {2, 4}


def test_a_group_refuses_what_it_cannot_share_out():
    with pytest.raises(LadderError, match=r"3 ranks .* 2 x CPU"):
        group().owners(3)
    with pytest.raises(LadderError, match=r"residual.forward .* 2 x CPU"):
        check(find("residual.forward"), find("residual.forward").rung(1), group())
