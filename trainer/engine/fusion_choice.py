"""Which fusions a run's program goes through: `--fuse`, and what its rungs ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from ladder.common.errors import LadderError
from ladder.contract.device import Device
from ladder.contract.ladder import find
from ladder.measure.pick import pick
from trainer.engine import rung_choice
from trainer.model.fusion import FUSIONS, makes, takes
from trainer.model.program import Program
from trainer.settings.config import RUNG_SETS, TrainConfig


def choose(
    config: TrainConfig,
    device: Device,
    real: np.dtype,
    build: Callable[[Collection[str]], Program],
    before: Mapping[str, Any] | None = None,
) -> tuple[tuple[str, ...], list[str]]:
    """The fusions of a run in the order of FUSIONS, and notes: which one does not pay, and why.

    config  resolved
    build   the run's program with some fusions
    before  the kernels that a checkpoint records, of a run that goes on with them

    Raises LadderError where `--rungs` names a file that cannot be read.
    """
    chosen, notes = [], []
    for name in FUSIONS:
        wanted = _asked_for(name, config, before)
        if wanted is None and device.kind == "cuda" and config.rungs in ("best", "library"):
            why_not = _loses(name, config, device, real, build)
            wanted = why_not is None
            notes += [] if wanted else [f"{name} is not fused: {why_not}"]
        if wanted:
            chosen.append(name)
    return tuple(chosen), notes


def _asked_for(name: str, config: TrainConfig, before: Mapping[str, Any] | None) -> bool | None:
    """Whether the settings want a fusion; None where they leave it open."""
    if name == "matmul_gelu" and config.gelu_fusion is not None:
        return config.gelu_fusion == 1
    if config.fuse != "auto":
        return config.fuse == "all" or name in config.fuse.split(",")
    named = {entry.partition("=")[0] for entry in config.rung}
    if named & makes(name):
        return True
    if named & takes(name):  # fused, it would run in fewer places or none
        return False
    if before is not None:
        return name in before.get("fusions", ())
    if config.rungs not in RUNG_SETS:
        return bool(makes(name) & set(rung_choice.read_file(config.rungs)))
    return None


def _loses(
    name: str,
    config: TrainConfig,
    device: Device,
    real: np.dtype,
    build: Callable[[Collection[str]], Program],
) -> str | None:
    """Why a step is faster without a fusion, with every op on its best rung; None if it is not."""
    options = {"library": config.rungs == "library", "deterministic": config.deterministic}

    def calls(program: Program) -> Counter[tuple]:
        both = (*program.forward, *program.backward)
        return Counter((call.op, tuple(call.dims.items())) for call in both)

    def seconds(counted: Counter[tuple]) -> float:
        total = 0.0
        for (op, dims), count in counted.items():
            ladder = find(op)
            dtype = ladder.op.real_in(real).name
            total += count * pick(ladder, device, dtype, dict(dims), **options).seconds
        return total

    plain, fused = calls(build(())), calls(build((name,)))
    try:
        together, apart = seconds(fused - plain), seconds(plain - fused)
    except LadderError as error:  # no rung of an op can run here
        return str(error)
    if together <= apart:
        return None
    return f"it takes {1e3 * together:.3g} ms a step, and its parts {1e3 * apart:.3g} ms"
