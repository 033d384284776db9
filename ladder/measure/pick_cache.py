"""The cache of the picker: results of checks and measurements of rungs.

    picks = PickCache(device, "layernorm.forward", "bfloat16")
    picks.add(rung, {"N": 4096, "C": 768}, rough=53e-6)
    picks.get(rung, {"N": 4096, "C": 768}).rough

The cache directory has a file for each device and driver, op, dtype and shape in its folder
`picks`. The entries of a file are named by the identity of the rung's code, so an edit of a rung
invalidates the entries of that rung only. A damaged entry counts as missing.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ladder.common import cache
from ladder.contract.device import Device
from ladder.contract.dims import Dims
from ladder.contract.identity import code_identity
from ladder.contract.rung_file import Rung

FOLDER = "picks"


@dataclass(frozen=True)
class Entry:
    """The results of a rung at a shape; None: not known yet.

    wrong  how its result is wrong; "" where it is right
    rough  seconds of a single call
    exact  seconds of one among many calls
    """

    wrong: str | None = None
    rough: float | None = None
    exact: float | None = None


class PickCache:
    """The results of the rungs of an op in one dtype on one device, at all shapes.

    fresh  begin empty: what is added replaces what the files hold
    """

    def __init__(self, device: Device, op: str, dtype: str, fresh: bool = False):
        self._question = [device.name, device.description(), op, dtype]
        self._fresh = fresh
        self._entries: dict[str, dict[str, Entry]] = {}  # by the names of file and entry
        self._names: dict[str, str] = {}  # of entries, by the rung's id

    def get(self, rung: Rung, dims: Dims) -> Entry:
        return self._at(self._file(dims)).get(self._name(rung), Entry())

    def add(self, rung: Rung, dims: Dims, **found: Any) -> None:
        """Add results of a rung at a shape.

        Where two processes add at once, one addition may be lost; the file stays intact.
        Raises LadderError where the cache directory cannot be written.
        """
        file, name = self._file(dims), self._name(rung)
        entry = dataclasses.replace(self.get(rung, dims), **found)
        self._at(file)[name] = entry
        entries = {**_read(file), name: entry}
        content = {name: dataclasses.asdict(found) for name, found in entries.items()}
        cache.store(FOLDER, file, json.dumps(content, indent=1))

    def _at(self, file: str) -> dict[str, Entry]:
        if file not in self._entries:
            self._entries[file] = {} if self._fresh else _read(file)
        return self._entries[file]

    def _file(self, dims: Dims) -> str:
        return cache.digest(json.dumps([*self._question, sorted(dims.items())])) + ".json"

    def _name(self, rung: Rung) -> str:
        if rung.id not in self._names:
            self._names[rung.id] = _name(rung)
        return self._names[rung.id]


def _name(rung: Rung) -> str:
    """The name of a rung's entry: from its code and from what its check expects."""
    expected = {"rounds": rung.rounds, "inaccurate": not rung.accurate}
    return "-".join([code_identity(rung), *(word for word, holds in expected.items() if holds)])


def _read(file: str) -> dict[str, Entry]:
    """The entries of a file by their names; none where it is missing or damaged."""
    text = cache.load(FOLDER, file)
    try:
        return {name: _entry(entry) for name, entry in json.loads(text or "{}").items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _entry(content: Mapping[str, Any]) -> Entry:
    """Raises TypeError where a value of a file is not an entry."""
    entry = Entry(**content)
    if not isinstance(entry.wrong, str | None):
        raise TypeError(f"not a reason: {entry.wrong!r}")
    if not all(isinstance(seconds, float | None) for seconds in (entry.rough, entry.exact)):
        raise TypeError(f"not seconds: {entry}")
    return entry
