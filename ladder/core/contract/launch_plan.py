"""What a rung needs to be launched: the lines of a header that a machine reads, and their values.

    lines = LaunchLines.parse({"launch": ("add<<<ceil_div(N, 4), 4 * warp>>>",)})
    plan = lines.plan({"N": 100}, target)
    plan.launches[0].grid    (25, 1, 1)

rung_file.py describes the lines. A Rung keeps its plans: what a call needs is worked out once.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ladder.core.common.errors import LadderError
from ladder.core.contract.expressions import Expression, Function, Value, find_tiling, parse
from ladder.core.contract.op import REALS, Dims
from ladder.core.contract.target import Target

FLAG = "flag"  # a uint32 of Scratch that is 0 before the first call, and kept from call to call
# The most of a launch on every GPU: blocks of a grid, threads of a block, along x, y and z.
# https://docs.nvidia.com/cuda/cuda-c-programming-guide/ (compute capabilities)
MOST_BLOCKS = (2**31 - 1, 65535, 65535)
MOST_THREADS = (1024, 1024, 64)  # and 1024 in all
SIZES_HERE = ", and here "  # in a refusal, between what the rung needs and this call's sizes
_LAUNCH = re.compile(r"(\w+)\s*<<<(.*)>>>(?:\s*if\s+(.+))?")
_NAME = r"[A-Za-z_]\w*"
_DEFINE = re.compile(rf"({_NAME}(?:\s*,\s*{_NAME})*)\s*=([^=].*)")
_SCRATCH = re.compile(rf"(real|u?int32|float32|{FLAG})\s+({_NAME})\s*\[(.+)\]")
_TILE = re.compile(rf"({_NAME})\s*\[(.+)\]")
_ARG = re.compile(rf"({_NAME})\s*=\s*({_NAME})")
_GENERATIONS = {"sm", "cdna", "rdna"}
_OF_TARGET = {*_GENERATIONS, "real", "warp", *REALS}  # conditions on architecture and type


@dataclass(frozen=True)
class Launch:
    """One kernel launch: grid and block as in CUDA, dynamic shared memory in bytes.

    prefetch  where the kernel may start while the one before it runs, the parameters that it reads
              before it waits for that one's end; () where it starts after that
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0
    prefetch: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scratch:
    """A buffer beside the arguments; `dtype` as declared, which may be "real"."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def stored(self) -> str:
        """The type of its elements."""
        return "uint32" if self.dtype == FLAG else self.dtype


class Tile(NamedTuple):
    """The tiles of an argument that the kernels copy by TMA; `box`: their rows and columns."""

    argument: str
    box: tuple[int, int]


@dataclass(frozen=True)
class LaunchPlan:
    """What a rung needs to run one call on one device.

    refusal    why it cannot, as half a sentence, and then the rest is empty; None if it can
    constants  preprocessor constants that the file is compiled with
    launches   of one call, in order, on one stream
    scratch    buffers that kernels can take beside the op's arguments
    tiles      arguments that they can take as tensor maps, too
    """

    refusal: str | None
    constants: Mapping[str, int]
    launches: tuple[Launch, ...] = ()
    scratch: tuple[Scratch, ...] = ()
    tiles: tuple[Tile, ...] = ()


class _Definition(NamedTuple):
    names: tuple[str, ...]
    value: Expression


class _LaunchLine(NamedTuple):
    kernel: str
    geometry: Expression
    condition: Expression | None
    text: str


class _Shaped(NamedTuple):
    """An entry `name[shape]`; `dtype` of Scratch only."""

    name: str
    dtype: str
    shape: Expression
    text: str


@dataclass(frozen=True)
class LaunchLines:
    """The machine-read lines of a header, parsed.

    args  the contract's name of a parameter, by the name that the kernels have for it
    """

    needs: tuple[Expression, ...]
    definitions: tuple[_Definition, ...]
    launches: tuple[_LaunchLine, ...]
    scratch: tuple[_Shaped, ...]
    tiles: tuple[_Shaped, ...]
    prefetch: tuple[str, ...]
    args: Mapping[str, str]

    @classmethod
    def parse(cls, header: Mapping[str, tuple[str, ...]]) -> LaunchLines:
        """From the lines of a header by key. Raises LadderError for one that is not understood."""

        def of(key: str) -> list[str]:
            return entries(header.get(key, ()))

        needs = [condition for condition in of("needs") if condition != "nothing"]
        if of("prefetch") and len(header.get("launch", ())) > 1:
            raise LadderError("Prefetch is for a rung with one Launch line")
        return cls(
            tuple(parse(condition) for condition in needs),
            tuple(_definition(entry) for entry in of("define")),
            tuple(_launch(line) for line in header.get("launch", ())),
            tuple(_scratch(entry) for entry in of("scratch")),
            tuple(_tile(entry) for entry in of("tiles")),
            tuple(of("prefetch")),
            _args(of("args")),
        )

    @property
    def names(self) -> set[str]:
        """The names that any line uses."""
        expressions = [
            *self.needs,
            *(definition.value for definition in self.definitions),
            *(line.geometry for line in self.launches),
            *(line.condition for line in self.launches if line.condition is not None),
            *(line.shape for line in (*self.scratch, *self.tiles)),
        ]
        return {name for expression in expressions for name in expression.names}

    @property
    def heuristics(self) -> dict[str, Function]:
        """The tile heuristics that Define names, by their names there."""
        return {
            name: function
            for definition in self.definitions
            for name, function in definition.value.functions.items()
            if "." in name
        }

    def claims(self, target: Target) -> bool:
        """Whether the conditions on architecture and real type alone hold on a target."""
        names = names_of(target)
        return all(
            condition.evaluate(names)
            for condition in self._conditions_on(target)
            if condition not in self.needs_of_shape
        )

    @property
    def needs_of_shape(self) -> tuple[Expression, ...]:
        """The conditions that depend on more than the architecture and the real type."""
        return tuple(need for need in self.needs if not _OF_TARGET.issuperset(need.names))

    def plan(self, dims: Dims, target: Target, tiled_for: Target | None = None) -> LaunchPlan:
        """What one call needs. Raises LadderError for a line that makes no sense there.

        tiled_for  the target for which tile heuristics choose, if it is another one
        """
        chosen = self.plan(dims, tiled_for).constants if tiled_for is not None else {}
        names: dict[str, Value] = {**dims, **names_of(target)}
        constants: dict[str, int] = {}
        for definition in self.definitions:
            if chosen and any("." in name for name in definition.value.functions):
                constants |= {name: chosen[name] for name in definition.names}
            else:
                constants |= _define(definition, names)
            names |= constants
        for condition in self._conditions_on(target):
            if not condition.evaluate(names):
                return LaunchPlan(_refusal(condition, names), constants)
        theirs = {ours: name for name, ours in self.args.items()}
        prefetch = tuple(theirs.get(name, name) for name in self.prefetch)
        launches = [
            _launch_at(line, names, prefetch)
            for line in self.launches
            if line.condition is None or line.condition.evaluate(names)
        ]
        buffers = [
            Scratch(line.name, line.dtype, _whole(line.shape.evaluate(names), line.text))
            for line in self.scratch
        ]
        tiles = [_tile_at(line, names) for line in self.tiles]
        return LaunchPlan(None, constants, tuple(launches), tuple(buffers), tuple(tiles))

    def _conditions_on(self, target: Target) -> Sequence[Expression]:
        """The conditions that count there: the emulator has the features of every generation."""
        if target.arch != "emulated":
            return self.needs
        return [need for need in self.needs if _GENERATIONS.isdisjoint(need.names)]


def entries(lines: tuple[str, ...]) -> list[str]:
    """What stands between the `;` of a header's lines."""
    return [part.strip() for line in lines for part in line.split(";") if part.strip()]


# ---- reading ------------------------------------------------------------------------------------


def _definition(entry: str) -> _Definition:
    match = _match(_DEFINE, entry, "Define must read 'NAME = expression; NAME = expression'")
    names = tuple(name.strip() for name in match[1].split(","))
    return _Definition(names, parse(match[2].strip(), find_tiling))


def _launch(line: str) -> _LaunchLine:
    match = _match(_LAUNCH, line, "a Launch line must read 'kernel<<<grid, block>>>'")
    geometry = parse(match[2], listed=True)
    return _LaunchLine(match[1], geometry, parse(match[3]) if match[3] else None, line)


def _scratch(entry: str) -> _Shaped:
    match = _match(_SCRATCH, entry, "Scratch must read 'float32 name[N, C]'")
    return _Shaped(match[2], match[1], parse(match[3], listed=True), entry)


def _tile(entry: str) -> _Shaped:
    match = _match(_TILE, entry, "Tiles must read 'argument[rows, columns]'")
    return _Shaped(match[1], "", parse(match[2], listed=True), entry)


def _args(entries: Sequence[str]) -> dict[str, str]:
    args: dict[str, str] = {}
    for entry in entries:
        match = _match(_ARG, entry, "Args must read 'their name = name in the op; ...'")
        if match[1] in args:
            raise LadderError(f"Args says twice what {match[1]} is: {entry}")
        args[match[1]] = match[2]
    return args


def _match(form: re.Pattern[str], text: str, says: str) -> re.Match[str]:
    if (match := form.fullmatch(text)) is None:
        raise LadderError(f"{says}: {text}")
    return match


# ---- evaluating ---------------------------------------------------------------------------------


@functools.lru_cache
def names_of(target: Target) -> Mapping[str, Value]:
    """What an expression may ask of a device."""
    numbers = ("warp", "multiprocessors", "shared_bytes", "vector", *sorted(_GENERATIONS))
    return {
        **{name: getattr(target, name) for name in numbers},
        "real": target.real.name,
        "sizeof_real": target.real.itemsize,
        **{name: name for name in REALS},
    }


def _define(definition: _Definition, names: Mapping[str, Value]) -> dict[str, int]:
    """The constants of one entry: one, or as many as a tile heuristic returns."""
    value = definition.value.evaluate(names)
    values = value if isinstance(value, tuple) else (value,)
    if len(values) != len(definition.names):
        raise LadderError(
            f"Define has {len(definition.names)} names for {len(values)} values: "
            f"{', '.join(definition.names)} = {definition.value.text}"
        )
    constants = {}
    for name, number in zip(definition.names, values, strict=True):
        if not isinstance(number, int):
            raise LadderError(f"{number!r} is not a whole number: {name} = {definition.value.text}")
        constants[name] = int(number)  # a comparison's True is 1
    return constants


def _refusal(condition: Expression, names: Mapping[str, Value]) -> str:
    values = [f"{name} = {names[name]}" for name in condition.names if name not in REALS]
    return f"it needs {condition.text}{SIZES_HERE}{', '.join(values)}"


def _launch_at(line: _LaunchLine, names: Mapping[str, Value], prefetch: tuple[str, ...]) -> Launch:
    parts = line.geometry.evaluate(names)
    if not isinstance(parts, tuple) or len(parts) not in (2, 3):
        raise LadderError(f"write grid, block and perhaps bytes: {line.text}")
    grid, block = (_dim3(part, line.text) for part in parts[:2])
    (shared,) = _whole(parts[2:] or (0,), line.text)
    most = (*MOST_BLOCKS, *MOST_THREADS)
    fits = all(1 <= n <= limit for n, limit in zip((*grid, *block), most, strict=True))
    if not fits or math.prod(block) > MOST_THREADS[0]:
        raise LadderError(
            f"a launch of grid {grid} and block {block} is not possible; a grid has 1 to 65,535 "
            f"blocks in y and z, a block 1 to 1,024 threads, at most 64 in z: {line.text}"
        )
    return Launch(line.kernel, grid, block, shared, prefetch)


def _dim3(value: Value, text: str) -> tuple[int, int, int]:
    sizes = _whole(value, text)
    if len(sizes) > 3:
        raise LadderError(f"grid and block have three dimensions at most: {text}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _tile_at(line: _Shaped, names: Mapping[str, Value]) -> Tile:
    sizes = _whole(line.shape.evaluate(names), line.text)
    if len(sizes) != 2:
        raise LadderError(f"a tile has rows and columns: {line.text}")
    return Tile(line.name, (sizes[0], sizes[1]))


def _whole(value: Value, text: str) -> tuple[int, ...]:
    """A number, or the numbers of a tuple."""
    whole = []
    for one in value if isinstance(value, tuple) else (value,):
        if not isinstance(one, int) or one < 0:
            raise LadderError(f"{one!r} is not a whole number from 0 on: {text}")
        whole.append(int(one))
    return tuple(whole)
