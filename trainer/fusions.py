"""Which fusions a run's program goes through: `--fuse`, and what its rungs ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ladder.contract import find
from reference.fusion import FUSIONS, makes, takes
from trainer import rungs
from trainer.config import RUNG_SETS, TrainConfig


def choose(
    config: TrainConfig, device_kind: str, before: Mapping[str, Any] | None = None
) -> tuple[str, ...]:
    """The fusions of a run whose settings are resolved, in the order of FUSIONS.

    before  the kernels that a checkpoint records, of a run that goes on with them

    Raises LadderError where `--rungs` names a file that cannot be read.
    """
    return tuple(name for name in FUSIONS if _wanted(name, config, device_kind, before))


def _wanted(
    name: str, config: TrainConfig, device_kind: str, before: Mapping[str, Any] | None
) -> bool:
    if name == "matmul_gelu" and config.gelu_fusion is not None:
        return config.gelu_fusion == 1
    if config.fuse != "auto":
        return config.fuse == "all" or name in config.fuse.split(",")
    named = {entry.partition("=")[0] for entry in config.rung}
    if named & makes(name):
        return True
    if named & takes(name):  # fused, it would hardly run, or not at all
        return False
    if before is not None:
        return name in before.get("fusions", ())
    if config.rungs not in RUNG_SETS:
        return bool(makes(name) & set(rungs.read_file(config.rungs)))
    if device_kind != "cuda" or config.rungs not in ("best", "library"):
        return False
    return config.rungs == "best" or not _loses_a_library(name)


def _loses_a_library(name: str) -> bool:
    """Whether a vendor's library computes an op that it takes in, but none that it makes."""

    def has_library(ops: set[str]) -> bool:
        return any(rung.library for op in ops for rung in find(op).rungs)

    return has_library(takes(name)) and not has_library(makes(name))
