"""What was measured, kept in doc/results/<device>.json; tables and plots are made from it.

    {"device": {...}, "measurements": [{"op", "dtype", "shape", "dims", "bytes", "flops", "inputs",
      "in_cache", "roof", "date", "commit", "software", "rows": [{"rung" or "peer", "idea", "code",
      "median_us", "low_us", "high_us", "repetitions"}, ...]}, ...]}

With `bench --joules`, a rung's row has "millijoules" of a call, "watts" and "sm_mhz", too.

A peer's row has "date" and "software" of its own, since PyTorch can be measured again alone.
There is one measurement for each op, dtype and shape; a new one replaces it. "code" is the identity
of the rung's code (device_code.py): where it has changed, the row is stale. Files of training
steps, in doc/results/training, hold the ids and the code of all their rungs.
"""

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_bytes, write_json
from ladder.core.common.install import ROOT, user_folder
from ladder.core.contract.device_code import code_identity
from ladder.core.contract.ladder import PACKAGE, find_rung
from ladder.core.contract.op import split_key
from ladder.core.contract.rung_file import Rung

SHIPPED = PACKAGE.parent / "doc" / "results"
# Where measurements are written: an installed wheel's own folder is not its user's.
FOLDER = user_folder("XDG_DATA_HOME", ".local/share") / "results" if ROOT else SHIPPED

Measurement = Mapping[str, Any]


def slug(device: str) -> str:
    """The name of a device's file: nvidia-h200 for NVIDIA H200."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def load_all() -> dict[str, dict[str, Any]]:
    """Every device's results by slug."""
    folders = (FOLDER, SHIPPED) if ROOT else (FOLDER,)
    names = {path.name for folder in folders for path in folder.glob("*.json")}
    return {path.stem: load(path) for path in map(kept, sorted(names))}


def kept(name: str) -> Path:
    """The file of this name below FOLDER; in a wheel, the shipped one until its user measures."""
    path = FOLDER / name
    return SHIPPED / name if ROOT and not path.exists() else path


def load(path: Path) -> dict[str, Any]:
    """The results in one file. Raises LadderError where it does not hold any."""
    return _load(path, read_bytes(path))


@functools.lru_cache(maxsize=16)  # pages look into them for each of their blocks
def _load(path: Path, text: bytes) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(text)
        _ = content["device"]["gpu"]
        _ = [_key(measurement) for measurement in content["measurements"]]
    except (KeyError, TypeError, ValueError, RecursionError) as error:  # the last two: no JSON
        raise LadderError(f"{path} does not hold measurements ({error}); measure again") from None
    return content


def record(device: Mapping[str, Any], measurement: Measurement, path: Path | None = None) -> Path:
    """Add a measurement to its device's file, or to another, which keeps rows of rungs that are not
    measured anew; it replaces an older one. Returns the file's path."""
    old = of(device, path)["measurements"]
    others = [other for other in old if _key(other) != _key(measurement)]
    if path and (earlier := before(device, measurement, path)):
        new = {who(row) for row in measurement["rows"]}
        kept = ({"date": earlier["date"], **row} for row in earlier["rows"] if who(row) not in new)
        measurement = {**measurement, "rows": [*measurement["rows"], *kept]}
    content = {"device": dict(device), "measurements": sorted([*others, measurement], key=_key)}
    path = path or FOLDER / f"{slug(device['gpu'])}.json"
    write_json(path, content)
    return path


def of(device: Mapping[str, Any], path: Path | None = None) -> dict[str, Any]:
    """What is kept of a device in its file, or in another; without measurements if there is none.

    Raises LadderError where the other file is of another device.
    """
    file = path or kept(f"{slug(device['gpu'])}.json")
    if not file.exists():
        return {"device": dict(device), "measurements": []}
    content = load(file)
    if path and (other := content["device"]["gpu"]) != device["gpu"]:
        raise LadderError(f"{path} holds times on {other}; name another file for {device['gpu']}")
    return content


def before(
    device: Mapping[str, Any], measurement: Measurement, path: Path | None = None
) -> Measurement | None:
    """The one of the same op, dtype and shape that is kept; None without."""
    kept = of(device, path)["measurements"]
    return next((one for one in kept if _key(one) == _key(measurement)), None)


def of_step(rungs: Mapping[str, Rung]) -> dict[str, dict[str, str]]:
    """The rungs of a measured training step, as files hold them: their ids and their code, by op or
    by op and shape (trainer/engine/rung_map.py)."""
    code = {key: code_identity(rung) for key, rung in rungs.items()}
    return {"rungs": {key: rung.id for key, rung in rungs.items()}, "code": code}


def since(step: Measurement) -> str:
    """A remark on a training step that is stale, to follow its name: the code of one of its rungs
    has changed. "" for the others, and for those of which the file holds no code."""
    held = step.get("code", {}).items()
    stale = any(_code_now(key, step["rungs"][key]) != code for key, code in held)
    return " (kernels changed since)" if stale else ""


def _code_now(key: str, id: str) -> str | None:
    try:
        return code_identity(find_rung(split_key(key)[0], id))
    except LadderError:  # there is no such rung any more
        return None


def who(row: Mapping[str, Any]) -> str:
    """The rung or the peer of a row."""
    return str(row.get("rung", row.get("peer")))


def _key(measurement: Measurement) -> tuple[str, str, str]:
    return measurement["op"], measurement["dtype"], measurement["shape"]
