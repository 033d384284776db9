"""Machine code of the rungs, interpreted: it computes the right result, and a planted fault of
waiting, of a barrier or of an address in it is found."""

import functools
import re

import numpy as np
import pytest

from ladder.core.amd.isa.gpu import ARCHITECTURES, Isa
from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find, ladders
from ladder.core.contract.op import DTYPES, REALS
from ladder.core.device.open import open_device
from ladder.core.verify.check import check_case
from tests.ladder.core.device.isa_programs import THREE, of_code, without
from tests.ladder.core.device.test_hip_compiler import needs_clang

pytestmark = [needs_clang, pytest.mark.nvrtc]

# Between them: shuffles, LDS and barriers, divisions, vectors of 16 bytes, atomics, scratch memory,
# waves that diverge, halves of registers, matrix cores.
SAMPLE = [
    ("layernorm.forward", "4", "float32"),
    ("softmax.forward", "2", "float32"),
    ("embedding.backward", "6", "float32"),
    ("all_reduce.sum", "3", "float32"),
    ("adamw.update", "3", "float32"),
    ("softmax.backward", "3", "float16"),
    ("matmul.forward", "amd-5", "bfloat16"),
]


# What the other architectures do in their own way: scratch memory by a descriptor, conversions of
# two numbers at once and larger matrix instructions, atomic additions by compare and swap.
SAMPLE_OF = {
    **dict.fromkeys(THREE, SAMPLE),
    "gfx90a": [("all_reduce.sum", "3", "float32"), ("matmul.forward", "amd-5", "bfloat16")],
    "gfx950": [
        ("softmax.backward", "3", "float16"),
        ("matmul.backward_input", "amd-5", "bfloat16"),
    ],
    "gfx1030": [("embedding.backward", "2", "float32")],
}


def two_shapes(op, rung, target):
    """The shape of medium size, of those that the rung takes, and before it a small one: the
    smallest with more than one element, which fills neither waves nor tiles."""
    shapes = [dims for dims in op.shapes if rung.plan(dims, target).refusal is None]
    shapes.sort(key=lambda dims: op.least_bytes(dims, target.real))
    small = [dims for dims in shapes if max(dims.values()) > 1][:1]
    medium = shapes[len(shapes) // 2 :][:1]
    return small + [dims for dims in medium if dims not in small]


def check_rung(ladder, rung, arch, real, shapes):
    """What is wrong with a rung at some shapes, a line for each; "" where nothing is."""
    device = Isa(arch)
    wrong = []
    for dims in shapes:
        outcome = check_case(ladder.op, rung, device, real, dims)
        if outcome.status != "passed":
            wrong.append(f"{ladder.op.name} {rung.label} {real} {dims}: {outcome.detail}")
    return "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_sample_of_rungs_computes_the_right_result(arch):
    for name, which, real in SAMPLE_OF[arch]:
        ladder = find(name)
        rung = ladder.rung(which)
        shapes = two_shapes(ladder.op, rung, Isa(arch).target(DTYPES[real]))
        assert shapes
        assert not check_rung(ladder, rung, arch, real, shapes[-1:])


@pytest.mark.sweep
@pytest.mark.parametrize("real", REALS)
@pytest.mark.parametrize("name", ladders())
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_rung_computes_the_right_result(arch, name, real):
    ladder = find(name)
    if real not in ladder.op.reals:
        pytest.skip(f"{name} has no {real}")
    target = Isa(arch).target(DTYPES[real])
    rungs = [rung for rung in ladder.rungs if rung.path is not None and rung.claims(target)]
    wrong = [
        check_rung(ladder, rung, arch, real, two_shapes(ladder.op, rung, target)) for rung in rungs
    ]
    assert not any(wrong), "\n".join(filter(None, wrong))


# ---- planted faults ----


@functools.cache
def product(arch="gfx1100"):
    """The kernel of a rung with barriers and tiles in LDS, and a launch of it."""
    device, ladder = Isa(arch), find("matmul.forward")
    rung, real = ladder.rung("2"), DTYPES["float32"]
    N, C, OC = 20, 64, 17
    plan = rung.plan({"N": N, "C": C, "OC": OC}, device.target(real))
    code = device.compile(rung, plan.constants, real)["matmul_forward"].code
    rng = np.random.default_rng(0)
    inp, weight, bias = (
        rng.standard_normal(shape).astype(real) for shape in ((N, C), (OC, C), (OC,))
    )
    out = np.empty((N, OC), real)
    sizes = [np.int32(size) for size in (N, C, OC)]

    def run(code):
        out.fill(np.nan)
        names = ["out", "inp", "weight", "bias", "N", "C", "OC"]
        of_code(code, names, arch)(plan.launches[0], (out, inp, weight, bias, *sizes))
        np.testing.assert_allclose(out, inp @ weight.T + bias, rtol=1e-4, atol=1e-4)

    return code, run


@pytest.mark.slow
@pytest.mark.parametrize("arch", THREE)
def test_each_wait_and_each_barrier_that_is_left_out_is_found(arch):
    code, run = product(arch)
    run(code)
    opcodes = [line.text.partition(" ")[0] for line in code.lines]
    barriers = [i for i, opcode in enumerate(opcodes) if opcode in ("s_barrier", "s_barrier_wait")]
    waits = [i for i, o in enumerate(opcodes) if re.fullmatch(r"s_waitcnt|s_wait_\w*cnt", o)]
    places = sorted(barriers + waits)
    assert len(places) > 10
    assert len(barriers) == 2
    missed = []
    for index in places:
        problem = problem_of(run, without(code, index))
        if problem is None:
            missed.append(code.lines[index].text)
            continue
        assert re.match(r".*2_shared_memory_tiling\.cu:\d+: ", problem)
        assert re.search(r"' \w+ LDS " + ("" if index in barriers else r"|' \w+ [sv]\d+ "), problem)
    # On RDNA 4, the fence before a barrier waits once more for loads that are known to be complete.
    assert missed == (["s_wait_loadcnt 0x0"] if arch == "gfx1201" else [])


def problem_of(run, code):
    try:
        run(code)
    except LadderError as error:
        return str(error)
    return None


def changed(code, text, other):
    lines = [line for line in code.lines if line.text.startswith(text)]
    assert lines, f"no instruction begins with {text!r}"
    number = code.lines.index(lines[0])
    new = without(code, number)
    new.lines[number] = type(lines[0])(
        lines[0].text.replace(*other), lines[0].file, lines[0].number
    )
    assert new.lines[number].text != lines[0].text
    return new


def test_a_wrong_address_in_lds_is_found():
    code, run = product()
    # Beyond its end; and another thread's element, which makes a wrong result.
    with pytest.raises(LadderError, match=r"of LDS, .* 8,448 bytes"):
        run(changed(code, "ds_store_b32 v9, v11 offset:4224", ("offset:4224", "offset:8448")))
    with pytest.raises((AssertionError, LadderError)):
        run(changed(code, "ds_store_b32 v9, v11 offset:4224", ("offset:4224", "offset:4228")))


def test_an_address_outside_of_an_array_is_found_with_its_name():
    code, run = product()
    with pytest.raises(LadderError, match=r"2_shared_memory_tiling\.cu:\d+: .* of (out|bias|inp)"):
        run(changed(code, "global_store_b32", ("off", "off offset:4094")))


def test_the_device_is_named_with_its_architecture():
    device = open_device("isa:gfx1100")
    assert (device.name, device.kind) == ("gfx1100, interpreted", "isa")
    with pytest.raises(LadderError, match=r"'isa:gfx90c'.* cpu, emulated, isa:"):
        open_device("isa:gfx90c")
