"""What checks and measurements found out about rungs, kept for whoever asks next.

    known = Known(device, "layernorm.forward", "bfloat16")
    known.learn(rung, {"N": 4096, "C": 768}, rough=53e-6)
    known.fact(rung, {"N": 4096, "C": 768}).rough

The cache directory has a file for each device and driver, op, dtype and shape in its folder
`picks`. The entries of a file are named by the identity of the rung's code: whoever edits or adds
a rung loses only what is known of that one. A damaged entry counts as unknown.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.common import cache
from ladder.contract.device import Device
from ladder.contract.dims import Dims
from ladder.contract.identity import code_identity
from ladder.contract.rung_file import Rung

FOLDER = "picks"


@dataclass(frozen=True)
class Fact:
    """What is known of a rung at a shape; None: nothing yet.

    wrong  how its result is wrong; "" where it is right
    rough  seconds of a single call
    exact  seconds of one among many calls
    """

    wrong: str | None = None
    rough: float | None = None
    exact: float | None = None


class Known:
    """What is known of the rungs of an op, in one dtype on one device, at all shapes.

    fresh  begin with nothing: what is learned replaces what is in the cache
    """

    def __init__(self, device: Device, op: str, dtype: str, fresh: bool = False):
        self._question = [device.name, device.description(), op, dtype]
        self._fresh = fresh
        self._facts: dict[str, dict[str, Fact]] = {}  # by the names of file and entry
        self._names: dict[str, str] = {}  # of entries, by the rung's id

    def fact(self, rung: Rung, dims: Dims) -> Fact:
        return self._at(self._file(dims)).get(self._name(rung), Fact())

    def learn(self, rung: Rung, dims: Dims, **found: Any) -> None:
        """Add to what is known of a rung at a shape.

        Of two processes that do so at once, one may lose what it learned; no file is damaged.
        Raises LadderError where the cache directory cannot be written.
        """
        file, name = self._file(dims), self._name(rung)
        fact = dataclasses.replace(self.fact(rung, dims), **found)
        self._at(file)[name] = fact
        entries = {**_read(cache.directory() / FOLDER / file), name: fact}
        content = {name: dataclasses.asdict(entry) for name, entry in entries.items()}
        cache.store(FOLDER, file, json.dumps(content, indent=1))

    def _at(self, file: str) -> dict[str, Fact]:
        if file not in self._facts:
            path = cache.directory() / FOLDER / file
            self._facts[file] = {} if self._fresh else _read(path)
        return self._facts[file]

    def _file(self, dims: Dims) -> str:
        return cache.digest(json.dumps([*self._question, sorted(dims.items())])) + ".json"

    def _name(self, rung: Rung) -> str:
        if rung.id not in self._names:
            self._names[rung.id] = _name(rung)
        return self._names[rung.id]


def _name(rung: Rung) -> str:
    """What the entry of a rung is called: by its code, and by what its check expects of it."""
    expected = {"rounds": rung.rounds, "inaccurate": not rung.accurate}
    return "-".join([code_identity(rung), *(word for word, holds in expected.items() if holds)])


def _read(path: Path) -> dict[str, Fact]:
    """The facts in a file by the name of the rung; none where it is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {name: _fact(entry) for name, entry in content.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _fact(entry: Mapping[str, Any]) -> Fact:
    """Raises TypeError where the entry is not one of a file of facts."""
    fact = Fact(**entry)
    if not isinstance(fact.wrong, str | None):
        raise TypeError(f"not a reason: {fact.wrong!r}")
    if not all(isinstance(seconds, float | None) for seconds in (fact.rough, fact.exact)):
        raise TypeError(f"not seconds: {fact}")
    return fact
