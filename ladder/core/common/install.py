"""How this program was installed, the command that installs a package for its Python, what a report
on this machine says of one, and what the machine lets a process have."""

import os
import resource
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# What stands before the name of a module: "kernel_ladder." in an installed wheel (hatch_build.py).
ROOT = __name__.removesuffix("ladder.core.common.install")


def user_folder(variable: str, below_home: str) -> Path:
    """The user's own folder below $variable, such as XDG_DATA_HOME, else below a folder of the home
    directory; it need not exist yet."""
    base = os.environ.get(variable)
    try:
        return (Path(base) if base else Path.home() / below_home) / "kernel-ladder"
    except RuntimeError:  # no HOME, and the user is in no password file: some containers
        return Path(tempfile.gettempdir()) / f"kernel-ladder-{os.getuid()}"


def pip(words: str) -> str:
    """pip with `words` behind it, as one types it in this folder: a bare `pip` may belong to
    another Python."""
    python = Path(sys.executable)
    with suppress(ValueError, OSError):  # not below this folder, or it is deleted
        python = python.relative_to(Path.cwd())
    return f"{python} -m pip {words}"


def install(extra: str) -> str:
    """The command that installs what an extra of pyproject.toml names, such as "compile"."""
    return pip(f"install 'kernel-ladder[{extra}]'" if ROOT else f"install -e '.[{extra}]'")


@dataclass(frozen=True)
class Finding:
    """A line of `python -m ladder doctor` or `python -m trainer doctor`: one thing that was looked
    for. `remedy` says what to do where it is missing or unusable."""

    what: str
    state: str
    remedy: str | None = None


def cores() -> int:
    """How many CPU cores this process may use; on macOS, which has no such limit, all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def peak_memory() -> int:
    """The most bytes of memory that this process has had; Linux counts in KiB, macOS in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
