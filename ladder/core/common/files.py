"""Reading files that may be anything, and writing them so that nothing half-written is ever seen.

A path that a user names, or that a stranger's file names, may lead to a named pipe, which blocks
whoever opens it, to a device without an end, or to a file that is larger than the memory. Whatever
is read goes through `open_regular`, `read_bytes`, `read_text` or `read_json`. No file is mapped
into memory: where another process cuts a mapped file short, reading it ends this one with SIGBUS.
"""

import errno
import fcntl
import io
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from ladder.core.common.errors import LadderError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)  # on the disk, and left to the user
WRITING = ".writing-"  # how the name of the folder begins in which a file is written
MOST_BYTES = 64 << 20  # of a file that is read as a whole, where nothing else is said
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@contextmanager
def open_regular(path: str | Path) -> Iterator[io.BufferedReader]:
    """Open a regular file for reading, without waiting for it.

    Raises LadderError with one line where there is none, where it is something else, and for any
    error of the system while the block reads.
    """
    # A pipe without a writer would block without O_NONBLOCK; on a regular file it does nothing.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise LadderError(f"{path}: no such file") from None
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise LadderError(f"{path} is a socket or a device; name a regular file") from None
        raise LadderError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:  # a zero byte, or half of a surrogate pair, in what JSON names
        raise LadderError(f"cannot read {str(path)!r}: {error}") from None
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            kind = _KINDS.get(stat.S_IFMT(mode), "something else")
            raise LadderError(f"{path} is {kind}; name a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            if size_of(file) == 0 and file.read(1) != b"":  # in /proc, without a size or an end
                raise LadderError(f"{path} is made by the system; name a regular file")
            yield file
    except OSError as error:
        raise LadderError(f"cannot read {path}: {error.strerror or error}") from None
    finally:
        os.close(descriptor)


def size_of(file: io.BufferedReader) -> int:
    """How many bytes an open file has."""
    return os.fstat(file.fileno()).st_size


def raw_bytes(array: Any) -> memoryview:
    """The bytes of a contiguous NumPy array, not copied."""
    return memoryview(array.reshape(-1).view("u1"))


def read_bytes(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file of at most `most` bytes, as far as it went when it was opened.

    Raises LadderError as `open_regular`, and for a larger file.
    """
    with open_regular(path) as file:
        size = size_of(file)
        if size > most:
            raise LadderError(f"{path} has {size} bytes, and at most {most} are read")
        return file.read(size)


def read_text(path: str | Path, most: int = MOST_BYTES) -> str:
    """The text of a regular file in UTF-8, its lines ended by "\\n" whatever they are ended by. A
    byte order mark, which some editors write first, is not part of it.

    Raises LadderError as `read_bytes`, and where it is not text.
    """
    try:
        return io.TextIOWrapper(io.BytesIO(read_bytes(path, most)), "utf-8-sig").read()
    except UnicodeDecodeError as error:
        raise LadderError(f"{path} is not text in UTF-8 ({error})") from None


def read_json(path: str | Path, most: int = MOST_BYTES) -> Any:
    """What a JSON file holds. Raises LadderError as `read_bytes`, and where it is not JSON."""
    try:
        return json.loads(read_bytes(path, most))
    except (ValueError, RecursionError) as error:  # ValueError: no UTF-8 either
        raise LadderError(f"{path} is not JSON ({error})") from None


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
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=WRITING) as hidden:
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


def write_json(path: str | Path, content: Any, indent: int | None = 1) -> None:
    """A JSON file, whole or not at all."""
    with atomic_write(path) as file:
        file.write((json.dumps(content, indent=indent) + "\n").encode())


@contextmanager
def alone_in(directory: Path, wait: bool = False, tidy: bool = True) -> Iterator[None]:
    """Make the folder if need be, and keep other processes out that ask for the same.

    The lock is on the folder itself and ends with the process, however that ends: there is no file
    that a kill could leave behind. A folder that was made here and is still empty at the end is
    removed. Raises LadderError where another process is there; with `wait`, waits for it to leave.
    OSError where the folder cannot be made or opened.

    tidy  all who write there hold the lock: what a killed one has left half written is removed
    """
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    descriptor = _locked(directory, wait)
    for unfinished in directory.glob(f"{WRITING}*") if tidy else ():
        shutil.rmtree(unfinished, ignore_errors=True)
    try:
        yield
    finally:
        with suppress(OSError):  # the first that is not empty: nothing above it is, either
            for path in made:
                os.rmdir(path)
        os.close(descriptor)


def _locked(directory: Path, wait: bool) -> int:
    """A descriptor of the folder, which holds the lock on it until it is closed."""
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            holder = _holder(os.fstat(descriptor).st_ino)
            os.close(descriptor)
            raise LadderError(
                f"another run{holder} is writing to {directory}; wait for its end, or choose "
                "another folder by -o"
            ) from None
        except OSError:
            return descriptor  # some network file systems know no locks
        # The process that held the lock may have removed the folder that it had made.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(directory)):
                return descriptor
        os.close(descriptor)


def _holder(inode: int) -> str:
    """Which process holds the lock on an inode, for a message; "" where the system does not say."""
    with suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()  # 1: FLOCK ADVISORY WRITE 4711 fd:00:131 0 EOF
            if words[1] == "FLOCK" and words[5].endswith(f":{inode}") and int(words[4]) > 0:
                return f" (process {words[4]})"
    return ""


def flush_directory(directory: Path) -> None:
    """Make the rename itself survive a power cut: it is an entry in the directory's own data."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def quote(file: str, line: int) -> str:
    """A line of a file as compilers show it; "" where it is 0 or cannot be read."""
    try:
        text = read_text(file).splitlines()[line - 1] if line else ""
    except (OSError, LadderError, IndexError):
        text = ""
    return f"\n{line:6} | {text.strip()}" if text else ""
