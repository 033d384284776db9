"""Shapes that take a rung through all of its code, worked out from what its header declares.

    for dims in derive_shapes(op, rung, target): ...    few of them, the most telling ones first

A goal is something that a shape may do to a rung:

    a tile that is filled exactly, or lacks one element, or a last one with one element only
    one tile in a dimension, two, or more; more than two rounds of a loop's ring of STAGES
    the smallest and the largest size that `Needs` allows, and all dimensions larger at once, odd
    multiples of the smallest: so no row but the first begins where a wider access could
    two dimensions that are equal, and that differ, where one must not exceed the other
    each value of a constant of `Define` or size of the grid, if there are few; else 0, 1, 2, more
    more than two tiles for a block, where `multiprocessors` limits the number of blocks, in each
    of them more steps than a ring has stages, or as many as `Needs` allows, and in all of them
    more than two rounds of the ring
    more than four, where two groups of warps may take turns, each with two buffers: so each of
    these is used again

A goal in one dimension counts only where the others are large enough for most threads to have work.
Host code does not tell what is large enough: its goals count twice, there and anywhere.

No rung says what these are for it. The size of a dimension's tiles shows in where the grid or a
constant changes as the dimension grows. The step of a loop is in no line of a header: the smallest
constant that may be one is taken for it, or the number of threads where there is none. Loops go
over what is summed, and along rows.

Of the combinations of sizes at which something changes, a greedy set cover takes those that meet
the most new goals for the time that they take on the emulator. An op's own shapes are among them.
A goal of WEIGHTS that only shapes meet that take longer than MOST_SECONDS is given up, and named.
"""

import functools
import itertools
import math
import random
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ladder.core.common.errors import LadderError
from ladder.core.contract.expressions import evaluate_whole
from ladder.core.contract.launch_plan import LaunchPlan
from ladder.core.contract.op import Dims, Op
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.target import Target

MOST_SIZE = 1 << 15  # where the search for the size of a tile ends
MOST_COMBINATIONS = 600  # that are looked at; of more, so many are drawn
LOOP_STEPS = range(16, 1025)  # a constant outside is not taken for the step of a loop
# Constants that count threads or blocks.
NO_STEPS = ("BLOCK", "THREADS", "WARPS", "GROUP", "GROUPS")
BLOCKS_PER_PROCESSOR = (1, 2, 4, 8)  # of kernels that limit their blocks
DEFAULT_STAGES = 2  # of a ring whose header names no STAGES
FEW = 3  # values of a constant that are tried one by one
UNLIMITED = 1 << 16  # SMs: enough for a block for each tile
MOST_SECONDS = 6.1  # that one shape may take
# What takes how long, mostly on the emulator, which runs a `wgmma` instruction as one call.
SECONDS_PER_COMPILATION, SECONDS_PER_CASE, SECONDS_PER_THREAD = 1.0, 0.1, 5e-6
SECONDS_PER_FLOP, SECONDS_PER_FLOP_OF_WGMMA = 2e-7, 2e-8
SECONDS_PER_FLOP_OF_REFERENCE, SECONDS_PER_BYTE = 1e-9, 1e-7  # float64, five times

RING, TILES = "more than two rounds of the ring", "more than two tiles for a block"
TURNS = "more than four tiles for a block"
WEIGHTS: Mapping[Hashable, int] = {RING: 10, TILES: 10, TURNS: 10}  # of goals worth more time
LEAST_WORTH = 1.0  # weight of goals that a second must bring

Goal = tuple[Hashable, ...]  # whose, and what: the last entry may be one of WEIGHTS
Sizes = tuple[int, ...]  # of the op's dimensions, in their order
PlanOf = Callable[[Dims], LaunchPlan | None]  # None where the rung refuses the shape


def derive_shapes(
    op: Op, rung: Rung, target: Target, give_up: Callable[[str], object] = lambda goal: None
) -> list[Dims]:
    """The shapes, in the order in which the cover takes them; the op's own for a rung without a
    file, and none for a rung that takes none of these.

    give_up  is called with each goal of WEIGHTS that no shape meets in MOST_SECONDS, in words
    """
    if rung.path is None:
        return list(op.shapes)
    plan_of = _planner(op, rung, target)
    unlimited = free_plan_of = plan_of
    if "multiprocessors" in rung.lines.names:
        many = replace(target, multiprocessors=UNLIMITED)
        unlimited = _planner(op, rung, many)
        free_plan_of = _planner(op, rung, many, tiled_for=target)
    own = [dims for dims in op.shapes if plan_of(dims) is not None]
    if not own:
        return []
    if unlimited(own[-1]) is None:  # `Needs` limits the multiprocessors, too
        unlimited = plan_of
    axes = _axes(op, unlimited, own[-1])
    if rung.host:  # which says nothing of its tiles: a number in the text may be the size of one
        numbers = {int(number) for number in re.findall(r"\b\d+\b", rung.source)}
        tiles = (*sorted(numbers.intersection(LOOP_STEPS[::8]))[-FEW:],)
        axes = [_Axis(a.name, a.least, a.most, tiles, shared=True, guessed=True) for a in axes]
    per_flop, per_thread = _speed(rung, target)
    shots: dict[Sizes, _Shot] = {}
    given_up: set[Goal] = set()
    tried = list(_combinations(op, axes, target.multiprocessors))
    if unlimited is not plan_of:
        tried += _long_sums(op, axes, target.multiprocessors)
    for dims in [*own, *tried]:
        sizes = tuple(dims.values())
        seconds = per_flop * op.flops(dims if rung.host else _filled(axes, dims))
        seconds += SECONDS_PER_BYTE * op.least_bytes(dims, target.real)
        if sizes not in shots and (plan := plan_of(dims)) is not None:
            threads = sum(math.prod((*one.grid, *one.block)) for one in plan.launches)
            if rung.host:
                threads = _threads_of_host(op, axes, dims)
            free = plan if free_plan_of is plan_of else free_plan_of(dims) or plan
            shot = _Shot(dims, plan, free, seconds + per_thread * threads)
            if seconds > MOST_SECONDS and dims not in own:
                given_up |= {goal for goal in _goals(op, axes, shot) if goal[-1] in WEIGHTS}
            else:
                shots[sizes] = shot
    goals = {sizes: set(_goals(op, axes, shot)) for sizes, shot in shots.items()}
    constants = next(iter(shots.values())).plan.constants
    if "STAGES" in constants and "SPLITS" not in constants:  # a ring, of blocks with whole sums
        for *whose, what in sorted(given_up.difference(*goals.values()), key=str):
            give_up(f"{what} ({', '.join(map(str, whose))})")
    seen: dict[Part, set[int]] = {}
    for part, value in itertools.chain(*(shot.parts.items() for shot in shots.values())):
        seen.setdefault(part, set()).add(value)
    for part, values in seen.items():
        for sizes, shot in shots.items():
            if part in shot.parts:
                value = shot.parts[part]
                goals[sizes].add((part, value if len(values) <= FEW else min(value, FEW)))
    return [shots[sizes].dims for sizes in _cover(shots, goals)]


def _speed(rung: Rung, target: Target) -> tuple[float, float]:
    """Seconds for an operation, and for a thread. On a GPU only the reference takes time."""
    if target.arch != "emulated":
        return SECONDS_PER_FLOP_OF_REFERENCE, 0.0
    if any("sm == 90" in condition for condition in rung.conditions()):
        return SECONDS_PER_FLOP_OF_WGMMA, SECONDS_PER_THREAD
    return SECONDS_PER_FLOP, SECONDS_PER_THREAD


def _planner(op: Op, rung: Rung, target: Target, tiled_for: Target | None = None) -> PlanOf:
    """The rung's plan for a shape; None where the shape does not fit the op, or is refused."""

    def plan_of(dims: Dims) -> LaunchPlan | None:
        if op.misfit(dims) is not None:
            return None
        try:
            plan = rung.lines.plan(dims, target, tiled_for)
        except LadderError:  # an expression has no value there
            return None
        return plan if plan.refusal is None else None

    return plan_of


Part = tuple[str, int]  # a constant's name, or a kernel's and an axis of its grid


def _parts(plan: LaunchPlan) -> dict[Part, int]:
    """What of a plan may depend on the shape: constants, and the axes of the grids."""
    grids = {
        (launch.kernel, axis): size
        for launch in plan.launches
        for axis, size in enumerate(launch.grid)
    }
    return {**{(name, -1): value for name, value in plan.constants.items()}, **grids}


def _blocks(parts: Mapping[Part, int]) -> int:
    return math.prod(size for (_, axis), size in parts.items() if axis >= 0)


# ---- dimensions ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Axis:
    """What is known of one dimension.

    least   the smallest size that the rung takes; larger ones are multiples of it, or any if 1
    most    the largest size; None if it is beyond MOST_SIZE
    tiles   sizes of tiles: an axis of a grid, or a constant, grows at each multiple
    shared  several indices belong to one block, so that some of its threads idle where there is one
    step    of the loop over it; 0 for no loop
    stages  steps of one round of the loop's ring
    ring    the header names the stages, and the grid may grow with the number of tiles
    guessed the tiles are numbers in host code: several indices may belong to one block, or one
    """

    name: str
    least: int
    most: int | None
    tiles: tuple[int, ...]
    shared: bool
    step: int = 0
    stages: int = 0
    ring: bool = False
    guessed: bool = False

    @functools.cached_property
    def units(self) -> set[int]:
        return {*self.tiles, self.step} - {0}

    @functools.cached_property
    def busy(self) -> int:
        """The smallest size at which nearly all threads of a block have something to do."""
        unit = min(self.units, default=1) if self.shared else 1
        return max(self.least, unit - self.least)

    @functools.cached_property
    def long(self) -> int:
        """The smallest size of more steps than the ring has stages, or the largest size."""
        size = self.stages * self.step + self.least
        return min(size, self.most or size)

    def sizes(self, sms: int) -> list[int]:
        """Sizes at which something changes."""
        one = self.least
        sizes = {one, 2 * one, 3 * one}
        if self.most is not None:
            sizes |= {self.most, self.most - one, self.most // 2 + one}
        for unit in self.units:
            sizes |= {unit - one, unit, unit + one, 2 * unit, 2 * unit + one}
        for unit, blocks in itertools.product(self.tiles, BLOCKS_PER_PROCESSOR):
            sizes.add((2 * blocks * sms + 1) * unit + one)
        sizes.add((2 * self.stages + 1) * self.step + one)
        whole = {size // one * one for size in sizes}
        return sorted(size for size in whole if one <= size <= (self.most or size))

    def goals(self, size: int) -> Iterator[Goal]:
        """What a size does to the tiles and the loop of this dimension."""
        if size == self.most:
            yield ("largest",)
        if self.most is not None and not self.units:
            yield "of thirds", 3 * size // (self.most + 1)
        for unit in self.units:
            rest = size % unit
            yield unit, min(-(-size // unit), FEW)
            if rest == 0:
                yield unit, "filled"
            elif rest <= self.least:
                yield unit, "one more"
            elif rest >= unit - self.least:
                yield unit, "one less"
        if self.step and size > 2 * self.stages * self.step:
            yield (RING,)


def _axes(op: Op, plan_of: PlanOf, base: Dims) -> list[_Axis]:
    """What is known of each dimension, by plans for shapes that differ from a small one in it."""
    for name in op.dims:
        smaller = (op.fitted({**base, name: 1 << i}) for i in range(8))
        base = next((dims for dims in smaller if plan_of(dims) is not None), base)
    seen: dict[Part, set[int]] = {}
    axes = [_axis(op, plan_of, base, name, seen) for name in op.dims]
    plan = plan_of(base)
    assert plan is not None, "a rung takes its base"
    threads = {math.prod(launch.block) for launch in plan.launches}
    steps = {
        value
        for (name, _), values in seen.items()
        for value in values
        if len(values) == 1 and value in LOOP_STEPS and name in plan.constants
        if name not in NO_STEPS and value not in threads
    }
    stages = plan.constants.get("STAGES", DEFAULT_STAGES)
    fixed = any(math.prod(launch.grid) == UNLIMITED for launch in plan.launches)  # a block per SM
    ring = "STAGES" in plan.constants and not fixed
    columns = {name for arg in op.args for name in arg.columns} or set(op.dims)
    known = []
    for axis in axes:
        if _is_summed(op, axis.name) or (axis.name in columns and not axis.tiles):
            choices = steps or set(axis.tiles) or {count * axis.least for count in threads}
            step = min(choices, default=0)
            if step <= (axis.most or step):
                axis = replace(axis, step=step, stages=stages, ring=ring)
        known.append(axis)
    return known


def _is_summed(op: Op, name: str) -> bool:
    """Whether the sums of an output have more terms where a dimension is larger."""
    dims = dict.fromkeys(op.dims, 64)
    return any(
        evaluate_whole(arg.terms, {**dims, name: 128}) > evaluate_whole(arg.terms, dims)
        for arg in op.args
        if arg.role != "in"
    )


def _axis(op: Op, plan_of: PlanOf, base: Dims, name: str, seen: dict[Part, set[int]]) -> _Axis:
    """One dimension; `seen` takes in the values of the parts of all plans."""

    def at(size: int) -> dict[Part, int] | None:
        plan = plan_of(op.fitted({**base, name: size}))
        if plan is None:
            return None
        parts = _parts(plan)
        for part, value in parts.items():
            seen.setdefault(part, set()).add(value)
        return parts

    least = next((1 << i for i in range(8) if at(1 << i) is not None), base[name])
    first, end, most = at(least), MOST_SIZE // least, None
    assert first is not None, "the rung takes the least size"
    doubled = (1 << i for i in range(1, end.bit_length()))
    if (refused := next((n for n in doubled if at(n * least) is None), None)) is not None:
        end = _first(lambda n: at(n * least) is None, refused // 2, refused) - 1
        most = end * least
    tiles = set()
    for part, value in first.items():

        def changed(n: int, part: Part = part, value: int = value) -> bool:
            return (at(n * least) or {}).get(part) != value

        if end > 1 and changed(end):
            size = (_first(changed, 1, end) - 1) * least
            if size > least and _grows_at_multiples(at, part, size, least):
                tiles.add(size)
    one, two = (at(size) for size in (least, 2 * least))
    shared = one is not None and two is not None and _blocks(one) == _blocks(two)
    return _Axis(name, least, most, tuple(sorted(tiles)), shared)


def _grows_at_multiples(
    at: Callable[[int], dict[Part, int] | None], part: Part, size: int, least: int
) -> bool:
    """Whether a part of the plan stays the same from `size + least` to `2 * size`."""
    after, later = at(size + least), at(2 * size)
    return after is not None and later is not None and after.get(part) == later.get(part)


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The first number after `low` for which a condition holds, that holds for `high`."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


# ---- shapes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shot:
    """A shape that could be run: its plan, the plan with a block for each tile, and the seconds
    that it takes once it is compiled."""

    dims: Dims
    plan: LaunchPlan
    unlimited: LaunchPlan
    seconds: float

    @functools.cached_property
    def constants(self) -> tuple[tuple[str, int], ...]:
        return tuple(self.plan.constants.items())

    @functools.cached_property
    def parts(self) -> dict[Part, int]:
        return _parts(self.plan)


def _combinations(op: Op, axes: Sequence[_Axis], sms: int) -> Iterator[Dims]:
    """The combinations of sizes at which something changes, or as many as are looked at: those
    that change one dimension are always among them."""
    sizes = [axis.sizes(sms) for axis in axes]
    once = {axis.name: axis.busy for axis in axes}
    several_times = {axis.name: 2 * axis.step + axis.busy for axis in axes}
    for usual, (axis, own) in itertools.product(
        (once, several_times), zip(axes, sizes, strict=True)
    ):
        yield from (op.fitted({**usual, axis.name: size}) for size in own)
    chosen: Iterable[Sizes] = itertools.product(*sizes)
    if math.prod(map(len, sizes)) > MOST_COMBINATIONS:
        draw = random.Random(0)
        chosen = (tuple(map(draw.choice, sizes)) for _ in range(MOST_COMBINATIONS))
    for combination in chosen:
        yield op.fitted(dict(zip(op.dims, combination, strict=True)))


def _long_sums(op: Op, axes: Sequence[_Axis], sms: int) -> Iterator[Dims]:
    """Shapes whose tiles have one step more than the ring has stages, if there is a ring, or which
    have more than four tiles for a block, with more steps than two rounds of the ring."""

    def sizes(axis: _Axis) -> list[int]:
        if axis.ring:
            in_five = -(-(2 * axis.stages + 1) // 5) - 1
            return sorted({axis.long, min(axis.long, in_five * axis.step + axis.least)})
        unit, most = max(axis.tiles, default=1), axis.most or MOST_SIZE
        few = [size for size in axis.sizes(sms) if size <= FEW * unit]
        more = (4 * sms // n * unit + axis.least for n in (1, 2, 4, 8))
        return sorted({*few, *(size for size in more if size <= most)})

    if any(axis.ring for axis in axes):
        for combination in itertools.product(*map(sizes, axes)):
            yield op.fitted(dict(zip(op.dims, combination, strict=True)))


def _filled(axes: Sequence[_Axis], dims: Dims) -> dict[str, int]:
    """The shape whose tiles are all full: a block computes whole tiles, whatever it stores."""
    return {
        axis.name: -(-dims[axis.name] // unit) * unit
        for axis in axes
        for unit in [min(axis.tiles, default=axis.most or 1) if axis.shared else 1]
    }


def _threads_of_host(op: Op, axes: Sequence[_Axis], dims: Dims) -> int:
    """One for each element of the largest array, if each row of it takes whole blocks."""
    unit = max(axes[0].tiles, default=1)
    shapes = [arg.resolve_shape(dims) for arg in op.args]
    return max(math.prod(rows) * (-(-row // unit) * unit) for *rows, row in shapes)


def _goals(op: Op, axes: Sequence[_Axis], shot: _Shot) -> Iterator[Goal]:
    """What a shape does to the dimensions and the blocks of a rung."""
    dims, stages = shot.dims, max(axis.stages for axis in axes)
    busy = [dims[axis.name] >= axis.busy for axis in axes]
    for i, axis in enumerate(axes):
        if dims[axis.name] == axis.least:
            yield axis.name, "smallest"
        for goal in axis.goals(dims[axis.name]):
            if all(busy[:i] + busy[i + 1 :]):
                yield axis.name, *goal
            if axis.guessed:
                yield axis.name, "whatever the others are", *goal
    for text in op.fits:
        one, sign, other = text.split()[:3]
        if sign == "<=" and all(busy):
            yield text, dims[one] < dims[other]
    multiples = [dims[axis.name] // axis.least for axis in axes]
    if all(n > 1 and n % 2 for n in multiples):
        yield ("all dimensions odd multiples of the least",)
    if len(shot.plan.launches) == len(shot.unlimited.launches) and all(busy):
        for launch, free in zip(shot.plan.launches, shot.unlimited.launches, strict=True):
            tiles = math.prod(free.grid) / math.prod(launch.grid)
            steps = [-(-dims[axis.name] // axis.step) for axis in axes if axis.step]
            if all(math.ceil(tiles) * n > 2 * stages for n in steps):
                if tiles > 2 and all(dims[axis.name] >= axis.long for axis in axes if axis.ring):
                    yield launch.kernel, TILES
                if tiles > 4 and any(axis.ring for axis in axes):
                    yield launch.kernel, TURNS


def _cover(shots: Mapping[Sizes, _Shot], goals: Mapping[Sizes, set[Goal]]) -> Iterator[Sizes]:
    """Shapes until each goal is met; the next is always the one that meets most for its time."""
    left = {sizes: unmet for sizes, unmet in goals.items() if unmet}  # not yet met, by shape
    compiled: set[tuple[tuple[str, int], ...]] = set()

    def worth(sizes: Sizes) -> float:
        shot = shots[sizes]
        seconds = SECONDS_PER_CASE + shot.seconds
        if shot.constants not in compiled:
            seconds += SECONDS_PER_COMPILATION
        return sum(WEIGHTS.get(goal[-1], 1) for goal in left[sizes]) / seconds

    while left and worth(best := max(left, key=worth)) > LEAST_WORTH:
        met = left[best]
        left = {sizes: rest for sizes, unmet in left.items() if (rest := unmet - met)}
        compiled.add(shots[best].constants)
        yield best
