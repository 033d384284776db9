"""The emulated device does what a GPU does: warps, shared memory, 16-bit types, counts."""

import errno
import os
import sys

import ml_dtypes
import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.emulator.emulated import Emulated, _warnings
from ladder.core.emulator.toolchain import Compiler, find_compiler
from tests.ladder.emulation import array, line, run, zeros

pytestmark = pytest.mark.emulator

WARPS = (32, 64)


# ---- conversions: all 65,536 patterns -----------------------------------------------------------

HALF = ("float16", "cuda_fp16.h", "__half", "half", np.float16)
BFLOAT = ("bfloat16", "cuda_bf16.h", "__nv_bfloat16", "bfloat16", ml_dtypes.bfloat16)
NARROW = pytest.mark.parametrize("narrow", (HALF, BFLOAT), ids=("float16", "bfloat16"))


@NARROW
def test_every_16_bit_pattern_widens_to_the_right_float(tmp_path, narrow):
    _, header, kind, name, dtype = narrow
    source = f"""\
#include <{header}>
extern "C" __global__ void k(float* out, const {kind}* inp) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = __{name}2float(inp[i]);
}}
"""
    patterns = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    out = zeros(1 << 16)
    run(Emulated(), tmp_path, source, 256, 256, out, array(patterns, dtype))
    expected = patterns.astype(np.float32)
    number = ~np.isnan(expected)
    assert (out.view(np.uint32)[number] == expected.view(np.uint32)[number]).all()
    assert np.isnan(out[~number]).all()


@NARROW
def test_floats_round_to_nearest_even(tmp_path, narrow):
    _, header, kind, name, dtype = narrow
    source = f"""\
#include <{header}>
extern "C" __global__ void k({kind}* out, const float* inp) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = __float2{name}(inp[i]);
}}
"""
    # All representable values, all midpoints between neighbours, and what is next to those.
    with np.errstate(invalid="ignore"):  # signalling NaN
        values = np.arange(1 << 16, dtype=np.uint16).view(dtype).astype(np.float64)
    values = np.unique(values[np.isfinite(values)])
    middles = ((values[1:] + values[:-1]) / 2).astype(np.float32)
    beyond = np.float32([65519.996, 65520, 65536, 1e6, 3.4e38, np.inf, 2**-25, 2**-26, 1e-45])
    inputs = [values.astype(np.float32), middles, beyond, -beyond]
    inputs += [np.nextafter(middles, np.float32(sign * np.inf)) for sign in (1, -1)]
    inputs = np.concatenate([*inputs, np.float32([np.nan, 0.0, -0.0])])
    inputs = np.concatenate([inputs, np.zeros(-len(inputs) % 256, np.float32)])
    out = zeros(len(inputs), dtype=dtype)
    run(Emulated(), tmp_path, source, len(inputs) // 256, 256, out, array(inputs))
    with np.errstate(over="ignore"):
        expected = inputs.astype(dtype)
    number = ~np.isnan(inputs)
    assert (out.view(np.uint16)[number] == expected.view(np.uint16)[number]).all()
    assert np.isnan(out[~number].astype(np.float32)).all()


@NARROW
def test_16_bit_arithmetic_is_rounded_once(tmp_path, narrow):
    _, header, kind, _, dtype = narrow
    source = f"""\
#include <{header}>
extern "C" __global__ void k({kind}* out, const {kind}* a, const {kind}* b, const {kind}* c) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
    out[i] = a[i] + b[i];
    out[n + i] = a[i] * b[i];
    out[2 * n + i] = a[i] / b[i];
    out[3 * n + i] = __hfma(a[i], b[i], c[i]);
    out[4 * n + i] = __hmax(a[i], b[i]);
}}
"""
    n = 1 << 14
    rng = np.random.default_rng(0)
    a, b, c = (array(rng.standard_normal(n) * 2.0 ** rng.integers(-6, 6, n), dtype) for _ in "abc")
    # Ties broken by a distant addend, which rounding twice gets wrong.
    one = np.nextafter(dtype(1), dtype(2))
    a[:2], b[:2], c[:2] = one, one, [dtype(2.0**-24), dtype(-(2.0**-24))]
    out = zeros(5, n, dtype=dtype)
    run(Emulated(), tmp_path, source, n // 256, 256, out, a, b, c)
    x, y, z = (v.astype(np.longdouble) for v in (a, b, c))
    for got, exact in zip(out, (x + y, x * y, x / y, x * y + z, np.maximum(x, y)), strict=True):
        # The nearest representable value: no neighbour is nearer, and ties go to even.
        got, exact = got[np.isfinite(got)], exact[np.isfinite(got)]
        assert len(got) > 0.9 * n
        error = abs(got.astype(np.longdouble) - exact)
        for direction in (np.inf, -np.inf):
            neighbour = np.nextafter(got, dtype(direction)).astype(np.longdouble)
            other = abs(neighbour - exact)
            assert (error <= other).all()
            assert (got.view(np.uint16)[error == other] % 2 == 0).all()


# ---- warps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("warp", WARPS)
@pytest.mark.parametrize("counting", (False, True))
def test_shuffles(tmp_path, warp, counting):
    source = """\
extern "C" __global__ void k(int* out, int width) {
    unsigned long long all = ~0ull;
    int i = threadIdx.x, n = blockDim.x;
    out[i] = __shfl_sync(all, i, 3, width);
    out[n + i] = __shfl_xor_sync(all, i, 5, width);
    out[2 * n + i] = __shfl_up_sync(all, i, 2, width);
    out[3 * n + i] = __shfl_down_sync(all, i, 2, width);
    out[4 * n + i] = (int)__shfl_xor_sync(all, (double)i, 1, width);
}
"""
    threads = 2 * warp
    for width in (w for w in (2, 8, 32, 64) if w <= warp):
        out = zeros(5, threads, dtype=np.int32)
        device = Emulated(warp=warp, seed=3, counting=counting)
        run(device, tmp_path, source, 1, threads, out, np.int32(width))
        i = np.arange(threads)
        first, last = i // width * width, i // width * width + width - 1
        assert (out[0] == first + 3 % width).all()
        assert (out[1] == np.where((i ^ 5) <= last, np.where((i ^ 5) >= first, i ^ 5, i), i)).all()
        assert (out[2] == np.where(i - 2 >= first, i - 2, i)).all()
        assert (out[3] == np.where(i + 2 <= last, i + 2, i)).all()
        assert (out[4] == (i ^ 1)).all()


@pytest.mark.parametrize("warp", WARPS)
def test_votes_and_reductions(tmp_path, warp):
    source = """\
extern "C" __global__ void k(unsigned long long* out) {
    int i = threadIdx.x;
    unsigned long long all = ~0ull, ballot = __ballot_sync(all, i % 3 == 0);
    unsigned long long even = 0x5555555555555555ull;
    out[i * 8] = ballot;
    out[i * 8 + 1] = __any_sync(all, i == 5);
    out[i * 8 + 2] = __all_sync(all, i < 70);
    out[i * 8 + 3] = __reduce_add_sync(all, (unsigned)i);
    out[i * 8 + 4] = __reduce_max_sync(all, -i) + 1000;
    if (i % 2 == 0) out[i * 8 + 5] = __reduce_add_sync(even, (unsigned)i);
    out[i * 8 + 6] = __activemask();
    out[i * 8 + 7] = __syncthreads_count(i % 5 == 0);
}
"""
    threads = 3 * warp // 2  # the second warp is a partial one
    out = zeros(threads, 8, dtype=np.uint64)
    run(Emulated(warp=warp, seed=1), tmp_path, source, 1, threads, out)
    for first, last in ((0, warp), (warp, threads)):
        lanes = range(first, last)
        ballot = sum(1 << (i - first) for i in lanes if i % 3 == 0)
        existing = np.uint64((1 << (last - first)) - 1)
        for i in lanes:
            assert out[i, 0] == ballot
            assert out[i, 1] == (first <= 5 < last)
            assert out[i, 2] == (last <= 70)
            assert out[i, 3] == sum(lanes)
            assert out[i, 4] == 1000 - first
            assert out[i, 5] == (sum(range(first, last, 2)) if i % 2 == 0 else 0)
            assert int(out[i, 6]) >> (i - first) & 1 and out[i, 6] & ~existing == 0
            assert out[i, 7] == len(range(0, threads, 5))


@pytest.mark.parametrize("counting", (False, True))
@pytest.mark.parametrize("seed", (0, 3))
def test_the_lanes_of_a_branch_are_active_together(tmp_path, counting, seed):
    """As in an atomic that a warp does once for all its lanes."""
    source = """\
extern "C" __global__ void k(unsigned* out, unsigned* count, const float* inp) {
    unsigned lane = threadIdx.x % 32;
    if (inp[threadIdx.x] > 0) {
        unsigned active = __activemask(), first = __ffs(active) - 1, base = 0;
        if (lane == first) base = atomicAdd(count, __popc(active));
        base = __shfl_sync(active, base, first);
        out[base + __popc(active & ((1u << lane) - 1))] = threadIdx.x;
    }
}
"""
    inp = array(np.random.default_rng(0).standard_normal(96))
    out, count = zeros(96, dtype=np.uint32), zeros(1, dtype=np.uint32)
    run(Emulated(counting=counting, seed=seed), tmp_path, source, 1, 96, out, count, inp)
    assert count[0] == (inp > 0).sum()
    assert sorted(out[: count[0]]) == np.flatnonzero(inp > 0).tolist()


def test_shuffle_from_a_lane_that_takes_no_part_is_visible(tmp_path):
    source = """\
extern "C" __global__ void k(float* out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_down_sync(0xffff, 1.0f, 8);
}
"""
    out = zeros(16)
    run(Emulated(), tmp_path, source, 1, 32, out)
    assert (out[:8] == 1).all() and np.isnan(out[8:]).all()


# ---- blocks --------------------------------------------------------------------------------------


def test_grid_and_block_of_three_dimensions(tmp_path):
    source = """\
extern "C" __global__ void k(int* out) {
    int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    int threads = blockDim.x * blockDim.y * blockDim.z;
    atomicAdd(&out[block * threads + thread], 1 + threadIdx.z + 10 * blockIdx.y);
}
"""
    out = zeros(2, 3, 4, 5, 6, 7, dtype=np.int32)
    run(Emulated(seed=4), tmp_path, source, (4, 3, 2), (7, 6, 5), out)
    z = np.arange(5)[:, None, None] + 10 * np.arange(3)[:, None, None, None, None]
    assert (out == 1 + z).all()


@pytest.mark.parametrize("counting", (False, True))
def test_atomics(tmp_path, counting):
    source = """\
extern "C" __global__ void k(float* sum, int* ints, unsigned long long* big, double* d) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(sum, 0.5f);
    atomicAdd(&ints[0], 1);
    atomicMax(&ints[1], i);
    atomicMin(&ints[2], -i);
    atomicOr(&ints[3], 1 << (i % 8));
    if (atomicCAS(&ints[4], 0, 1) == 0) atomicExch(&ints[5], i + 1);
    atomicInc((unsigned*)&ints[6], 9);
    atomicSub(&ints[7], 2);
    atomicAdd(big, 1ull << 32);
    atomicAdd(d, 0.25);
}
"""
    total = 8 * 64
    s, ints = zeros(1), zeros(8, dtype=np.int32)
    big, d = zeros(1, dtype=np.uint64), zeros(1, dtype=np.float64)
    device = Emulated(counting=counting, seed=2, workers=2)
    run(device, tmp_path, source, 8, 64, s, ints, big, d)
    assert s[0] == total / 2
    assert ints[:5].tolist() == [total, total - 1, 1 - total, 255, 1]
    assert 1 <= ints[5] <= total
    assert ints[6:].tolist() == [total % 10, -2 * total]
    assert big[0] == total << 32 and d[0] == total / 4
    assert device.report().problems == []


def test_constants_and_local_arrays(tmp_path):
    source = """\
__constant__ float table[4] = {1, 10, 100, 1000};
struct Pair { float a; int b; };
extern "C" __global__ void k(float* out, Pair pair) {
    float local[4];
    for (int i = 0; i < 4; i++) local[i] = table[(i + threadIdx.x) % 4] * pair.a + pair.b;
    out[threadIdx.x] = local[threadIdx.x % 3];
}
"""
    pair = np.array([(2.0, 5)], dtype=[("a", "f4"), ("b", "i4")])[0]
    for counting in (False, True):
        out = zeros(4)
        run(Emulated(counting=counting), tmp_path, source, 1, 4, out, pair)
        assert out.tolist() == [7, 205, 7, 2005]


def test_a_bool_and_a_char_are_integers(tmp_path):
    source = """\
extern "C" __global__ void k(float* out, bool negative, signed char value) {
    out[threadIdx.x] = negative ? -value : value;
}
"""
    for negative in (False, True):
        out = zeros(2)
        run(Emulated(), tmp_path, source, 1, 2, out, np.bool_(negative), np.int8(-3))
        assert out.tolist() == [3 if negative else -3] * 2


@pytest.mark.parametrize("expression, expected", [
    ("__popc(0xf0f0u)", 8), ("__clz(1)", 31), ("__clz(0)", 32), ("__ffs(8)", 4),
    ("__umulhi(0x80000000u, 6u)", 3), ("__float_as_uint(1.0f)", 0x3F800000),
    ("__uint_as_float(0x40490fdb)", np.float32(np.pi)), ("__brev(1)", 2**31),
    ("__byte_perm(0x33221100, 0x77665544, 0x5140)", 0x55114400),
    ("rsqrtf(4.0f)", 0.5), ("__fdividef(1.0f, 4.0f)", 0.25), ("__expf(0.0f)", 1),
    ("fmaf(2.0f, 3.0f, 4.0f)", 10), ("max(1.0f, __int_as_float(0x7fffffff))", 1),
    ("min(3, 2u)", 2), ("tanhf(0.0f)", 0), ("__saturatef(7.0f)", 1),
    ("__float2int_rn(2.5f)", 2), ("__float2int_rz(-2.5f)", -2), ("sqrt(2.0f) * sqrt(2.0f)", 2),
    ("__float2int_rz(3e9f)", 2**31 - 1), ("__float2int_rn(-3e9f)", -(2**31)),
    ("__float2int_rd(__int_as_float(0x7fffffff))", 0), ("__float2uint_rn(-5.0f)", 0),
    ("__float2uint_rz(3e9f)", 3e9), ("__float2uint_rz(5e9f)", 2**32 - 1),
    ("exp10f(2.0f)", 100), ("sinpif(0.5f)", 1), ("cospif(3.0f)", -1), ("rcbrtf(8.0f)", 0.5),
    ("normcdff(-1.0f)", 0.15865525393), ("normcdf(1.0)", 0.84134474607),
    ("rhypotf(3.0f, 4.0f)", 0.2), ("norm3df(2.0f, 3.0f, 6.0f)", 7),
    ("__mul24(-3, 5)", -15), ("__umul24(0x1000003u, 5u)", 15),
])  # fmt: skip
def test_intrinsics(tmp_path, expression, expected):
    source = f'extern "C" __global__ void k(double* out) {{ out[0] = {expression}; }}\n'
    out = zeros(1, dtype=np.float64)
    run(Emulated(), tmp_path, source, 1, 1, out)
    assert out[0] == pytest.approx(float(expected), rel=2e-7)


# ---- order ---------------------------------------------------------------------------------------

ORDER = """\
extern "C" __global__ void k(int* out, int* next) {
    __syncwarp();
    out[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(next, 1);
}
"""


def order(tmp_path, seed):
    out = zeros(4 * 64, dtype=np.int32)
    run(Emulated(seed=seed, workers=1), tmp_path, ORDER, 4, 64, out, zeros(1, dtype=np.int32))
    return out.tolist()


def test_order_follows_from_the_seed(tmp_path):
    assert order(tmp_path, 0) == list(range(256))
    orders = [order(tmp_path, seed) for seed in (1, 2, 1)]
    assert orders[0] == orders[2] != orders[1]
    for shuffled in orders:
        assert sorted(shuffled) == list(range(256))
        assert shuffled[:64] != sorted(shuffled[:64])  # threads
        assert shuffled != sorted(shuffled, key=lambda i: i // 64)  # blocks


# ---- counts --------------------------------------------------------------------------------------

PATTERNS = """\
extern "C" __global__ void k(float* out, const float* inp, int stride, int pad) {
    __shared__ float tile[32 * 33];
    int i = threadIdx.x;
    float v = inp[i];                            // whole sectors
    v += inp[i * stride];                        // strided
    v += inp[5];                                 // broadcast
    v += inp[i + 1];                             // misaligned
    float4 q = ((const float4*)inp)[i];          // vector
    v += q.x + q.y + q.z + q.w;
    for (int r = 0; r < 32; r++) tile[r * (32 + pad) + i] = v + r;  // by row
    __syncwarp();
    float sum = 0;
    for (int r = 0; r < 32; r++) sum += tile[i * (32 + pad) + r];   // by column
    if (i < 8) out[i] = sum;                     // a quarter of a warp
    atomicAdd(&out[8], 1.0f);                    // atomic
}
"""


def count(report, mark):
    (counted,) = [x for x in report.lines if x.line == line(PATTERNS, "// " + mark)]
    return counted


def test_sectors_and_wavefronts(tmp_path):
    device = Emulated(counting=True)
    inp, out = array(np.arange(1024)), zeros(32)
    run(device, tmp_path, PATTERNS, 1, 32, out, inp, np.int32(8), np.int32(0))
    report = device.report()
    assert report.problems == []
    for mark, sectors, ideal, size, lanes in [
        ("whole sectors", 4, 4, 4, 32),
        ("strided", 32, 4, 4, 32),
        ("broadcast", 1, 1, 4, 32),
        ("misaligned", 5, 4, 4, 32),
        ("vector", 16, 16, 16, 32),
        ("a quarter of a warp", 1, 1, 4, 8),
        ("atomic", 1, 1, 4, 32),
    ]:
        x = count(report, mark)
        assert (x.space, x.requests, x.bytes, x.lanes) == ("global", 1, size, lanes), mark
        assert (x.sectors, x.ideal_sectors) == (sectors, ideal), mark
        assert x.buffer == ("out" if mark in ("a quarter of a warp", "atomic") else "inp")
        assert x.file == str(tmp_path / "kernel.cu") and x.kernel == "k"
    assert count(report, "atomic").kind == "atomic"
    row, column = count(report, "by row"), count(report, "by column")
    assert (row.space, row.buffer, row.kind) == ("shared", "tile", "write")
    assert (row.requests, row.wavefronts, row.ideal_wavefronts) == (32, 32, 32)
    assert (column.requests, column.wavefronts, column.ideal_wavefronts) == (32, 32 * 32, 32)

    device.reset_report()
    assert device.report().lines == []
    run(device, tmp_path, PATTERNS, 1, 32, out, inp, np.int32(8), np.int32(1))
    assert count(device.report(), "by column").wavefronts == 32  # one column of padding cures it


def test_accesses_say_which_lane_touches_what(tmp_path):
    device = Emulated(counting=True, trace=2)
    args = zeros(32), array(np.arange(1024)), np.int32(8), np.int32(0)
    run(device, tmp_path, PATTERNS, 1, 32, *args)
    accesses = device.report().accesses
    (strided,) = [x for x in accesses if x.line == line(PATTERNS, "// strided")]
    assert strided.offsets == tuple(range(0, 32 * 32, 32)) and strided.lanes == tuple(range(32))
    assert (strided.buffer, strided.bytes, strided.block, strided.warp) == ("inp", 4, (0, 0, 0), 0)
    columns = [x for x in accesses if x.line == line(PATTERNS, "// by column")]
    assert [x.offsets[:2] for x in columns] == [(0, 128), (4, 132)]
    (quarter,) = [x for x in accesses if x.line == line(PATTERNS, "// a quarter")]
    assert quarter.lanes == tuple(range(8))


# ---- compilers and the cache ---------------------------------------------------------------------


def test_without_a_compiler_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    find_compiler.cache_clear()
    none = r"^(?!.*CXX).*C\+\+ compiler.* g\+\+ or clang"
    try:
        with pytest.raises(LadderError, match=none):
            find_compiler()
        for wrong in ("no-such-compiler", "g++ 'x", "''"):
            monkeypatch.setenv("CXX", wrong)
            with pytest.raises(LadderError) as refused:
                find_compiler()
            assert wrong in str(refused.value)
        monkeypatch.setenv("CXX", " ")  # as if it were not set
        with pytest.raises(LadderError, match=none):
            find_compiler()
    finally:
        find_compiler.cache_clear()


def test_a_full_disk_is_no_fault_of_the_kernel(tmp_path):
    printed = f"as: can't write to 0.o: '{os.strerror(errno.ENOSPC)}'"
    compiler = Compiler((sys.executable, "-c", f"raise SystemExit({printed!r})"), "")
    with pytest.raises(LadderError, match=r"disk .*TMPDIR.*KERNEL_LADDER_CACHE"):
        compiler.build([], tmp_path / "kernel.so")


def test_device_can_be_used_after_fork(tmp_path):
    before = order(tmp_path, 1)
    child = os.fork()
    if child == 0:
        os._exit(0 if order(tmp_path, 1) == before else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_an_edited_header_is_compiled_again_in_the_same_process(tmp_path):
    device, out = Emulated(), zeros(1)
    source = '#include "value.cuh"\nextern "C" __global__ void k(float* out) { *out = VALUE; }\n'
    for value in (1.0, 2.0):
        (tmp_path / "value.cuh").write_text(f"#define VALUE {value}f\n")
        run(device, tmp_path, source, 1, 1, out)
        assert out[0] == value


def test_a_guess_about_a_variable_of_the_compilers_own_is_no_warning(tmp_path):
    path = tmp_path / "mine.cu"
    said = "warning: ‘{}’ {} used uninitialized [-W{}uninitialized]"
    log = [
        f"{path}:37:9: " + said.format(name, verb, option)
        for name in ("xs", "xs$", "xs$4")
        for verb, option in (("is", ""), ("may be", "maybe-"))
    ]
    warnings = _warnings("\n".join(log), path)
    names = [line.split("‘")[1].split("’")[0] for line in warnings]
    assert names == ["xs", "xs", "xs$", "xs$4"]
