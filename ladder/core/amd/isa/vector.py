"""Vector instructions: one value for each lane. Arrays are (waves, lanes), or broadcast to that."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ladder.core.amd.isa import floats
from ladder.core.amd.isa.meaning import Meaning, computes

Pair = tuple[np.ndarray, np.ndarray]


def _carry(a: np.ndarray, b: np.ndarray, carry: np.ndarray | bool = False) -> Pair:
    total = a.astype(np.uint64) + b + carry
    return total.astype(np.uint32), total >> 32 != 0


def _borrow(a: np.ndarray, b: np.ndarray, carry: np.ndarray | bool = False) -> Pair:
    total = a.astype(np.int64) - b - carry
    return total.astype(np.uint32), total < 0


def _swapped(function: Callable[..., object]) -> Callable[..., object]:
    """The same with its first two operands the other way round, as in V_SUBREV."""
    return lambda a, b, *more: function(b, a, *more)


def _shift(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """V_LSHLREV and the like: the first operand is how far the second is shifted."""

    def compute(distance: np.ndarray, value: np.ndarray) -> np.ndarray:
        return function(value, (distance & (8 * value.itemsize - 1)).astype(value.dtype))

    return compute


def _bits(dtype: type, a: np.ndarray, start: np.ndarray, width: np.ndarray) -> np.ndarray:
    """`width` bits of a from bit `start`, as a signed or an unsigned number."""
    start, width = start & 31, width & 31
    room = (32 - width) & 63
    left = (a.astype(np.uint64) >> start.astype(np.uint64)) << (room + 32).astype(np.uint64)
    signed = np.int64 if dtype is np.int32 else np.uint64
    field = left.view(signed) >> (room + 32).astype(signed)
    return np.where(width == 0, dtype(0), field.astype(dtype))


def _low24(dtype: type, a: np.ndarray) -> np.ndarray:
    """The low 24 bits, with their sign where the type has one."""
    return (a << 8).view(dtype) >> 8


def _wide_product(wide: type) -> Callable[..., Pair]:
    """a * b + c in 64 bits. The carry out of them is not computed: no kernel here reads it."""

    def compute(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Pair:
        total = a.astype(wide) * b.astype(wide) + c
        return total, np.zeros((1, 1), bool)

    return compute


def _high(wide: type) -> Callable[..., np.ndarray]:
    return lambda a, b: (a.astype(wide) * b >> 32).astype(a.dtype)


def _reverse(a: np.ndarray) -> np.ndarray:
    for distance, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F)):
        a = (a >> distance & mask) | (a & mask) << distance
    return a.byteswap()


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


def _count(a: np.ndarray) -> np.ndarray:
    a = a - (a >> 1 & 0x55555555)
    a = (a & 0x33333333) + (a >> 2 & 0x33333333)
    return ((a + (a >> 4)) & 0x0F0F0F0F) * np.uint32(0x01010101) >> 24


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


_unary_u32 = "u32 = u32"
_u32 = "u32 = u32 u32"
_u32_3 = "u32 = u32 u32 u32"
_f32 = "f32 = f32 f32"
_f32_3 = "f32 = f32 f32 f32"

VECTOR: dict[str, Meaning] = {
    # ---- float32 ----
    "v_add_f32": computes(_f32, np.add),
    "v_sub_f32": computes(_f32, np.subtract),
    "v_subrev_f32": computes(_f32, _swapped(np.subtract)),
    "v_mul_f32": computes(_f32, np.multiply),
    "v_max_f32": computes(_f32, floats.maximum),
    "v_min_f32": computes(_f32, floats.minimum),
    "v_fma_f32": computes(_f32_3, floats.fma32),
    "v_fmac_f32": computes(_f32_3, floats.fma32),
    "v_fmaak_f32": computes(_f32_3, floats.fma32),
    "v_madmk_f32": computes(_f32_3, floats.mad32),
    "v_fmamk_f32": computes(_f32_3, floats.fma32),
    "v_max3_f32": computes(_f32_3, lambda a, b, c: floats.maximum(floats.maximum(a, b), c)),
    "v_min3_f32": computes(_f32_3, lambda a, b, c: floats.minimum(floats.minimum(a, b), c)),
    "v_ldexp_f32": computes("f32 = f32 i32", _ldexp),
    "v_rndne_f32": computes("f32 = f32", np.rint),
    "v_trunc_f32": computes("f32 = f32", np.trunc),
    "v_floor_f32": computes("f32 = f32", np.floor),
    "v_ceil_f32": computes("f32 = f32", np.ceil),
    "v_fract_f32": computes("f32 = f32", floats.fraction),
    "v_exp_f32": computes("f32 = f32", floats.exp2),
    "v_log_f32": computes("f32 = f32", floats.log2),
    "v_rcp_f32": computes("f32 = f32", floats.reciprocal),
    "v_rcp_iflag_f32": computes("f32 = f32", floats.reciprocal),
    "v_rsq_f32": computes("f32 = f32", floats.reciprocal_root),
    "v_sqrt_f32": computes("f32 = f32", floats.square_root),
    "v_sin_f32": computes("f32 = f32", floats.sine),
    "v_cos_f32": computes("f32 = f32", floats.cosine),
    "v_div_scale_f32": computes("f32 mask = f32 f32 f32", floats.div_scale),
    "v_div_fmas_f32": computes("f32 = f32 f32 f32 vcc", floats.div_fmas),
    "v_div_fixup_f32": computes(_f32_3, floats.div_fixup),
    "v_cmp_class_f32": computes("mask = f32 u32", floats.is_class),
    # ---- float16 ----
    "v_add_f16": computes("f16 = f16 f16", np.add),
    "v_sub_f16": computes("f16 = f16 f16", np.subtract),
    "v_mul_f16": computes("f16 = f16 f16", np.multiply),
    "v_max_f16": computes("f16 = f16 f16", floats.maximum),
    "v_min_f16": computes("f16 = f16 f16", floats.minimum),
    "v_fma_f16": computes("f16 = f16 f16 f16", floats.fma16),
    "v_fmac_f16": computes("f16 = f16 f16 f16", floats.fma16),
    "v_cmp_class_f16": computes("mask = f16 u32", floats.is_class),
    # ---- float64 ----
    "v_add_f64": computes("f64 = f64 f64", np.add),
    "v_mul_f64": computes("f64 = f64 f64", np.multiply),
    "v_fma_f64": computes("f64 = f64 f64 f64", floats.fma64),
    "v_fmac_f64": computes("f64 = f64 f64 f64", floats.fma64),
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
    "v_cvt_pk_f16_f32": computes(
        "u32 = f32 f32", lambda a, b: _pack(a.astype(floats.F16), b.astype(floats.F16))
    ),
    "v_cvt_pk_bf16_f32": computes(
        "u32 = f32 f32", lambda a, b: _pack(a.astype(floats.BF16), b.astype(floats.BF16))
    ),
    "v_pack_b32_f16": computes("u32 = f16 f16", _pack),
    # ---- integers ----
    "v_mov_b32": computes(_unary_u32, np.copy),
    "v_accvgpr_read_b32": computes(_unary_u32, np.copy),
    "v_accvgpr_write_b32": computes(_unary_u32, np.copy),
    "v_accvgpr_mov_b32": computes(_unary_u32, np.copy),
    "v_mov_b64": computes("u64 = u64", np.copy),
    "v_mov_b16": computes("u16 = u16", np.copy),
    "v_add_nc_u32": computes(_u32, np.add),
    "v_sub_nc_u32": computes(_u32, np.subtract),
    "v_subrev_nc_u32": computes(_u32, _swapped(np.subtract)),
    "v_add_nc_u16": computes("u16 = u16 u16", np.add),
    "v_sub_nc_u16": computes("u16 = u16 u16", np.subtract),
    "v_mul_lo_u16": computes("u16 = u16 u16", np.multiply),
    "v_add_co_u32": computes("u32 mask = u32 u32", _carry),
    "v_add_co_ci_u32": computes("u32 mask = u32 u32 mask", _carry),
    "v_sub_co_u32": computes("u32 mask = u32 u32", _borrow),
    "v_sub_co_ci_u32": computes("u32 mask = u32 u32 mask", _borrow),
    "v_subrev_co_u32": computes("u32 mask = u32 u32", _swapped(_borrow)),
    "v_subrev_co_ci_u32": computes("u32 mask = u32 u32 mask", _swapped(_borrow)),
    "v_add3_u32": computes(_u32_3, lambda a, b, c: a + b + c),
    "v_mul_lo_u32": computes(_u32, np.multiply),
    "v_mul_hi_u32": computes(_u32, _high(np.uint64)),
    "v_mul_hi_i32": computes("i32 = i32 i32", _high(np.int64)),
    "v_mul_u32_u24": computes(_u32, lambda a, b: _low24(np.uint32, a) * _low24(np.uint32, b)),
    "v_mul_i32_i24": computes(
        "i32 = u32 u32", lambda a, b: _low24(np.int32, a) * _low24(np.int32, b)
    ),
    "v_mad_u32_u24": computes(
        _u32_3, lambda a, b, c: _low24(np.uint32, a) * _low24(np.uint32, b) + c
    ),
    "v_mad_i32_i24": computes(
        "i32 = u32 u32 i32", lambda a, b, c: _low24(np.int32, a) * _low24(np.int32, b) + c
    ),
    "v_mad_u64_u32": computes("u64 mask = u32 u32 u64", _wide_product(np.uint64)),
    "v_mad_i64_i32": computes("i64 mask = i32 i32 i64", _wide_product(np.int64)),
    "v_mad_u16": computes("u16 = u16 u16 u16", lambda a, b, c: a * b + c),
    "v_max_i32": computes("i32 = i32 i32", np.maximum),
    "v_min_i32": computes("i32 = i32 i32", np.minimum),
    "v_max_u32": computes(_u32, np.maximum),
    "v_min_u32": computes(_u32, np.minimum),
    "v_med3_i32": computes("i32 = i32 i32 i32", floats.median),
    # ---- bits ----
    "v_and_b32": computes(_u32, np.bitwise_and),
    "v_or_b32": computes(_u32, np.bitwise_or),
    "v_xor_b32": computes(_u32, np.bitwise_xor),
    "v_xnor_b32": computes(_u32, lambda a, b: ~(a ^ b)),
    "v_not_b32": computes(_unary_u32, np.invert),
    "v_and_b16": computes("u16 = u16 u16", np.bitwise_and),
    "v_or_b16": computes("u16 = u16 u16", np.bitwise_or),
    "v_xor_b16": computes("u16 = u16 u16", np.bitwise_xor),
    "v_not_b16": computes("u16 = u16", np.invert),
    "v_lshlrev_b32": computes(_u32, _shift(np.left_shift)),
    "v_lshrrev_b32": computes(_u32, _shift(np.right_shift)),
    "v_ashrrev_i32": computes("i32 = u32 i32", _shift(np.right_shift)),
    "v_lshlrev_b64": computes("u64 = u32 u64", _shift(np.left_shift)),
    "v_lshrrev_b64": computes("u64 = u32 u64", _shift(np.right_shift)),
    "v_ashrrev_i64": computes("i64 = u32 i64", _shift(np.right_shift)),
    "v_lshlrev_b16": computes("u16 = u16 u16", _shift(np.left_shift)),
    "v_lshrrev_b16": computes("u16 = u16 u16", _shift(np.right_shift)),
    "v_ashrrev_i16": computes("i16 = u16 i16", _shift(np.right_shift)),
    "v_lshl_add_u32": computes(_u32_3, lambda a, b, c: (a << (b & 31)) + c),
    "v_lshl_or_b32": computes(_u32_3, lambda a, b, c: (a << (b & 31)) | c),
    "v_lshl_add_u64": computes("u64 = u64 u32 u64", lambda a, b, c: (a << (b & np.uint64(7))) + c),
    "v_add_lshl_u32": computes(_u32_3, lambda a, b, c: (a + b) << (c & 31)),
    "v_and_or_b32": computes(_u32_3, lambda a, b, c: a & b | c),
    "v_or3_b32": computes(_u32_3, lambda a, b, c: a | b | c),
    "v_xor3_b32": computes(_u32_3, lambda a, b, c: a ^ b ^ c),
    "v_xad_u32": computes(_u32_3, lambda a, b, c: (a ^ b) + c),
    "v_bfi_b32": computes(_u32_3, lambda a, b, c: a & b | ~a & c),
    "v_bfe_u32": computes(_u32_3, lambda a, b, c: _bits(np.uint32, a, b, c)),
    "v_bfe_i32": computes("i32 = u32 u32 u32", lambda a, b, c: _bits(np.int32, a, b, c)),
    "v_bfrev_b32": computes(_unary_u32, _reverse),
    "v_bcnt_u32_b32": computes(_u32, lambda a, b: _count(a) + b),
    "v_clz_i32_u32": computes("i32 = u32", _leading_zeros),
    "v_perm_b32": computes(_u32_3, _permute_bytes),
    "v_alignbit_b32": computes(
        _u32_3,
        lambda a, b, c: (((a.astype(np.uint64) << 32) | b) >> (c & 31).astype(np.uint64)).astype(
            np.uint32
        ),
    ),
    "v_alignbyte_b32": computes(
        _u32_3,
        lambda a, b, c: (
            ((a.astype(np.uint64) << 32) | b) >> (8 * (c & 3)).astype(np.uint64)
        ).astype(np.uint32),
    ),
    "v_cndmask_b32": computes("u32 = u32 u32 mask", _select),
    "v_cndmask_b16": computes("u16 = u16 u16 mask", _select),
}

for _name in ("v_dot2", "v_dot2acc", "v_dot2c"):
    VECTOR[f"{_name}_f32_f16"] = computes("f32 = u32 u32 f32", _dot2(floats.F16))
    VECTOR[f"{_name}_f32_bf16"] = computes("f32 = u32 u32 f32", _dot2(floats.BF16))

for _byte in range(4):
    VECTOR[f"v_cvt_f32_ubyte{_byte}"] = computes(
        "f32 = u32", lambda a, shift=8 * _byte: (a >> shift & 0xFF).astype(np.float32)
    )

_INTEGERS = {
    "lt": np.less,
    "eq": np.equal,
    "le": np.less_equal,
    "gt": np.greater,
    "ne": np.not_equal,
    "ge": np.greater_equal,
}
_FLOATS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    **{name: compare for name, compare in _INTEGERS.items() if name != "ne"},
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
