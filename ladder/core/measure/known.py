"""What the repository's own measurements say of a ladder's rungs before any is measured here.

A GPU of the same architecture orders most rungs alike, so one that was far behind there needs to be
neither compiled nor measured here. Of GPUs without such results, nothing is assumed.
"""

from collections.abc import Sequence

from ladder.core.contract.device import Device
from ladder.core.contract.identity import code_identity
from ladder.core.contract.ladder import Ladder
from ladder.core.contract.rung_file import Rung
from ladder.core.measure import results

FAR = 2.0  # times as long as the fastest: too far behind to win at another shape or on a sister GPU


def outclassed(ladder: Ladder, rungs: Sequence[Rung], device: Device, dtype: str) -> dict[str, str]:
    """Why some of these rungs need no measurement, by id.

    They took more than FAR times as long as the fastest of `rungs` wherever both were measured in
    this type, and neither's code has changed since.
    """
    by_id = {rung.id: rung for rung in rungs}
    near: set[str] = set()  # to the fastest, somewhere
    far: dict[str, str] = {}
    architecture = device.description().get("arch")
    measured = [
        (content["device"]["gpu"], measurement)
        for content in results.load_all().values()
        if architecture is not None and content["device"].get("arch") == architecture
        for measurement in content["measurements"]
        if measurement["op"] == ladder.op.name and measurement["dtype"] == dtype
    ]
    for gpu, measurement in measured:
        times = {
            row["rung"]: row["median_us"]
            for row in measurement["rows"]
            if row.get("rung") in by_id and row["code"] == code_identity(by_id[row["rung"]])
        }
        fastest = min(times, key=times.__getitem__, default="")
        for id, time in times.items():
            ratio = time / times[fastest]
            if ratio <= FAR:
                near.add(id)
            else:
                shape = measurement["shape"]
                far[id] = f"{ratio:.1f} x the time of rung {fastest} on {gpu} ({shape})"
    return {id: why for id, why in far.items() if id not in near}
