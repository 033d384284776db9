"""Floating-point arithmetic as AMD's vector units do it: fused, rounded once to nearest even.

NumPy rounds each operation, and has no fused multiply-add, so that one is built here from float64.
The division sequence follows the pseudo-code of V_DIV_SCALE, V_DIV_FMAS and V_DIV_FIXUP in AMD's
"RDNA3 Instruction Set Architecture", section 16. Where that text cannot be meant, a docstring says
what is done instead.
"""

from collections.abc import Callable

import ml_dtypes
import numpy as np

Function = Callable[[np.ndarray], np.ndarray]

F16, F32, F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
BF16 = np.dtype(ml_dtypes.bfloat16)

_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)
_HALFWAY = np.uint64(1 << 28)  # of the 29 bits that float64 has more than float32
_BEYOND = np.uint64((1 << 29) - 1)


def _sum_to_odd(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a + b in float64; where that is not exact, the neighbour whose last bit is 1.

    Rounding such a number once more, to a narrower type, gives what rounding the exact sum gives
    (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    total, error = _sum(a, b)
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & ((bits & 1) == 0)
    away = (error > 0) == (total > 0)  # the exact sum has the larger magnitude
    return np.where(inexact, bits + np.where(away, 1, -1), bits).view(np.float64)


def fma32(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of float32, rounded once."""
    product, c = a.astype(F64) * b, c.astype(F64)  # exact: 24 + 24 bits fit into 53
    total = product + c
    # Rounding twice differs only at the middle between two float32, or where those are denormal.
    unsure = (total.view(np.uint64) & _BEYOND) == _HALFWAY
    unsure |= (np.abs(total) < 2 * _SMALLEST_NORMAL) & (total != 0)
    if unsure.any():
        total = _sum_to_odd(*np.broadcast_arrays(product, c))
    return total.astype(F32)


def mad32(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of float32, rounded twice; V_MAD takes and returns denormal numbers as zeros."""
    return _flushed(_flushed(_flushed(a) * _flushed(b)) + _flushed(c))


def fma16(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of float16, rounded once."""
    product, c = np.broadcast_arrays(a.astype(F64) * b, c.astype(F64))
    return _sum_to_odd(product, c).astype(F16)


def fma64(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of float64, rounded once, where neither product nor sum overflows."""
    a, b, c = np.broadcast_arrays(a, b, c)
    high, low = _product(a, b)
    part_high, part_low = _sum(c, low)
    total, rest = _sum(high, part_high)
    exact = np.isfinite(high) & np.isfinite(c)
    return np.where(exact, total + _sum_to_odd(part_low, rest), a * b + c)


def _product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(high, low) whose exact sum is a * b (Dekker)."""

    def halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        big = x * 134217729.0  # 2**27 + 1
        high = big - (big - x)
        return high, x - high

    product = a * b
    (a1, a2), (b1, b2) = halves(a), halves(b)
    return product, a2 * b2 - (((product - a1 * b1) - a2 * b1) - a1 * b2)


def _sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(total, error) whose exact sum is a + b (Knuth's TwoSum)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def maximum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The larger one; the other one where one is a NaN; +0 is larger than -0."""
    bits = a.view(f"u{a.itemsize}") & b.view(f"u{b.itemsize}")
    return np.where(a == b, bits.view(a.dtype), np.fmax(a, b))


def minimum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    bits = a.view(f"u{a.itemsize}") | b.view(f"u{b.itemsize}")
    return np.where(a == b, bits.view(a.dtype), np.fmin(a, b))


def median(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


# ---- transcendental functions: float64, rounded, where the hardware promises one unit in the last
# ---- place; they take and return denormal numbers as zeros of the same sign


def _flushed(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < _SMALLEST_NORMAL, np.copysign(F32.type(0), x), x)


def _by_float64(function: Function) -> Function:
    def approximate(x: np.ndarray) -> np.ndarray:
        return _flushed(function(_flushed(x).astype(F64)).astype(F32))

    return approximate


def _turns(function: Function) -> Function:
    return lambda x: function(2 * np.pi * np.fmod(x, 1))


exp2 = _by_float64(np.exp2)
log2 = _by_float64(np.log2)
reciprocal = _by_float64(np.reciprocal)
square_root = _by_float64(np.sqrt)
reciprocal_root = _by_float64(lambda x: 1 / np.sqrt(x))
sine = _by_float64(_turns(np.sin))  # of turns, not of radians
cosine = _by_float64(_turns(np.cos))


# ---- conversions ----


def to_integer(dtype: type[np.signedinteger | np.unsignedinteger]) -> Function:
    """Rounds towards zero; what does not fit becomes the nearest that does, NaN becomes 0."""
    limits = np.iinfo(dtype)

    def convert(x: np.ndarray) -> np.ndarray:
        wide = np.where(np.isnan(x), 0, np.trunc(x.astype(F64)))
        return np.clip(wide, limits.min, limits.max).astype(np.int64).astype(dtype)

    return convert


# Which of ten classes a number belongs to: bits of V_CMP_CLASS's second operand.
def is_class(x: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    negative, magnitude = np.signbit(x), np.abs(x)
    quiet_bit = 1 << (np.finfo(x.dtype).nmant - 1)
    quiet = (x.view(f"u{x.itemsize}") & quiet_bit) != 0
    smallest = np.finfo(x.dtype).tiny
    kind = np.select([np.isnan(x), np.isinf(x), x == 0, magnitude < smallest], [0, 3, 0, 1], 2)
    # signalling, quiet NaN; -infinity, -normal, -denormal, -0; +0, +denormal, +normal, +infinity
    bit = np.where(np.isnan(x), quiet, np.where(negative, 5 - kind, 6 + kind))
    return (wanted >> bit.astype(np.uint32)) & 1 != 0


# ---- division: q = v_div_fixup(v_div_fmas(...)), with operands that v_div_scale has scaled ----


def _exponent(x: np.ndarray) -> np.ndarray:
    return (x.view(np.uint32) >> 23 & 0xFF).astype(np.int32)


def div_scale(
    value: np.ndarray, denominator: np.ndarray, numerator: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`value`, which is one of the other two, scaled so that the steps of a division stay in
    range; and whether V_DIV_FMAS must scale the quotient back.

    Where both 1 / denominator and the quotient are denormal, AMD's text scales the denominator by
    2**64, which would overflow; it is scaled by 2**-64 here, as where only 1 / denominator is.
    """
    value, denominator, numerator = np.broadcast_arrays(value, denominator, numerator)
    wide = denominator.astype(F64)
    of_denominator = value.view(np.uint32) == denominator.view(np.uint32)
    of_numerator = value.view(np.uint32) == numerator.view(np.uint32)
    inverse_denormal = np.abs(1 / wide) < _SMALLEST_NORMAL
    quotient_denormal = np.abs(numerator / wide) < _SMALLEST_NORMAL
    cases = [
        (denominator == 0) | (numerator == 0),
        _exponent(numerator) - _exponent(denominator) >= 96,
        np.abs(denominator) < _SMALLEST_NORMAL,
        inverse_denormal & quotient_denormal,
        inverse_denormal,
        quotient_denormal,
        _exponent(numerator) <= 23,
    ]
    up, down = np.ldexp(value, 64), np.ldexp(value, -64)
    results = [
        *(np.full_like(value, np.nan), np.where(of_denominator, up, value), up),
        *(np.where(of_denominator, down, value), down),
        *(np.where(of_numerator, up, value), up),
    ]
    scaled_back = np.select(cases, [case % 2 == 1 for case in range(len(cases))], False)
    return np.select(cases, results, value), scaled_back


def div_fmas(a: np.ndarray, b: np.ndarray, c: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """a * b + c, the quotient; where V_DIV_SCALE asked for it, scaled back by 2**64 or 2**-64.

    AMD's text says 2**32 always. That would undo neither of the two ways of scaling; c, the
    quotient before the last step, tells which one it was.
    """
    if not scale.any():
        return fma32(a, b, c)
    product, c = np.broadcast_arrays(a.astype(F64) * b, c.astype(F64))
    factor = np.where(scale, np.where(np.abs(c) >= 1, 2.0**64, 2.0**-64), 1.0)
    return (_sum_to_odd(product, c) * factor).astype(F32)


def div_fixup(quotient: np.ndarray, denominator: np.ndarray, numerator: np.ndarray) -> np.ndarray:
    """The quotient, with the results that IEEE 754 wants for NaN, infinity and zero.

    AMD's text lets a denominator with the largest exponent overflow, which only those have that it
    has dealt with before. Here, what overflows are quotients that do so by their exponents: of
    them, the steps before make NaN.
    """
    quotient, denominator, numerator = np.broadcast_arrays(quotient, denominator, numerator)
    sign = np.where(np.signbit(denominator) ^ np.signbit(numerator), F32.type(-1), F32.type(1))
    nan, infinity = F32.type(np.nan), F32.type(np.inf)
    cases = [
        np.isnan(numerator) | np.isnan(denominator),
        (denominator == 0) & (numerator == 0),
        np.isinf(denominator) & np.isinf(numerator),
        (denominator == 0) | np.isinf(numerator),
        np.isinf(denominator) | (numerator == 0),
        _exponent(numerator) - _exponent(denominator) < -150,
        _exponent(numerator) - _exponent(denominator) > 128,
    ]
    results = [nan, nan, nan, infinity, F32.type(0), F32.type(0), infinity]
    return np.copysign(np.select(cases, results, np.abs(quotient)).astype(F32), sign)
