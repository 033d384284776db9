"""Every rung of every ladder is right, at the shapes that are derived from it, in every type and
case of its op, on the emulator or on the GPU.

`python -m ladder check OP` runs the same from the command line.
"""

import subprocess

import numpy as np
import pytest

from ladder.core.contract.ladder import ladders
from ladder.core.contract.op import DTYPES
from ladder.core.contract.target import Target
from ladder.core.device.open import default_device, open_device
from ladder.core.emulator import source, toolchain
from ladder.core.emulator.emulated import INCLUDE
from ladder.core.verify.check import FEW_CASE_BYTES, FEW_SHAPES, check, gpt2_shape, largest
from ladder.core.verify.shapes import derive_shapes
from ladder.core.verify.variants import variants

EMULATED, EMULATED_64 = open_device("emulated"), open_device("emulated:64")


def case(ladder, rung, dtype):
    # One process for all rungs of a ladder: the reference runs once for all of them.
    group = pytest.mark.xdist_group(f"{ladder.op.name}-{dtype}")
    return pytest.param(ladder, rung, dtype, id=f"{ladder.op.name}-{rung.id}-{dtype}", marks=group)


def types_to_run(ladder, rung):
    """On the emulator, every other rung of a ladder runs in one type beside its main one, and
    these types take turns."""
    main, *others = [
        dtype for dtype in ladder.op.reals if rung.claims(EMULATED.target(DTYPES[dtype]))
    ] or ladder.op.reals[:1]
    if default_device() == "emulated" and others:
        turn, left_out = divmod(ladder.rungs.index(rung), 2)
        return [main] if left_out else [main, others[turn % len(others)]]
    return [main, *others]


CASES = [
    case(ladder, rung, dtype)
    for ladder in ladders().values()
    for rung in ladder.rungs
    for dtype in ladder.op.reals
]
CASES_IN_TURNS = [
    case(ladder, rung, dtype)
    for ladder in ladders().values()
    for rung in ladder.rungs
    for dtype in types_to_run(ladder, rung)
]
ONLY_READ = [
    pytest.param(ladder.op, rung, dtype, id=f"{ladder.op.name}-{rung.id}-{dtype}")
    for ladder in ladders().values()
    for rung in ladder.rungs
    for dtype in ladder.op.reals
    if rung.path is not None and rung.claims(EMULATED.target(DTYPES[dtype]))
    if dtype not in types_to_run(ladder, rung)
]


@pytest.mark.costly
@pytest.mark.emulator
@pytest.mark.gpu
@pytest.mark.parametrize(("ladder", "rung", "dtype"), CASES_IN_TURNS)
def test_a_rung_computes_what_its_contract_says(ladder, rung, dtype, device):
    """In one type at the most telling shapes, two of them under every order of threads, in another
    at a larger one of these. On a GPU, which is fast, at all shapes and in every type."""
    device = device_for(ladder, rung, dtype, device)
    if dtype == main_type(ladder, rung, device):
        report = check(ladder, rung, device, [dtype], few=not device.is_gpu)
    else:
        shapes = larger(ladder.op, rung, dtype, device)
        report = check(ladder, rung, device, [dtype], shapes, brief=True)
    assert report.passed, str(report)


@pytest.mark.costly
@pytest.mark.emulator
@pytest.mark.parametrize(("op", "rung", "dtype"), ONLY_READ)
def test_a_rung_is_sound_in_the_type_that_has_no_turn(op, rung, dtype):
    """As far as a compiler sees that before it makes code, which takes most of its time."""
    plans = [rung.plan(dims, EMULATED.target(DTYPES[dtype])) for dims in op.shapes]
    constants = next(plan.constants for plan in plans if plan.refusal is None)
    macros = {f"REAL_{dtype.upper()}": 1, "WARP_SIZE": 32, **constants}
    flags = [*toolchain.KERNEL, f"-I{toolchain.INCLUDE}", "-include", "cuda_runtime.h"]
    flags += [f"-D{name}={value}" for name, value in macros.items()]
    command = [*toolchain.find_compiler().command, *flags, "-fsyntax-only", "-x", "c++", "-"]
    text, _ = source.prepare(rung.file, rung.source, [INCLUDE])
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.emulator
@pytest.mark.sweep
@pytest.mark.parametrize(("ladder", "rung", "dtype"), CASES)
def test_a_rung_does_so_at_all_shapes_in_every_type(ladder, rung, dtype, device):
    device = device_for(ladder, rung, dtype, device)
    if dtype == main_type(ladder, rung, device):
        report = check(ladder, rung, device, [dtype])
    else:
        report = check(ladder, rung, device, [dtype], brief=dtype == "float16")
    assert report.passed, str(report)


WITH_64_LANES = [
    pytest.param(ladder, rung, dtype, id=f"{ladder.op.name}-{rung.id}-{dtype}")
    for ladder in ladders().values()
    for rung in ladder.rungs
    for dtype in ladder.op.reals
    if rung.path is not None and rung.claims(Target("gfx942", 64, 304, 64 << 10, DTYPES[dtype]))
]


@pytest.mark.costly
@pytest.mark.emulator
@pytest.mark.parametrize(("ladder", "rung", "dtype"), WITH_64_LANES[::90])
def test_a_rung_for_amd_is_right_in_every_order_of_64_lanes_and_has_no_race(ladder, rung, dtype):
    shape = derive_shapes(ladder.op, rung, EMULATED_64.target(DTYPES[dtype]))[:1]
    report = check(ladder, rung, EMULATED_64, [dtype], shape)
    assert report.passed, str(report)


@pytest.mark.emulator
@pytest.mark.sweep
@pytest.mark.parametrize(("ladder", "rung", "dtype"), WITH_64_LANES)
def test_a_rung_for_amd_is_so_at_more_shapes(ladder, rung, dtype):
    report = check(ladder, rung, EMULATED_64, [dtype], few=True)
    assert report.passed, str(report)


def test_the_emulator_with_64_lanes_has_no_variant_with_less():
    devices = [device for group in variants(EMULATED_64) for device in group]
    warps = {device.target(np.dtype(np.float32)).warp for device in devices}
    assert warps == {64}


def device_for(ladder, rung, dtype, device):
    """The device that the rung is checked on; skips the test where there is none."""
    if rung.is_reference:
        device = open_device("cpu")
    elif rung not in ladder.on(device):
        pytest.skip(f"a library's, not for {device.name}")
    if not rung.claims(device.target(DTYPES[dtype])):
        pytest.skip(f"it needs {'; '.join(rung.conditions())}")
    return device


def main_type(ladder, rung, device):
    """The first type that the rung is written for."""
    return next(d for d in ladder.op.reals if rung.claims(device.target(DTYPES[d])))


def larger(op, rung, dtype, device):
    """Of the shapes that tell most, the largest small one; on a GPU two of them, and GPT-2's."""
    real = DTYPES[dtype]
    telling = derive_shapes(op, rung, device.target(real))[:FEW_SHAPES]
    if device.is_gpu:
        return [*largest(op, real, telling), gpt2_shape(op)]
    return largest(op, real, telling, 1, FEW_CASE_BYTES)
