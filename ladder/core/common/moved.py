"""What programs of version 0.1 name: a module that has moved is imported, and a function that is
gone says what takes its place."""

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn


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


def gone(module: str, instead: Mapping[str, str]) -> Callable[[str], NoReturn]:
    """The `__getattr__` of a module that has lost functions: {name: what takes its place}."""

    def __getattr__(name: str) -> NoReturn:
        remedy = f" since version 0.1; instead: {instead[name]}" if name in instead else ""
        raise AttributeError(f"{module} has no {name!r}{remedy}", name=name)

    return __getattr__
