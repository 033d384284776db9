"""Rungs become machine code of AMD's GPUs, without a GPU; errors name their line."""

import re

import pytest

from ladder.core.amd.hip import assembly, compiler
from ladder.core.amd.hip.compiler import Resources
from ladder.core.common import machine_code
from ladder.core.common.errors import CompileError, LadderError
from ladder.core.contract.ladder import ladders
from ladder.core.contract.launch_plan import Launch
from ladder.core.contract.op import DTYPES


def has_compiler():
    try:
        compiler.find_clang()
    except LadderError:
        return False
    return True


needs_clang = pytest.mark.skipif(
    not has_compiler(), reason="ziglang, a compiler for AMD's GPUs, is not installed: make amd"
)

KERNEL = """\
// square forward, rung 1: sixteen bytes per thread, scaled
// Define: TWO = 2
// Launch: square_forward<<<1, 64>>>
#include "portable.cuh"

extern "C" __global__ void square_forward(real* out, const real* inp, int N) {
    Vec v = load_vec(inp + threadIdx.x * VECTOR);
    v[0] = to_real(rsqrtf(warp_sum(to_float(v[0]))) * TWO);
    __syncthreads();
    store_vec(out + threadIdx.x * VECTOR, v);
}
"""


def compile_square(rung, real="float32", arch="gfx942", two=2):
    warp = compiler.TYPICAL[arch].warp
    return compiler.compile_code_object(rung, {"TWO": two}, DTYPES[real], arch, warp)


# ---- every rung of the repository that is written for AMD ----


def claimed(ladder):
    """(rung, target) of all architectures and types that the rungs of a ladder claim."""
    targets = [
        compiler.typical_target(arch, DTYPES[real])
        for real in ladder.op.reals
        for arch in compiler.TYPICAL
    ]
    kernels = [rung for rung in ladder.rungs if rung.path is not None]
    return [(rung, target) for rung in kernels for target in targets if rung.claims(target)]


def compile_and_look(op, rung, target):
    """Compile a rung for one target; registers must not spill, and LLVM must agree on waves."""
    where = f"{op.name} {rung.label} {target.arch} {target.real}"
    shapes = [*op.bench.values(), *op.shapes]
    plans = (rung.plan(dims, target) for dims in shapes)
    plan = next((plan for plan in plans if plan.refusal is None), None)
    assert plan is not None, f"{where}: it claims this architecture, and refuses every shape"
    module = compiler.compile_code_object(
        rung, plan.constants, target.real, target.arch, target.warp
    )
    takes = compiler.resources(module)
    assert {launch.kernel for launch in plan.launches} <= set(takes), where
    assert not any(kernel.spill for kernel in takes.values()), where
    if not op.ranks:  # an array of addresses, indexed by rank, may be copied to scratch memory
        assert not any(kernel.scratch for kernel in takes.values()), where
    assert compiler.compile_log(module) == "", where
    # LLVM keeps the hazards of the pipeline apart, but not within inline assembly.
    assert "#ASMSTART" not in compiler.assembly(module), where
    waves = re.findall(r"^; Occupancy: (\d+)", compiler.assembly(module), re.MULTILINE)
    for (name, kernel), by_llvm in zip(takes.items(), waves, strict=True):
        if kernel.lds == 0:
            ours = assembly.waves_by_registers(target.arch, kernel)
            assert ours == int(by_llvm), f"{where}: {name}"


LADDERS = [pytest.param(i, ladder, id=name) for i, (name, ladder) in enumerate(ladders().items())]


@pytest.mark.nvrtc
@needs_clang
@pytest.mark.costly
@pytest.mark.parametrize(("number", "ladder"), LADDERS)
def test_the_last_rung_for_amd_of_each_ladder_compiles(number, ladder):
    """For one architecture and type, another for each ladder."""
    pairs = claimed(ladder)
    last = [(rung, target) for rung, target in pairs if rung is pairs[-1][0]]
    compile_and_look(ladder.op, *last[number % len(last)])


@needs_clang
@pytest.mark.sweep
@pytest.mark.parametrize(("number", "ladder"), LADDERS)
def test_every_rung_compiles_for_every_amd_architecture_that_it_claims(number, ladder):
    for rung, target in claimed(ladder):
        compile_and_look(ladder.op, rung, target)


def test_every_rung_claims_amd_or_says_that_it_needs_nvidia():
    for name, ladder in ladders().items():
        amd = {rung.id for rung, _ in claimed(ladder)}
        for rung in ladder.rungs:
            if rung.path is not None and rung.id not in amd:
                assert any("sm " in need for need in rung.conditions()), (name, rung.id)


# ---- the compiler itself ----


@pytest.mark.nvrtc
@needs_clang
def test_a_code_object_its_resources_and_its_instructions(rung_of):
    rung = rung_of(KERNEL)
    module = compile_square(rung, "bfloat16")
    assert module.read_bytes()[:4] == b"\x7fELF"
    ((name, takes),) = compiler.resources(module).items()
    assert name == "square_forward"
    assert takes.vgprs > 3
    assert takes.sgprs > 3
    assert (takes.lds, takes.scratch, takes.spill) == (0, 0, 0)

    code = assembly.instructions(module, rung.path)
    lines = {instruction.kind: instruction.line for instruction in code}
    assert lines["global_load_dwordx4"] == 7
    assert lines["ds_bpermute_b32"] == lines["v_rsq_f32"] == 8  # from headers
    assert lines["s_barrier"] == 9
    assert lines["global_store_dwordx4"] == 10
    assert code[-1].text == "s_endpgm"

    counts = machine_code.summary(code, assembly.GROUPS)
    assert counts["exchange within the wave"]["ds_bpermute_b32"] == 6  # 2^6 lanes
    assert counts["transcendental functions"] == {"v_rsq_f32": 1}
    assert sum(sum(kinds.values()) for kinds in counts.values()) == len(code)

    shown = machine_code.listing(code, rung.source).plain.splitlines()
    barrier = next(i for i, line in enumerate(shown) if "s_barrier" in line)
    assert "   9  __syncthreads();" in shown[:barrier]


@pytest.mark.nvrtc
@needs_clang
@pytest.mark.parametrize("arch", ["gfx942", "gfx1030"])
def test_multiplications_and_additions_are_fused_but_not_those_inside_expf(rung_of, arch):
    """LLVM's expf multiplies by log2(e) in two parts, and fuses just the two steps that must be."""
    rung = rung_of(KERNEL.replace("rsqrtf(warp_sum(to_float(v[0]))) * TWO", "expf(to_float(v[0]))"))
    code = assembly.instructions(compile_square(rung, arch=arch), rung.path)
    kinds = [instruction.kind for instruction in code]
    assert sum(kind.startswith(("v_fma", "v_fmac")) for kind in kinds) == 2
    assert "v_sub_f32" in kinds
    rung = rung_of(
        KERNEL.replace("rsqrtf(warp_sum(to_float(v[0]))) * TWO", "N + to_float(v[0]) * N")
    )
    code = assembly.instructions(compile_square(rung, arch=arch), rung.path)
    assert any(instruction.kind.startswith(("v_fma", "v_fmac")) for instruction in code)


@pytest.mark.nvrtc
@needs_clang
def test_error_names_file_line_source_and_cause(rung_of):
    rung = rung_of(KERNEL.replace("rsqrtf", "root"))
    with pytest.raises(CompileError) as caught:
        compile_square(rung)
    first, source, caret, hint = str(caught.value).splitlines()
    assert first.startswith(f"{rung.path}:8: ") and "'root'" in first
    assert caret.index("^") == source.index("root")
    assert str(compiler.HEADERS) in hint


@pytest.mark.nvrtc
@needs_clang
def test_a_kernel_that_is_launched_keeps_its_name_without_extern_c(rung_of):
    compiled = compile_square(rung_of(KERNEL.replace('extern "C" ', "static ")))
    assert set(compiler.resources(compiled)) == {"square_forward"}


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("echo clang version 18.1.8", r"clang 20 .* 18\.1\.8.*install --upgrade ziglang"),
        ("exit 3", r"/zig clang .*\[amd\]"),
    ],
)
def test_an_old_or_broken_compiler_is_named(tmp_path, monkeypatch, version, names):
    (tmp_path / "zig").write_text(f"#!/bin/sh\n{version}\n")
    (tmp_path / "zig").chmod(0o755)
    spec = type("Spec", (), {"origin": str(tmp_path / "__init__.py")})
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: spec)
    compiler.find_clang.cache_clear()
    try:
        with pytest.raises(LadderError, match=names):
            compiler.find_clang()
    finally:
        compiler.find_clang.cache_clear()


# ---- instructions and occupancy, without a compiler ----


def limited(arch, vgprs, lds, threads, shared=0):
    takes = Resources(vgprs, 0, 16, lds, 0, 0)
    return assembly.occupancy(arch, takes, Launch("k", (1, 1, 1), (threads, 1, 1), shared))


@pytest.mark.parametrize(
    ("arch", "vgprs", "lds", "threads", "blocks", "limit"),
    [
        ("gfx942", 64, 0, 256, 8, "waves and registers"),
        ("gfx942", 65, 0, 256, 7, "registers"),  # 72 are dealt out: 512 / 72
        ("gfx942", 128, 20_000, 256, 3, "LDS"),
        ("gfx950", 128, 20_000, 256, 4, "registers"),  # it has 160 KiB of LDS
        ("gfx90a", 16, 0, 128, 16, "waves and registers and blocks"),
        ("gfx1030", 64, 0, 256, 4, "waves and registers"),
        ("gfx1100", 96, 0, 256, 4, "waves and registers"),  # 1536 registers: 16 waves of 96
        ("gfx1100", 97, 0, 256, 3, "registers"),  # 120 are dealt out: 12 waves of a SIMD
        ("gfx1201", 32, 65_536, 512, 1, "LDS"),
    ],
)
def test_what_limits_the_blocks_on_a_unit(arch, vgprs, lds, threads, blocks, limit):
    occupancy = limited(arch, vgprs, lds, threads)
    assert (occupancy.blocks, occupancy.limited_by) == (blocks, limit)
