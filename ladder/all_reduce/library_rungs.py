"""NCCL's all-reduce, which the ladder is measured against."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.device import Device, Libraries
from ladder.core.contract.op import Dims


def join(device: Device, real: np.dtype, dims: Dims) -> None:
    """Make NCCL's communicators, which takes seconds and cannot be recorded into a graph."""
    group_sum(device)


def all_reduce(
    device: Device, arrays: Mapping[str, Any], dims: Dims, scalars: Mapping[str, Any]
) -> None:
    """out[r] = the sum of inp over all ranks, in the order that NCCL chooses."""
    group_sum(device)(arrays["out"], arrays["inp"])


def group_sum(device: Libraries) -> Any:
    found = device.group_sum
    if found is None:
        raise LadderError(f"{device.name} has no NCCL; name several GPUs: --device cuda:0,1")
    return found
