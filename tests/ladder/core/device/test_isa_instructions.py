"""Instructions of AMD's GPUs, interpreted, against results that are known otherwise."""

import re
from fractions import Fraction

import numpy as np
import pytest

from ladder.core.amd.isa import floats
from ladder.core.amd.isa.operands import TYPES
from ladder.core.amd.isa.waits import Outstanding, waits
from ladder.core.amd.isa.waves import SCALARS, Waves
from ladder.core.common.errors import LadderError
from ladder.core.contract.launch_plan import Launch
from tests.ladder.core.device.isa_programs import compute, kernel
from tests.ladder.core.emulator.test_matrix_cores import LAYOUTS

F32 = np.float32
ONE_WAVE = Launch("test", (1, 1, 1), (32, 1, 1))

# As clang divides two float32: a / b, v1 by v2.
DIVISION = """\
v_div_scale_f32 v5, null, v2, v2, v1
v_div_scale_f32 v6, vcc_lo, v1, v2, v1
v_rcp_f32_e32 v7, v5
v_fma_f32 v8, -v5, v7, 1.0
v_fmac_f32_e32 v7, v8, v7
v_mul_f32_e32 v8, v6, v7
v_fma_f32 v9, -v5, v8, v6
v_fmac_f32_e32 v8, v9, v7
v_fma_f32 v5, -v5, v8, v6
v_div_fmas_f32 v5, v5, v7, v8
v_div_fixup_f32 v4, v5, v2, v1"""


def any_floats(seed, count):
    """Floats of all exponents, infinities, NaN and denormal numbers among them."""
    bits = np.random.default_rng(seed).integers(0, 1 << 32, count, np.uint64).astype(np.uint32)
    values = bits.view(F32)
    values[:8] = [0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 1.1754944e-38, 3.4028235e38]
    return values


def same(given, wanted):
    """Bit by bit, but for the bits of a NaN."""
    return (given.view(np.uint32) == wanted.view(np.uint32)) | (np.isnan(given) & np.isnan(wanted))


def nearest(exact):
    """The float32 nearest to a fraction, the even one of two."""
    near = F32(float(exact))
    around = [np.nextafter(near, F32(-np.inf)), near, np.nextafter(near, F32(np.inf))]
    return min(around, key=lambda x: (abs(Fraction(float(x)) - exact), x.view(np.uint32) & 1))


def test_a_fused_multiply_add_is_rounded_once():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(400).astype(F32) for _ in range(2))
    c = -(a * b)  # what is left is the rounding error of the product
    c[200:300] *= F32(2.0**30)
    # a * b + c is in the middle between two float32 but for a bit far behind.
    a[300:350], b[300:350], c[300:350] = F32(1 + 2.0**-23), F32(1 + 2.0**-23), F32(2.0**24)
    a[350:], b[350:] = a[350:] * F32(1e-22), b[350:] * F32(1e-22)  # denormal results
    c[350:] = F32(3e-45)
    sums = compute("v_fma_f32 v4, v1, v2, v3", a, b, c)
    wanted = [
        nearest(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))
        for x, y, z in zip(a, b, c, strict=True)
    ]
    np.testing.assert_array_equal(sums, np.array(wanted, F32))


def test_a_fused_multiply_add_of_float64_is_rounded_once():
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((2, 300))
    c = np.where(np.arange(300) < 150, -(a * b), rng.standard_normal(300))
    wanted = [
        float(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in zip(a, b, c, strict=True)
    ]
    np.testing.assert_array_equal(floats.fma64(a, b, c), wanted)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_division_sequence_gives_the_quotient_that_ieee_754_wants():
    a, b = any_floats(1, 20_000), any_floats(2, 20_000)
    b[:64] = np.repeat(b[:8], 8)
    a[:64] = np.tile(a[:8], 8)
    given, wanted = compute(DIVISION, a, b), a / b
    wrong = ~same(given, wanted)
    assert not wrong.any(), (a[wrong][:4], b[wrong][:4], given[wrong][:4], wanted[wrong][:4])


def test_denormal_numbers_are_kept_by_sums_and_flushed_by_transcendental_instructions():
    a = np.array([1e-40, -1e-40, 2.0, -200.0], F32)
    np.testing.assert_array_equal(compute("v_add_f32_e32 v4, v1, v1", a), a + a)
    rcp = compute("v_rcp_f32_e32 v4, v1", a)
    np.testing.assert_array_equal(rcp, np.array([np.inf, -np.inf, 0.5, -0.005], F32))
    np.testing.assert_array_equal(compute("v_exp_f32_e32 v4, v1", a)[2:], [4.0, 0.0])


@pytest.mark.parametrize(
    "instruction, wanted",
    [
        ("v_max_f32_e32 v4, v1, v2", [3, 0, 7, -0.0]),
        ("v_min_f32_e32 v4, v1, v2", [-3, -0.0, 7, -0.0]),
        ("v_sub_f32_e64 v4, |v1|, -v2", [6, 0, np.nan, 0]),
    ],
)
def test_signs_zeros_and_nans(instruction, wanted):
    a, b = np.array([-3, 0, np.nan, -0.0], F32), np.array([3, -0.0, 7, -0.0], F32)
    assert same(compute(instruction, a, b), np.array(wanted, F32)).all()


@pytest.mark.parametrize(
    "instruction, function",
    [
        ("v_mul_hi_u32 v4, v1, v2", lambda a, b: a * b >> 32),
        ("v_mul_u32_u24_e32 v4, v1, v2", lambda a, b: (a % 2**24) * (b % 2**24)),
        ("v_bfe_u32 v4, v1, 7, 9", lambda a, b: a >> 7 & 0x1FF),
        ("v_bfe_i32 v4, v1, 7, 9", lambda a, b: ((a >> 7 & 0x1FF) ^ 0x100) - 0x100),
        ("v_alignbit_b32 v4, v1, v2, 5", lambda a, b: (a << 32 | b) >> 5),
        ("v_perm_b32 v4, v1, v2, 0x07020c00", lambda a, b: (
            (a >> 24) << 24 | (b >> 16 & 0xFF) << 16 | b & 0xFF)),
        ("v_bfi_b32 v4, 0xff00, v1, v2", lambda a, b: a & 0xFF00 | b & 0xFFFF00FF),
        ("v_lshl_add_u32 v4, v1, 3, v2", lambda a, b: (a << 3) + b),
        ("v_bfrev_b32_e32 v4, v1", lambda a, b: int(f"{a:032b}"[::-1], 2)),
        ("v_subrev_nc_u32_e32 v4, v1, v2", lambda a, b: b - a),
        ("v_bitop3_b32 v4, v1, v2, 0xff bitop3:0x6c", lambda a, b: b ^ a & 0xFF),
        ("v_bitop3_b32 v4, v1, v2, v2 bitop3:0xc0", lambda a, b: a & b),
        (
            "v_mad_u64_u32 v[5:6], null, v1, v2, 9\nv_xor_b32_e32 v4, v5, v6",
            lambda a, b: (a * b + 9 ^ (a * b + 9) >> 32),
        ),
        (
            "v_add_co_u32 v5, vcc_lo, v1, v2\nv_add_co_ci_u32_e64 v4, null, 0, 0, vcc_lo",
            lambda a, b: a + b >> 32,
        ),
    ],
)  # fmt: skip
def test_integers(instruction, function):
    rng = np.random.default_rng(3)
    a, b = (rng.integers(0, 1 << 32, 300, np.uint64).astype(np.uint32) for _ in range(2))
    wanted = [function(int(x), int(y)) % 2**32 for x, y in zip(a, b, strict=True)]
    np.testing.assert_array_equal(compute(instruction, a, b), np.array(wanted, np.uint32))


def test_floats_become_integers_towards_zero_and_what_does_not_fit_the_nearest_that_does():
    a = np.array([2.9, -2.9, np.nan, 1e20, -1e20, np.inf], F32)
    signed = compute("v_cvt_i32_f32_e32 v4, v1", a).view(np.int32)
    np.testing.assert_array_equal(signed, [2, -2, 0, 2**31 - 1, -(2**31), 2**31 - 1])
    unsigned = compute("v_cvt_u32_f32_e32 v4, v1", a).view(np.uint32)
    np.testing.assert_array_equal(unsigned, [2, 0, 0, 2**32 - 1, 0, 2**32 - 1])


def test_both_halves_of_a_pair_read_before_either_writes():
    a, b = np.arange(100, dtype=np.uint32), np.arange(100, 200, dtype=np.uint32)
    swap = "v_dual_mov_b32 v1, v2 :: v_dual_mov_b32 v2, v1\nv_sub_nc_u32_e32 v4, v1, v2"
    np.testing.assert_array_equal(compute(swap, a, b), b - a)


def test_two_floats_become_16_bits_each_rounded_to_nearest():
    a, b = any_floats(5, 256), any_floats(6, 256)
    for name in ("f16", "bf16"):
        pairs = compute(f"v_cvt_pk_{name}_f32 v4, v1, v2", a, b).view(np.uint32)
        halves = [(pairs & 0xFFFF).astype(np.uint16), (pairs >> 16).astype(np.uint16)]
        for half, source in zip(halves, (a, b), strict=True):
            with np.errstate(all="ignore"):
                wanted = source.astype(TYPES[name])
            numbers = ~np.isnan(source)
            assert np.array_equal(half[numbers], wanted.view(np.uint16)[numbers])


def test_an_unfused_multiply_add_rounds_twice_and_flushes_denormal_numbers():
    a, c = np.array([1 + 2.0**-12, 1e-30, 1e-40], F32), np.array([-1, 0, 0], F32)
    sums = compute("v_madmk_f32 v4, v1, 0x3f800800, v2", a, c)  # 1 + 2^-12
    np.testing.assert_array_equal(
        sums, np.array([2.0**-11, F32(1e-30) * F32(1 + 2.0**-12), 0], F32)
    )


def test_a_shuffle_reads_zero_from_lanes_that_are_not_active():
    text = """\
v_mbcnt_lo_u32_b32 v5, -1, 0
v_xor_b32_e32 v5, 1, v5
v_lshlrev_b32_e32 v5, 2, v5
v_mov_b32_e32 v4, 0
s_mov_b32 exec_lo, 0x7fffffff
ds_bpermute_b32 v4, v5, v1
s_waitcnt lgkmcnt(0)
s_mov_b32 exec_lo, -1"""
    a = np.arange(1, 33, dtype=np.uint32)
    wanted = a.reshape(16, 2)[:, ::-1].ravel().copy()
    wanted[30:] = 0
    np.testing.assert_array_equal(compute(text, a), wanted)


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("v_readlane_b32 s12, v1, 37\nv_mov_b32_e32 v4, s12", lambda a, lane: a[32 + 5]),
        ("v_readfirstlane_b32 s12, v1\nv_mov_b32_e32 v4, s12", lambda a, lane: a[32]),
        (
            "s_mov_b32 s12, 7\nv_mov_b32_e32 v4, v1\nv_writelane_b32 v4, s12, 3",
            lambda a, lane: np.where(lane == 3, 7, a[32:]),
        ),
        ("v_mbcnt_lo_u32_b32 v4, 0xff0, 100", lambda a, lane: 100 + np.clip(lane - 4, 0, 8)),
        ("v_mbcnt_hi_u32_b32 v4, -1, 100", lambda a, lane: 100 + 0 * lane),
    ],
)
def test_lanes_exchange_values_with_scalars(text, wanted):
    a = np.arange(1000, 1064, dtype=np.uint32)
    np.testing.assert_array_equal(compute(text, a)[32:], wanted(a, np.arange(32)))


def test_packed_instructions_choose_halves_and_signs():
    a, b = np.arange(100, dtype=F32), np.full(100, 0.25, F32)
    text = """\
v_mov_b32_e32 v10, v1
v_mov_b32_e32 v11, v2
v_pk_add_f32 v[4:5], v[10:11], v[10:11] op_sel:[0,1] op_sel_hi:[1,0] neg_lo:[0,1]"""
    np.testing.assert_array_equal(compute(text, a, b, arch="gfx942"), a - b)
    text += "\nv_mov_b32_e32 v4, v5"
    np.testing.assert_array_equal(compute(text, a, b, arch="gfx942"), a + b)


def test_sdwa_reads_and_writes_parts_of_registers():
    a = np.array([0x00050000, 0x7FFF1234], np.uint32)
    b = np.array([0xFE, 0x01], np.uint32)
    text = """\
v_mov_b32_e32 v4, -1
v_add_u32_sdwa v4, v1, sext(v2) dst_sel:{} dst_unused:{} src0_sel:WORD_1 src1_sel:BYTE_0"""
    sums = compute(text.format("DWORD", "UNUSED_PAD"), a, b, arch="gfx942")
    np.testing.assert_array_equal(sums, [3, 0x8000])
    sums = compute(text.format("WORD_1", "UNUSED_PRESERVE"), a, b, arch="gfx942")
    np.testing.assert_array_equal(sums, [0x0003FFFF, 0x8000FFFF])


def test_a_mixed_multiply_add_takes_halves_of_registers():
    halves = np.array([[1.5, -2.0], [0.25, 4.0]], np.float16)
    a, c = halves.view(np.uint32)[:, 0].view(F32), np.array([10, 20], F32)
    sums = compute("v_fma_mix_f32 v4, -v1, v1, v3 op_sel:[0,1,0] op_sel_hi:[1,1,0]", a, None, c)
    np.testing.assert_array_equal(sums, c - halves[:, 0].astype(F32) * halves[:, 1])


def test_a_dot_product_of_halves_is_added_up_in_float32():
    a, b = (np.array([[3, 0.5], [-1, 8]], np.float16) * scale for scale in (1, 2))
    c = np.array([2.0**-20, 100], F32)
    words = (halves.astype(np.float16).view(np.uint32)[:, 0].view(F32) for halves in (a, b))
    sums = compute("v_dot2_f32_f16 v4, v1, v2, v3", *words, c)
    np.testing.assert_array_equal(sums, (a * b).sum(axis=1).astype(F32) + c)


MATRIX = {  # an architecture that has it, and where AMD's documents put each element
    "v_mfma_f32_32x32x8_f16": ("gfx942", LAYOUTS["mfma-32"]),
    "v_mfma_f32_16x16x16_bf16": ("gfx942", LAYOUTS["mfma-16"]),
    "v_wmma_f32_16x16x16_bf16": ("gfx1100", LAYOUTS["wmma-rdna3"]),
    "v_wmma_f32_16x16x16_f16": ("gfx1201", LAYOUTS["wmma-rdna4"]),
}


@pytest.mark.parametrize("name", MATRIX)
def test_matrix_cores_have_each_element_in_its_lane(name):
    arch, of = MATRIX[name]
    lanes, side, depth, each = of.lanes, of.side, of.deep, of.part
    dtype = TYPES["bf16" if "bf16" in name else "f16"]
    a, b = (
        np.random.default_rng(seed).integers(-8, 9, (2, side, depth)).astype(dtype)
        for seed in range(2)
    )
    registers, scalars = np.zeros((64, 2, lanes), np.uint32), np.zeros((SCALARS, 2, 1), np.uint32)
    scc, blocks = np.zeros((2, 1), bool), np.zeros(2, int)
    waves = Waves(registers, scalars, scc, np.arange(2), blocks, Outstanding(2))
    registers = each // 2
    for first, matrix in ((0, a), (registers, b)):
        content = np.zeros((2, lanes, each), dtype)
        for lane in range(lanes):
            for number, (row, k) in enumerate(of.factors(lane)):
                content[:, lane, number] = matrix[:, row, k]
        waves.v[first : first + registers] = content.view(np.uint32).transpose(2, 0, 1)
    sums = side * side // lanes
    waves.vf[32 : 32 + sums] = 0.5
    last = registers - 1
    text = f"{name} v[32:{31 + sums}], v[0:{last}], v[{registers}:{registers + last}], v[32:35]"
    step = kernel(text, arch=arch)._steps[0]
    step.run(waves, None)
    wanted = a.astype(F32) @ b.astype(F32).swapaxes(1, 2) + F32(0.5)
    for lane in range(lanes):
        for register, (i, j) in enumerate(of.sums(lane)):
            np.testing.assert_array_equal(waves.vf[32 + register, :, lane], wanted[:, i, j])


def test_scratch_memory_belongs_to_a_lane():
    text = """\
scratch_store_b32 off, v1, off offset:8
v_mov_b32_e32 v4, 0
s_waitcnt_vscnt null, 0x0
scratch_load_b32 v4, off, off offset:8
s_waitcnt vmcnt(0)"""
    a = np.arange(64, dtype=np.uint32)
    with pytest.raises(LadderError, match=r"writes 4 .* 8 of scratch memory"):
        compute(text, a)
    out = np.zeros(32, np.uint32)
    own = f"s_load_b64 s[4:5], s[0:1], 0x0\nv_mov_b32_e32 v1, v0\n{text}\n"
    own += "s_waitcnt lgkmcnt(0)\nv_lshlrev_b32_e32 v0, 2, v0\n"
    own += "global_store_b32 v0, v4, s[4:5]\ns_endpgm"
    kernel(own, arguments=1, scratch=16)(ONE_WAVE, (out,))
    np.testing.assert_array_equal(out, np.arange(32))


@pytest.mark.parametrize(
    "load, offset, wanted",
    [("u8", 0, 0x81), ("i8", 0, -127), ("u16", 2, 0xFFFE), ("i16", 2, -2), ("b32", 4, 0x12345678)],
)
def test_scalar_loads_of_bytes_and_halves_fill_the_register(load, offset, wanted):
    a = np.array([0xFFFE8081, 0x12345678], np.uint32)
    text = f"s_load_{load} s12, s[6:7], {offset}\ns_waitcnt lgkmcnt(0)\nv_mov_b32_e32 v4, s12"
    np.testing.assert_array_equal(compute(text, a), np.full(2, wanted, np.int64).astype(np.uint32))


@pytest.mark.parametrize(
    "text, names",
    [
        ("v_unheard_of v1, v2", "instruction"),
        (
            "v_mov_b32_dpp v1, v2 quad_perm:[1,0,3,2] row_mask:0xf",
            r"quad_perm:\[1,0,3,2\] row_mask",
        ),
        ("ds_cmpstore_b32 v1, v2, v3", "instruction"),
        ("global_atomic_add_f64 v1, v[2:3], s[4:5]", "atomics"),
    ],
)
def test_an_instruction_that_is_not_known_is_named_with_its_place(text, names):
    with pytest.raises(LadderError, match=rf"test\.s:1: '{re.escape(text)}': .*{names}"):
        kernel(f"{text}\ns_endpgm")


# ---- what a GPU would not notice ----


def test_a_register_that_is_used_before_its_load_was_waited_for():
    text = "global_load_b32 v4, v0, s[6:7]\nv_add_f32_e32 v5, v4, v4\ns_waitcnt vmcnt(0)"
    with pytest.raises(LadderError, match=r"'v_add_f32_e32 v5, v4, v4' \w+ v4 ") as error:
        compute(text, np.ones(4, F32))
    assert "'global_load_b32 v4, v0, s[6:7]' (test.s:9)" in str(error.value)


def test_a_wait_for_all_but_one_load_is_enough_for_the_first():
    text = "global_load_b32 v4, v0, s[6:7]\nglobal_load_b32 v5, v0, s[8:9]\ns_waitcnt vmcnt(1)\n"
    a, b = np.full(40, 3, F32), np.full(40, 4, F32)
    done = "v_add_f32_e32 v4, v4, v4\ns_waitcnt vmcnt(0)"
    np.testing.assert_array_equal(compute(text + done, a, b), a + a)
    with pytest.raises(LadderError, match=r"' \w+ v5 "):
        compute(text + "v_add_f32_e32 v4, v5, v5", a, b)


def test_scalar_loads_complete_in_any_order():
    text = """\
s_load_b32 s12, s[6:7], 0x0
s_load_b32 s13, s[8:9], 0x0
s_waitcnt lgkmcnt(1)
v_mov_b32_e32 v4, s12"""
    with pytest.raises(LadderError, match=r"' \w+ s12 "):
        compute(text, np.ones(4, F32))


@pytest.mark.parametrize(
    "arch, text, wanted",
    [
        ("gfx942", "s_waitcnt vmcnt(3) lgkmcnt(0)", {"loads": 3, "LDS": 0, "scalar loads": 0}),
        ("gfx1100", "s_waitcnt_vscnt null, 0x2", {"stores": 2}),
        ("gfx1201", "s_wait_loadcnt 0x4", {"loads": 4}),
        ("gfx1201", "s_wait_loadcnt_dscnt 0x102", {"loads": 1, "LDS": 2}),
        ("gfx1201", "s_wait_kmcnt 0x0", {"scalar loads": 0}),
    ],
)
def test_what_an_instruction_waits_for(arch, text, wanted):
    numbers = {queue.name: number for queues, number in waits(text, arch) for queue in queues}
    assert {name: numbers[name] for name in numbers if "flat" not in name} == wanted


def test_a_load_may_follow_another_of_its_queue_into_a_register():
    text = "global_load_b32 v4, v0, s[6:7]\nglobal_load_b32 v4, v0, s[8:9]\ns_waitcnt vmcnt(0)"
    a, b = np.full(40, 3, F32), np.full(40, 4, F32)
    np.testing.assert_array_equal(compute(text, a, b), b)
    with pytest.raises(LadderError, match=r"' \w+ v4 "):
        compute("global_load_b32 v4, v0, s[6:7]\nds_bpermute_b32 v4, v1, v1", a)
    flat = "v_mov_b32_e32 v5, s6\nv_mov_b32_e32 v6, s7\nflat_load_b32 v4, v[5:6]\n"
    again = "global_load_b32 v4, v0, s[8:9]\ns_waitcnt vmcnt(0)"
    compute(f"{flat}s_waitcnt lgkmcnt(0)\n{again}", a, b)  # it was no access to LDS
    with pytest.raises(LadderError, match=r"' \w+ v4 "):
        compute(flat + again, a, b)


def test_a_register_that_a_load_will_still_overwrite():
    with pytest.raises(LadderError, match=r"'v_mov_b32_e32 v4, 0' \w+ v4 "):
        compute("global_load_b32 v4, v0, s[6:7]\nv_mov_b32_e32 v4, 0", np.ones(4, F32))


@pytest.mark.parametrize(
    "access, names",
    [
        ("global_load_b32 v4, v0, s[6:7] offset:1024", r"reads 4 .* 0 bytes behind .* a\b"),
        ("global_store_b32 v0, v1, s[4:5] offset:-4", r"writes 4 .* 4 bytes before .* out\b"),
        ("flat_load_b32 v4, v[30:31]", "reads 4 .* 0x7fe5a5a57fe5a5a5"),
        ("ds_load_b32 v4, v0", "reads 4 .* 0 of LDS, .* 0 bytes"),
    ],
)
def test_an_address_outside_of_all_arrays(access, names):
    with pytest.raises(LadderError, match=names):
        compute(access, np.ones(256, F32))


def exchange(barrier):
    """Each thread writes its number to LDS and reads that of the thread 32 further."""
    text = f"""\
s_load_b64 s[4:5], s[0:1], 0x0
v_lshlrev_b32_e32 v1, 2, v0
ds_store_b32 v1, v0
{barrier}
v_xor_b32_e32 v2, 0x80, v1
ds_load_b32 v3, v2
s_waitcnt lgkmcnt(0)
global_store_b32 v1, v3, s[4:5]
s_endpgm"""
    out = np.zeros(64, np.uint32)
    kernel(text, arguments=1, lds=256)(Launch("test", (1, 1, 1), (64, 1, 1)), (out,))
    return out


def test_a_barrier_shows_other_waves_what_was_written():
    out = exchange("s_waitcnt lgkmcnt(0)\ns_barrier")
    np.testing.assert_array_equal(out, np.arange(64) ^ 32)


@pytest.mark.parametrize("barrier", ["s_waitcnt lgkmcnt(0)", "s_barrier", "s_nop 0"])
def test_without_barrier_or_without_the_wait_before_it_lds_is_raced_for(barrier):
    with pytest.raises(LadderError, match="' reads LDS ") as error:
        exchange(barrier)
    assert "'ds_store_b32 v1, v0' (test.s:3)" in str(error.value)


def test_two_waves_that_write_the_same_place_race():
    text = "v_mov_b32_e32 v1, 0\nds_store_b32 v1, v0\ns_endpgm"
    with pytest.raises(LadderError, match="'ds_store_b32 v1, v0' writes LDS "):
        kernel(text, arguments=1, lds=256)(
            Launch("test", (1, 1, 1), (64, 1, 1)), (np.zeros(1, np.uint32),)
        )


def test_a_loop_without_an_end_is_stopped():
    endless = kernel("again:\ns_branch again\ns_endpgm", arguments=1)
    endless.time_limit = 0.2
    with pytest.raises(LadderError, match="s_branch again"):
        endless(ONE_WAVE, (np.zeros(1, np.uint32),))
