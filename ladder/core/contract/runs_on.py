"""On which GPUs a rung runs, in words: "any GPU", "NVIDIA sm_80+", "AMD CDNA 2+, RDNA 3+".

The words follow from the conditions of the `Needs` line on architecture and type, which are tried
on one GPU of every generation. Conditions on the shape do not count. The emulator runs every rung.
"""

from dataclasses import dataclass

from ladder.core.contract.op import DTYPES, SHORT
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.target import Target

_SHORT = {name: short for short, name in SHORT.items()}


@dataclass(frozen=True)
class Generation:
    """A generation of GPUs: as the column calls it, its target, lanes of a warp, and some cards."""

    name: str
    arch: str
    warp: int
    cards: str


# From old to new: a rung for one usually runs on later ones of its family, too.
NVIDIA = (
    Generation("sm_75", "sm_75", 32, "T4, RTX 20"),
    Generation("sm_80", "sm_80", 32, "A100"),
    Generation("sm_86", "sm_86", 32, "A10, RTX 30"),
    Generation("sm_89", "sm_89", 32, "L4, L40, RTX 40"),
    Generation("sm_90", "sm_90a", 32, "H100, H200"),
    Generation("sm_100", "sm_100a", 32, "B200"),
    Generation("sm_120", "sm_120a", 32, "RTX 50"),
)
CDNA = (
    Generation("CDNA 2", "gfx90a", 64, "MI210, MI250X"),
    Generation("CDNA 3", "gfx942", 64, "MI300X"),
    Generation("CDNA 4", "gfx950", 64, "MI355X"),
)
RDNA = (
    Generation("RDNA 2", "gfx1030", 32, "RX 6900 XT"),
    Generation("RDNA 3", "gfx1100", 32, "RX 7900 XTX"),
    Generation("RDNA 4", "gfx1201", 32, "RX 9070 XT"),
)
FAMILIES = (("NVIDIA", NVIDIA), ("AMD", CDNA), ("AMD", RDNA))  # each with its maker


def runs_on(rung: Rung, reals: tuple[str, ...]) -> str:
    """The GPUs that a rung runs on, and in which types where not in all of them.

    reals  the types that its op has

    "sm_80+" is that generation and every later one. The reference runs on the "CPU".
    """
    if rung.is_reference:
        return "CPU"
    types: dict[str, list[str]] = {}  # by the GPUs that they run on
    for real in reals:
        if places := _places(rung, real):
            types.setdefault(places, []).append(_SHORT[real])
    if [len(names) for names in types.values()] == [len(reals)]:
        return next(iter(types))
    words = (f"{places} in {' and '.join(names)}" for places, names in types.items())
    return "; ".join(words) or "no GPU known here"


def _places(rung: Rung, real: str) -> str:
    """The GPUs that it runs on in one type; "" where there are none."""
    claimed = [
        [rung.claims(Target(g.arch, g.warp, 0, 0, DTYPES[real])) for g in generations]
        for _, generations in FAMILIES
    ]
    if all(all(claims) for claims in claimed):
        return "any GPU"
    places: list[str] = []
    named = ""
    for (maker, generations), claims in zip(FAMILIES, claimed, strict=True):
        if any(claims):
            prefix = "" if maker == named else f"{maker} "
            places.append(prefix + _names(generations, claims))
            named = maker
    return ", ".join(places)


def _names(generations: tuple[Generation, ...], claimed: list[bool]) -> str:
    """The claimed ones: "sm_80+", or each by name; a sole one with cards, "sm_90 (H100, H200)"."""
    first = claimed.index(True)
    if first < len(claimed) - 1 and all(claimed[first:]):
        return f"{generations[first].name}+"
    chosen = [g for g, claims in zip(generations, claimed, strict=True) if claims]
    if len(chosen) == 1:
        return f"{chosen[0].name} ({chosen[0].cards})"
    return ", ".join(g.name for g in chosen)
