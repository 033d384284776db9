"""Planted bugs: the emulator names the kind, the line, the block and the thread of each."""

import faulthandler
import re
import subprocess
import sys

import numpy as np
import pytest

from ladder.core.common.errors import CompileError, LadderError
from ladder.core.emulator.emulated import Emulated
from ladder.core.emulator.kernel import KernelError
from ladder.core.emulator.toolchain import find_compiler
from tests.ladder.emulation import array, line, run, rung, whole, zeros

pytestmark = pytest.mark.emulator

THREADS = 64

MISSING_BARRIER = """\
    __shared__ float tile[64];
    tile[threadIdx.x] = inp[threadIdx.x];  // OTHER
    out[threadIdx.x] = tile[63 - threadIdx.x];  // BUG
"""

STALE_TILE = """\
    __shared__ float tile[64];
    float sum = 0.0f;
    for (int step = 0; step < 2; step++) {
        tile[threadIdx.x] = inp[step * 64 + threadIdx.x];  // BUG
        __syncthreads();
        sum += tile[63 - threadIdx.x];  // OTHER
        // here a barrier is missing, before the tile is overwritten
    }
    out[threadIdx.x] = sum;
"""

MISSING_SYNCWARP = """\
    __shared__ float tile[64];
    tile[threadIdx.x] = inp[threadIdx.x];  // OTHER
    __shfl_xor_sync(~0u, 0.0f, 1);  // orders no memory
    out[threadIdx.x] = tile[threadIdx.x ^ 1];  // BUG
"""

BLOCKS_RACE = """\
    float* sum = out + blockIdx.x / 2;
    if (threadIdx.x == 0) *sum += inp[blockIdx.x];  // BUG OTHER
"""

PLAIN_READ_OF_ATOMIC = """\
    atomicAdd(&out[0], inp[threadIdx.x]);  // OTHER
    if (threadIdx.x == 40) out[1] = out[0];  // BUG
"""

MISSING_FENCE = """\
    int* counter = (int*)(out + 32);
    if (threadIdx.x == 0) {
        out[blockIdx.x] = inp[blockIdx.x];  // OTHER
        // here a __threadfence is missing
        if (atomicAdd(counter, 1) % 2 == 1) out[63] = out[0] + out[1];  // BUG
    }
"""

# One statement copies or fills what other threads use.
MEMCPY = """\
    memcpy(out + threadIdx.x % 32, inp + threadIdx.x % 32, 3);  // BUG OTHER
"""
MEMSET = """\
    __shared__ float tile[64];
    if (threadIdx.x == 63) memset(tile, 0, sizeof tile);  // OTHER
    out[threadIdx.x] = tile[threadIdx.x];  // BUG
"""

COUNTER = "int* counter = (int*)(out + 32);", "static __device__ int count; int* counter = &count;"

RACES = {  # and what is to be replaced by what, so that there is none
    "missing barrier": (MISSING_BARRIER, "  // OTHER", "  __syncthreads();"),
    "stale tile": (STALE_TILE, "// here a barrier is missing", "__syncthreads();  //"),
    "missing syncwarp": (MISSING_SYNCWARP, "__shfl_xor_sync(~0u, 0.0f, 1)", "__syncwarp()"),
    "two blocks": (BLOCKS_RACE, "*sum += inp[blockIdx.x]", "atomicAdd(sum, inp[blockIdx.x])"),
    "plain read of an atomic": (PLAIN_READ_OF_ATOMIC, "  // OTHER", "  __syncthreads();"),
    "a variable of the device": (
        MISSING_BARRIER.replace("__shared__", "static __device__"),
        "  // OTHER",
        "  __syncthreads();",
    ),
    "memcpy": (MEMCPY, " % 32", ""),
    "the compiler's memcpy": (MEMCPY.replace("mem", "__builtin_mem"), " % 32", ""),
    "memset": (MEMSET, "  // OTHER", "  __syncthreads();"),
    "missing fence": (MISSING_FENCE, "// here a __threadfence is missing", "__threadfence();"),
    "missing fence, a counter of the device": (
        MISSING_FENCE.replace(*COUNTER),
        "// here a __threadfence is missing",
        "__threadfence();",
    ),
}


def problems(device, folder, source, grid=1, block=THREADS, args=None, shared=0):
    args = args or (zeros(THREADS), array(np.arange(2 * THREADS)))
    with pytest.raises(KernelError) as caught:
        run(device, folder, source, grid, block, *args, shared=shared)
    return caught.value.problems


@pytest.mark.parametrize("name", RACES)
@pytest.mark.parametrize("seed", (0, 5))
def test_race(tmp_path, name, seed):
    source, wrong, right = RACES[name]
    grid = 2 if "blockIdx" in source else 1
    every = problems(Emulated(counting=True, seed=seed), tmp_path, source, grid)
    races = [problem for problem in every if problem.kind == "race"]
    assert races
    bug, other = line(source), line(source, "OTHER")
    for problem in set(every) - set(races):  # what comes too early reads what is not there yet
        assert problem.kind == "uninitialised shared memory"
        assert problem.line in (bug, other)
    for problem in races:  # either of the two may come first
        assert problem.file == str(tmp_path / "kernel.cu")
        assert {problem.line, problem.other[1]} == {bug, other}
        assert f"kernel.cu:{problem.line}:" in problem.message
    device = Emulated(counting=True, seed=seed)
    args = (zeros(THREADS), array(np.arange(2 * THREADS)))
    run(device, tmp_path, source.replace(wrong, right), grid, THREADS, *args)
    assert device.report().problems == []


def test_vector_across_the_end_of_a_buffer(tmp_path):
    source = """\
    float4 v = *(const float4*)(inp + 60);
    *(float4*)(out + 8) = v;  // BUG
"""
    (problem,) = problems(
        Emulated(counting=True), tmp_path, source, 1, 1, (zeros(10), array(np.arange(64)))
    )
    assert (problem.kind, problem.line) == ("out of bounds", line(source))
    assert re.search("write of 16 .* out$", problem.message)


@pytest.mark.parametrize(
    "array, bytes_of_launch, names",
    [
        ("extern __shared__ float s[]", 0, "offset 0 of s, .* 0 bytes: .* launch"),
        ("extern __shared__ float s[]", 128, "offset 128 of s, .* 128 bytes$"),
        ("__shared__ float s[24]", 0, "offset 96 of s, .* 96 bytes$"),
    ],
)
def test_access_outside_of_shared_arrays_names_the_nearest(tmp_path, array, bytes_of_launch, names):
    source = f"""\
    {array};
    float* p = s;
    p[threadIdx.x] = inp[threadIdx.x];  // BUG
"""
    (problem,) = problems(Emulated(counting=True), tmp_path, source, shared=bytes_of_launch)
    assert (problem.kind, problem.line) == ("out of bounds", line(source))
    assert re.search(f"write of 4 .* {names}", problem.message), problem.message


@pytest.mark.parametrize("element, remedy", [(0, ": .* s .* __align__.16."), (1, "$")])
def test_a_misaligned_vector_in_shared_memory_says_how_to_align_the_array(
    tmp_path, element, remedy
):
    source = f"""\
    __shared__ float s[64];
    s[threadIdx.x] = inp[threadIdx.x];
    __syncthreads();
    if (threadIdx.x >= 8) return;
    float4 v = *(const float4*)(s + {element} + 4 * threadIdx.x);  // BUG
    *(float4*)(out + 4 * threadIdx.x) = v;
"""
    (problem,) = problems(Emulated(counting=True), tmp_path, source)
    assert (problem.kind, problem.line) == ("misaligned", line(source))
    assert re.search(f" 16{remedy}", problem.message), problem.message


INDICES = """\
struct Two { float at[2]; };
__device__ float last(Two two, int i) { return two.at[i]; }  // AT
extern "C" __global__ void k(float* out, const float* inp, int bug) {
    __shared__ float tile[2][64];
    for (int i = threadIdx.x; i < 128; i += 64) tile[0][i] = inp[i];  // through both rows
    __syncthreads();
    float sums[4] = {};
    for (int i = 0; i < 4 + (bug == 1); i++) sums[i] += tile[i % 2][threadIdx.x];  // SUMS
    Two pair = {sums[1], sums[0] + sums[2]};
    out[threadIdx.x] = last(pair, bug == 2 ? -1 : 1);
}
"""


@pytest.mark.skipif("clang" in find_compiler().version, reason="the hook is gcc's")
def test_index_outside_of_an_array_in_registers(tmp_path):
    device = Emulated(counting=True)
    out, inp = zeros(64), array(np.arange(128))
    arguments = (device, tmp_path, INDICES, 1, 64, out, inp)
    run(*arguments, np.int32(0))
    assert (out == inp[:64] + inp[:64]).all()
    for bug, mark, index in (
        (1, "SUMS", "index 4 .* 'float [4]'"),
        (2, "AT", "index -1 .* 'float [2]'"),
    ):
        with pytest.raises(KernelError) as caught:
            run(*arguments, np.int32(bug))
        (problem,) = caught.value.problems
        assert (problem.kind, problem.line) == ("out of bounds", line(INDICES, f"// {mark}"))
        assert re.search(index.replace("[", r"\["), problem.message)


def test_a_read_of_an_earlier_block_races_with_a_write_of_a_thread_that_reads_too(tmp_path):
    source = """\
    int i = blockIdx.x * 64 + threadIdx.x;
    out[i] += out[i + 64];  // BUG
"""
    args = zeros(192), array(np.arange(64))
    races = problems(Emulated(counting=True), tmp_path, source, grid=2, args=args)
    assert {(problem.kind, problem.line) for problem in races} == {("race", line(source))}
    assert "atomicAdd" in races[0].message


@pytest.mark.parametrize(
    "declaration",
    (
        "__shared__ float s[64];",
        "extern __shared__ float s[];",
        "float __shared__ s[64];",
        "extern float __shared__ s[];",
        "__shared__ extern float s[];",
        "int i = 0; volatile float __shared__ __align__(16) s[64], t[2];",
    ),
)
def test_uninitialised_shared_memory(tmp_path, declaration):
    source = f"""\
    {declaration}
    if (threadIdx.x != 5) s[threadIdx.x] = inp[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = s[63 - threadIdx.x];  // BUG
"""
    (problem,) = problems(Emulated(counting=True), tmp_path, source, shared=256)
    assert (problem.kind, problem.line) == ("uninitialised shared memory", line(source))
    assert problem.thread == (58, 0, 0)
    # In fast mode it is NaN, which no comparison with a reference passes.
    out = zeros(64)
    run(Emulated(), tmp_path, source, 1, 64, out, array(np.arange(64)), shared=256)
    assert np.flatnonzero(np.isnan(out)).tolist() == [58]


UNINITIALISED_VARIABLES = """\
    float sum, sums[4];
    int first;
    for (int i = 0; i < 8; i++) sum += inp[i];
    for (int i = 0; i < 8; i++) sums[i % 4] += inp[i];
    out[0] = sum;
    for (int i = 0; i < 4; i++) out[1 + i] = sums[i];
    out[5] = first;
"""


@pytest.mark.skipif(
    not find_compiler().fill(zeros=False), reason="gcc fills variables from version 12 on"
)
@pytest.mark.parametrize("counting", (False, True))
def test_a_variable_without_a_value_has_one_that_no_result_survives(tmp_path, counting):
    out, inp = zeros(6), array(np.arange(8))
    run(Emulated(counting=counting), tmp_path, UNINITIALISED_VARIABLES, 1, 1, out, inp)
    assert not (np.abs(out) < 1e7).any()  # NaN is one, too


RETURNED = """\
    if (threadIdx.x >= 60) return;
    __syncthreads();  // BUG
    out[threadIdx.x] = inp[threadIdx.x];
"""
TWO_BARRIERS = """\
    if (threadIdx.x < 32) {
        __syncthreads();  // BUG
    } else {
        out[threadIdx.x] = 1;
        __syncthreads();  // OTHER
    }
"""


@pytest.mark.parametrize("counting", (False, True))
def test_divergent_barrier(tmp_path, counting):
    (problem,) = problems(Emulated(counting=counting), tmp_path, RETURNED)
    assert (problem.kind, problem.line) == ("divergent barrier", line(RETURNED))
    assert problem.other is None
    (problem,) = problems(Emulated(counting=counting), tmp_path, TWO_BARRIERS)
    assert (problem.kind, problem.line) == ("divergent barrier", line(TWO_BARRIERS))
    assert problem.other[1] == line(TWO_BARRIERS, "OTHER")


HALF_A_WARP = """\
    float v = inp[threadIdx.x];
    if (threadIdx.x % 32 < 16) v += __shfl_xor_sync(0xffffffffu, v, 16);  // BUG
    out[threadIdx.x] = v;
"""
BARRIER_IN_HALF_A_BLOCK = """\
    if (threadIdx.x < 32) __syncthreads();
    if (threadIdx.x == 40) __syncwarp();  // BUG
"""
ENDLESS_LOOP = """\
    volatile float* flag = out;
    if (threadIdx.x == 7)
        while (*flag == 0) {  // BUG
        }
"""
ENDLESS_BARRIERS = """\
    for (int i = 0; out[1] == 0; i++) __syncthreads();  // BUG
"""
ENDLESS_ATOMICS = """\
    while (atomicCAS((int*)out, 1, 0) != 1) {}  // BUG
"""


@pytest.mark.parametrize("counting", (False, True))
@pytest.mark.parametrize("source", (HALF_A_WARP, BARRIER_IN_HALF_A_BLOCK))
def test_deadlock(tmp_path, counting, source):
    (problem,) = problems(Emulated(counting=counting), tmp_path, source)
    assert (problem.kind, problem.line) == ("deadlock", line(source))


@pytest.mark.parametrize("counting", (False, True))
@pytest.mark.parametrize(
    "statement, names",
    [
        ("if (i < 20) __ballot_sync(~0u, 1)", "mask .* lane 20, .* returned"),
        ("__shfl_sync(0xffff, i, 0)", "mask .* own lane, 16"),
        ("if (i == 3) __syncthreads(); else __syncwarp()", "mask .* lane 3, .* elsewhere"),
        ("__syncwarp(i < 16 ? 0xffffff : ~0u); __syncwarp()", "lane 16 .* another mask"),
    ],
)
def test_a_warp_operation_that_never_completes_says_what_is_wrong_with_its_mask(
    tmp_path, counting, statement, names
):
    source = f"    int i = threadIdx.x;\n    {statement};\n"
    (problem,) = problems(Emulated(counting=counting), tmp_path, source, block=32)
    assert (problem.kind, problem.line) == ("deadlock", 3)
    assert re.search(f"warp operation .* {names}", problem.message)


@pytest.mark.parametrize("counting", (False, True))
@pytest.mark.parametrize("source", (ENDLESS_LOOP, ENDLESS_BARRIERS, ENDLESS_ATOMICS))
def test_endless_loop_ends_at_the_time_limit(tmp_path, counting, source):
    every = problems(Emulated(counting=counting, time_limit=0.2), tmp_path, source, grid=3)
    assert "time limit" in {problem.kind for problem in every}
    assert all(abs(problem.line - line(source)) <= 1 for problem in every)


def test_time_that_others_have_the_processor_does_not_count(tmp_path):
    source = "    extern int usleep(unsigned);\n    usleep(300000);\n"
    run(Emulated(time_limit=0.1), tmp_path, source, 1, 1, zeros(1), zeros(1))


@pytest.mark.parametrize("counting", (False, True))
def test_failed_assertion(tmp_path, counting):
    source = """\
#include <assert.h>
extern "C" __global__ void k(float* out, const float* inp) {
    assert(inp[threadIdx.x] < 63);  // BUG
}
"""
    (problem,) = problems(Emulated(counting=counting), tmp_path, source)
    assert (problem.kind, problem.line) == ("assertion", line(source))
    assert problem.thread == (63, 0, 0)
    assert "inp[threadIdx.x] < 63" in problem.message


WILD = """\
    if (blockIdx.x == 1 && threadIdx.x == 33)
        out[1ll << 40] = 1;  // BUG
"""
NULL_POINTER = """\
    out[threadIdx.x] = inp[threadIdx.x];  // BUG
"""
DIVISION = """\
extern "C" __global__ void k(int* out, const int* inp) {
    out[0] = 7 / inp[0];  // BUG
}
"""


def test_wild_access_is_an_error_and_not_a_crash(tmp_path):
    faulthandler.enable()
    (problem,) = problems(Emulated(), tmp_path, WILD, grid=4)
    assert (problem.kind, problem.line) == ("crash", line(WILD))
    assert (problem.block, problem.thread) == ((1, 0, 0), (33, 0, 0))
    (problem,) = problems(Emulated(counting=True), tmp_path, WILD, grid=4)
    assert (problem.kind, problem.line) == ("out of bounds", line(WILD))


def test_null_pointer_and_division_by_zero(tmp_path):
    (problem,) = problems(Emulated(), tmp_path, NULL_POINTER, args=(zeros(64), None))
    assert (problem.kind, problem.line) == ("crash", line(NULL_POINTER))
    args = (zeros(1, dtype=np.int32), zeros(1, dtype=np.int32))
    (problem,) = problems(Emulated(), tmp_path, DIVISION, args=args)
    assert (problem.kind, problem.line) == ("crash", line(DIVISION))
    assert "division by zero" in problem.message


def test_faults_outside_of_kernels_still_kill(tmp_path):
    program = (
        "import ctypes, sys; sys.path[:0] = ['.', 'tests/ladder']\n"
        "from pathlib import Path\n"
        "from emulation import *\n"
        f"source = {NULL_POINTER!r}\n"
        f"run(Emulated(), Path({str(tmp_path)!r}), source, 1, 64, zeros(64), zeros(64))\n"
        "print('ran', flush=True)\n"
        "ctypes.string_at(8)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "ran\n"
    assert done.returncode < 0


@pytest.mark.parametrize(
    "bounds", ("__launch_bounds__(2 * 16) void", "void __launch_bounds__(N, 2)")
)
def test_a_block_beyond_the_launch_bounds_is_refused(tmp_path, bounds):
    source = f'extern "C" __global__ {bounds} k(float* out) {{ out[threadIdx.x] = 1; }}'
    device, out = Emulated(), zeros(64)
    run(device, tmp_path, source, 1, (8, 2, 2), out, defines={"N": 32})
    assert out.sum() == 8
    with pytest.raises(LadderError, match=r"\bk .* 33 .* __launch_bounds__ .* 32\b"):
        run(device, tmp_path, source, 1, 33, out, defines={"N": 32})


def test_wrong_argument_list(tmp_path):
    source = 'extern "C" __global__ void k(float* out, int n, float x) {}'
    out, n, x = zeros(1), np.int32(1), np.float32(1)
    device = Emulated()
    run(device, tmp_path, source, 1, 1, out, n, x)
    for args, names in [
        ((out, n), r"\bk .* 3 .* 2$"),
        ((out, np.int64(1), x), r"\bk .* 2 \(n\) .* integer of 4 .* integer of 8 "),
        ((out, x, x), r"\bk .* 2 \(n\) .* integer of 4 .* floating point of 4 "),
        ((n, n, x), r"\bk .* 1 \(out\) .* pointer of 8 .* integer of 4 "),
    ]:
        with pytest.raises(LadderError, match=names):
            run(device, tmp_path, source, 1, 1, *args)


def test_compile_error_names_the_files_own_line(tmp_path):
    source = """\
#include "portable.cuh"
extern "C" __global__ void k(float* out) {
    __shared__ float a[4],
        b[4];
    out[0] = undeclared + a[0];  // BUG
}
"""
    with pytest.raises(CompileError, match=rf"kernel\.cu:{line(source)}:.*undeclared"):
        run(Emulated(), tmp_path, source, 1, 1, zeros(1))


def test_a_missing_brace_is_named_instead_of_what_comes_after_the_file(tmp_path):
    source = 'extern "C" __global__ void k(float* out) {  // {\n    for (;;) {\n}\n'
    with pytest.raises(CompileError, match=r"kernel\.cu: 2 .* \{ .* 1 .* \}") as caught:
        run(Emulated(), tmp_path, source, 1, 1, zeros(1))
    assert "launch.h" not in str(caught.value)


def test_a_function_that_nothing_defines_is_named(tmp_path):
    source = "__device__ int f(int);\n" + whole("    out[0] = f(3);  // BUG\n")
    with pytest.raises(CompileError, match=rf":{line(source)}: undefined reference to `f\(int\)'"):
        run(Emulated(), tmp_path, source, 1, 1, zeros(1), zeros(1))


@pytest.mark.parametrize("word", ("asm", "__asm", "__asm__"))
def test_inline_ptx_is_refused(tmp_path, word):
    source = f'extern "C" __global__ void k(float* out) {{\n    {word} volatile("exit;");\n}}\n'
    with pytest.raises(LadderError, match=r"kernel\.cu:2: .*PTX.* ladder/include"):
        Emulated().compile(rung(tmp_path, source), {}, np.dtype(np.float32))


def test_shared_memory_at_file_scope_is_refused(tmp_path):
    source = 'extern __shared__ float s[];\nextern "C" __global__ void k(float* out) {}\n'
    with pytest.raises(LadderError, match=r"kernel\.cu:1: .*shared memory.* inside the kernel"):
        Emulated().compile(rung(tmp_path, source), {}, np.dtype(np.float32))
