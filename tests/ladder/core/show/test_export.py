"""`python -m ladder export`: every rung as one file, whose checks tell right from wrong."""

import dataclasses
import re
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest

from ladder.__main__ import main
from ladder.core.common.errors import LadderError
from ladder.core.contract import rung_file, signature
from ladder.core.contract.ladder import find, ladders
from ladder.core.contract.op import DTYPES, resolve_dtype
from ladder.core.device.cuda import compiler, nvrtc
from ladder.core.emulator import toolchain
from ladder.core.show import export, export_torch, samples
from ladder.core.verify.tolerance import expect

HOPPER = "sm_90a"
SMALL = {"N": 128, "C": 128, "OC": 256}
KERNELS = [
    (ladder, rung, dtype)
    for ladder in ladders().values()
    for rung in ladder.rungs
    for dtype in ladder.op.reals
    if rung.path and rung.claims(compiler.typical_target(HOPPER, DTYPES[dtype]))
]


def exported(op, which, dtype="float32", dims=None, arch=HOPPER):
    ladder = find(op)
    rung, target = ladder.rung(which), compiler.typical_target(arch, DTYPES[dtype])
    dims = dims or export.default_shape(ladder.op, rung, target)
    return export.export(ladder, rung, dims, target)


def sections(text):
    """The parts between the three headings: the title, the kernel, the program, the numbers."""
    return re.split(r"^// ==== .*\n", text, flags=re.MULTILINE)


def lines(text):
    return [line for line in text.splitlines() if line]


@pytest.mark.costly
@pytest.mark.parametrize("name", ladders())
def test_every_rung_is_exported_in_every_type(name):
    ladder = ladders()[name]
    kernels = [(rung, dtype) for of, rung, dtype in KERNELS if of is ladder]
    nvidia = {rung.path for rung in ladder.rungs if rung.path and rung.track != "amd"}
    assert {rung.path for rung, _ in kernels} == nvidia
    for rung, dtype in kernels:
        target = compiler.typical_target(HOPPER, DTYPES[dtype])
        taken = (dims for dims in ladder.op.shapes if rung.plan(dims, target).refusal is None)
        dims = next(taken, None) or export.default_shape(ladder.op, rung, target)
        text = export.export(ladder, rung, dims, target)
        _, kernel, program, _ = sections(text)
        assert "int main() {" in program
        assert '#include "' not in text and "#pragma once" not in text
        assert "KERNEL_LADDER_EMULATOR" not in text
        code = lines(re.sub(r'#include ".*\n', "", rung.source))
        assert lines(kernel)[-len(code) :] == code
        for launch in rung.plan(dims, target).launches:
            assert f"{launch.kernel}<<<" in program
        # A constant of the kernel would replace whatever has its name further down.
        constants = {"WARP_SIZE", *rung.plan(dims, target).constants}
        assert not constants & set(re.findall(r"\w+", program))


def test_each_header_is_there_once_and_before_what_needs_it():
    text = exported("matmul.forward", "16bit-14", "bfloat16", SMALL)
    names = re.findall(r"^// ---- (\S+) -", text, re.MULTILINE)
    files = [name for name in names if name.startswith("ladder/")]
    assert len(files) == len(set(files))
    assert files[-1].startswith("ladder/matmul/forward/")
    assert files.index("ladder/include/hopper.cuh") < files.index("ladder/include/wgmma_real.cuh")
    assert "asm volatile(" in text  # the half that the emulator does not see


def test_default_shapes_are_small_enough_for_the_reference():
    for ladder, rung, dtype in KERNELS:
        target = compiler.typical_target(HOPPER, DTYPES[dtype])
        dims = export.default_shape(ladder.op, rung, target)
        assert ladder.op.flops(dims) <= export.MOST_FLOPS
        assert min(dims.values()) >= 1
        if ladder.op.name == "embedding.forward":
            assert dims["P"] >= dims["T"]


def test_scratch_shared_memory_and_tiles_are_set_up():
    text = exported("layernorm.backward", 5, "bfloat16", {"N": 64, "C": 768})
    assert "float* partial = scratch<float>(24576);" in text  # [16, 2, 768]
    text = exported("matmul.forward", "16bit-14", "bfloat16", SMALL)
    assert "cudaFuncAttributeMaxDynamicSharedMemorySize" in text
    assert "tiles_of(weight, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, " in text
    assert "cuTensorMapEncodeTiled" in text
    assert "cuTensorMapEncodeTiled" not in exported("matmul.forward", 4, dims=SMALL)


def test_a_kernel_is_passed_what_it_names_in_its_order(tmp_path, monkeypatch):
    monkeypatch.setattr(signature, "mismatch", lambda *_: None)
    ladder = find("layernorm.forward")
    path = tmp_path / "mine.cu"
    path.write_text(
        "// layernorm forward: mine\n// Launch: layernorm_forward<<<N, 32>>>\n"
        'extern "C" __global__ void layernorm_forward(int C, const real* inp, real* out) {}\n'
    )
    rung = rung_file.parse(path, ladder.op.kernel)
    target = compiler.typical_target(HOPPER, DTYPES["float32"])
    text = export.export(ladder, rung, {"N": 8, "C": 32}, target)
    assert "layernorm_forward<<<8, 32>>>(C, inp.device, out.device);" in text


def test_dynamic_shared_memory_is_asked_for_below_48_kb_too():
    """A kernel's static arrays count as well: 48 KB and a barrier are too many."""
    dims = {"B": 1, "T": 128, "C": 128, "NH": 2}
    text = exported("attention.backward", "16bit-8", "bfloat16", dims)
    for launch, shared in re.findall(r"(\w+)<<<.*, (\d+)>>>", text):
        asked = rf"cudaFuncSetAttribute\(\s*{launch}, \w+, {shared}\)"
        assert re.search(asked, text), launch
    assert "49152>>>" in text


def test_what_cannot_be_exported_is_reported():
    with pytest.raises(LadderError, match=r"layernorm\.forward rung 0 .*\.cu "):
        exported("layernorm.forward", 0)
    with pytest.raises(LadderError, match=r"C % vector == 0.* C = 7,.*--shape"):
        exported("layernorm.forward", 5, dims={"N": 4, "C": 7})


def test_the_kernels_own_includes_must_be_there(tmp_path):
    ladder = find("residual.forward")
    path = tmp_path / "mine.cu"
    path.write_text('#include "missing.cuh"\n' + ladder.rung(1).source)
    rung = dataclasses.replace(ladder.rung(1), path=path, id=str(path))
    target = compiler.typical_target(HOPPER, DTYPES["float32"])
    with pytest.raises(LadderError, match=r"mine\.cu .*missing\.cuh"):
        export.export(ladder, rung, {"N": 8}, target)
    path.write_text(ladder.rung(1).source)
    assert "residual_forward_mine" in export.export(ladder, rung, {"N": 8}, target)


@pytest.mark.slow
@pytest.mark.skipif(not nvrtc.installed(), reason="NVRTC: pip install -e '.[compile]'")
@pytest.mark.parametrize(
    ("op", "which", "dtype"),
    [
        ("layernorm.backward", 5, "float16"),
        ("matmul.forward", "16bit-14", "bfloat16"),
        pytest.param("adamw.update", 2, "bfloat16", marks=pytest.mark.sweep),
        pytest.param("attention.forward", "float32-8", "float32", marks=pytest.mark.sweep),
    ],
)
def test_the_kernel_compiles_from_its_section_alone(op, which, dtype):
    kernel = sections(exported(op, which, dtype))[1]
    library = nvrtc.find_nvrtc()
    options = [f"-arch={HOPPER}", "-std=c++17", *(f"-I{folder}" for folder in library.include)]
    cubin, log = library.compile(kernel, "exported.cu", options)
    assert cubin is not None, log


# ---- the program itself, with a CUDA that is the CPU ---------------------------------------------

PRETENDED = """\
#pragma once
#include <cstdlib>
#include <cstring>
enum cudaError_t { cudaSuccess };
enum { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaDevAttrL2CacheSize };
using cudaEvent_t = int;
inline const char* cudaGetErrorString(cudaError_t) { return ""; }
template <class T>
cudaError_t cudaMalloc(T** pointer, size_t bytes) {
    *pointer = (T*)malloc(bytes);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, int) {
    memcpy(to, from, bytes);
    return cudaSuccess;
}
inline cudaError_t cudaMemset(void* to, int byte, size_t bytes) {
    memset(to, byte, bytes);
    return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes) {
    return cudaMemset(to, byte, bytes);
}
inline cudaError_t cudaDeviceGetAttribute(int* value, int, int) { *value = 64; return cudaSuccess; }
inline cudaError_t cudaEventCreate(cudaEvent_t*) { return cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
    *ms = 0.5f;
    return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
"""

LAYERNORM = """\
#include <cmath>
using real = float;
const int wrong = std::getenv("WRONG") ? std::atoi(std::getenv("WRONG")) : 0;
void layernorm_forward(float* out, float* mean, float* rstd, const float* inp, const float* weight,
                       const float* bias, int N, int C) {
    for (int n = 0; n < N; n++) {
        const float* x = inp + n * C;
        float sum = 0, squares = 0;
        for (int c = 0; c < C; c++) sum += x[c];
        for (int c = 0; c < C; c++) squares += (x[c] - sum / C) * (x[c] - sum / C);
        mean[n] = sum / C + (wrong == 2 ? 1e-5f : 0);
        rstd[n] = 1 / std::sqrt(squares / C + (wrong == 1 ? 1e-4f : 1e-5f));
        float* y = out + n * C;
        const float scale = wrong == 3 ? 1.0001f * rstd[n] : rstd[n];
        for (int c = 0; c < C - (wrong == 4); c++) {
            y[c] = (x[c] - mean[n]) * scale * weight[c] + bias[c];
        }
    }
}
"""
RESIDUAL = """\
using real = float;
void residual_backward(float* dinp, const float* dout, int N) {
    for (int i = 0; i < N; i++) dinp[i] = (std::getenv("WRONG") ? 0 : dinp[i]) + dout[i];
}
"""


@pytest.fixture
def run(tmp_path):
    """Two functions: one builds a program with a host function in place of its kernel and runs it,
    one runs what was built with variables."""
    try:
        compiler_ = toolchain.find_compiler()
    except LadderError as error:
        pytest.skip(str(error))
    (tmp_path / "cuda_runtime.h").write_text(PRETENDED)

    def again(**variables):
        program, where = [tmp_path / "program"], {"cwd": tmp_path, "env": variables}
        return subprocess.run(program, **where, capture_output=True, text=True, check=False)

    def build_and_run(text, function):
        title, _, program, numbers = sections(text)
        program = re.sub(r"<<<.*?>>>", "", program)
        path = tmp_path / "program"
        flags = ["-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", f"-I{tmp_path}"]
        compiler_.build(
            [*flags, "-x", "c++", "-"], path, "\n".join([title, function, program, numbers])
        )
        return again()

    return build_and_run, again


@pytest.mark.emulator
def test_a_right_kernel_passes_and_is_timed_and_a_wrong_one_does_not(run):
    build, again = run
    done = build(exported("layernorm.forward", 3, dims={"N": 64, "C": 33}), LAYERNORM)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == ["out", "mean", "rstd"]
    assert all(": right, " in line for line in lines[:3])
    floor = find("layernorm.forward").op.least_bytes({"N": 64, "C": 33}, np.dtype(np.float32))
    assert lines[3].startswith(f"500.00 us, {floor / 500e3:.0f} GB/s")
    verdicts = "rstd: WRONG, 64 of 64 ", "mean: WRONG", "out: WRONG", "nan, "
    for number, verdict in enumerate(verdicts, 1):
        done = again(WRONG=str(number))
        assert done.returncode == 1 and verdict in done.stdout


@pytest.mark.emulator
def test_what_accumulates_is_checked_after_one_launch(run):
    build, again = run
    text = exported("residual.backward", 1, dims={"N": 1000})
    assert build(text, RESIDUAL).returncode == 0
    done = again(WRONG="1")
    assert done.returncode == 1 and "dinp: WRONG" in done.stdout


# The arrays of a program instead of a kernel: it compares the inputs that the program has made with
# Python's, then takes over the results that Python has written.
REPLAY = """\
#include <cstdint>
#include <fstream>
struct Bfloat16 {
    uint16_t bits = 0;
    Bfloat16() = default;
    explicit Bfloat16(float x) {  // to nearest, ties to even
        uint32_t wide;
        std::memcpy(&wide, &x, 4);
        bits = (wide + 0x7fff + (wide >> 16 & 1)) >> 16;
    }
    operator float() const {
        float x = 0;
        std::memcpy((char*)&x + 2, &bits, 2);
        return x;
    }
};
template <class T>
struct Peers { T* at[8]; };
template <class Array>
void replay(const Array& array) {
    const std::string name = array.name;
    std::string made(array.start.size() * sizeof array.start[0], 0);
    std::ifstream before(name + ".in", std::ios::binary);
    if (before.read(&made[0], made.size()) && memcmp(&made[0], array.device, made.size())) {
        printf("%s is not as in Python\\n", array.name);
        exit(3);
    }
    std::ifstream(name + ".out", std::ios::binary).read((char*)array.device, made.size());
}
template <class... Given>
void kernel(Given...) {}
"""
MADE = [  # an op for each way in which inputs are made, and results compared
    ("layernorm.backward", "bfloat16"),
    ("crossentropy.backward", "float32"),
    ("attention.backward", "bfloat16"),
    ("attention_dropout.backward", "float32"),
    ("adamw.update", "bfloat16"),
    ("decode.sample", "float32"),
    ("all_reduce.sum", "bfloat16"),
]


@pytest.mark.costly
@pytest.mark.emulator
@pytest.mark.parametrize(("name", "dtype"), MADE)
def test_the_program_makes_the_inputs_of_the_reference_and_knows_its_results(
    run, tmp_path, name, dtype
):
    op, rung = find(name).op, find(name).rung(1)
    target = compiler.typical_target(HOPPER, DTYPES[dtype])
    dims = next(dims for dims in reversed(op.shapes) if op.flops(dims) < 2e7)
    inputs = {k: given.array for k, given in samples.make_inputs(op, dims, target.real).items()}
    for k, array in inputs.items():
        (tmp_path / f"{k}.in").write_bytes(array.tobytes())
    results = {}
    for expected in expect(op, dims, target.real, inputs):
        k, stored = expected.arg.name, resolve_dtype(expected.arg.dtype, target.real)
        results[k] = expected.value.astype(stored)
        (tmp_path / f"{k}.out").write_bytes(results[k].tobytes())
    text = export.export(find(name), rung, dims, target)
    replay = "".join(f"replay({arg.name});\n" for arg in op.args)
    first = "launch();\n    check("
    assert text.count(first) == 1
    text = text.replace(first, f"launch();\n    {replay}    check(")
    kernels = {launch.kernel for launch in rung.plan(dims, target).launches}
    function = REPLAY + f"using real = {'float' if dtype == 'float32' else 'Bfloat16'};\n"
    function += "".join(f"#define {kernel} kernel\n" for kernel in kernels)
    build, again = run
    done = build(text, function)
    assert done.returncode == 0, done.stdout
    for k, array in results.items():  # the last element of each output, off by a little
        wrong = array.copy()
        wrong.ravel()[-1] += 1 if array.dtype.kind in "iu" else max(1, abs(array.ravel()[-1])) / 10
        (tmp_path / f"{k}.out").write_bytes(wrong.tobytes())
        done = again()
        assert done.returncode == 1, done.stdout
        assert f"{k}: WRONG, 1 of" in done.stdout
        (tmp_path / f"{k}.out").write_bytes(array.tobytes())


@pytest.mark.torch
@pytest.mark.parametrize(("name", "dtype"), [m for m in MADE if m[0] != "all_reduce.sum"])
def test_the_file_for_pytorch_checks_the_same_kernel_on_the_same_numbers(monkeypatch, name, dtype):
    torch = pytest.importorskip("torch")
    from torch.utils import cpp_extension

    op, rung = find(name).op, find(name).rung(1)
    target = compiler.typical_target(HOPPER, DTYPES[dtype])
    dims = next(dims for dims in reversed(op.shapes) if op.flops(dims) < 2e7)
    text = export_torch.export(find(name), rung, dims, target)
    assert sections(text)[1] == sections(export.export(find(name), rung, dims, target))[1]
    inputs = {k: given.array for k, given in samples.make_inputs(op, dims, target.real).items()}
    error = 0.0

    def on_tensors(*tensors):
        """Instead of the kernel: looks at the inputs, and writes the reference's results."""
        expected = {e.arg.name: e.value for e in expect(op, dims, target.real, inputs)}
        for arg, tensor in zip(op.args, tensors, strict=True):
            if arg.name in inputs:
                given = inputs[arg.name].view("i4") if arg.dtype == "uint32" else inputs[arg.name]
                assert np.array_equal(tensor.double().numpy(), given.astype("f8")), arg.name
            if arg.name in expected:
                value = torch.from_numpy(np.asarray(expected[arg.name], "f8"))
                tensor.copy_((value + error).to(tensor.dtype))

    fake = SimpleNamespace(on_tensors=on_tensors)
    monkeypatch.setattr(cpp_extension, "load_inline", lambda *_, **__: fake)
    namespace = {"__name__": "exported"}
    exec(text.replace('DEVICE = "cuda"', 'DEVICE = "cpu"'), namespace)
    assert namespace["main"]() == 0
    error = 1.0
    assert namespace["main"]() == 1


@pytest.mark.parametrize("shape", [(70, 130), (3, 50304), (1_000_003,), (4, 12, 1024)])
def test_samples_cover_the_edges_and_borders_and_are_spread_over_the_output(shape):
    assert len(samples.sample_indices((64, 64), (8,))) == 64 * 64  # all of a small output
    indices = samples.sample_indices(shape, (96,))
    rows, columns = np.prod(shape[:-1], dtype=int), shape[-1]
    assert len(indices) >= 4096
    assert len(set(indices.tolist())) == len(indices)
    assert indices[0] == 0 and indices[-1] == rows * columns - 1
    places = set(zip(*(part.tolist() for part in np.divmod(indices, columns)), strict=True))
    at = {i for i in (0, 95, 96, columns // 96 * 96, columns - 1) if i < columns}
    assert {(row, column) for row in (0, rows - 1) for column in at} <= places
    assert np.diff(indices).max() <= 2 * rows * columns // 2048 + 1


# ---- the command ---------------------------------------------------------------------------------


def test_the_command_writes_the_file_and_prints_how_to_build_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["export", "layernorm.forward", "3", "--dtype", "bf16", "--shape", "N=8,C=32"]) == 0
    text = (tmp_path / "layernorm_forward_3.cu").read_text()
    assert text == exported("layernorm.forward", 3, "bfloat16", {"N": 8, "C": 32})
    build = "nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a layernorm_forward_3.cu"
    assert f"\n{build} -o layernorm_forward_3\n" in capsys.readouterr().out
    assert f"\n//     {build} -o layernorm_forward_3\n" in text
    assert main(["export", "layernorm.forward", "3", "--shape", "N=8,C=32", "-o", "mine.cu"]) == 0
    assert "mine.cu -o mine\n//     ./mine\n" in (tmp_path / "mine.cu").read_text()


def test_the_command_takes_your_own_file_and_does_not_overwrite_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "mine.cu"
    mine.write_text(find("residual.forward").rung(1).source)
    arguments = ["export", "residual.forward", "mine.cu", "--arch", "sm_80", "--shape", "N=8"]
    assert main([*arguments, "-o", "mine.cu"]) == 2
    assert re.search(r"mine\.cu .* -o$", capsys.readouterr().err)
    assert mine.read_text() == find("residual.forward").rung(1).source
    assert main(arguments) == 0
    assert "arch=compute_80,code=sm_80" in capsys.readouterr().out
    assert "// ---- mine.cu ---" in (tmp_path / "residual_forward_mine.cu").read_text()


def test_the_command_refuses_a_name_that_nvcc_would_not_take(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["export", "layernorm.forward", "3", "-o", "kernel.cpp"]) == 2
    assert re.search(r"kernel\.cpp: .*nvcc.* \.cu\b", capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_the_command_replaces_a_file_only_where_it_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["export", "layernorm.forward", "3", "--shape", "N=8,C=32"]
    assert main(arguments) == 0
    path = tmp_path / "layernorm_forward_3.cu"
    exported = path.read_text()
    path.write_text("// edited\n")
    capsys.readouterr()
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("ladder: layernorm_forward_3.cu ") and "-o" in error
    assert path.read_text() == "// edited\n"
    assert main([*arguments, "-o", path.name]) == 0
    assert path.read_text() == exported
    assert main([*arguments, "-o", str(tmp_path)]) == 2
    assert f"-o {tmp_path} " in capsys.readouterr().err
    assert main([*arguments, "--to", "torch"]) == 0
    assert "\npython layernorm_forward_3.py\n" in capsys.readouterr().out
    compile((tmp_path / "layernorm_forward_3.py").read_text(), "layernorm_forward_3.py", "exec")
