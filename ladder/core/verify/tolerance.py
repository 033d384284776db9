"""What a rung must compute, by the float64 reference, and how far from it a result may be.

The tolerance is derived, not a constant. An output element y, computed from inputs x, may be off by

    u_store |y|  +  8 sqrt(terms) (u |y| + s),        u = 2^-24, s = |y(x (1 ± u)) - y(x)|

The first part rounds y to the type it is stored in. The second is float32 arithmetic: a sum of n
terms, added in any order, is the exact sum of terms that are changed by a relative error of at most
n u (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2). Rounding errors
differ in sign and grow like sqrt(n) only: within lambda sqrt(n) u with a probability of
1 - 2 exp(-lambda^2 / 2) (Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019, theorem 2.4), and
lambda = 8 leaves one chance in 10^13. What changed inputs do to the output, s, is measured: the
reference runs again on inputs changed at random by ± u; the largest change in the same row counts.
So only an ill-conditioned result gets the wider tolerance that every float32 kernel needs there.
One run more has the signs of the first, but for every second element of a row. So two neighbours
are changed once alike and once not: random signs alone would hide the condition of a row of two
where every run happens to change both alike, or every run differently.
Where intermediate results cancel so exactly that changed inputs do not show it, the op gives their
size c (`Op.cancels`), and u |y| becomes u (|y| + c). A user's own reference gives none: its runs on
changed inputs are in float32, so that s has what cancels in its own arithmetic, too. The few values
of a short row may all be right by chance there: the largest change of all rows counts.

With the same random words, stochastic rounding keeps the order of two values. So an output that is
rounded at random (`Arg.rounded_by`) must lie between the roundings of y minus and y plus the second
part, by the words that the contract prescribes. Nearly always that is a single value.

An output of whole numbers has no tolerance. Float32 sums may decide between two of them, as when a
token is drawn: a random number picks it among the cumulative probabilities. Such an op says how
far off that input may be (`Arg.rtol`) for either number to be right. Each element must be the
reference's for the inputs as they are, or with that one so much smaller or larger.

An output in 16 bits that others are computed from as it is stored (`Op.rereads`) may be rounded up
or down where it is near the middle. So what a rung has stored is an input to the others: these are
compared with what the reference makes of it, and s and c are those of this second step alone.

A rung whose header has a line `Rounds: what` rounds an intermediate result to `real`, because
tensor cores take it as an operand. An operand that is off by u_real moves the output as inputs
changed by ± u_real do; outputs that are stored as `real` may be off by 2 s u_real / u more. An
operand near 0 is off by up to half of the smallest number above 0, times the factor that it is
multiplied by. Of the checker's inputs, that factor is below lambda.

A rung whose header has a line `TF32: which factors` rounds factors to 10 bits of fraction. Each is
off by up to v = 2^-11 of itself, which moves the output as inputs changed by ± v do: it may be off
by 2 (v / u) (u |y| + s) more. The 2 leaves room for s, a largest change in only a few runs, and for
tensor cores that cut factors off instead of rounding them.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.expressions import evaluate_whole
from ladder.core.contract.op import Arg, Dims, Op, format_dims, resolve_dtype
from ladder.core.verify.inputs import Arrays, scalars
from ladder.core.verify.patterns import likely_cause, where
from reference.philox import random_words
from reference.rounding import round_at_random

U32 = 2.0**-24  # unit roundoff of float32
TF32 = 2.0**-11  # unit roundoff of TF32
LAMBDA = 8
CHANGES = 3  # runs of the reference on inputs changed at random
FEW = 32  # values of a row, of which none may show what cancels
INDENT = "\n    "  # before each line of a report after its first
CLOSE = 100  # tolerances: what is further off is no matter of rounding
ROUNDED = 2  # how many times what changed inputs do, roundings on the way may do


@dataclass(frozen=True)
class RandomRounding:
    """What is rounded to a 16-bit type at random, and the random words that decide."""

    exact: np.ndarray  # float32, flat
    words: np.ndarray  # uint32, flat
    stored: np.dtype
    source: str  # the argument that the words come from

    def of(self, exact: np.ndarray) -> np.ndarray:
        """`exact` rounded by the same words, in float64."""
        x = exact.astype(np.float32).ravel()
        rounded = round_at_random(x, self.words, self.stored)
        return rounded.astype(np.float64).reshape(exact.shape)

    def explain(self, i: int) -> str:
        """The two neighbours of element i, and which one its word chooses."""
        x, word = float(self.exact[i]), int(self.words[i])
        words = np.array([0xFFFFFFFF, 0, word], np.uint32)
        rounded = round_at_random(np.full(3, x, np.float32), words, self.stored)
        near, far, chosen = rounded.astype(np.float64).tolist()
        if near == far:
            return f"{x:.7g} is a number of the type already"
        share, random = (x - near) / (far - near), word / 2**32
        direction = "away from" if chosen == far else "towards"
        return (
            f"{x:.7g} is {share:.3f} of the way from {near:.7g} to {far:.7g}, and the word of "
            f"{self.source}, {word:#010x} or {random:.3f} of 2^32, is "
            f"{'less' if chosen == far else 'not less'}: {direction} 0, to {chosen:.7g}"
        )


@dataclass(frozen=True)
class Expected:
    """The right content of one output, and how far from it a result may be, element by element."""

    arg: Arg
    value: np.ndarray  # float64, or the argument's own dtype if that is an integer
    tolerance: np.ndarray
    terms: int
    rounded: np.ndarray | float = 0.0  # how much further, for a rung that rounds on the way
    tf32: np.ndarray | float = 0.0  # how much further, for a rung that multiplies as TF32
    at_random: RandomRounding | None = None
    others: Sequence[np.ndarray] = ()  # whole numbers that are as right, element by element
    # Of an output that others depend on as it is stored: what these must be, by its bytes.
    then: Callable[[bytes], list["Expected"]] | None = None

    def verify(
        self,
        got: np.ndarray,
        rounds: bool = False,
        before: np.ndarray | None = None,
        tf32: bool = False,
    ) -> tuple[str | None, float]:
        """What is wrong with a result, or None; and the largest error over the tolerance.

        rounds  whether the rung rounds to `real` on the way to its outputs
        before  what an output that accumulates held before the run
        tf32    whether it multiplies float32 factors as TF32
        """
        tolerance = self.allowed(rounds, tf32)
        if got.dtype.kind in "iu":
            wrong = np.all([got != right for right in (self.value, *self.others)], axis=0)
            worst = 0.0
        else:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                rounded = self.value.astype(got.dtype)  # infinite where it overflows
                error = np.abs(got.astype(np.float64) - self.value)
                error[got == rounded] = 0
                wrong = ~(error <= tolerance)  # written so that NaN is wrong
                endless = ~np.isfinite(self.value)
                wrong[endless] = np.isfinite(got[endless])
                worst = float(np.max((error / tolerance)[~endless], initial=0.0))
        if not wrong.any():
            return None, worst
        return self._describe(got, wrong, tolerance, before), math.inf

    def allowed(self, rounds: bool, tf32: bool) -> np.ndarray:
        """How far each element of a result may be from `value`, for a rung as in `verify`."""
        tolerance = self.tolerance + (self.rounded if rounds else 0.0)
        return tolerance + (self.tf32 if tf32 else 0.0)

    def _describe(
        self,
        got: np.ndarray,
        wrong: np.ndarray,
        tolerance: np.ndarray,
        before: np.ndarray | None,
    ) -> str:
        """What is wrong, where, the likely cause, and why the tolerance is so, if the first error
        is not far from it: a line each."""
        first = int(np.argmax(wrong))
        index = tuple(int(i) for i in np.unravel_index(first, wrong.shape))
        whole = got.dtype.kind in "iu"
        value = str(got[index]) if whole else f"{float(got[index]):.7g}"
        expected = f"{self.value[index]:.7g}"
        if whole:
            right = {int(array[index]) for array in (self.value, *self.others)}
            expected = " or ".join(map(str, sorted(right)))
        if self.at_random:
            low, high = (self.value[index] + sign * tolerance[index] for sign in (-1, 1))
            ends = dict.fromkeys((f"{low:.7g}", f"{high:.7g}"))  # nearly always the same
            expected = " or ".join(ends)
        within = "" if whole or self.at_random else f" ± {tolerance[index]:.2g}"
        lines = [
            f"{self.arg.name}[{', '.join(map(str, index))}] is {value}, expected "
            f"{expected}{within}; {int(wrong.sum())} of {got.size} elements are wrong"
        ]
        if wrong.size > 1:
            lines.append(f"wrong: {where(wrong)} of {self.arg.name}")
        if cause := likely_cause(got, self.value, wrong, before):
            lines.append(f"cause: {cause}")
        if self.at_random:
            lines.append(f"rounding: {self.at_random.explain(first)}")
        elif not whole and abs(got[index] - self.value[index]) < CLOSE * tolerance[index]:
            lines.append(f"tolerance: {self._derivation(got.dtype)}")
        return INDENT.join(lines)

    def _derivation(self, stored: np.dtype) -> str:
        digits, arg = round(-math.log2(unit_roundoff(stored))), self.arg
        given = f", and {arg.atol:g} + {arg.rtol:g} |y| by the reference file"
        return (
            f"2^-{digits} |y| to store y in {stored.name}, and {LAMBDA} sqrt({self.terms}) 2^-24 "
            f"(|y| + condition) for float32 sums of {self.terms} terms"
            f"{given if arg.atol or arg.rtol else ''}"
        )


def expect(
    op: Op,
    dims: Dims,
    real: np.dtype,
    values: Arrays,
    constants: Mapping[str, float] | None = None,
    finite: bool = True,
    reread: np.ndarray | None = None,
) -> list[Expected]:
    """Run the reference in float64 on inputs as they are, and changed, for the tolerance.

    constants  the op's scalars; by default those of its normal case
    finite     raise LadderError if a result of the reference is not finite
    reread     what a rung has stored of the output that others depend on, which are returned alone
    """
    constants = scalars(op) if constants is None else constants
    outputs = run_reference(op, dims, values, constants, reread=reread)
    rng, as_first = np.random.default_rng(1), np.random.default_rng(1)
    sensitivity: dict[str, np.ndarray | float] = {arg.name: 0.0 for arg in op.args}
    precision = np.float32 if op.own else np.float64
    for random, alternate in [*[(rng, False)] * CHANGES, (as_first, True)]:
        changed = run_reference(op, dims, values, constants, random, alternate, reread, precision)
        for name, array in outputs.items():
            if array is not None and array.dtype.kind == "f":
                with np.errstate(invalid="ignore"):
                    change = np.nan_to_num(np.abs(changed[name] - array), posinf=0.0)
                alone = change.ndim > 1 and (not op.own or change.shape[-1] >= FEW)
                change = change.max(axis=-1, keepdims=True) if alone else change.max()
                sensitivity[name] = np.maximum(sensitivity[name], change)
    written = {arg.name: outputs[arg.name] for arg in op.args if arg.role == "out"}
    known = {name: array for name, array in written.items() if array is not None} | dict(values)
    cancelled = (
        op.cancels({name: array.astype(np.float64) for name, array in known.items()})
        if op.cancels
        else {}
    )
    near = [
        run_reference(op, dims, {**values, arg.name: values[arg.name] * off}, constants)
        for arg in op.args
        if arg.role == "in" and arg.rtol
        for off in (np.float64(1 - arg.rtol), np.float64(1 + arg.rtol))
    ]
    expected = []
    for arg in op.args:
        y = outputs[arg.name]
        if arg.role == "in" or y is None or (reread is not None and arg.name == op.rereads):
            continue
        terms = max(1, evaluate_whole(arg.terms, dims))
        if y.dtype.kind in "iu":
            others = [array for run in near if (array := run[arg.name]) is not None]
            expected.append(Expected(arg, y, np.zeros(y.shape), terms, others=others))
            continue
        if finite and not np.isfinite(y).all():
            remedy = "; a function 'inputs' draws others" if op.own else ""
            at = format_dims(dims)
            raise LadderError(
                f"{op.name}: the reference's own {arg.name} is not finite at {at}{remedy}"
            )
        stored = resolve_dtype(arg.dtype, real)
        rounding = (unit_roundoff(stored) + arg.rtol) * np.abs(y)
        rounding += smallest_subnormal(stored) + arg.atol
        sums = (
            LAMBDA
            * math.sqrt(terms)
            * (U32 * (np.abs(y) + cancelled.get(arg.name, 0.0)) + sensitivity[arg.name])
        )
        if arg.rounded_by is not None and arg.rounded_by in values and stored.itemsize < 4:
            stream = int(constants["stream"])
            first = int(constants["first"])
            words = random_words(values[arg.rounded_by], stream, slice(first, first + y.size))
            at_random = RandomRounding(y.astype(np.float32).ravel(), words, stored, arg.rounded_by)
            low, high = at_random.of(y - sums), at_random.of(y + sums)
            tolerance = (high - low) / 2 + smallest_subnormal(stored) / 4
            middle = (low + high) / 2
            expected.append(Expected(arg, middle, tolerance, terms, at_random=at_random))
            continue
        rounded: np.ndarray | float = 0.0
        if arg.dtype != "float32":
            rounded = ROUNDED * unit_roundoff(stored) / U32 * sensitivity[arg.name]
            rounded += LAMBDA / 2 * smallest_subnormal(stored)
        tf32 = ROUNDED * TF32 / U32 * (U32 * np.abs(y) + sensitivity[arg.name])
        then = None
        if arg.name == op.rereads and stored.itemsize < 4:

            def given(content: bytes, like: np.ndarray = y) -> list[Expected]:
                array = np.frombuffer(content, real).reshape(like.shape)
                return expect(op, dims, real, values, constants, False, array)

            then = functools.lru_cache(1)(given)  # runs of one rung mostly store the same
        expected.append(Expected(arg, y, rounding + sums, terms, rounded, tf32, then=then))
    return expected


def unit_roundoff(dtype: np.dtype) -> float:
    """Half the distance from 1 to the next number of the type."""
    return float(ml_dtypes.finfo(dtype).eps) / 2


def smallest_subnormal(dtype: np.dtype) -> float:
    """The smallest number of the type above 0."""
    return float(ml_dtypes.finfo(dtype).smallest_subnormal)


def run_reference(
    op: Op,
    dims: Dims,
    values: Arrays,
    constants: Mapping[str, float],
    rng: np.random.Generator | None = None,
    alternate: bool = False,
    reread: np.ndarray | None = None,
    precision: type[np.floating] = np.float64,
) -> dict[str, np.ndarray | None]:
    """The reference's arrays after a run; with `rng`, on inputs changed by ± U32.

    alternate  whether every second element of a row is changed the other way
    reread     what it finds in the output that it reads again, which is an input then
    precision  of its arithmetic
    """

    def as_input(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
        array = array.astype(dtype)  # a copy
        if rng is not None and dtype.kind == "f":
            signs = rng.choice((-1.0, 1.0), array.shape)
            if alternate:
                signs[..., 1::2] *= -1
            array *= 1 + U32 * signs
        return array

    arrays: dict[str, np.ndarray | None] = {}
    for arg in op.args:
        dtype = resolve_dtype(arg.dtype, np.dtype(np.float64))
        if dtype.kind == "f":
            dtype = np.dtype(precision)
        if arg.role == "out":
            unwritten = np.nan if dtype.kind == "f" else 0
            arrays[arg.name] = np.full(arg.resolve_shape(dims), unwritten, dtype)
        elif arg.name not in values:
            arrays[arg.name] = None
        else:
            arrays[arg.name] = as_input(values[arg.name], dtype)
    again = None if reread is None else lambda array: as_input(reread, array.dtype)
    op.compute(list(arrays.values()), dims, constants, again)
    return arrays
