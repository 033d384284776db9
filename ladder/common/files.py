"""Writing files so that nothing half-written is ever seen, and no two runs write the same ones."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ladder.common.errors import LadderError


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
