"""Answers with host code: they run as they are, mistakes have lines, and the unknown has a name."""

import json
import re
from pathlib import Path

import pytest

from ladder.__main__ import main
from ladder.core.common.errors import LadderError
from ladder.core.contract.host_code import find_host
from ladder.core.verify import sandbox
from tests.ladder.core.verify.test_reference_file import HOST, KERNEL, RMSNORM, checked, replaced

CENTERED = """import numpy as np

def centered(A: "N") -> {"B": "N"}:
    return A - A.mean()
"""
SOLVE = """#include <iostream>
#include <limits>
__global__ void add_up(const float* from, float* sum, int n) {
    __shared__ float part[256];
    float mine = 0;
    for (int i = threadIdx.x; i < n; i += 256) mine += from[i];
    part[threadIdx.x] = mine;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (n < std::numeric_limits<int>::max() && threadIdx.x == 0) *sum += part[0] / n;
}
template <int BLOCK>
__global__ void subtract(const float* from, const float* sum, float* to, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) to[i] = from[i] - *sum;
}
// A and B are on the GPU: k<<<grid, block>>> launches
extern "C" void solve(const float* A, float* B, int N) {
    float *sum, *old = (float*)calloc(N, 4);
    constexpr int threads = 256;
    cudaMalloc((void**)&sum, sizeof(float));
    cudaMemset(sum, 0, sizeof(float));
    add_up<<<1, threads>>>(A, sum, N);
    subtract<threads><<<dim3((N + threads - 1) / threads), threads>>>(A, sum, B, N);
    if (cudaGetLastError() == cudaSuccess) std::printf("%d\\n", N);
    std::cout << "freed " << 1.5f << std::endl, free(old);
    cudaFree(sum);
}
"""
INLINE = f'''raise SystemExit("never executed")
from torch.utils.cpp_extension import load_inline
cuda = """\\
#include <torch/extension.h>
{KERNEL.partition("256>>>")[2]}{HOST}"""
load_inline("norm", "torch::Tensor forward(torch::Tensor x, torch::Tensor weight, float eps);",
            cuda_sources=cuda, functions=["forward"])
'''
FEW, SMALL = [{"N": 1}], [{"N": 2, "C": 33}]


@pytest.mark.emulator
def test_several_launches_with_memory_between_them(written):
    report = sandbox.check(written("ref.py", CENTERED), written("mine.cu", SOLVE))
    assert report.passed and any(each.dims["N"] == 513 for each in report.outcomes), report


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("old", "new", "kind", "names"),
    [
        ("        __syncthreads();\n    }", "    }", "race", "mine.cu:10: .* part "),
        ("if (i < n) to", "to", "out of bounds", "mine.cu:18: .* from,"),
        ("(N + threads - 1) / threads", "N / threads", "", r"mine.cu:27: .* \(0, 1, 1\)"),
        ("    cudaMemset(sum, 0, sizeof(float));\n", "", "", r"B\[0\] is nan"),
        ("<<<1, threads>>>(A", "<<<1, threads>>>(&h", "", "mine.cu:26: .* pointer"),
        ("    cudaFree(sum);\n", "    cudaFree(sum);\n" * 2, "", "mine.cu:31: cudaFree "),
        ("    subtract<", "    cudaFree(sum);\n subtract<", "", "mine.cu:28: .* pointer"),
        (
            "    subtract<",
            "    cudaMemcpy(&h, sum, 4, cudaMemcpyHostToDevice);\n subtract<",
            "",
            ":27: ",
        ),
        ("    cudaFree(sum);\n", 'fprintf(stderr, "x");\nexit(EXIT_FAILURE);\n', "", ":31: .*exit"),
        ("void add_up", "void __launch_bounds__(128) add_up", "", "mine.cu:26: .* add_up .*128"),
    ],
)
def test_what_a_launch_does_wrong_has_a_line(written, old, new, kind, names):
    text = replaced(SOLVE, old, new).replace("float *sum,", "float *sum, h = 0,")
    report = checked(written("ref.py", CENTERED), written("mine.cu", text), shapes=FEW)
    (failure, *_) = report.failures
    assert {problem[0] for problem in failure.problems} == {kind} - {""}, report
    assert re.search(names, failure.detail), report


@pytest.mark.emulator
@pytest.mark.parametrize("threads", [256, 1024])
def test_rows_that_are_longer_than_a_block(written, threads):
    text = (KERNEL.partition("256>>>")[2] + HOST).replace("i += 256", "i += 1 << 20")
    text = text.replace("256", str(threads)).replace("128", str(threads // 2))
    files = written("ref.py", RMSNORM), written("mine.cu", text)
    (failure,) = checked(*files, stop_at_failure=True).failures
    assert threads < failure.dims["C"], failure


@pytest.mark.emulator
def test_a_python_file_is_read_and_its_lines_are_named(written):
    reference = written("ref.py", RMSNORM)
    assert checked(reference, written("answer.py", INLINE), shapes=SMALL).passed
    tail = replaced(INLINE, "i < C; i += 256) out", "i <= C; i += 256) out")
    line = tail[: tail.index("i <= C")].count("\n") + 1
    assert f".py:{line}: " in str(checked(reference, written("t.py", tail), shapes=SMALL))
    flat = written("flat.py", INLINE.replace("empty_like(x)", "zeros({x.numel()}, x.options())"))
    assert "float32 (2, 33)" in str(checked(reference, flat, shapes=SMALL, brief=True))
    axis = written("axis.py", replaced(INLINE, "x.size(1)", "x.size(2)"))
    line = axis.read_text().split("x.size(2)")[0].count("\n") + 1
    assert f".py:{line}: " in str(checked(reference, axis, shapes=SMALL, brief=True))


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("cudaFree(sum);", "cudaStreamCreate(0);", "mine.cu:30:5: .*cudaStreamCreate"),
        ("<iostream>", "<cublas_v2.h>", "mine.cu:1:10: .*cublas_v2.h"),
        ("cudaFree(sum);", "torch::relu(sum);", "mine.cu:30:12: .*relu.*torch"),
        ("int N)", "int count)", "solve .*'int count'.* ref.py "),
    ],
)
def test_what_is_not_understood_is_refused_in_one_line(written, old, new, names):
    text = replaced(SOLVE, old, new)
    with pytest.raises(LadderError, match=names) as error:
        checked(written("ref.py", CENTERED), written("mine.cu", text), shapes=FEW)
    assert "\n" not in str(error.value)


def test_which_function_is_called(tmp_path):
    tensor = "torch::Tensor %s(torch::Tensor x) { k<<<1, 1>>>(); return x; }\n"
    two = tensor % "first" + tensor % "second"
    assert find_host(Path("a.cu"), two)[1] == "second"
    assert find_host(Path("a.cu"), two + 'M(E, m) { m.def("f", &first); }')[1] == "first"
    assert find_host(Path("a.cu"), "// k<<<1, 1>>>\n" + SOLVE.replace("<<<", "("))[1] == ""
    with pytest.raises(LadderError, match=r"a\.py:2: "):
        find_host(Path("a.py"), '\nx = f"""__global__ void k() {{}}"""')


@pytest.mark.emulator
def test_counts_go_by_the_kernels_names(written, capsys):
    text = SOLVE.replace("sum, sizeof(float)", "sum, 3").replace("*sum +=", "sum[1] +=")
    ref, path = written("ref.py", CENTERED), written("mine.cu", text)
    assert "byte 4 of sum" in str(checked(ref, path, shapes=FEW))
    path.write_text(SOLVE)
    command = ["check", str(path), "--reference", str(ref), "--shape", "N=2", "--unconfined"]
    assert main([*command, "--at-most", "sectors of A=9"]) == 2
    assert re.search(" A .* from, part, sum, to$", capsys.readouterr().err)
    assert main([*command, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["passed"]
