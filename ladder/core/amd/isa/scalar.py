"""Scalar instructions: one value for a wave. Arrays are (waves, 1).

Most of them also set SCC, the condition code, to a carry or to "the result is not 0".
"""

from collections.abc import Callable

import numpy as np

from ladder.core.amd.isa.meaning import Meaning, alike, computes

Pair = tuple[np.ndarray, np.ndarray]

_BYTES = np.arange(256, dtype=np.uint8)
_REVERSED = np.packbits(np.unpackbits(_BYTES[:, None], axis=1, bitorder="little"), axis=1)[:, 0]


def carry(a: np.ndarray, b: np.ndarray, more: np.ndarray | bool = False) -> Pair:
    """a + b + more of uint32, and whether that is 2**32 at least."""
    total = a.astype(np.uint64) + b + more
    return total.astype(np.uint32), total >> 32 != 0


def borrow(a: np.ndarray, b: np.ndarray, more: np.ndarray | bool = False) -> Pair:
    """a - b - more of uint32, and whether that is negative."""
    total = a.astype(np.int64) - b - more
    return total.astype(np.uint32), total < 0


def high(wide: type) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """The upper 32 of the 64 bits of a product, which the type `wide` holds."""
    return lambda a, b: (a.astype(wide) * b >> 32).astype(a.dtype)


def reverse(a: np.ndarray) -> np.ndarray:
    """The bits the other way round."""
    return _REVERSED[np.ascontiguousarray(a).view(np.uint8)].view(a.dtype).byteswap()


def _and_not_zero(function: Callable[..., np.ndarray]) -> Callable[..., Pair]:
    """The result, and as SCC whether it is not 0."""

    def compute(*sources: np.ndarray) -> Pair:
        result = function(*sources)
        return result, result != 0

    return compute


def _signed(combine: Callable[..., np.ndarray]) -> Callable[..., Pair]:
    """A sum or difference of int32, and whether it is not the one that the wider type has."""

    def compute(a: np.ndarray, b: np.ndarray) -> Pair:
        total = combine(a, b)
        return total, combine(a.astype(np.int64), b) != total

    return compute


def shifted(shift: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """By the low bits of the second operand alone."""
    return lambda a, b: shift(a, (b & (8 * a.itemsize - 1)).astype(a.dtype))


def bit_count(a: np.ndarray) -> np.ndarray:
    bits = np.unpackbits(np.ascontiguousarray(a)[..., None].view(np.uint8), axis=-1)
    return bits.sum(axis=-1, dtype=np.uint32)


def _lowest_bit(a: np.ndarray) -> np.ndarray:
    """The number of the lowest bit that is 1; -1 if none is."""
    bits = np.unpackbits(np.ascontiguousarray(a).view(np.uint8), axis=1, bitorder="little")
    place = bits.argmax(axis=1, keepdims=True).astype(np.int32)
    return np.where(a != 0, place, np.int32(-1))


def field(a: np.ndarray, start: np.ndarray, width: np.ndarray) -> np.ndarray:
    """`width` bits of a from bit `start`, with a's sign where it has one."""
    start, width = start.astype(np.int64) & 31, width.astype(np.int64)
    room = np.clip(64 - width, 0, 63)
    bits = (a.astype(np.int64) >> start) << room  # the field's highest bit is the highest now
    value = bits >> room if a.dtype == np.int32 else (bits.view(np.uint64) >> room.view(np.uint64))
    return np.where(width == 0, 0, value).astype(a.dtype)


# The second operand says where: from bit what[4:0], what[22:16] of them.
_field = _and_not_zero(lambda a, what: field(a, what, what >> 16 & 0x7F))


def _chosen(larger: bool) -> Callable[..., Pair]:
    """The larger or the smaller one, and as SCC whether that is the first."""

    def compute(a: np.ndarray, b: np.ndarray) -> Pair:
        first = a >= b if larger else a < b
        return np.where(first, a, b), first

    return compute


COMPARE = {
    "eq": np.equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}

_LOGIC: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
    "and_not1": lambda a, b: a & ~b,
    "or_not1": lambda a, b: a | ~b,
}

SCALAR: dict[str, Meaning] = {
    **alike("s_mov_b32 s_mov_b64 s_movk_i32", 1, np.copy),
    "s_add_u32": computes("u32 scc = u32 u32", carry),
    "s_addc_u32": computes("u32 scc = u32 u32 scc", carry),
    "s_sub_u32": computes("u32 scc = u32 u32", borrow),
    "s_subb_u32": computes("u32 scc = u32 u32 scc", borrow),
    "s_add_i32": computes("i32 scc = i32 i32", _signed(np.add)),
    "s_sub_i32": computes("i32 scc = i32 i32", _signed(np.subtract)),
    "s_addk_i32": computes("i32 scc = i32 i32", _signed(np.add)),
    **alike("s_add_nc_u64", 2, np.add),
    **alike("s_sub_nc_u64", 2, np.subtract),
    **alike("s_mul_i32 s_mulk_i32 s_mul_u64", 2, np.multiply),
    **alike("s_mul_hi_u32", 2, high(np.uint64)),
    **alike("s_mul_hi_i32", 2, high(np.int64)),
    "s_abs_i32": computes("i32 scc = i32", _and_not_zero(np.abs)),
    "s_bfe_u32": computes("u32 scc = u32 u32", _field),
    "s_bfe_i32": computes("i32 scc = i32 u32", _field),
    "s_cselect_b32": computes("u32 = u32 u32 scc", lambda a, b, scc: np.where(scc, a, b)),
    "s_cselect_b64": computes("u64 = u64 u64 scc", lambda a, b, scc: np.where(scc, a, b)),
    "s_sext_i32_i16": computes("i32 = u32", lambda a: a.astype(np.int16).astype(np.int32)),
    "s_sext_i32_i8": computes("i32 = u32", lambda a: a.astype(np.int8).astype(np.int32)),
    **alike("s_bitset0_b32", 2, lambda a, old: old & ~(np.uint32(1) << (a & 31))),
    **alike("s_bitset1_b32", 2, lambda a, old: old | np.uint32(1) << (a & 31)),
    "s_bitcmp0_b32": computes("scc = u32 u32", lambda a, b: a >> (b & 31) & 1 == 0),
    "s_bitcmp1_b32": computes("scc = u32 u32", lambda a, b: a >> (b & 31) & 1 == 1),
    "s_pack_ll_b32_b16": computes("u32 = u32 u32", lambda a, b: (a & 0xFFFF) | b << 16),
    "s_pack_lh_b32_b16": computes("u32 = u32 u32", lambda a, b: (a & 0xFFFF) | b & 0xFFFF0000),
    "s_pack_hh_b32_b16": computes("u32 = u32 u32", lambda a, b: a >> 16 | b & 0xFFFF0000),
    "s_pack_hl_b32_b16": computes("u32 = u32 u32", lambda a, b: a >> 16 | b << 16),
}

for _bits in range(1, 5):
    SCALAR[f"s_lshl{_bits}_add_u32"] = computes(
        "u32 scc = u32 u32", lambda a, b, bits=_bits: carry(a.astype(np.uint64) << bits, b)
    )

for _kind in ("i32", "u32"):
    SCALAR[f"s_min_{_kind}"] = computes(f"{_kind} scc = {_kind} {_kind}", _chosen(False))
    SCALAR[f"s_max_{_kind}"] = computes(f"{_kind} scc = {_kind} {_kind}", _chosen(True))

for _name, _compare in {**COMPARE, "lg": np.not_equal}.items():
    for _kind in ("i32", "u32", "u64", "f32"):
        SCALAR[f"s_cmp_{_name}_{_kind}"] = computes(f"scc = {_kind} {_kind}", _compare)
    for _kind in ("i32", "u32"):
        SCALAR[f"s_cmpk_{_name}_{_kind}"] = computes(f"scc = {_kind} {_kind}", _compare)
    SCALAR[f"s_cmp_n{_name}_f32"] = computes(  # also where one of both is a NaN
        "scc = f32 f32", lambda a, b, compare=_compare: ~compare(a, b)
    )

for _size in ("32", "64"):
    _one, _two = f"u{_size} scc = u{_size}", f"u{_size} scc = u{_size} u{_size}"
    for _name, _function in _LOGIC.items():
        _logic = _and_not_zero(_function)
        SCALAR[f"s_{_name}_b{_size}"] = computes(_two, _logic)
        # The old EXEC is the result, the new one takes the source's place in the operation.
        SCALAR[f"s_{_name}_saveexec_b{_size}"] = computes(
            f"u{_size} exec{_size} scc = u{_size} exec{_size}",
            lambda a, b, compute=_logic: (np.copy(b), *compute(a, b)),
        )
    for _name, _kind, _shift in (
        (f"s_lshl_b{_size}", f"u{_size}", np.left_shift),
        (f"s_lshr_b{_size}", f"u{_size}", np.right_shift),
        (f"s_ashr_i{_size}", f"i{_size}", np.right_shift),
    ):
        SCALAR[_name] = computes(f"{_kind} scc = {_kind} u32", _and_not_zero(shifted(_shift)))
    SCALAR[f"s_not_b{_size}"] = computes(_one, _and_not_zero(np.invert))
    SCALAR[f"s_bcnt1_i32_b{_size}"] = computes(f"u32 scc = u{_size}", _and_not_zero(bit_count))
    SCALAR[f"s_ctz_i32_b{_size}"] = computes(f"i32 = u{_size}", _lowest_bit)
    SCALAR[f"s_brev_b{_size}"] = computes(f"u{_size} = u{_size}", reverse)
