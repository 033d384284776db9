"""From the name of a device to the device."""

from __future__ import annotations

import re

from ladder.common.errors import LadderError
from ladder.contract.device import Device
from ladder.device.cpu import Cpu


def default_device() -> str:
    """The name of the best device that this machine has: "cuda", or else "emulated"."""
    from ladder.device.cuda.gpu import driver_version

    return "cuda" if driver_version() else "emulated"


def open_device(name: str) -> Device:
    """The device that a flag names: cpu, emulated or cuda (with "cuda:1" the second GPU).

    Raises LadderError with the remedy where the machine cannot serve it.
    """
    if name == "cpu":
        return Cpu()
    if name == "emulated":
        from ladder.emulator.emulated import Emulated

        return Emulated()
    if match := re.fullmatch(r"cuda(?::(\d+))?", name):
        from ladder.device.cuda.gpu import Cuda

        return Cuda(int(match.group(1) or 0))
    raise LadderError(f"no device is named {name!r}; there are cpu, emulated and cuda")
