"""Symbolic dimensions of a call, and their values."""

from __future__ import annotations

from collections.abc import Mapping

Dims = Mapping[str, int]  # the size of every dimension of a call: {"N": 256, "C": 768}


def format_dims(dims: Dims) -> str:
    """`N=4 C=768`, as messages and tables show a shape."""
    return " ".join(f"{name}={size}" for name, size in dims.items())
