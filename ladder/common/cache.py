"""Compiled kernels are kept in the user's cache directory, under a name that hashes what made them.

The directory is $KERNEL_LADDER_CACHE, else $XDG_CACHE_HOME/kernel-ladder, else
~/.cache/kernel-ladder. Deleting it is always safe.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

from ladder.common.errors import LadderError
from ladder.common.files import replacing

VARIABLE = "KERNEL_LADDER_CACHE"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def directory() -> Path:
    """Where the cache is; it need not exist yet."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "kernel-ladder"
    except RuntimeError:  # no HOME, and the user is in no password file: some containers
        return Path(tempfile.gettempdir()) / f"kernel-ladder-{os.getuid()}"


def digest(*parts: str | bytes) -> str:
    """A name for what `parts` describe. Their lengths count, so ("ab", "c") is not ("a", "bc")."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little") + data)
    return state.hexdigest()[:32]


def cached(
    kind: str,
    key: str,
    build: Callable[[Path], None],
    is_whole: Callable[[Path], bool] = lambda entry: True,
) -> Path:
    """The file or folder `kind`/`key` of the cache, made by `build(path)` where it is missing, and
    made anew where it is not `is_whole(path)`.

    `build` writes to a temporary path, which is renamed when complete (files.py): another process
    never sees half of it, and where two processes build the same thing at once, both succeed. But
    a machine that crashes, or a disk that fills up below the file system, may leave an entry that
    is cut off.

    Raises LadderError with the remedy where the directory cannot be written, or the entry remains
    damaged; what `build` raises passes through, and leaves nothing behind.
    """
    entry = directory() / kind / key
    if not entry.exists():
        _write(entry, build)
    if not is_whole(entry):
        shutil.rmtree(entry, ignore_errors=True)
        _write(entry, build)
        if not is_whole(entry):
            raise LadderError(f"the compiled kernel in {entry} is damaged; delete that folder")
    return entry


def is_whole_elf(path: Path) -> bool:
    """Whether a file is an ELF file whose two tables do not lead past its end: behind the sections
    they are what comes last in what compilers make. OSError where it cannot be read."""
    with path.open("rb") as file:
        head = file.read(64)
    if len(head) < 64 or not head.startswith(b"\x7fELF"):
        return False
    segments, sections, *sizes = struct.unpack("<32xQQ6xHHHH2x", head)
    end: int = max(segments + sizes[0] * sizes[1], sections + sizes[2] * sizes[3])
    return end <= path.stat().st_size


def store(kind: str, key: str, text: str) -> Path:
    """Write the file `kind`/`key` of the cache, replacing an older one, in the same way."""
    return _write(directory() / kind / key, lambda path: path.write_text(text, encoding="utf-8"))


def _write(entry: Path, build: Callable[[Path], object]) -> Path:
    building = False
    try:
        with replacing(entry) as unfinished:
            building = True
            build(unfinished)
            building = False
    except OSError as error:
        if building and error.errno not in _NO_SPACE:
            raise  # the compiler's own error
        # A folder cannot replace a folder: another process was faster, with the same content.
        if building or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise _unwritable(error) from None
    return entry


def _unwritable(error: OSError) -> LadderError:
    return LadderError(
        f"cannot write compiled kernels to {directory()} ({error.strerror}); "
        f"set {VARIABLE} to a folder that can be written"
    )
