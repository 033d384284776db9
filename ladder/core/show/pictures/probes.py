"""Small kernels that write down what `ldmatrix`, `mma.sync`, TMA and `wgmma` do to known elements.

The CPU twins of ladder/include run in the emulator with the number of each element as its value.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ladder.core.contract.dtypes import DTYPES
from ladder.core.contract.launch_plan import Launch
from ladder.core.contract.rung_file import Rung
from ladder.core.emulator.emulated import Emulated

MMA = """
#include "mma.cuh"

extern "C" __global__ void probe(
    unsigned* a_out,                 // (32, 4) the registers of each lane
    unsigned* b_out,                 // (32, 2)
    float* d_out,                    // (32, 4)
    const unsigned short* a_in,      // (16, 16) rows, k
    const unsigned short* b_in) {    // (8, 16)  columns, k
    __shared__ __align__(16) unsigned short tile_a[256], tile_b[128];
    int lane = threadIdx.x;
    for (int i = lane; i < 256; i += 32) tile_a[i] = a_in[i];
    for (int i = lane; i < 128; i += 32) tile_b[i] = b_in[i];
    __syncthreads();
    unsigned a[4], b[2];
    float d[4] = {};
    ldmatrix_x4(a, tile_a + lane % 16 * 16 + lane / 16 * 8);
    ldmatrix_x2(b, tile_b + lane % 8 * 16 + lane / 8 % 2 * 8);
    mma_m16n8k16_bf16(d, a, b);
    for (int i = 0; i < 4; i++) a_out[lane * 4 + i] = a[i];
    for (int i = 0; i < 2; i++) b_out[lane * 2 + i] = b[i];
    for (int i = 0; i < 4; i++) d_out[lane * 4 + i] = d[i];
}
"""

MMA_TF32 = """
#include "mma_tf32.cuh"

extern "C" __global__ void probe(
    unsigned* a_out,          // (32, 4) the registers of each lane
    unsigned* b_out,          // (32, 2)
    float* d_out,             // (32, 4)
    const float* a_in,        // (16, 8) rows, k
    const float* b_in) {      // (8, 8)  columns, k
    __shared__ __align__(16) float tile_a[128], tile_b[64];
    int lane = threadIdx.x;
    for (int i = lane; i < 128; i += 32) tile_a[i] = a_in[i];
    for (int i = lane; i < 64; i += 32) tile_b[i] = b_in[i];
    __syncthreads();
    unsigned a[4], b[2];
    float d[4] = {};
    ldmatrix_x4(a, tile_a + lane % 16 * 8 + lane / 16 * 4);
    ldmatrix_x2(b, tile_b + lane % 8 * 8 + lane / 8 % 2 * 4);
    mma_m16n8k8_tf32(d, a, b);
    for (int i = 0; i < 4; i++) a_out[lane * 4 + i] = a[i];
    for (int i = 0; i < 2; i++) b_out[lane * 2 + i] = b[i];
    for (int i = 0; i < 4; i++) d_out[lane * 4 + i] = d[i];
}
"""

WGMMA = """
#include "hopper.cuh"

extern "C" __global__ void probe(
    unsigned short* tile_out,                       // (64, 64) the bytes of a tile, as they lie
    float* d_out,                                   // (128, 32) the accumulators of each thread
    const __grid_constant__ TensorMap a_tiles,      // of a (64, 64) matrix
    const __grid_constant__ TensorMap b_tiles) {    // of a (64, 64) matrix
    __shared__ __align__(1024) unsigned short a[64 * 64];
    __shared__ __align__(1024) unsigned short b[64 * 64];
    __shared__ Mbarrier full;
    if (threadIdx.x == 0) mbarrier_init(&full, 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_expect(&full, sizeof a + sizeof b);
        tma_load_2d(a, &a_tiles, &full, 0, 0);
        tma_load_2d(b, &b_tiles, &full, 0, 0);
    }
    mbarrier_wait(&full, 0);
    float d[32] = {};
    wgmma_fence();
    wgmma_m64k16_bf16<64, TRANSPOSED>(d, a, b);
    wgmma_commit();
    wgmma_wait<0>(d);
    for (int i = 0; i < 32; i++) d_out[threadIdx.x * 32 + i] = d[i];
    for (int i = threadIdx.x; i < 64 * 64; i += 128) tile_out[i] = a[i];
}
"""

WGMMA_REGISTERS = """
#include "hopper.cuh"

extern "C" __global__ void probe(
    float* d_out,                                   // (128, 32) the accumulators of each thread
    const unsigned* a_in,                           // (128, 4) the registers of each thread
    const __grid_constant__ TensorMap b_tiles) {    // of a (64, 64) matrix
    __shared__ __align__(1024) unsigned short b[64 * 64];
    __shared__ Mbarrier full;
    if (threadIdx.x == 0) mbarrier_init(&full, 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_expect(&full, sizeof b);
        tma_load_2d(b, &b_tiles, &full, 0, 0);
    }
    mbarrier_wait(&full, 0);
    unsigned a[1][4];
    for (int i = 0; i < 4; i++) a[0][i] = a_in[threadIdx.x * 4 + i];
    float d[32] = {};
    wgmma_pin(d), wgmma_pin(a);
    wgmma_fence();
    wgmma_m64k16_bf16_registers<64>(d, a[0], b);
    wgmma_commit();
    wgmma_wait<0>(d);
    for (int i = 0; i < 32; i++) d_out[threadIdx.x * 32 + i] = d[i];
}
"""
LAUNCH = {"launch": ("probe<<<1, 32>>>",)}


def rung(source: str) -> Rung:
    """A probe as the emulator takes it."""
    return Rung("probe", "a probe", Path(__file__).with_name("probe.cu"), source, LAUNCH)


def bfloat16(values: np.ndarray) -> np.ndarray:
    """The bits of whole numbers up to 256, which bfloat16 holds exactly."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


class Fragments(NamedTuple):
    """The element that each lane has in each half register: its number in the matrix.

    a  (32, 8) of A (16, 16): row * 16 + k
    b  (32, 4) of B (16, 8): column * 16 + k
    d  (32, 4) of D (16, 8): row * 8 + column

    addresses  (32) the offset in A, in bytes, that each lane passes to `ldmatrix`
    """

    a: np.ndarray
    b: np.ndarray
    d: np.ndarray
    addresses: np.ndarray


@functools.cache
def mma_fragments() -> Fragments:
    """What `ldmatrix` hands to the lanes, and where `mma.sync` leaves the result."""
    a, b, _ = _run_mma(np.arange(256, dtype=np.uint16), np.arange(128, dtype=np.uint16))
    left, right = np.zeros((16, 16)), np.zeros((8, 16))
    left[:, 0], right[:, 0] = 8 * np.arange(16), 1  # D = 8 * row + column
    left[:, 1], right[:, 1] = 1, np.arange(8)
    _, _, d = _run_mma(bfloat16(left), bfloat16(right))
    return Fragments(_halves(a), _halves(b), d.astype(int), _addresses())


@functools.cache
def tf32_fragments() -> Fragments:
    """The same of TF32, with A (16, 8) and B (8, 8), and an element in each register."""
    kernel = Emulated().compile(rung(MMA_TF32), {}, DTYPES["float32"])["probe"]

    def run(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        out = np.zeros((32, 4), np.float32), np.zeros((32, 2), np.float32)
        d = np.zeros((32, 4), np.float32)
        factors = (x.astype(np.float32) for x in (a, b))
        kernel(Launch("probe", (1, 1, 1), (32, 1, 1)), (*out, d, *factors))
        return (*out, d)

    a, b, _ = run(np.arange(128), np.arange(64))
    left, right = np.zeros((16, 8)), np.zeros((8, 8))
    left[:, 0], right[:, 0] = 8 * np.arange(16), 1  # D = 8 * row + column
    left[:, 1], right[:, 1] = 1, np.arange(8)
    _, _, d = run(left, right)
    return Fragments(a.astype(int), b.astype(int), d.astype(int), np.zeros(0, int))


def _halves(registers: np.ndarray) -> np.ndarray:
    """The two elements of 16 bits in each register, the low one first."""
    return np.stack([registers & 0xFFFF, registers >> 16], -1).reshape(32, -1)


def _run_mma(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return _run_mma_on(Emulated(), a, b)


def _run_mma_on(
    device: Emulated, a: np.ndarray, b: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    kernel = device.compile(rung(MMA), {}, DTYPES["bfloat16"])["probe"]
    out = np.zeros((32, 4), np.uint32), np.zeros((32, 2), np.uint32), np.zeros((32, 4), np.float32)
    kernel(Launch("probe", (1, 1, 1), (32, 1, 1)), (*out, a.copy(), b.copy()))
    return out


def _addresses() -> np.ndarray:
    """From the requests that the emulator counts: the one that reads 16 bytes of tile A."""
    device = Emulated(counting=True)
    _run_mma_on(device, np.zeros(256, np.uint16), np.zeros(128, np.uint16))
    (request,) = (
        access
        for access in device.report().accesses
        if access.buffer == "tile_a" and access.kind == "read" and access.bytes == 16
    )
    return np.array([request.offsets[request.lanes.index(lane)] for lane in range(32)])


class Warpgroup(NamedTuple):
    """What TMA and `wgmma` do, for a tile of 64 x 64 elements of 16 bits.

    tile  (64, 64) the number (row * 64 + column) of the element at each place of shared memory
    row   (128, 32) of the element that each thread has in each accumulator
    column
    """

    tile: np.ndarray
    row: np.ndarray
    column: np.ndarray


@functools.cache
def warpgroup() -> Warpgroup:
    """Where TMA puts the elements of a tile, and where `wgmma` leaves the result."""
    ramp, ones = np.zeros((64, 64)), np.zeros((64, 64))
    ramp[:, 0], ones[:, 0] = np.arange(64), 1
    numbers = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64)
    tile, _ = _run_wgmma(numbers, numbers)
    _, row = _run_wgmma(bfloat16(ramp), bfloat16(ones))
    _, column = _run_wgmma(bfloat16(ones), bfloat16(ramp))
    return Warpgroup(tile.astype(int), row.astype(int), column.astype(int))


class Operand(NamedTuple):
    """Which element of a tile of 64 x 64 each element of A (64, 16) is, in the first step of
    `wgmma`: its row and its column in the tile, by (m, k)."""

    row: np.ndarray
    column: np.ndarray


@functools.cache
def operand(mn_major: bool) -> Operand:
    """What `wgmma` takes for A from a tile that is K-major or MN-major (transposed)."""
    pick = np.zeros((64, 64))
    pick[:16, :16] = np.eye(16)  # D[m, n] = A[m, n] for the first 16 columns n
    found = warpgroup()
    parts = []
    for values in np.indices((64, 64)):
        _, d = _run_wgmma(bfloat16(values), bfloat16(pick), mn_major)
        matrix = np.zeros((64, 64), int)
        matrix[found.row, found.column] = d
        parts.append(matrix[:, :16])
    return Operand(*parts)


@functools.cache
def register_operand() -> tuple[np.ndarray, np.ndarray]:
    """Of each element of A (64, 16) that `wgmma` takes from registers: the thread of the warpgroup
    that holds it, and in which half register, 0 to 7."""
    found, device = warpgroup(), Emulated()
    kernel = device.compile(rung(WGMMA_REGISTERS), {}, DTYPES["bfloat16"])["probe"]
    pick = device.empty((64, 64), np.dtype(np.uint16))
    pick[...] = bfloat16(np.eye(64, 64))  # D[m, n] = A[m, n] for the first 16 columns n
    thread, half = np.indices((128, 8))
    parts = []
    for values in (thread, half):
        a = bfloat16(values).reshape(128, 8).view(np.uint32)  # two halves are a register
        d = np.zeros((128, 32), np.float32)
        launch = Launch("probe", (1, 1, 1), (128, 1, 1))
        kernel(launch, (d, a.copy(), device.tensor_map(pick, (64, 64))))
        matrix = np.zeros((64, 64), int)
        matrix[found.row, found.column] = d
        parts.append(matrix[:, :16])
    return parts[0], parts[1]


def _run_wgmma(
    a: np.ndarray, b: np.ndarray, mn_major: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    device = Emulated()
    defines = {"TRANSPOSED": int(mn_major)}
    kernel = device.compile(rung(WGMMA), defines, DTYPES["bfloat16"])["probe"]
    tile, d = np.zeros((64, 64), np.uint16), np.zeros((128, 32), np.float32)
    operands = [device.empty((64, 64), np.dtype(np.uint16)) for _ in range(2)]
    operands[0][...], operands[1][...] = a, b
    maps = [device.tensor_map(operand, (64, 64)) for operand in operands]
    kernel(Launch("probe", (1, 1, 1), (128, 1, 1)), (tile, d, *maps))
    return tile, d
