"""The cache of the picker: results of checks and measurements of rungs.

    picks = PickCache(device, "layernorm.forward", "bfloat16")
    picks.add(rung, {"N": 4096, "C": 768}, rough=53e-6)
    picks.get(rung, {"N": 4096, "C": 768}).rough

The cache directory has a file for each device and driver, op, dtype and shape in its folder
`picks`. The entries of a file are named by the identity of the rung's code, so an edit of a rung
invalidates the entries of that rung only. A damaged entry counts as missing.

What the cache does not hold, the repository may: `keep` copies the results for one model of GPU to
doc/results/picks, so that others who have that model need not measure before their first run.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.core.common import cache
from ladder.core.common.errors import LadderError
from ladder.core.common.files import atomic_write, read_json
from ladder.core.contract.device import Device
from ladder.core.contract.device_code import code_identity
from ladder.core.contract.ladder import find
from ladder.core.contract.op import Dims
from ladder.core.contract.rung_file import Rung
from ladder.core.measure import results

FOLDER = "picks"
DIGITS = 4  # of a time that is kept in the repository

Question = tuple[str, str, tuple[tuple[str, int], ...]]  # op, dtype, dimensions in order


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

    def over(self, other: "Entry") -> "Entry":
        """This entry, with the results of another one where it has none."""
        known = {name: it for name, it in dataclasses.asdict(self).items() if it is not None}
        return dataclasses.replace(other, **known)


class PickCache:
    """The results of the rungs of an op in one dtype on one device, at all shapes.

    fresh  begin empty: what is added replaces what the files hold
    """

    def __init__(self, device: Device, op: str, dtype: str, fresh: bool = False):
        description = device.description()
        self._device = [device.name, description]
        self._op, self._dtype, self._fresh = op, dtype, fresh
        self._entries: dict[str, dict[str, Entry]] = {}  # by the names of file and entry
        self._names: dict[str, str] = {}  # of entries, by the rung's id
        self._kept = {} if fresh else _kept(description)

    def get(self, rung: Rung, dims: Dims) -> Entry:
        kept = self._kept.get(_question(self._op, self._dtype, dims), {})
        return self._here(rung, dims).over(kept.get(self._name(rung), Entry()))

    def _here(self, rung: Rung, dims: Dims) -> Entry:
        return self._at(dims)[1].get(self._name(rung), Entry())

    def is_kept(self, rung: Rung, dims: Dims) -> bool:
        """Whether the time of a rung was not measured here, but comes with the repository."""
        return self._here(rung, dims).rough is None and self.get(rung, dims).rough is not None

    def add(self, rung: Rung, dims: Dims, **values: Any) -> None:
        """Add results of a rung at a shape.

        Where two processes add at once, one addition may be lost; the file stays intact.
        Raises LadderError where the cache directory cannot be written.
        """
        (file, known), name = self._at(dims), self._name(rung)
        known[name] = dataclasses.replace(self._here(rung, dims), **values)
        entries = {**_read(file), name: known[name]}
        about = {"device": self._device, "op": self._op, "dtype": self._dtype, "dims": dict(dims)}
        content = {name: dataclasses.asdict(entry) for name, entry in entries.items()}
        cache.store(FOLDER, file, json.dumps({"question": about, "rungs": content}, indent=1))

    def _at(self, dims: Dims) -> tuple[str, dict[str, Entry]]:
        """The file of a shape, and its entries."""
        question = [*self._device, self._op, self._dtype, sorted(dims.items())]
        file = cache.digest(json.dumps(question)) + ".json"
        if file not in self._entries:
            self._entries[file] = {} if self._fresh else _read(file)
        return file, self._entries[file]

    def _name(self, rung: Rung) -> str:
        if rung.id not in self._names:
            self._names[rung.id] = _name(rung)
        return self._names[rung.id]


def keep(device: Device) -> Path:
    """Add what the cache holds of a device to its file in doc/results/picks; returns its path.

    What the file holds already stays, so that one run after the other can be kept. Only rungs of
    the repository, as their files are now. Raises LadderError where the cache holds nothing of this
    device.
    """
    description = device.description()
    mine = [device.name, description]
    path = results.FOLDER / FOLDER / _file_name(description)
    picks = {question: dict(entries) for question, entries in _kept(description).items()}
    picked = False
    for file in cache.names(FOLDER):
        content = _content(file)
        try:
            about = content["question"]
            if about["device"] != mine:
                continue
            added = _entries(content)
            question = _question(about["op"], about["dtype"], about["dims"])
            entries = picks.setdefault(question, {})
        except (KeyError, TypeError, AttributeError):  # damaged: as if it were missing
            continue
        for name, entry in added.items():
            entries[name] = entry.over(entries.get(name, Entry()))
            picked = True
    if not picked:
        raise LadderError(
            f"nothing was picked on {device.name} yet; a run of the trainer with --rungs best does"
        )
    _write(path, description, picks)
    return path


def prune(path: Path) -> None:
    """Drop what a file of doc/results/picks holds of rungs that have changed since, or are gone."""
    _write(path, read_json(path)["device"], _load(path))


def _write(
    path: Path, description: Mapping[str, Any], picks: Mapping[Question, Mapping[str, Entry]]
) -> None:
    name = functools.cache(lambda op, id: _name(find(op).rung(id)))
    lines = [line for one in picks.items() if (line := _line(*one, name))]
    with atomic_write(path) as out:  # one line for each question
        head = json.dumps({"device": description})[:-1]
        out.write((head + ', "picks": [\n' + ",\n".join(sorted(lines)) + "\n]}\n").encode())


def _line(question: Question, entries: Mapping[str, Entry], name: Callable[..., str]) -> str:
    """A line of the repository's file; "" where no rung is as it was when it was measured, or the
    op has other dimensions now."""
    op, dtype, dims = question
    try:
        ladder = find(op)
    except LadderError:  # the repository has no such op any more
        return ""
    sizes = dict(dims)
    if set(sizes) != set(ladder.op.dims):
        return ""
    names = {rung.id: name(op, rung.id) for rung in ladder.rungs if not rung.is_reference}
    rungs = {
        id: {"code": name, **_rounded(entries[name])}
        for id, name in names.items()
        if name in entries
    }
    ordered = {name: sizes[name] for name in ladder.op.dims}
    about = {"op": op, "dtype": dtype, "dims": ordered}
    return json.dumps({**about, "rungs": rungs}) if rungs else ""


def _kept(description: Mapping[str, Any]) -> Mapping[Question, Mapping[str, Entry]]:
    """What is kept of GPUs of a model; nothing where there is no file of it."""
    return _load(results.kept(f"picks/{_file_name(description)}"))


def _load(path: Path) -> dict[Question, dict[str, Entry]]:
    return _read_picks(path, path.stat().st_mtime_ns) if path.exists() else {}


@functools.lru_cache(maxsize=4)
def _read_picks(path: Path, _written: int) -> dict[Question, dict[str, Entry]]:
    try:
        return {
            _question(pick["op"], pick["dtype"], pick["dims"]): {
                entry.pop("code"): _entry(entry) for entry in pick["rungs"].values()
            }
            for pick in read_json(path)["picks"]
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise LadderError(f"{path} does not hold picks: {error!r}; restore or delete it") from None


def _file_name(description: Mapping[str, Any]) -> str:
    return f"{results.slug(str(description.get('gpu', 'cpu')))}.json"


def _question(op: str, dtype: str, dims: Dims) -> Question:
    return op, dtype, tuple(sorted(dims.items()))


def _rounded(entry: Entry) -> dict[str, Any]:
    """An entry as the repository keeps it."""
    return {
        name: float(f"{it:.{DIGITS}g}") if isinstance(it, float) else it
        for name, it in dataclasses.asdict(entry).items()
    }


def _name(rung: Rung) -> str:
    """The name of a rung's entry: from its code and from what its check expects."""
    expected = {"rounds": rung.rounds, "tf32": rung.tf32, "inaccurate": not rung.accurate}
    return "-".join([code_identity(rung), *(word for word, holds in expected.items() if holds)])


def _read(file: str) -> dict[str, Entry]:
    """The entries of a file of the cache by their names; none where it is missing or damaged."""
    try:
        return _entries(_content(file))
    except (TypeError, AttributeError):
        return {}


def _content(file: str) -> dict[str, Any]:
    """What a file of the cache holds; nothing where it is missing or damaged."""
    try:
        content = json.loads(cache.load(FOLDER, file) or "{}")
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _entries(content: Mapping[str, Any]) -> dict[str, Entry]:
    return {name: _entry(entry) for name, entry in content.get("rungs", {}).items()}


def _entry(content: Mapping[str, Any]) -> Entry:
    """Raises TypeError where a value of a file is not an entry."""
    entry = Entry(**content)
    if not isinstance(entry.wrong, str | None):
        raise TypeError(f"not a reason: {entry.wrong!r}")
    if not all(isinstance(seconds, float | None) for seconds in (entry.rough, entry.exact)):
        raise TypeError(f"not seconds: {entry}")
    return entry
