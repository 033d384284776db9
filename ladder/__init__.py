"""Kernel Ladder: for every layer of GPT-2, kernels that get faster one idea at a time."""

import importlib
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "ladder.device.hip": "ladder.core.amd.hip",
    "ladder.device.isa": "ladder.core.amd.isa",
    **{
        f"ladder.{folder}": f"ladder.core.{folder}"
        for folder in (
            *("adopt", "commands", "common", "contract", "device"),
            *("emulator", "measure", "puzzle", "show", "verify"),
        )
    },
}


class _Forward(MetaPathFinder, Loader):
    """Imports under its new name what version 0.1 had directly in `ladder`, and says so."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        moved = any(name == old or name.startswith(f"{old}.") for old in MOVED)
        return ModuleSpec(name, self) if moved else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        old = next(old for old in MOVED if spec.name == old or spec.name.startswith(f"{old}."))
        new = MOVED[old] + spec.name[len(old) :]
        warnings.warn(f"{spec.name} is now {new}", FutureWarning, stacklevel=2)
        return importlib.import_module(new)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is left to do: the module has been imported under its new name."""


sys.meta_path.append(_Forward())
