"""Writing files so that nothing half-written is ever seen, and no two runs write the same ones."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ladder.common.errors import LadderError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path at which to make a file or a folder, which is renamed to `path` when the block ends
    without an error. A rename is atomic: other processes see either the old content or the new.

    It is in a hidden folder of its own beside `path`, so that several threads and processes may
    write the same file at once. A file replaces an older one; a folder replaces only an empty one,
    and otherwise this raises OSError (ENOTEMPTY or EEXIST).
    """
    if not path.parent.exists():  # where it is a file, mkdir would say "File exists"
        path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".writing-") as hidden:
        unfinished = Path(hidden) / path.name
        yield unfinished
        os.replace(unfinished, path)


@contextmanager
def atomic_write(path: str | Path) -> Iterator[BinaryIO]:
    """Open `path` for writing; it appears, complete, only when the block ends without an error.

    The bytes are flushed to the disk before the rename: a kill -9 or a power cut at any moment
    leaves either the old file or the new one.

    Raises LadderError where the folder cannot be written or the disk is full; the old file stays.
    """
    path = Path(path)
    try:
        with replacing(path) as unfinished, open(unfinished, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        flush_directory(path.parent)
    except OSError as error:
        raise LadderError(f"cannot write {path}: {error.strerror or error}") from None


@contextmanager
def alone_in(directory: Path, wait: bool = False) -> Iterator[None]:
    """Make the folder if need be, and keep other processes out that ask for the same.

    The lock is on the folder itself and ends with the process, however that ends: there is no file
    that a kill could leave behind. Raises LadderError where another process is there; with `wait`,
    waits for it to leave. OSError where the folder cannot be made or opened.
    """
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise LadderError(
                f"another run is writing to {directory}; wait for its end, or choose another "
                "folder by -o"
            ) from None
        except OSError:
            pass  # some network file systems know no locks
        yield
    finally:
        os.close(descriptor)


def flush_directory(directory: Path) -> None:
    """Make the rename itself survive a power cut: it is an entry in the directory's own data."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
