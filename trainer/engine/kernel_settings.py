"""The settings that choose a run's kernels: --rungs, --rung, --fuse, --deterministic, --tf32.

They are resolved once from the flags and handed to `trainer.engine.kernels.choose` alone. All else
receives what it returns: a program, and a rung for each of its ops.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_json
from ladder.core.contract.device import Device
from ladder.core.contract.ladder import find
from ladder.core.contract.op import split_key
from trainer.flags import FUSIONS, RUNG_SETS, DeviceChoice, Flags, Fusion
from trainer.model.fusion import FOR_BFLOAT16

Wanted = Literal["yes", "no", "auto"]


@dataclass(frozen=True, kw_only=True)
class KernelSettings:
    """Which rungs and which fusions a run asks for, and where it computes.

    rungs     "reference", "naive", "best", "library", or the path of a rungs.json
    from_file what this file names, by the keys of trainer/engine/rung_map.py: the rung of an op, or
              of an op at some shapes; empty where `rungs` names a set
    rung      the same of other rungs: an id, a name, or the path of a `.cu` file
    unconfined  such a file may do on the emulator all that the user may
    fuse      for every fusion: yes or no, or auto: where it follows from the rungs, or is faster
    tf32      rungs may multiply float32 factors as TF32; without effect in 16 bits
    """

    choice: DeviceChoice
    rungs: str
    from_file: Mapping[str, str]
    rung: Mapping[str, str]
    unconfined: bool
    fuse: Mapping[Fusion, Wanted]
    deterministic: bool
    tf32: bool

    @property
    def rung_set(self) -> str:
        """Where the ops that neither --rung nor a file names take their rungs from."""
        if self.rungs in RUNG_SETS:
            return self.rungs
        return "best" if self.choice.gpu else "reference"

    def compares(self, device: Device) -> bool:
        """Whether the other rungs are chosen by their times."""
        return device.is_gpu and self.rung_set in ("best", "library")

    def considers(self, fusion: Fusion) -> bool:
        """Whether a run may have a fusion that neither its rungs nor a checkpoint ask for."""
        fits = fusion not in FOR_BFLOAT16 or self.choice.dtype == "bf16"
        return self.fuse[fusion] == "yes" or (self.fuse[fusion] == "auto" and fits)

    @property
    def picking(self) -> dict[str, bool]:
        """What `ladder.core.measure.pick.pick` takes: which rungs compete."""
        return {
            "library": self.rung_set == "library",
            "deterministic": self.deterministic,
            "tf32": self.tf32,
        }

    def record(self) -> dict[str, Any]:
        """What config.json and checkpoints keep."""
        names = ("rungs", "rung", "fuse", "deterministic", "tf32")
        return {name: getattr(self, name) for name in names}


def resolve_kernels(flags: Flags, choice: DeviceChoice) -> KernelSettings:
    """The settings of the kernels. Raises LadderError where --rungs names a file that is wrong."""
    rungs = flags.value("rungs", choice.gpu)
    return KernelSettings(
        choice=choice,
        rungs=rungs,
        from_file={} if rungs in RUNG_SETS else _read_file(rungs),
        rung=dict(flags.rung or {}),
        unconfined=flags.value("unconfined"),
        fuse=_fuse(flags, choice.dtype),
        deterministic=flags.value("deterministic"),
        tf32=flags.value("tf32"),
    )


def _fuse(flags: Flags, dtype: str) -> dict[Fusion, Wanted]:
    """What --fuse and -ge want of every fusion."""
    typed = flags.fuse or "auto"
    every = {*FUSIONS} - (FOR_BFLOAT16 if dtype == "fp16" else set())
    fuse: dict[Fusion, Wanted] = {}
    for name in FUSIONS:
        fuse[name] = "yes" if name in (every if typed == "all" else typed.split(",")) else "no"
        if typed == "auto":
            fuse[name] = "auto"
    if flags.gelu_fusion is not None:
        fuse["matmul_gelu"] = "yes" if flags.gelu_fusion >= 1 else "no"
        fuse["matmul_gelu_backward"] = "yes" if flags.gelu_fusion == 2 else "no"
    return fuse


def _read_file(path: str) -> dict[str, str]:
    """The rungs that a file for `--rungs` names: ids, or paths. Raises LadderError."""
    if not os.path.exists(path):
        raise LadderError(f"--rungs {path}: neither one of {', '.join(RUNG_SETS)} nor a file")
    with naming_file(path):
        named = read_json(path)
        if not isinstance(named, dict) or not {int, str}.issuperset(map(type, named.values())):
            raise LadderError('it must be an object such as {"gelu.forward": "1"}')
        for key in named:
            find(split_key(key)[0])
    return {key: str(which) for key, which in named.items()}


@contextlib.contextmanager
def naming_file(path: str | None) -> Iterator[None]:
    """Adds the name of the rungs file to an error, if the wrong entry is in that file."""
    try:
        yield
    except LadderError as error:
        if path is None:
            raise
        raise LadderError(f"--rungs {path}: {error}") from None
