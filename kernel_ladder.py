"""What notebooks and programs import from Kernel Ladder, wherever the modules behind it are.

    from kernel_ladder import find, load, nb, reference

    nb.show("layernorm.forward", 3)                      # a rung's source
    find("layernorm.forward").rung("warp_per_row")       # by its name, or "3"
    reference.layernorm.forward(out, mean, rstd, inp, weight, bias)
    load("layernorm.forward", "warp_per_row")(out, mean, rstd, inp, weight, bias)

Each name is imported when it is first asked for: what does not train needs no package for training.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from ladder.core.common.command_line import describe_missing_package
from ladder.core.common.install import ROOT

_CORE = "ladder.core"
_PUBLIC = {  # name -> its module, or module:name
    "reference": "reference",
    # kernels: contracts, devices, results
    "LadderError": f"{_CORE}.common.errors:LadderError",
    "bind": f"{_CORE}.contract.binding:bind",
    "DTYPES": f"{_CORE}.contract.op:DTYPES",
    "find": f"{_CORE}.contract.ladder:find",
    "load": f"{_CORE}.call.arrays:Loaded",
    "torch": "trainer.pytorch",
    "ladders": f"{_CORE}.contract.ladder:ladders",
    "default_device": f"{_CORE}.device.open:default_device",
    "open_device": f"{_CORE}.device.open:open_device",
    "Emulated": f"{_CORE}.emulator.emulated:Emulated",
    "results": f"{_CORE}.measure.results",
    # what the notebooks show
    "nb": f"{_CORE}.show.notebook",
    "tables": f"{_CORE}.show.tables",
    "trace": f"{_CORE}.show.trace:trace",
    "fragments": f"{_CORE}.show.pictures.fragments",
    # whole models
    "GPT2Config": "trainer.model.gpt2:GPT2Config",
    "build": "trainer.model.program:build",
    "FUSIONS": "trainer.model.fusion:FUSIONS",
    "read_text": "trainer.data.datasets:read_text",
    "doctor": "trainer.commands.doctor",
    "gpt": "trainer.notebook.helpers",
    "runs": "trainer.notebook.reading_runs",
    "climbing": "trainer.notebook.climbing",
    "planted": "trainer.notebook.planted",
}

__all__ = [name for name in _PUBLIC if name != "torch"]  # which needs PyTorch, and has its name


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"kernel_ladder has no {name!r}; it has {', '.join(__all__)}")
    module, _, attribute = _PUBLIC[name].partition(":")
    try:
        imported = importlib.import_module(ROOT + module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(describe_missing_package(error), name=error.name) from None
    if name == "reference":
        for layer in pkgutil.iter_modules(imported.__path__):
            importlib.import_module(f"{imported.__name__}.{layer.name}")
    return getattr(imported, attribute) if attribute else imported


def _ladder() -> int:
    """The console command `kernel-ladder`."""
    from ladder.__main__ import main

    return main()


def _train() -> int:
    """The console command `kernel-ladder-train`."""
    from trainer.__main__ import command_line

    return command_line()
