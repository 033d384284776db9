"""What the threads of a pipelined kernel do, each in its order: waits, arrivals, copies, products.

An instrumented copy of the kernel runs in the emulator. Before each call of a function of
ladder/include/hopper.cuh, lanes 0 and 1 of every warp print what they call it with.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find
from ladder.core.contract.op import DTYPES, Dims
from ladder.core.contract.rung_file import Rung
from ladder.core.emulator.emulated import Emulated
from ladder.core.show.trace import recorded

RECORDER = r"""
#define RECORD_COPY(event, address, value, tile, column, row)                                   \
    (threadIdx.x % 32 < 2                                                                      \
         ? (void)emulator::emulator_print(                                                     \
               "@ %d %d %s %p %d %d %d %d\n",                                                  \
               (int)(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)),          \
               (int)threadIdx.x, event, (const void *)(address), (int)(value), (int)(tile),    \
               (int)(column), (int)(row))                                                      \
         : (void)0)
#define RECORD(event, address, value) RECORD_COPY(event, address, value, 0, 0, 0)
template <int PENDING, class... Registers>
__forceinline__ void recorded_wgmma_wait(Registers &...registers) {
    RECORD("product-wait", nullptr, PENDING);
    wgmma_wait<PENDING>(registers...);
}
#define mbarrier_init(b, n) (RECORD("init|" #b, b, n), mbarrier_init(b, n))
#define mbarrier_wait(b, parity) (RECORD("wait", b, parity), mbarrier_wait(b, parity))
#define mbarrier_arrive(b) (RECORD("arrive", b, -1), mbarrier_arrive(b))
#define mbarrier_arrive_at(b, rank) (RECORD("arrive", b, rank), mbarrier_arrive_at(b, rank))
#define mbarrier_expect(b, bytes) (RECORD("expect", b, bytes), mbarrier_expect(b, bytes))
#define tma_load_2d(tile, map, b, x, y) \
    (RECORD_COPY("load|" #map, b, 0, shared_address(tile), x, y), tma_load_2d(tile, map, b, x, y))
#define tma_load_2d_multicast(tile, map, b, x, y, blocks)               \
    (RECORD_COPY("load|" #map, b, blocks, shared_address(tile), x, y), \
     tma_load_2d_multicast(tile, map, b, x, y, blocks))
#define named_barrier(id, threads) \
    (RECORD("meet", nullptr, (id) * 4096 + (threads)), named_barrier(id, threads))
#define __syncthreads() (RECORD("meet", nullptr, blockDim.x), __syncthreads())
#define wgmma_commit() (RECORD("product", nullptr, 0), wgmma_commit())
#define tma_store_fence() (RECORD("store", nullptr, 0), tma_store_fence())
#define wgmma_wait recorded_wgmma_wait
"""
WARPGROUP = 128  # threads
ROW_BYTES = 128  # of a tile that TMA copies
_OFFSET = (1 << 24) - 1  # of a shared address: the bits above hold the rank of the block


class Event(NamedTuple):
    """One line of the recording.

    name     "init", "wait", "arrive", "expect", "load", "meet", "product", "product-wait", "store"
    of       the barrier of an "init", the tensor map of a "load", as the source names them
    address  of the mbarrier; another one in each block
    value    that the function was given: a count, a parity, bytes, the blocks of a multicast, ...
    tile     of a "load": the shared address that is written, from the start of a block's memory
    x, y     of a "load": column and row of the first element
    """

    block: int
    thread: int
    name: str
    of: str = ""
    address: str = ""
    value: int = 0
    tile: int = 0
    x: int = 0
    y: int = 0


def record(op: str, rung: Rung, dtype: str, dims: Dims) -> tuple[Event, ...]:
    """What lanes 0 and 1 of every warp do, each in its own order. Raises LadderError where the
    kernel uses no mbarrier, or cannot run."""
    if "mbarrier_" not in rung.source:
        raise LadderError(f"{op}, {rung.label}: it uses no mbarrier, so there is nothing to record")
    return tuple(map(_event, recorded(find(op), rung, RECORDER, dtype, dims)))


def _event(words: Sequence[str]) -> Event:
    block, thread, *called, address, value, tile, x, y = words
    name, _, of = " ".join(called).partition("|")
    of, offset = of.removeprefix("&"), int(tile) & _OFFSET
    return Event(int(block), int(thread), name, of, address, int(value), offset, int(x), int(y))


class Copy(NamedTuple):
    """One copy by TMA, of rows of an argument: with a multicast, L2 is read once for all receivers.

    step   of the block that asks: a stage is filled in each
    place  of the tile in the receivers' shared memory, in bytes from its start
    """

    step: int
    asks: int
    receives: tuple[int, ...]
    array: str
    row: int
    rows: int
    bytes: int
    place: int


def copies(events: Sequence[Event], rung: Rung, dtype: str, dims: Dims) -> list[Copy]:
    """All copies to shared memory in a recording of a kernel, by the blocks that ask for them."""
    plan = rung.plan(dims, Emulated().target(DTYPES[dtype]))
    boxes = {tile.argument: tile.box[0] for tile in plan.tiles}
    steps: dict[int, int] = defaultdict(lambda: -1)  # that a block has begun, with mbarrier_expect
    copied = []
    for event in events:
        steps[event.block] += event.name == "expect"
        if event.name == "load":
            array = event.of.removesuffix("_tiles")
            to = [block for block in range(event.value.bit_length()) if event.value >> block & 1]
            copied.append(
                Copy(steps[event.block], event.block, tuple(to or [event.block]), array,
                     event.y, boxes[array], boxes[array] * ROW_BYTES, event.tile)
            )  # fmt: skip
    return copied
