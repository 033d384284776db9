"""Clock, power and temperature of each rank's GPU while its steps were timed, and what slowed it.

Results hold them under KEY, a list with a reading of each rank, and only where any is known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ladder.core.contract.sensors import Reading
from trainer.ranks.group import ALONE, Group

KEY = "gpus"
_COLUMNS = {"SM MHz>": "sm_mhz", "W>": "watts", "limit W>": "limit_watts", "°C>": "celsius"}


def entry(reading: Reading | None, group: Group = ALONE) -> dict[str, Any]:
    """The entry of a result, of the readings of all ranks; each rank calls it with its own."""
    return _entry(group.collect("clock and power", _as_dict(reading)))


def of_turns(turns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The entry of several measurements of the same ranks: of each rank, the mean of its
    readings."""
    known = [turn[KEY] for turn in turns if KEY in turn]
    ranks = zip(*known, strict=True)
    return _entry([_as_dict(_mean([Reading(**x) for x in of_rank if x])) for of_rank in ranks])


def _entry(readings: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """A reading for each rank; no entry where nothing is known of any."""
    return {KEY: list(readings)} if any(readings) else {}


def _as_dict(reading: Reading | None) -> dict[str, Any] | None:
    return None if reading is None else dataclasses.asdict(reading)


def _mean(readings: Sequence[Reading]) -> Reading | None:
    if not readings:
        return None
    reasons = [one.slowed for one in readings if one.slowed is not None]
    names = dict.fromkeys(name for slowed in reasons for name in slowed)
    slowed = {name: sum(one.get(name, 0.0) for one in reasons) / len(reasons) for name in names}
    means = {}
    for field in _COLUMNS.values():
        known = [value for one in readings if (value := getattr(one, field)) is not None]
        means[field] = sum(known) / len(known) if known else None
    samples = sum(one.samples for one in readings)
    return Reading(samples, **means, slowed=slowed if reasons else None)


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
        f"slowed by {_slowed(one)}" if one.slowed is not None else "",
    ]
    return f"{', '.join(filter(None, parts))} (median of {one.samples} samples)"


def table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Columns and lines for each number of ranks and each rank; only columns of which anything is
    known, and no lines where nothing is."""
    readings = [
        (str(row["ranks"]), str(rank), Reading(**one))
        for row in rows
        for rank, one in enumerate(row.get(KEY, []))
        if one is not None
    ]
    columns = {
        name: [_whole(getattr(one, field)) for *_, one in readings]
        for name, field in _COLUMNS.items()
    }
    columns["slowed by"] = [_slowed(one) for *_, one in readings]
    shown = {name: cells for name, cells in columns.items() if any(cells)}
    lines = [
        (ranks, rank, *(cells[at] or "-" for cells in shown.values()))
        for at, (ranks, rank, _) in enumerate(readings)
    ]
    return ["ranks>", "rank>", *shown], lines


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _slowed(one: Reading) -> str:
    """What slowed the GPU, in which share of the samples: "power limit (85 %)", "nothing"; "" where
    it does not tell."""
    if one.slowed is None:
        return ""
    shares = (f"{name} ({100 * share:.0f} %)" for name, share in one.slowed.items())
    return ", ".join(shares) or "nothing"
