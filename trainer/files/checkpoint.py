"""Checkpoints: a folder with the tensors (safetensors) and the state (JSON), complete or absent.

    step_00000040/
        tensors.safetensors     parameters, moments, ...
        checkpoint.json         step, the caller's state, and checksums of everything

A checkpoint is written into a folder named .partial, flushed to the disk, and then renamed: the
rename is the only moment at which it comes to be. To delete one, it is renamed back first. So
whatever a crash, a kill or a full disk interrupts, a folder named step_N is complete. Saving a step
again makes step_N.2, which replaces step_N when reading; nothing is ever overwritten.

One process saves into a folder at a time. No pickle: a checkpoint from a stranger is only data.
"""

import functools
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.common.files import flush_directory, read_json
from trainer.files.tensor_file import TensorFile, digest, write_tensors

TENSORS = "tensors.safetensors"
MANIFEST = "checkpoint.json"
FORMAT = "kernel-ladder checkpoint 1"

# Written to the disk at once. Otherwise the system may leave all of it to the end, and whoever
# expects signs of progress, tensor by tensor, would then wait for minutes.
FLUSHED_BYTES = 1 << 30


def save(
    directory: str | Path,
    step: int,
    tensors: Mapping[str, Callable[[], np.ndarray]],
    state: dict[str, Any],
    *,
    keep: int = 0,
    major_every: int = 0,
) -> Path:
    """Write the checkpoint of `step` and delete old ones; returns its folder.

    tensors      name -> function that returns the array; called once each, one after the other
    state        whatever else a resumed run needs, as JSON
    keep         how many of the last checkpoints stay, this one included; 0: all
    major_every  checkpoints of steps divisible by it stay for ever; 0: no such

    Checkpoints of later steps than `step` are another run's, and are left alone. Raises
    LadderError where the file system fails, and leaves the checkpoints as they were.
    """
    directory = Path(directory)
    state = json.loads(json.dumps(state))  # as it will be read; if it is not JSON it shows here
    attempts = [attempt for s, attempt, _ in _checkpoints(directory) if s == step]
    name = f"step_{step:08d}" + (f".{max(attempts) + 1}" if attempts else "")
    partial = directory / f"{name}.partial"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for left_over in directory.glob("step_*.partial"):  # of a save or deletion cut short
            if left_over.is_dir() and not left_over.is_symlink():
                shutil.rmtree(left_over, ignore_errors=True)
            else:
                left_over.unlink()
        partial.mkdir()
        with open(partial / TENSORS, "wb") as file:
            digests = write_tensors(file, _flushing(file, tensors))
            _flush(file)
            size = os.fstat(file.fileno()).st_size
        content = {"step": step, "bytes": size, "sha256": digests, "state": state}
        manifest = {"format": FORMAT, **content, "manifest_sha256": _checksum(content)}
        with open(partial / MANIFEST, "wb") as file:
            file.write(json.dumps(manifest, indent=1).encode())
            _flush(file)
        flush_directory(partial)
        os.rename(partial, directory / name)
        flush_directory(directory)
    except OSError as error:
        good = latest(directory)
        left = "there is no earlier one" if good is None else f"the last good one is of step {good}"
        raise LadderError(
            f"cannot save the checkpoint of step {step} in {directory}: "
            f"{error.strerror or error}; {left}"
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _delete_old(directory, step, keep, major_every)
    return directory / name


def latest(directory: str | Path) -> int | None:
    """The highest step that has a checkpoint in the folder; None if there is none."""
    return max((step for step, _, _ in _checkpoints(Path(directory))), default=None)


def load(directory: str | Path, step: int) -> "tuple[CheckedTensors, dict[str, Any]]":
    """The tensors and the state of a checkpoint. A tensor is read, and checked, when asked for.

    Raises LadderError if there is no such checkpoint or it is not as it was written; for the
    content of a tensor, at the moment that it is read.
    """
    directory = Path(directory)
    checkpoints = _checkpoints(directory)
    paths = [path for s, _, path in checkpoints if s == step]
    if not paths:
        steps = ", ".join(map(str, sorted({s for s, _, _ in checkpoints}))) or "none at all"
        raise LadderError(f"{directory} holds no checkpoint of step {step}; it holds {steps}")
    path = paths[-1]
    content = _read_manifest(path, step)
    return CheckedTensors(path / TENSORS, content["bytes"], content["sha256"]), content["state"]


class CheckedTensors(TensorFile):
    """The tensors of a checkpoint, each compared with its checksum when it is read."""

    def __init__(self, path: Path, size: int, digests: Mapping[str, str]):
        self.digests = digests
        try:
            super().__init__(path)
        except LadderError as error:
            remedy = f"delete {path.parent} to use an earlier checkpoint"
            raise LadderError(f"{error}; {remedy}") from None
        if self.bytes != size:
            raise _damaged(path, f"it has {self.bytes} bytes, was written with {size}")
        if self.keys() != digests.keys():
            raise _damaged(path, "its tensors are not those that were written")

    def __getitem__(self, name: str) -> np.ndarray:
        array = super().__getitem__(name)
        if digest(name, array) != self.digests[name]:
            raise _damaged(self.path, f"the checksum of {name} does not match")
        return array


def _flushing(
    file: BinaryIO, tensors: Mapping[str, Callable[[], np.ndarray]]
) -> dict[str, Callable[[], np.ndarray]]:
    """The tensors, before each of which the file is flushed where much was written since."""
    flushed = 0

    def after_flush(read: Callable[[], np.ndarray]) -> np.ndarray:
        nonlocal flushed
        if file.tell() - flushed >= FLUSHED_BYTES:
            _flush(file)
            flushed = file.tell()
        return read()

    return {name: functools.partial(after_flush, read) for name, read in tensors.items()}


def _flush(file: BinaryIO) -> None:
    """Wait until the written data would survive a power cut."""
    file.flush()
    os.fsync(file.fileno())


def _checkpoints(directory: Path) -> list[tuple[int, int, Path]]:
    """(step, attempt, folder) of every complete checkpoint, in rising order."""
    checkpoints = []
    for path in directory.glob("step_*"):
        name = re.fullmatch(r"step_(\d{8,18})(?:\.(\d{1,9}))?", path.name)
        if name and path.is_dir():
            checkpoints.append((int(name[1]), int(name[2] or 1), path))
    return sorted(checkpoints)


def _delete_old(directory: Path, step: int, keep: int, major_every: int) -> None:
    checkpoints = [entry for entry in _checkpoints(directory) if entry[0] <= step]
    newest = {s: path for s, _, path in checkpoints}  # of a step, the last attempt
    stay = set(sorted(newest)[-keep:])  # all of them where keep is 0
    if major_every:
        stay.update(s for s in newest if s % major_every == 0)
    for s, _, path in checkpoints:
        if s not in stay or path != newest[s]:
            condemned = path.with_name(f"{path.name}.partial")
            with suppress(OSError):  # the next save tries again
                os.rename(path, condemned)
            shutil.rmtree(condemned, ignore_errors=True)


def _read_manifest(path: Path, step: int) -> dict[str, Any]:
    """The manifest's content, once its checksum and the types of its members are known good."""
    path = path / MANIFEST
    try:
        manifest = read_json(path)
        json.dumps(manifest)  # nested too deep for _checksum?
    except (LadderError, RecursionError) as error:
        raise LadderError(f"{error}; delete {path.parent} to use an earlier checkpoint") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _damaged(path, f"its format is not {FORMAT!r}")
    types = {"step": int, "bytes": int, "sha256": dict, "state": dict}
    content = {key: manifest.get(key) for key in types}
    if not all(isinstance(content[key], kind) for key, kind in types.items()):
        raise _damaged(path, f"one of {', '.join(types)} is missing or of a wrong type")
    if manifest.get("manifest_sha256") != _checksum(content):
        raise _damaged(path, "its checksum does not match")
    if content["step"] != step:
        raise _damaged(path, f"it is of step {content['step']}")
    return content


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _damaged(path: Path, how: str) -> LadderError:
    return LadderError(f"{path} is damaged ({how}); delete its folder to use an earlier checkpoint")
