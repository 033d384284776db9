"""Tile heuristics: the choice of tile sizes and splits where one line of a header is not enough.

Such a choice is a typed Python function in a layer's `tiles.py`, marked `@tiling`, and a header
names it with the layer's name before it:

    // Define: TILE_COLUMNS = matmul.tiles.tile_columns(HIGH, OC, multiprocessors, 256, 192)

A function takes whole numbers and returns one, or a tuple of them for as many names. A header can
name no other function: whatever a stranger's file says, only what is marked here can be called.
"""

import difflib
import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ladder.core.common.install import ROOT
from ladder.core.contract.expressions import FUNCTIONS, ExpressionError

PACKAGE = Path(__file__).parents[2]  # the folder of the layers

Tiling = Callable[..., int | tuple[int, ...]]
_T = TypeVar("_T", bound=Tiling)


def tiling(function: _T) -> _T:
    """Marks a function that headers may name."""
    function.__dict__["is_tiling"] = True
    return function


def find(name: str) -> Tiling:
    """The function that a header calls `layer.tiles.function`. Raises ExpressionError."""
    found = re.fullmatch(r"([a-z_]+)\.tiles\.(\w+)", name)
    if found is None or not (PACKAGE / found[1] / "tiles.py").is_file():
        raise ExpressionError(
            f"there is no function {name}, only {', '.join(FUNCTIONS)} and a layer's tile "
            "heuristics, such as matmul.tiles.tile_columns"
        )
    module = vars(importlib.import_module(f"{ROOT}ladder.{found[1]}.tiles"))
    known = [key for key, value in module.items() if getattr(value, "is_tiling", False)]
    if found[2] not in known:
        near = difflib.get_close_matches(found[2], known, n=1) or known
        raise ExpressionError(f"there is no function {name}; {found[1]}.tiles has {near[0]}")
    function: Tiling = module[found[2]]
    return function
