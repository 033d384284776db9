"""The devices on which a rung is checked, beside the one that is named."""

import functools
import re
from collections.abc import Sequence

from ladder.core.amd.isa.gpu import Isa
from ladder.core.contract.device import Device
from ladder.core.contract.rung_file import Rung
from ladder.core.emulator.emulated import MANY_MULTIPROCESSORS, WATCHING_SECONDS, Emulated

_COPIES = re.compile(r"async|hopper|wgmma|pipeline")  # in a rung with asynchronous copies


def variants(
    device: Device, brief: bool = False, multiprocessors: int | None = None, wide: bool = True
) -> Sequence[tuple[Device, ...]]:
    """The devices to check a rung on, in groups that must give the same bits.

    brief            one run only
    multiprocessors  SMs of the emulator where it has few, if not as many as usual
    wide             one order of threads has warps of 64

    A GPU runs everything twice. The emulator also changes the order of threads and the width of a
    warp, and watches every memory access; one that watches already is checked as it is.
    """
    if isinstance(device, Isa) or (isinstance(device, Emulated) and device.watches):
        return [(device,)]
    if not isinstance(device, Emulated):
        return [(device, device)]
    groups = _orders(device, multiprocessors, wide)
    return [groups[0][:1]] if brief else groups


@functools.lru_cache(maxsize=64)  # the same devices every time: they keep what they have compiled
def _orders(
    device: Emulated, multiprocessors: int | None, wide: bool
) -> Sequence[tuple[Emulated, ...]]:
    """Both widths of a warp, few and many SMs, threads and blocks in several orders, asynchronous
    copies late and early, and one run more that watches every access: it finds races that did no
    harm, and reads out of bounds. There, variables without a value hold something else. A device
    with warps of 64 has no others."""
    many = {"warp": 64} if wide else {}
    few = device.variant(multiprocessors=multiprocessors) if multiprocessors else device
    return [
        (
            few.variant(seed=1),
            few.variant(seed=2, early=True),
            few.variant(seed=4, counting=True, zeros=True),
        ),
        (few.variant(seed=3, multiprocessors=MANY_MULTIPROCESSORS, **many),),
    ]


@functools.lru_cache(maxsize=64)
def watching(device: Device) -> Emulated | None:
    """The same device, so that it watches every memory access of a kernel and names the line that
    does what it must not. None where it cannot, or does so already."""
    if not isinstance(device, Emulated) or device.watches:
        return None
    return device.variant(counting=True, time_limit=WATCHING_SECONDS)


def name_for(device: Device, rung: Rung) -> str:
    """What a report calls a variant; of early copies only where the rung has asynchronous ones."""
    return device.name if _COPIES.search(rung.source) else device.name.replace(", early copies", "")
