"""What checks and measurements found out about rungs, kept for whoever asks next.

    known = Known(device, "layernorm.forward", "bfloat16")
    known.learn(rung, {"N": 4096, "C": 768}, rough=53e-6)
    known.fact(rung, {"N": 4096, "C": 768}).rough

The cache directory has a file for each device and driver, op, dtype and shape in its folder
`picks`. The entries of a file are named by what the rungs compute, included files counted in: who
edits or adds a rung loses what is known of this one only. What is damaged counts as unknown.
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
from ladder.contract.rung_file import Rung
from ladder.device.cuda.compiler import included

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
        self._facts: dict[str, dict[str, Fact]] = {}  # by the names of file and rung
        self._digests: dict[str, str] = {}  # by the rung's id

    def fact(self, rung: Rung, dims: Dims) -> Fact:
        return self._at(self._file(dims)).get(self._digest(rung), Fact())

    def learn(self, rung: Rung, dims: Dims, **found: Any) -> None:
        """Add to what is known of a rung at a shape.

        Of two processes that do so at once, one may lose what it learned; no file is damaged.
        Raises LadderError where the cache directory cannot be written.
        """
        file, digest = self._file(dims), self._digest(rung)
        fact = dataclasses.replace(self.fact(rung, dims), **found)
        self._at(file)[digest] = fact
        entries = {**_read(cache.directory() / FOLDER / file), digest: fact}
        content = {name: dataclasses.asdict(entry) for name, entry in entries.items()}
        cache.store(FOLDER, file, json.dumps(content, indent=1))

    def _at(self, file: str) -> dict[str, Fact]:
        if file not in self._facts:
            path = cache.directory() / FOLDER / file
            self._facts[file] = {} if self._fresh else _read(path)
        return self._facts[file]

    def _file(self, dims: Dims) -> str:
        return cache.digest(json.dumps([*self._question, sorted(dims.items())])) + ".json"

    def _digest(self, rung: Rung) -> str:
        if rung.id not in self._digests:
            self._digests[rung.id] = _digest(rung)
        return self._digests[rung.id]


def _digest(rung: Rung) -> str:
    """Names what a rung computes; for one without a file, a library's, id and idea do. Which
    library it is, the driver's description tells as far as it can."""
    headers = included(rung.source, rung.path.parent).values() if rung.path else ()
    return cache.digest(rung.id, rung.idea, rung.source, *headers)


def _read(path: Path) -> dict[str, Fact]:
    """The facts in a file by the digest of the rung; none where it is missing or damaged."""
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
