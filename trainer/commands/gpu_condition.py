"""Clock, power and temperature of each rank's GPU while its steps were timed, and what slowed it.

Results hold them under KEY, a list with a reading of each rank, and only where any is known.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from ladder.core.contract.device import Reading
from trainer.ranks.group import ALONE, Group

KEY = "gpus"


def entry(reading: Reading | None, group: Group = ALONE) -> dict[str, Any]:
    """The entry of a result, of the readings of all ranks; each rank calls it with its own."""
    own = None if reading is None else dataclasses.asdict(reading)
    return _entry(group.collect("clock and power", own))


def of_turns(turns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The entry of several measurements of the same ranks: of each rank, the mean of its
    readings."""
    known = [turn[KEY] for turn in turns if KEY in turn]
    return _entry([_mean([one for one in of_rank if one]) for of_rank in zip(*known, strict=True)])


def _entry(readings: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """A reading for each rank; no entry where nothing is known of any."""
    return {KEY: list(readings)} if any(readings) else {}


def _mean(readings: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if not readings:
        return None
    mean: dict[str, Any] = {"samples": sum(one["samples"] for one in readings)}
    for name in ("sm_mhz", "watts", "limit_watts", "celsius", "slowed", "mean_watts"):
        known = [one[name] for one in readings if one.get(name) is not None]
        if name == "slowed" and known:
            reasons = dict.fromkeys(reason for slowed in known for reason in slowed)
            shares = {why: fmean(slowed.get(why, 0.0) for slowed in known) for why in reasons}
            mean[name] = shares
        else:
            mean[name] = fmean(known) if known else None
    return mean


def lines(result: Mapping[str, Any]) -> list[str]:
    """A line for each rank of a result: "1,755 MHz, 698 of 700 W, 61 °C, slowed by ..."."""
    readings = result.get(KEY, [])
    several = len(readings) > 1
    return [
        (f"rank {rank}: " if several else "") + _in_words(Reading(**one))
        for rank, one in enumerate(readings)
        if one is not None
    ]


def _in_words(one: Reading) -> str:
    of_limit = f" of {one.limit_watts:,.0f}" if one.limit_watts is not None else ""
    parts = [
        f"SMs at {one.sm_mhz:,.0f} MHz" if one.sm_mhz is not None else "",
        f"{one.watts:,.0f}{of_limit} W" if one.watts is not None else "",
        f"{one.celsius:.0f} °C" if one.celsius is not None else "",
    ]
    if one.slowed is not None:  # in which share of the samples
        reasons = (f"{name} ({100 * share:.0f} %)" for name, share in one.slowed.items())
        parts.append(f"slowed by {', '.join(reasons) or 'nothing'}")
    return f"{', '.join(filter(None, parts))} (median of {one.samples} samples)"
