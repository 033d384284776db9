"""Vector instructions: one value for each lane. Arrays are (waves, lanes), or broadcast to that."""

from collections.abc import Callable

import numpy as np

from ladder.core.amd.isa import floats, scalar
from ladder.core.amd.isa.meaning import Meaning, alike, computes


def _swapped(function: Callable[..., object]) -> Callable[..., object]:
    """The same with its first two operands the other way round, as in V_SUBREV and V_LSHLREV."""
    return lambda a, b, *more: function(b, a, *more)


def _low24(dtype: type, a: np.ndarray) -> np.ndarray:
    """The low 24 bits, with their sign where the type has one."""
    return (a << 8).view(dtype) >> 8


def _wide_product(wide: type) -> Callable[..., scalar.Pair]:
    """a * b + c in 64 bits. The carry out of them is not computed: no kernel here reads it."""

    def compute(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> scalar.Pair:
        total = a.astype(wide) * b.astype(wide) + c
        return total, np.zeros((1, 1), bool)

    return compute


def _permute_bytes(a: np.ndarray, b: np.ndarray, selector: np.ndarray) -> np.ndarray:
    """Each byte of the selector names a byte of a:b, 0 to 3 in b, 4 to 7 in a, or a constant."""
    both = (a.astype(np.uint64) << 32) | b
    result = np.zeros(np.broadcast_shapes(a.shape, b.shape, selector.shape), np.uint32)
    for place in range(4):
        which = selector >> (8 * place) & 0xFF
        byte = (both >> (8 * (which & 7)).astype(np.uint64)).astype(np.uint32) & 0xFF
        sign = (both >> (16 * (which & 3) + 15).astype(np.uint64)).astype(np.uint32) & 1
        value = np.where(which <= 7, byte, np.where(which <= 11, sign * 255, 0))
        value = np.where(which >= 13, 255, value)
        result |= value.astype(np.uint32) << (8 * place)
    return result


def _leading_zeros(a: np.ndarray) -> np.ndarray:
    """V_CLZ_I32_U32: -1 for 0."""
    exponent = np.frexp(a.astype(np.float64))[1]
    return np.where(a == 0, -1, 32 - exponent).astype(np.int32)


def _select(a: np.ndarray, b: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return np.where(mask, b, a)


def _ldexp(a: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    return np.ldexp(a.astype(np.float64), np.clip(exponent, -600, 600)).astype(a.dtype)


def _cast(dtype: np.dtype) -> Callable[[np.ndarray], np.ndarray]:
    return lambda a: a.astype(dtype)


def _pack(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    low, high = a.view(np.uint16).astype(np.uint32), b.view(np.uint16).astype(np.uint32)
    return low | high << 16


def _dot2(dtype: np.dtype) -> Callable[..., np.ndarray]:
    """c + the products of two numbers of 16 bits in each of a and b, the low halves' first."""

    def compute(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        for shift in (0, 16):
            one, two = ((x >> shift).astype(np.uint16).view(dtype) for x in (a, b))
            c = floats.fma32(one.astype(np.float32), two.astype(np.float32), c)
        return c

    return compute


def _towards_zero(a: np.ndarray) -> np.ndarray:
    """float16 of float32, rounded towards zero."""
    near = a.astype(np.float16)
    beyond = np.abs(near.astype(np.float32)) > np.abs(a)
    return np.where(beyond & np.isfinite(a), (near.view(np.uint16) - 1).view(np.float16), near)


def by_truth_table(table: int, size: int) -> Meaning:
    """V_BITOP3 (CDNA 4): bit 4a + 2b + c of the table is the result for bits a, b and c."""
    rows = [row for row in range(8) if table >> row & 1]

    def compute(*sources: np.ndarray) -> np.ndarray:
        result = np.zeros(np.broadcast_shapes(*(x.shape for x in sources)), sources[0].dtype)
        for row in rows:
            a, b, c = (x if row & bit else ~x for x, bit in zip(sources, (4, 2, 1), strict=True))
            result |= a & b & c
        return result

    return computes(" ".join([f"u{size} =", *[f"u{size}"] * 3]), compute)


def _aligned(bits: int) -> Callable[..., np.ndarray]:
    """V_ALIGNBIT and V_ALIGNBYTE: 32 bits of a:b, from c bits or bytes on."""

    def compute(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        both = (a.astype(np.uint64) << 32) | b
        return (both >> (bits * (c & (32 // bits - 1))).astype(np.uint64)).astype(np.uint32)

    return compute


def _packed(dtype: np.dtype) -> Callable[..., np.ndarray]:
    return lambda a, b: _pack(a.astype(dtype), b.astype(dtype))


def _product24(dtype: type) -> Callable[..., np.ndarray]:
    """The product of the low 24 bits of each, added to a third number if there is one."""
    return lambda a, b, *c: sum(c, _low24(dtype, a) * _low24(dtype, b))


VECTOR: dict[str, Meaning] = {
    # ---- floating point ----
    **alike("v_max3_f32", 3, lambda a, b, c: floats.maximum(floats.maximum(a, b), c)),
    **alike("v_min3_f32", 3, lambda a, b, c: floats.minimum(floats.minimum(a, b), c)),
    **alike("v_max_f16 v_max_f32", 2, floats.maximum),
    **alike("v_min_f16 v_min_f32", 2, floats.minimum),
    **alike("v_fma_f32 v_fmac_f32 v_fmaak_f32 v_fmamk_f32", 3, floats.fma32),
    **alike("v_madmk_f32", 3, floats.mad32),
    **alike("v_fma_f16 v_fmac_f16", 3, floats.fma16),
    **alike("v_fma_f64 v_fmac_f64", 3, floats.fma64),
    **alike("v_rndne_f32", 1, np.rint),
    **alike("v_trunc_f32", 1, np.trunc),
    **alike("v_floor_f32", 1, np.floor),
    **alike("v_ceil_f32", 1, np.ceil),
    **alike("v_fract_f32", 1, lambda a: a - np.floor(a)),
    **alike("v_exp_f32", 1, floats.exp2),
    **alike("v_log_f32", 1, floats.log2),
    **alike("v_rcp_f32 v_rcp_iflag_f32", 1, floats.reciprocal),
    **alike("v_rsq_f32", 1, floats.reciprocal_root),
    **alike("v_sqrt_f32", 1, floats.square_root),
    **alike("v_sin_f32", 1, floats.sine),
    **alike("v_cos_f32", 1, floats.cosine),
    "v_ldexp_f32": computes("f32 = f32 i32", _ldexp),
    "v_div_scale_f32": computes("f32 mask = f32 f32 f32", floats.div_scale),
    "v_div_fmas_f32": computes("f32 = f32 f32 f32 vcc", floats.div_fmas),
    **alike("v_div_fixup_f32", 3, floats.div_fixup),
    "v_cmp_class_f16": computes("mask = f16 u32", floats.is_class),
    "v_cmp_class_f32": computes("mask = f32 u32", floats.is_class),
    # ---- conversions ----
    "v_cvt_f32_i32": computes("f32 = i32", _cast(floats.F32)),
    "v_cvt_f32_u32": computes("f32 = u32", _cast(floats.F32)),
    "v_cvt_i32_f32": computes("i32 = f32", floats.to_integer(np.int32)),
    "v_cvt_u32_f32": computes("u32 = f32", floats.to_integer(np.uint32)),
    "v_cvt_f64_f32": computes("f64 = f32", _cast(floats.F64)),
    "v_cvt_f32_f64": computes("f32 = f64", _cast(floats.F32)),
    "v_cvt_f64_i32": computes("f64 = i32", _cast(floats.F64)),
    "v_cvt_f64_u32": computes("f64 = u32", _cast(floats.F64)),
    "v_cvt_f16_f32": computes("f16 = f32", _cast(floats.F16)),
    "v_cvt_f32_f16": computes("f32 = f16", _cast(floats.F32)),
    "v_cvt_pk_rtz_f16_f32": computes(
        "u32 = f32 f32", lambda a, b: _pack(_towards_zero(a), _towards_zero(b))
    ),
    "v_cvt_pk_f16_f32": computes("u32 = f32 f32", _packed(floats.F16)),
    "v_cvt_pk_bf16_f32": computes("u32 = f32 f32", _packed(floats.BF16)),
    "v_pack_b32_f16": computes("u32 = f16 f16", _pack),
    # ---- sums and products ----
    **alike("v_add_f16 v_add_f32 v_add_f64 v_add_nc_u16 v_add_nc_u32", 2, np.add),
    **alike("v_sub_f16 v_sub_f32 v_sub_nc_u16 v_sub_nc_u32", 2, np.subtract),
    **alike("v_subrev_f32 v_subrev_nc_u32", 2, _swapped(np.subtract)),
    **alike("v_mul_f16 v_mul_f32 v_mul_f64 v_mul_lo_u16 v_mul_lo_u32", 2, np.multiply),
    **alike("v_mul_hi_u32", 2, scalar.high(np.uint64)),
    **alike("v_mul_hi_i32", 2, scalar.high(np.int64)),
    **alike("v_add3_u32", 3, lambda a, b, c: a + b + c),
    **alike("v_mad_u16", 3, lambda a, b, c: a * b + c),
    "v_add_co_u32": computes("u32 mask = u32 u32", scalar.carry),
    "v_add_co_ci_u32": computes("u32 mask = u32 u32 mask", scalar.carry),
    "v_sub_co_u32": computes("u32 mask = u32 u32", scalar.borrow),
    "v_sub_co_ci_u32": computes("u32 mask = u32 u32 mask", scalar.borrow),
    "v_subrev_co_u32": computes("u32 mask = u32 u32", _swapped(scalar.borrow)),
    "v_subrev_co_ci_u32": computes("u32 mask = u32 u32 mask", _swapped(scalar.borrow)),
    "v_mul_u32_u24": computes("u32 = u32 u32", _product24(np.uint32)),
    "v_mul_i32_i24": computes("i32 = u32 u32", _product24(np.int32)),
    "v_mad_u32_u24": computes("u32 = u32 u32 u32", _product24(np.uint32)),
    "v_mad_i32_i24": computes("i32 = u32 u32 i32", _product24(np.int32)),
    "v_mad_u64_u32": computes("u64 mask = u32 u32 u64", _wide_product(np.uint64)),
    "v_mad_i64_i32": computes("i64 mask = i32 i32 i64", _wide_product(np.int64)),
    **alike("v_max_i32 v_max_u32", 2, np.maximum),
    **alike("v_min_i32 v_min_u32", 2, np.minimum),
    **alike("v_med3_i32", 3, floats.median),
    # ---- bits ----
    **alike("v_mov_b16 v_mov_b32 v_mov_b64", 1, np.copy),
    **alike("v_accvgpr_read_b32 v_accvgpr_write_b32 v_accvgpr_mov_b32", 1, np.copy),
    **alike("v_and_b16 v_and_b32", 2, np.bitwise_and),
    **alike("v_or_b16 v_or_b32", 2, np.bitwise_or),
    **alike("v_xor_b16 v_xor_b32", 2, np.bitwise_xor),
    **alike("v_xnor_b32", 2, lambda a, b: ~(a ^ b)),
    **alike("v_not_b16 v_not_b32", 1, np.invert),
    **alike("v_lshl_add_u32", 3, lambda a, b, c: (a << (b & 31)) + c),
    **alike("v_lshl_or_b32", 3, lambda a, b, c: (a << (b & 31)) | c),
    "v_lshl_add_u64": computes("u64 = u64 u32 u64", lambda a, b, c: (a << (b & np.uint64(7))) + c),
    **alike("v_add_lshl_u32", 3, lambda a, b, c: (a + b) << (c & 31)),
    **alike("v_and_or_b32", 3, lambda a, b, c: a & b | c),
    **alike("v_or3_b32", 3, lambda a, b, c: a | b | c),
    **alike("v_xor3_b32", 3, lambda a, b, c: a ^ b ^ c),
    **alike("v_xad_u32", 3, lambda a, b, c: (a ^ b) + c),
    **alike("v_bfi_b32", 3, lambda a, b, c: a & b | ~a & c),
    **alike("v_bfe_u32", 3, lambda a, b, c: scalar.field(a, b, c & 31)),
    "v_bfe_i32": computes("i32 = i32 u32 u32", lambda a, b, c: scalar.field(a, b, c & 31)),
    **alike("v_bfrev_b32", 1, scalar.reverse),
    **alike("v_bcnt_u32_b32", 2, lambda a, b: scalar.bit_count(a) + b),
    "v_clz_i32_u32": computes("i32 = u32", _leading_zeros),
    **alike("v_perm_b32", 3, _permute_bytes),
    **alike("v_alignbit_b32", 3, _aligned(1)),
    **alike("v_alignbyte_b32", 3, _aligned(8)),
    "v_cndmask_b16": computes("u16 = u16 u16 mask", _select),
    "v_cndmask_b32": computes("u32 = u32 u32 mask", _select),
}

for _size, _distance in ((16, "u16"), (32, "u32"), (64, "u32")):
    _logical, _signed = f"u{_size} = {_distance} u{_size}", f"i{_size} = {_distance} i{_size}"
    VECTOR[f"v_lshlrev_b{_size}"] = computes(_logical, _swapped(scalar.shifted(np.left_shift)))
    VECTOR[f"v_lshrrev_b{_size}"] = computes(_logical, _swapped(scalar.shifted(np.right_shift)))
    VECTOR[f"v_ashrrev_i{_size}"] = computes(_signed, _swapped(scalar.shifted(np.right_shift)))

for _name in ("v_dot2", "v_dot2acc", "v_dot2c"):
    VECTOR[f"{_name}_f32_f16"] = computes("f32 = u32 u32 f32", _dot2(floats.F16))
    VECTOR[f"{_name}_f32_bf16"] = computes("f32 = u32 u32 f32", _dot2(floats.BF16))

for _byte in range(4):
    VECTOR[f"v_cvt_f32_ubyte{_byte}"] = computes(
        "f32 = u32", lambda a, shift=8 * _byte: (a >> shift & 0xFF).astype(np.float32)
    )

_INTEGERS = {**scalar.COMPARE, "ne": np.not_equal}
_FLOATS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    **scalar.COMPARE,
    "neq": np.not_equal,
    "lg": lambda a, b: (a < b) | (a > b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "nlt": lambda a, b: ~(a < b),
    "nle": lambda a, b: ~(a <= b),
    "ngt": lambda a, b: ~(a > b),
    "nge": lambda a, b: ~(a >= b),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
}
for _kind in ("i16", "u16", "i32", "u32", "i64", "u64"):
    for _name, _integers in _INTEGERS.items():
        VECTOR[f"v_cmp_{_name}_{_kind}"] = computes(f"mask = {_kind} {_kind}", _integers)
for _kind in ("f16", "f32", "f64"):
    for _name, _floats in _FLOATS.items():
        VECTOR[f"v_cmp_{_name}_{_kind}"] = computes(f"mask = {_kind} {_kind}", _floats)
