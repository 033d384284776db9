"""Every rung compiles for every architecture it claims, without a GPU; errors name their line."""

import numpy as np
import pytest

from ladder.core.common.errors import CompileError, LadderError
from ladder.core.contract.ladder import ladders
from ladder.core.contract.op import DTYPES, REALS
from ladder.core.device.cuda import compiler, nvrtc

needs_nvrtc = pytest.mark.skipif(
    not nvrtc.installed(), reason="NVRTC is not installed: pip install -e '.[compile]'"
)

KERNEL = """\
// square forward, rung 1: one thread per element
// Define: TWO = 2
// Launch: square_forward<<<ceil_div(N, 128), 128>>>
#include "portable.cuh"

extern "C" __global__ void square_forward(real* out, const real* inp, int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = to_real(powf(to_float(inp[i]), TWO));
}
"""


def compile_square(rung, real="float32", arch="sm_80", two=2):
    return compiler.compile_cubin(rung, {"TWO": two}, np.dtype(DTYPES[real]), arch)


# ---- every rung of the repository ----


def combinations(rung):
    """Every architecture, and every real type on an old one and a new one."""
    for index, arch in enumerate(compiler.TYPICAL):
        thorough = arch in ("sm_75", "sm_90a")
        for offset in range(len(REALS) if thorough else 1):
            real = DTYPES[REALS[(index + offset) % len(REALS)]]
            target = compiler.typical_target(arch, real)
            if rung.claims(target):
                yield target


RUNG_FILES = [
    pytest.param(ladder.op, rung, id=f"{name}-{rung.id}")
    for name, ladder in ladders().items()
    for rung in ladder.rungs
    if rung.path is not None and rung.track != "amd"
]


@pytest.mark.nvrtc
@needs_nvrtc
@pytest.mark.costly
@pytest.mark.parametrize(("op", "rung"), RUNG_FILES)
def test_rung_compiles_for_the_oldest_architecture_that_it_claims(op, rung):
    targets = list(combinations(rung))
    assert targets, "the rung claims no NVIDIA architecture at all"
    compile_for(op, rung, targets[:1], most_shapes=1)


@needs_nvrtc
@pytest.mark.sweep
@pytest.mark.parametrize(("op", "rung"), RUNG_FILES)
def test_rung_compiles_wherever_it_claims_to(op, rung):
    compile_for(op, rung, combinations(rung))


def compile_for(op, rung, targets, most_shapes=None):
    for target in targets:
        measured, small = (
            [dims for dims in shapes if rung.plan(dims, target).refusal is None]
            for shapes in (op.bench.values(), op.shapes)
        )
        shapes = [*measured, *small][:1]
        if measured and "sm == 90" in rung.conditions():  # tiles' sizes depend on the shape
            shapes = measured
        for dims in shapes[:most_shapes]:
            plan = rung.plan(dims, target)
            cubin = compiler.compile_cubin(rung, plan.constants, target.real, target.arch)
            where = f"{target.arch} {target.real} {dims}"
            kernels = compiler.resources(cubin)
            launched = {launch.kernel for launch in plan.launches}
            assert launched <= set(kernels), where
            assert not any(kernels[name].spill for name in launched), f"registers spill on {where}"
            assert "warning" not in compiler.compile_log(cubin), where
            assert compiler.remarks(cubin) == [], where


# ---- the compiler itself ----


@needs_nvrtc
def test_resources_show_shared_memory_stack_and_spills(rung_of):
    source = KERNEL.replace(
        "    int i =",
        "    __shared__ float tile[100]; float local[300]; float sum = 0;\n"
        "    for (int k = 0; k < 300; k++) local[k] = to_float(inp[k]);\n"
        "    tile[threadIdx.x % 100] = local[N]; __syncthreads();\n"
        "    for (int k = 0; k < 100; k++) sum += tile[k];\n"
        "    out[N] = to_real(sum);\n"
        "    int i =",
    ).replace("void square", "void __launch_bounds__(1024, 2) square")
    takes = compiler.resources(compile_square(rung_of(source)))["square_forward"]
    assert takes.shared == 400
    assert takes.stack >= 1200
    assert takes.registers <= 32


def test_remarks_are_the_lines_that_have_a_number(tmp_path):
    (tmp_path / "compile.log").write_text(
        "ptxas info    : (C7517) warpgroup.wait is injected in around line 1234 by compiler\n"
        "ptxas info    : 36 bytes gmem\n"
        "ptxas info    : Used 168 registers, used 16 barriers, 1024 bytes smem\n"
    )
    remarks = compiler.remarks(tmp_path / "kernel.cubin")
    assert remarks == ["warpgroup.wait is injected in around line 1234 by compiler"]


@needs_nvrtc
def test_same_content_compiles_once_and_any_change_compiles_again(rung_of, monkeypatch):
    compiled = []
    original = nvrtc.Nvrtc.compile

    def count(self, *args):
        compiled.append(args)
        return original(self, *args)

    monkeypatch.setattr(nvrtc.Nvrtc, "compile", count)
    rung = rung_of(KERNEL)
    first = compile_square(rung)
    assert compile_square(rung) == first
    assert len(compiled) == 1
    others = {compile_square(rung, two=3), compile_square(rung, "float16")}
    others |= {compile_square(rung, arch="sm_90a"), compile_square(rung_of(KERNEL + "\n"))}
    assert len(others | {first}) == len(compiled) == 5
    assert compile_square(rung_of(KERNEL)) == first


@needs_nvrtc
def test_an_edit_of_an_included_file_compiles_again(rung_of):
    rung = rung_of(KERNEL.replace("TWO)", "MINE)").replace("portable.cuh", "parts/mine.inc"))
    folder = rung.path.with_name("parts")
    folder.mkdir()
    (folder / "mine.inc").write_text('#include <portable.cuh>\n#include "power.inc"\n')
    cubins = []
    for power in (2, 3, 2):
        (folder / "power.inc").write_text(f"#define MINE {power}\n")
        cubins.append(compile_square(rung).read_bytes())
    assert cubins[0] == cubins[2] != cubins[1]


@needs_nvrtc
def test_error_names_file_line_source_and_cause(rung_of):
    rung = rung_of(KERNEL.replace("inp[i]", "input[i]"))
    with pytest.raises(CompileError) as caught:
        compile_square(rung)
    first, source, caret = str(caught.value).splitlines()
    assert first.startswith(f"{rung.path}:8: ") and '"input"' in first
    assert "to_float(input[i])" in source
    assert caret.index("^") == source.index("input")


@needs_nvrtc
def test_instruction_that_the_architecture_lacks_is_named(rung_of):
    rung = rung_of(KERNEL.replace("int i =", 'asm volatile("wgmma.fence.sync.aligned;"); int i ='))
    assert compile_square(rung, arch="sm_90a").exists()
    with pytest.raises(CompileError, match=r"sm_80:\n.*wgmma\.fence"):
        compile_square(rung, arch="sm_80")


@needs_nvrtc
def test_a_kernel_that_is_launched_keeps_its_name_without_extern_c(rung_of):
    compiled = compile_square(rung_of(KERNEL.replace('extern "C" ', "static ")))
    assert set(compiler.resources(compiled)) == {"square_forward"}


def test_missing_nvrtc_says_what_to_install(rung_of, monkeypatch):
    monkeypatch.setattr(nvrtc, "installed", lambda: ())
    with pytest.raises(LadderError, match=r"NVRTC.*\[compile\]"):
        compile_square(rung_of(KERNEL))


def test_nvrtc_newer_than_the_driver_is_passed_over(monkeypatch):
    new, old = (nvrtc.Nvrtc(None, (), version) for version in ((13, 0), (12, 9)))
    monkeypatch.setattr(nvrtc, "installed", lambda: (new, old))
    assert nvrtc.find_nvrtc() == nvrtc.find_nvrtc(newest=13) == new
    assert nvrtc.find_nvrtc(newest=12) == old
    monkeypatch.setattr(nvrtc, "installed", lambda: (new,))
    with pytest.raises(LadderError, match=r"CUDA 12.*13\.0"):
        nvrtc.find_nvrtc(newest=12)


def test_wheels_of_cuda_12_and_13_are_both_recognised(tmp_path, monkeypatch):
    for name in ("cu13/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc.so.12"):
        for suffix in ("", ".notes"):
            path = tmp_path / "nvidia" / (name + suffix)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
    monkeypatch.setattr(nvrtc.sys, "path", [str(tmp_path)])
    monkeypatch.setattr(nvrtc, "toolkit_folders", lambda: [])
    monkeypatch.setattr(nvrtc, "_linker_libraries", lambda: [])
    wheels = [str(path.relative_to(tmp_path)) for path, _ in nvrtc._candidates()]
    assert wheels == ["nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"]


@pytest.mark.parametrize(
    ("capability", "expected"), [(75, "sm_75"), (89, "sm_89"), (90, "sm_90a"), (120, "sm_120a")]
)
def test_architecture_specific_features_are_on_from_hopper(capability, expected):
    assert compiler.architecture(capability) == expected
