"""One line of a report on this machine: `python -m ladder doctor`, `python -m trainer doctor`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for. `remedy` says what to do where it is missing or unusable."""

    what: str
    found: str
    remedy: str | None = None
