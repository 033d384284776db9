"""What was measured, kept in doc/results/<device>.json; tables and plots are made from it.

    {"device": {...}, "measurements": [{"op", "dtype", "shape", "dims", "bytes", "flops", "inputs",
      "in_cache", "roof", "date", "commit", "software", "rows": [{"rung" or "peer", "idea", "code",
      "median_us", "low_us", "high_us", "repetitions"}, ...]}, ...]}

One measurement for each op, dtype and shape: measuring again replaces it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ladder.common.errors import LadderError
from ladder.common.files import atomic_write
from ladder.contract.ladder import PACKAGE

FOLDER = PACKAGE.parent / "doc" / "results"

Measurement = Mapping[str, Any]


def slug(device: str) -> str:
    """The name of a device's file: nvidia-h200 for NVIDIA H200."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def load_all(folder: Path | None = None) -> dict[str, dict[str, Any]]:
    """Every device's results by slug."""
    return {path.stem: load(path) for path in sorted((folder or FOLDER).glob("*.json"))}


def load(path: Path) -> dict[str, Any]:
    """The results in one file. Raises LadderError where it does not hold any."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for measurement in content["measurements"]:
            _key(measurement)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LadderError(f"{path} does not hold measurements: {error!r}; measure again") from None
    return content


def record(device: Mapping[str, Any], measurement: Measurement, folder: Path | None = None) -> Path:
    """Add a measurement to its device's file, in the place of an older one; the file's path."""
    folder = folder or FOLDER
    path = folder / f"{slug(device['gpu'])}.json"
    old = load(path)["measurements"] if path.exists() else []
    kept = [other for other in old if _key(other) != _key(measurement)]
    content = {"device": dict(device), "measurements": sorted([*kept, measurement], key=_key)}
    with atomic_write(path) as file:
        file.write((json.dumps(content, indent=1) + "\n").encode())
    return path


def _key(measurement: Measurement) -> tuple[str, str, str]:
    return measurement["op"], measurement["dtype"], measurement["shape"]
