"""How this program was installed, the command that installs a package for its Python, and what a
report on this machine says of one."""

import os
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
    found: str
    remedy: str | None = None
