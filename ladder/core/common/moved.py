"""What programs of version 0.1 name: a module that has moved is imported, and a function that is
gone says what takes its place."""

import importlib
import sys
import warnings
from collections.abc import Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn

GONE = {  # functions, and what takes their place
    "machine": 'nb.drawing("machine")',
    "steps": 'nb.drawing("reduction-steps")',
    "bars_and_roofline": "nb.bars(..., roofline=True)",
    "swap": "python -m trainer bench --rung layernorm.forward=6",
    "char_run": "the character models of doc/training/runs.md",
}


class _Forward(MetaPathFinder, Loader):
    """Imports a module under its new name, and says so."""

    def __init__(self, moved: Mapping[str, str]) -> None:
        self._moved = moved

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if self._old(name) is not None else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        old = self._old(spec.name)
        assert old is not None
        new = self._moved[old] + spec.name[len(old) :]
        warnings.warn(f"{spec.name} is now {new}", FutureWarning, stacklevel=2)
        module = importlib.import_module(new)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """The module has been imported under its new name; its spec remains that of this name."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state

    def _old(self, name: str) -> str | None:
        names = (old for old in self._moved if name == old or name.startswith(f"{old}."))
        return next(names, None)


def forward(package: str, moved: Mapping[str, str]) -> None:
    """Let `import` find what is in a package by the names that it had there: {old: new}.

    The first of several names that fit counts.
    """
    names = {f"{package}.{old}": f"{package}.{new}" for old, new in moved.items()}
    sys.meta_path.insert(0, _Forward(names))


def gone(module: str, name: str) -> NoReturn:
    """What `__getattr__` of a module raises that has lost functions."""
    remedy = f" since version 0.1; instead: {GONE[name]}" if name in GONE else ""
    raise AttributeError(f"{module} has no {name!r}{remedy}", name=name)
