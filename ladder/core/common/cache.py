"""Compiled kernels are kept in the user's cache directory, under a name that hashes what made them.

The directory is $KERNEL_LADDER_CACHE, else $XDG_CACHE_HOME/kernel-ladder, else
~/.cache/kernel-ladder. Deleting it is always safe. Its folders belong to the user who reads them:
what others could write there would run as that user.
"""

import errno
import hashlib
import json
import os
import shutil
import stat
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from ladder.core.common.errors import LadderError
from ladder.core.common.files import NO_SPACE, alone_in, read_bytes, read_json, read_text, replacing
from ladder.core.common.install import user_folder

VARIABLE = "KERNEL_LADDER_CACHE"
CHECKSUMS = "checksums.json"  # of the other files of an entry
MOST_BYTES = 1 << 30  # of a file of an entry


_building: dict[Path, threading.RLock] = {}


def directory() -> Path:
    """Where the cache is; it need not exist yet."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen).expanduser()
    return user_folder("XDG_CACHE_HOME", ".cache")


def digest(*parts: str | bytes) -> str:
    """A name for what `parts` describe. Their lengths count, so ("ab", "c") is not ("a", "bc")."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little") + data)
    return state.hexdigest()[:32]


def cached(kind: str, key: str, build: Callable[[Path], None]) -> Path:
    """The folder `kind`/`key` of the cache, made by `build(path)` where it is missing, and made
    anew where a file in it is not as it was written.

    `build` makes a folder of files at a temporary path, which is renamed when complete (files.py):
    another process never sees half of it, and where two processes build the same thing at once,
    both succeed. But a machine that crashes, or a disk that fails, may leave files that are cut
    off, zeroed or changed, and to load such a library may end the process. So a checksum of every
    file lies beside them, and is compared at every call: a millisecond for some megabytes.

    Raises LadderError with the remedy where the directory cannot be written, where others than the
    user may write to it, or where the entry remains damaged; what `build` raises passes through,
    and leaves nothing behind.
    """
    entry = _folder(kind) / key
    with _building.setdefault(entry, threading.RLock()):  # a second thread waits for the first one
        return _cached(entry, build)


def _cached(entry: Path, build: Callable[[Path], None]) -> Path:
    def build_with_checksums(path: Path) -> None:
        build(path)
        (path / CHECKSUMS).write_text(json.dumps(_checksums(path)), encoding="utf-8")

    if not entry.exists():
        _write(entry, build_with_checksums)
    if not _is_whole(entry):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            with suppress(OSError):
                entry.unlink()
        _write(entry, build_with_checksums)
        if not _is_whole(entry):
            raise LadderError(f"the compiled kernel in {entry} is damaged; delete that folder")
    return entry


def alone(kind: str) -> AbstractContextManager[None]:
    """Keep others out of the folder `kind`, for what takes so long to build that a second process
    should wait for the first one's."""
    return alone_in(_folder(kind), wait=True, tidy=False)


def store(kind: str, key: str, text: str) -> None:
    """Write the file `kind`/`key` of the cache, replacing an older one, in the same way."""
    content = f"{digest(text)}\n{text}"
    _write(_folder(kind) / key, lambda path: path.write_text(content, encoding="utf-8"))


def load(kind: str, key: str) -> str | None:
    """The text that `store` has written; None where there is none, or it is damaged."""
    path = directory() / kind / key
    if not path.exists():
        return None
    try:
        _folder(kind)
        checksum, _, text = read_text(path).partition("\n")
    except LadderError:
        return None
    return text if checksum == digest(text) else None


def names(kind: str) -> list[str]:
    """The keys of the texts that `store` has written, in order."""
    folder = directory() / kind
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _folder(kind: str) -> Path:
    """The folder of a kind of entries, made if need be, for its user alone.

    What lies in it is run as code. Raises LadderError where another user than this one, or root,
    owns it, or others may write to it.
    """
    folder = directory() / kind
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise _unwritable(error) from None
    if status.st_uid not in (os.geteuid(), 0):
        raise LadderError(
            f"{folder} belongs to user {status.st_uid}, and compiled kernels in it would run as "
            f"yours; set {VARIABLE} to a folder of your own"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise LadderError(
            f"others may write to {folder}, whose compiled kernels run as yours; delete it, or set "
            f"{VARIABLE} to another folder"
        )
    return folder


def _checksums(entry: Path) -> dict[str, str]:
    """The checksum of every file of an entry, by its name."""
    names = sorted(path.name for path in entry.iterdir() if path.name != CHECKSUMS)
    return {name: digest(read_bytes(entry / name, MOST_BYTES)) for name in names}


def _is_whole(entry: Path) -> bool:
    try:
        return bool(read_json(entry / CHECKSUMS) == _checksums(entry))
    except (LadderError, OSError):
        return False


def _write(entry: Path, build: Callable[[Path], object]) -> None:
    building = False
    try:
        with replacing(entry) as unfinished:
            building = True
            build(unfinished)
            building = False
    except OSError as error:
        if building and error.errno not in (*NO_SPACE, errno.EROFS):
            raise  # the compiler's own error
        # A folder cannot replace a folder: another process was faster, with the same content.
        if building or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise _unwritable(error) from None


def _unwritable(error: OSError) -> LadderError:
    return LadderError(
        f"cannot write compiled kernels to {directory()} ({error.strerror}); "
        f"set {VARIABLE} to a folder that can be written"
    )
