"""By which the devices of several ranks exchange arrays."""

from __future__ import annotations

from ladder.core.common.errors import LadderError
from ladder.core.contract.device import Communicator, Device
from trainer.ranks.group import Group, HostSums, Ranks


def open_communicator(
    device: Device, group: Group, exchange: str, overlaps: bool
) -> Communicator | None:
    """By which the devices of a group exchange arrays: our kernels, the vendor's library, or the
    host itself where arrays are the host's. None for a process alone.

    exchange  "p2p": kernels that reach the memory of all devices; "nccl"; "auto": p2p where that is
              possible, since it was faster
    overlaps  whether they exchange gradients while the backward pass goes on

    Raises LadderError where the ranks cannot exchange so.
    """
    if not isinstance(group, Ranks):
        return None
    if not device.is_gpu:
        return HostSums(group)
    if exchange != "nccl":
        try:
            if group.local_size < group.size:
                raise LadderError("--exchange p2p: the ranks are on several machines")
            return device.join_p2p(group.exchange, group.rank, group.size, overlaps)
        except LadderError:
            if exchange == "p2p":
                raise
    made = device.new_group() if group.leads else None
    name = group.exchange("the name of the devices' group", made or b"")[0]
    return device.join_group(name, group.rank, group.size)
