"""Cooperative groups on the emulator: ranks, shuffles, reductions, and who has to come."""

import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.emulator.emulated import Emulated
from ladder.core.emulator.kernel import KernelError
from tests.ladder.emulation import array, devices, run, zeros

pytestmark = pytest.mark.emulator

GROUPS = """\
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;

struct Pair { double value; int index, padding; };  // 16 bytes: two shuffles

struct Larger {
    __device__ Pair operator()(Pair a, Pair b) const { return b.value > a.value ? b : a; }
};

template <int WIDTH>
__device__ void tiles(int* out, float* sums, int n, int x) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<WIDTH> tile = cg::tiled_partition<WIDTH>(block);
    int i = block.thread_rank();
    out[0 * n + i] = tile.thread_rank();
    out[1 * n + i] = tile.meta_group_rank() * 100 + tile.meta_group_size();
    out[2 * n + i] = tile.shfl(x, 1);
    out[3 * n + i] = tile.shfl_xor(x, 1);
    out[4 * n + i] = tile.shfl_down(x, 2);
    out[5 * n + i] = tile.shfl_up(x, 2);
    out[6 * n + i] = tile.ballot(x % 3 == 0);
    out[7 * n + i] = cg::reduce(tile, x, cg::less<int>()) * 1000;
    out[7 * n + i] += cg::reduce(tile, x, cg::greater<int>());
    out[8 * n + i] = cg::inclusive_scan(tile, x) * 10000 + cg::exclusive_scan(tile, x);
    out[9 * n + i] = cg::reduce(tile, Pair{(double)x, i, 0}, Larger()).index;
    sums[i] = cg::reduce(tile, 0.5f * x, cg::plus<float>{});
}

extern "C" __global__ void k(int* out, float* sums, const int* inp, int n) {
    cg::thread_block block = cg::this_thread_block();
    int x = inp[block.thread_rank()];
    tiles<4>(out, sums, n, x);
    tiles<32>(out + 10 * n, sums + n, n, x);
}
"""


@pytest.mark.parametrize("device", devices(), ids=("fast", "counting"))
def test_tiles_know_their_ranks_shuffle_and_reduce(tmp_path, device):
    n = 64
    x = np.random.default_rng(0).permutation(n).astype(np.int32) + 1
    out, sums = zeros(2, 10, n, dtype=np.int32), zeros(2, n)
    run(device, tmp_path, GROUPS, 1, (16, 4), out, sums, array(x, np.int32), np.int32(n))
    for width, got, total in zip((4, 32), out, sums, strict=True):
        tile, rank = x.reshape(-1, width), np.tile(np.arange(width), n // width).reshape(-1, width)
        number = np.arange(n).reshape(-1, width)
        whole = np.ones_like(tile)
        expected = [
            rank,
            number // width * 100 + n // width,
            whole * tile[:, 1:2],
            tile[:, np.arange(width) ^ 1],
            np.where(rank + 2 < width, np.roll(tile, -2, 1), tile),
            np.where(rank >= 2, np.roll(tile, 2, 1), tile),
            ((tile % 3 == 0) << np.arange(width, dtype=np.uint32)).sum(1, keepdims=True) * whole,
            (tile.min(1) * 1000 + tile.max(1))[:, None] * whole,
            tile.cumsum(1) * 10000 + tile.cumsum(1) - tile,
            whole * (tile.argmax(1) + np.arange(n // width) * width)[:, None],
        ]
        for line, want in zip(got, expected, strict=True):
            assert (line.view(np.uint32) == want.astype(np.uint32).reshape(-1)).all(), width
        assert (total == (0.5 * tile.sum(1, keepdims=True) * whole).reshape(-1)).all()


COALESCED = """\
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__device__ int next(int* counter) {  // one atomic for all lanes that come together
    cg::coalesced_group active = cg::coalesced_threads();
    int first = 0;
    if (active.thread_rank() == 0) first = atomicAdd(counter, (int)active.size());
    return active.shfl(first, 0) + active.thread_rank();
}
extern "C" __global__ void k(int* counters, int* taken) {
    int i = threadIdx.x;
    taken[i] = i % 3 == 0 ? next(counters) : i % 3 == 1 ? next(counters + 1) : -1;
}
"""


def test_coalesced_threads_are_those_that_took_the_same_branch(tmp_path):
    counters, taken = zeros(2, dtype=np.int32), zeros(64, dtype=np.int32)
    run(Emulated(), tmp_path, COALESCED, 1, 64, counters, taken)
    third = np.arange(64) % 3
    assert counters.tolist() == [(third == 0).sum(), (third == 1).sum()]
    for branch in (0, 1):  # each number once
        assert sorted(taken[third == branch]) == list(range((third == branch).sum()))
    assert (taken[third == 2] == -1).all()


SHARED = """\
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void k(float* out, const float* inp) {
    __shared__ float tile[64];
    cg::thread_group part = cg::tiled_partition(cg::this_thread_block(), PART);
    tile[threadIdx.x] = inp[threadIdx.x];
    part.sync();
    out[threadIdx.x] = tile[threadIdx.x ^ 16];
}
"""


def test_the_sync_of_a_group_orders_its_own_threads_only(tmp_path):
    inp = np.arange(64, dtype=np.float32)
    out = zeros(64)
    run(Emulated(counting=True), tmp_path, SHARED, 1, 64, out, array(inp), defines={"PART": 32})
    assert (out == inp[np.arange(64) ^ 16]).all()
    args = (zeros(64), array(inp))
    with pytest.raises(KernelError) as caught:
        run(Emulated(counting=True), tmp_path, SHARED, 1, 64, *args, defines={"PART": 16})
    assert "race" in {problem.kind for problem in caught.value.problems}


def test_a_barrier_of_the_whole_grid_is_refused_with_the_way_out(tmp_path):
    source = """\
#include <cooperative_groups.h>
extern "C" __global__ void k() { cooperative_groups::this_grid().sync(); }
"""
    with pytest.raises(LadderError, match="cooperative launch"):
        run(Emulated(), tmp_path, source, 2, 32)
