"""Writing files so that nothing half-written is ever seen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ladder.errors import LadderError


@contextmanager
def atomic_write(path: str | Path) -> Iterator[BinaryIO]:
    """Open `path` for writing; it appears, complete, only when the block ends without an error.

    The bytes go to a hidden file beside it, which is flushed to the disk and then renamed: a
    kill -9 or a power cut at any moment leaves either the old file or the new one.

    Raises LadderError where the folder cannot be written or the disk is full; the old file stays.
    """
    path = Path(path)
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(hidden, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
        flush_directory(path.parent)
    except OSError as error:
        raise LadderError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            hidden.unlink()


def flush_directory(directory: Path) -> None:
    """Make the rename itself survive a power cut: it is an entry in the directory's own data."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
