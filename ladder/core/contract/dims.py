"""Symbolic dimensions of a call, and their values."""

import re
from collections.abc import Mapping

from ladder.core.common.errors import LadderError

Dims = Mapping[str, int]  # the size of every dimension of a call: {"N": 256, "C": 768}


def format_dims(dims: Dims) -> str:
    """`N=4 C=768`, as messages and tables show a shape."""
    return " ".join(f"{name}={size}" for name, size in dims.items())


def key_of(op: str, dims: Dims) -> str:
    """`matmul.forward@C:768,OC:2304`: an op's calls that have these dimensions, whatever the others
    are; without dimensions `matmul.forward`, all of them."""
    shape = ",".join(f"{name}:{size}" for name, size in dims.items())
    return f"{op}@{shape}" if shape else op


def split_key(key: str) -> tuple[str, dict[str, int]]:
    """The op and the dimensions of a `key_of`. Raises LadderError where it is none."""
    op, at, shape = key.partition("@")
    if at and not re.fullmatch(r"[A-Za-z]+:[0-9]{1,18}(,[A-Za-z]+:[0-9]{1,18})*", shape):
        raise LadderError(f"{key!r} names no shape; write dimensions, as in {op}@C:768,OC:2304")
    pairs = (pair.split(":") for pair in shape.split(",") if pair)
    return op, {name: int(size) for name, size in pairs}
