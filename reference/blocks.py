"""Working in blocks: NumPy goes through memory once per operation, so a formula of ten operations
on large arrays waits for memory ten times, but only once on pieces that stay in the cache."""

import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor


def blocks(n: int, size: int = 2**16) -> Iterator[slice]:
    """Slices of at most `size` that cover range(n)."""
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def on_all_cores(work: Callable[[slice], None], n: int) -> None:
    """Call work(block) for the blocks of range(n), every thread taking its share of them.

    Threads help because NumPy releases the interpreter lock inside an operation.
    """
    parts = list(blocks(n))
    threads = min(_cores(), len(parts))

    def share(thread: int) -> None:
        for block in parts[thread::threads]:
            work(block)

    if threads > 1:
        list(_pool().map(share, range(threads)))
    else:
        share(0)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # those of this process; macOS has them for all
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_cores(), "blocks")
