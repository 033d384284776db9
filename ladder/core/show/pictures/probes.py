"""A small kernel that writes down what `ldmatrix` and `mma.sync` do to known elements.

Their CPU twins (ladder/include) run in the emulator with the number of each element as its value.
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
    """

    a: np.ndarray
    b: np.ndarray
    d: np.ndarray


@functools.cache
def mma_fragments() -> Fragments:
    """What `ldmatrix` hands to the lanes, and where `mma.sync` leaves the result."""
    a, b, _ = _run_mma(np.arange(256, dtype=np.uint16), np.arange(128, dtype=np.uint16))
    left, right = np.zeros((16, 16)), np.zeros((8, 16))
    left[:, 0], right[:, 0] = 8 * np.arange(16), 1  # D = 8 * row + column
    left[:, 1], right[:, 1] = 1, np.arange(8)
    _, _, d = _run_mma(bfloat16(left), bfloat16(right))
    return Fragments(_halves(a), _halves(b), d.astype(int))


def _halves(registers: np.ndarray) -> np.ndarray:
    """The two elements of 16 bits in each register, the low one first."""
    return np.stack([registers & 0xFFFF, registers >> 16], -1).reshape(32, -1)


def _run_mma(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    kernel = Emulated().compile(rung(MMA), {}, DTYPES["bfloat16"])["probe"]
    out = np.zeros((32, 4), np.uint32), np.zeros((32, 2), np.uint32), np.zeros((32, 4), np.float32)
    kernel(Launch("probe", (1, 1, 1), (32, 1, 1)), (*out, a.copy(), b.copy()))
    return out
