"""Compiles kernels ahead of their first launch, in the threads of a pool."""

from collections.abc import Iterable
from concurrent.futures import Executor

from ladder.core.contract.device import Device
from ladder.core.contract.op import DTYPES, Dims
from ladder.core.contract.rung_file import Rung

Job = tuple[Device, Rung, str, Dims]  # a rung on a device, in a real type, at a shape


def compile_ahead(pool: Executor, jobs: Iterable[Job]) -> None:
    """Let a pool compile what these jobs will launch, in their order.

    One compilation serves all shapes with the same constants. Its errors are reported when the rung
    is bound.
    """
    asked = set()
    for device, rung, dtype, dims in jobs:
        if rung.path is None:
            continue
        target = device.target(DTYPES[dtype])
        plan = rung.plan(dims, target)
        kernel = (rung.path, dtype, target.warp, *plan.constants.items())
        if plan.refusal is None and kernel not in asked:
            asked.add(kernel)
            pool.submit(device.compile_ahead, rung, plan.constants, DTYPES[dtype])
