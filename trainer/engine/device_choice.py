"""Which device a run takes when none is named, and in which type it computes there."""

from __future__ import annotations

import dataclasses

import numpy as np

from ladder.common.errors import LadderError
from ladder.contract.device import Device
from ladder.contract.dtypes import DTYPES as DTYPE_OF
from ladder.contract.ladder import find
from ladder.device.cpu import Cpu
from ladder.device.cuda.gpu import driver_version
from ladder.device.open import open_device
from trainer.model.program import build
from trainer.model.registry import SIZES
from trainer.settings.config import DEFAULTS, DTYPES, TrainConfig

BFLOAT16_SM = 80  # compute capability 8.0, Ampere: the first with tensor cores for bfloat16


def open_for(config: TrainConfig) -> tuple[Device, TrainConfig, list[str]]:
    """The device of a run, the config with the type that it computes in on a GPU, and notes: what
    is used instead of what would be the default, and why.

    Raises LadderError where the device, or the type on it, cannot be had.
    """
    if config.device is not None:
        return _with_dtype(open_device(config.device), config)
    if driver_version() is None:
        return Cpu(), config, []
    try:
        device, typed, notes = _with_dtype(open_device("cuda"), config)
    except LadderError as error:
        return Cpu(), config, [f"{error}: this run is on the CPU"]
    if missing := _ops_without_kernel(typed.model, device, DTYPE_OF[DTYPES[typed.dtype]]):
        why = f"no rung of {', '.join(missing)} runs in {typed.dtype} on {device.name}"
        return Cpu(), config, [f"{why}: this run is on the CPU"]
    return device, typed, notes


def _with_dtype(device: Device, config: TrainConfig) -> tuple[Device, TrainConfig, list[str]]:
    if device.kind != "cuda":
        return device, config, []
    sm = device.target(np.dtype(np.float32)).sm
    old = f"bf16 needs a GPU of compute capability 8.0, {device.name} has {sm / 10}"
    default = DEFAULTS["cuda"]["dtype"]
    if sm >= BFLOAT16_SM or config.dtype not in (None, "bf16"):
        return device, dataclasses.replace(config, dtype=config.dtype or default), []
    if config.dtype == "bf16":
        raise LadderError(f"{old}; choose --dtype fp16 or fp32")
    return device, dataclasses.replace(config, dtype="fp16"), [f"{old}: this run is in fp16"]


def _ops_without_kernel(model: str, device: Device, real: np.dtype) -> list[str]:
    """The ops that a model may need, but no kernel of the repository does on the device. `model`:
    what -e says; where that is a file, which nobody has opened yet, it may be any model."""
    sizes = [SIZES[model]] if model in SIZES else SIZES.values()
    models = {type(size.config): size.config for size in sizes}.values()
    programs = [build(dataclasses.replace(config, dropout=0.5), 1, 1) for config in models]
    ops = {call.op for program in programs for call in program.training_step}

    def has_kernel(op: str) -> bool:
        ladder = find(op)
        target = device.target(ladder.op.real_in(real))
        return any(not r.library and r.claims(target) for r in ladder.on(device))

    return sorted(op for op in ops if not has_kernel(op))
