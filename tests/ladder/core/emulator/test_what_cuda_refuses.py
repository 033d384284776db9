"""What nvcc does not compile, the emulator does not compile either: it names the reader's line, and
says what to write instead."""

import numpy as np
import pytest

from ladder.core.common.errors import CompileError, LadderError
from ladder.core.emulator.emulated import Emulated
from tests.ladder.emulation import array, run, rung, zeros

pytestmark = pytest.mark.emulator

CONSTANT = "the size of an array must be a constant, .* extern __shared__"


def compile_statement(folder, statement):
    source = f"""\
#include <cuda_fp16.h>
__device__ void helper(float* p, int n) {{
    {statement};
}}
extern "C" __global__ void k(float* out) {{
    helper(out, 4);
}}
"""
    kernel = rung(folder, source)
    return Emulated().compile(kernel, {"N": 4}, np.dtype(np.float32))


@pytest.mark.parametrize(
    "statement, advice",
    [
        ("atomicMax(p, 1.0f)", "CUDA has atomicMax for int, unsigned, .* a loop of atomicCAS"),
        ("atomicSub(p, 1.0f)", "CUDA has atomicSub for int, unsigned, and for other types"),
        ("atomicAdd((size_t*)p, (size_t)1)", "CUDA has atomicAdd for .* unsigned long long,"),
        ("atomicCAS(p, 0.0f, 1.0f)", "CUDA has atomicCAS for .*: pass the address of other types"),
        ("atomicMin_block(p, 1.0f)", "CUDA has atomicMin for int"),
        ("__shfl_sync(~0u, make_float2(1, 2), 0)", "shuffle the elements of a structure one by"),
        ("__shfl_xor_sync(~0u, p, 1)", "a shuffle moves a number of at most 8 bytes"),
        ("float a[blockDim.x]; a[0] = *p", CONSTANT),
        ("float a[n]; a[0] = *p", CONSTANT),
        ("__shared__ float a[2][blockDim.x]; a[0][0] = *p", CONSTANT),
        ("__shared__ int a = 5; *p = a", "shared memory has no initial value: 'int a = 5'; let a"),
        ("threadIdx.x = 1", "read-only|not assignable|const"),
    ],
)
def test_it_does_not_compile_and_the_readers_own_line_is_named(tmp_path, statement, advice):
    with pytest.raises(LadderError, match=rf"kernel\.cu:3:.*({advice})") as caught:
        compile_statement(tmp_path, statement)
    assert "static assertion" not in str(caught.value)
    if isinstance(caught.value, CompileError):
        assert f"    3 |     {statement};" in str(caught.value)


def test_a_function_of_cuda_that_the_emulator_lacks_is_not_said_to_be_none(tmp_path):
    with pytest.raises(CompileError, match=r"kernel\.cu:3:.*__dp4a.*emulator"):
        compile_statement(tmp_path, "*p = __dp4a(1, 2, 3)")


@pytest.mark.parametrize(
    "statement",
    [
        "const int size = 4; float a[size]; a[0] = *p",
        "__shared__ float a[N >= 4 ? 1 : 2]; a[0] = *p",
        "dim3 t = threadIdx, size = blockDim; *p = t.x + size.y",
        "__builtin_assume(n > 0); *p = clock() != 0",
        "atomicAdd_system(p, 1.0f); atomicCAS_block((int*)p, 0, 1)",
    ],
)
def test_what_cuda_compiles_does_compile(tmp_path, statement):
    compile_statement(tmp_path, statement)


@pytest.mark.parametrize("kind, dtype", [("__half", np.float16), ("__nv_bfloat16", None)])
def test_atomic_add_of_a_pair_of_16_bit_numbers(tmp_path, kind, dtype):
    pair = "__half2" if dtype else "__nv_bfloat162"
    make = "__floats2half2_rn" if dtype else "__floats2bfloat162_rn"
    source = f"""\
#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void k(float* out, {kind}* sums) {{
    atomicAdd(({pair}*)sums + threadIdx.x % 2, {make}(1.0f, 2.0f));
    __syncthreads();
    if (threadIdx.x < 4) out[threadIdx.x] = sums[threadIdx.x];
}}
"""
    out = zeros(4)
    run(Emulated(), tmp_path, source, 1, 64, out, zeros(4, dtype=dtype or np.uint16))
    assert out.tolist() == [32, 64, 32, 64]


@pytest.mark.parametrize("warp", (32, 64))
def test_match_finds_the_lanes_of_the_mask_with_the_same_value(tmp_path, warp):
    source = """\
extern "C" __global__ void k(unsigned long long* out, const float* inp) {
    int i = threadIdx.x, same;
    unsigned long long all = ~0ull, even = 0x5555555555555555ull;
    out[i * 4] = __match_any_sync(all, inp[i]);
    out[i * 4 + 1] = __match_all_sync(all, i / blockDim.x, &same) + same;
    out[i * 4 + 2] = __match_all_sync(all, i, &same) + same;
    if (i % 2 == 0) out[i * 4 + 3] = __match_any_sync(even, 1ll);
}
"""
    values = np.arange(warp - 8) % 3  # the warp is a partial one
    out = zeros(len(values), 4, dtype=np.uint64)
    run(Emulated(warp=warp, seed=2), tmp_path, source, 1, len(values), out, array(values))
    existing = (1 << len(values)) - 1
    for lane, value in enumerate(values):
        same = sum(1 << other for other in range(len(values)) if values[other] == value)
        even = 0x5555555555555555 & existing if lane % 2 == 0 else 0
        assert out[lane].tolist() == [same, existing + 1, 0, even]
