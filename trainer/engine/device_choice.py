"""The device that a run uses when none is named, and the type that it computes in."""

import os

from ladder.core.common.errors import LadderError
from ladder.core.contract.device import Device
from ladder.core.device.open import GPUS, default_gpu, open_device
from trainer.flags import DEFAULT_DTYPE, DeviceChoice


def open_for(
    name: str | None, dtype: str | None, local_rank: int | None = None
) -> tuple[Device, DeviceChoice, list[str]]:
    """The device of a run, what the settings say of it, and notes: what is used instead of what
    would be the default, and why.

    name, dtype  as typed
    local_rank   of several processes of this machine, the number of this one and of its GPU; None
                 where there is one process

    Raises LadderError where the device, or the type on it, is not available.
    """
    if name is not None:
        return _open(_own_gpu(name, local_rank), dtype)
    gpu, why = default_gpu(), []
    if gpu is None and local_rank is not None:
        why = ["no GPU was found ('python -m trainer doctor' says why)"]
    if gpu is not None:
        try:
            return _open(_own_gpu(gpu, local_rank), dtype)
        except LadderError as error:
            why = [str(error)]
    device, choice, notes = _open("cpu", dtype)
    return device, choice, [*notes, *(f"{reason}: this run uses the CPU" for reason in why)]


def _own_gpu(name: str, local_rank: int | None) -> str:
    """The name of this process's own GPU, where `name` is a kind of GPU: "cuda:1"."""
    kind, _, index = name.partition(":")
    if local_rank is None or kind not in GPUS:
        return name
    if index:
        raise LadderError(
            f"--device {name}: each of several ranks has a GPU of its own; name the kind only, "
            f"--device {kind}, and choose GPUs by {GPUS[kind].visible[0]} in the environment"
        )
    # Some launchers let each process see its own GPU only, which is its first one then.
    visible = [os.environ.get(name, "") for name in GPUS[kind].visible]
    alone = any(numbers and "," not in numbers for numbers in visible)
    return f"{kind}:0" if alone else f"{kind}:{local_rank}"


def _open(name: str, dtype: str | None) -> tuple[Device, DeviceChoice, list[str]]:
    device, notes = open_device(name), []
    chosen = dtype or (DEFAULT_DTYPE.gpu if device.is_gpu else DEFAULT_DTYPE.cpu)
    if device.is_gpu and chosen == "bf16" and not device.bfloat16:
        lacks = f"{device.name} has no tensor cores for bf16"
        if dtype is not None:
            raise LadderError(f"{lacks}; choose --dtype fp16 or fp32")
        chosen, notes = "fp16", [f"{lacks}: this run uses fp16"]
    return device, DeviceChoice(name, device.is_gpu, chosen), notes
