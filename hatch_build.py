"""The wheel has one import root, `kernel_ladder`, since PyPI has other packages named `ladder`,
`reference` and `trainer`: this puts the three below it, with their import lines and what messages
say of commands. Each line keeps its number. An editable install leaves the checkout as it is.
"""

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("ladder", "reference", "trainer")
IMPORT = re.compile(rf"^(\s*(?:from|import) )({'|'.join(PACKAGES)})\b", re.MULTILINE)
COMMANDS = {"python -m ladder": "kernel-ladder", "python -m trainer": "kernel-ladder-train"}


def rewritten(source: str) -> str:
    """A file's source as it stands in the wheel."""
    for typed, installed in COMMANDS.items():
        source = source.replace(typed, installed)
    return IMPORT.sub(r"\1kernel_ladder.\2", source)


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self.stage = Path(tempfile.mkdtemp())
        if version == "editable":
            return
        root = Path(self.root)
        for package in PACKAGES:
            shutil.copytree(
                root / package,
                self.stage / package,
                ignore=shutil.ignore_patterns("__pycache__"),
            )
        shutil.copy(root / "kernel_ladder.py", self.stage / "__init__.py")
        shutil.copytree(root / "doc" / "results", self.stage / "doc" / "results")
        for path in self.stage.rglob("*.py"):
            path.write_text(rewritten(path.read_text("utf-8")), "utf-8")
        build_data["force_include"][str(self.stage)] = "kernel_ladder"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self.stage)
