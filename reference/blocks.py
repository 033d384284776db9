"""Working in blocks: NumPy goes through memory once per operation, so a formula of ten operations
is ten times slower than memory on large arrays, but not on pieces that stay in the cache."""

from collections.abc import Iterator


def blocks(n: int, size: int = 16384) -> Iterator[slice]:
    """Slices of at most `size` that cover range(n)."""
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))
