"""What a run resumes from: the newest checkpoint in its folder, if it belongs to the same run; and
the tensors that it puts there."""

import functools
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from trainer.engine.engine import Engine
from trainer.files import checkpoint, kept_model
from trainer.flags import Flags, TrainConfig
from trainer.model.program import Program
from trainer.ranks.group import ALONE, Group

SIZES = ("batch", "sequence", "total_tokens")  # of a step, in a checkpoint's config

# What must be the same for a resumed run to continue as if it had never stopped. Batch, data and
# order are compared by the loader, which knows best what its position means.
SAME_ON_RESUME = {
    "model": "-e",
    "total_tokens": "-d (or -b times -t)",
    "seed": "--seed",
    "dtype": "--dtype",
    "overfit": "-a",
}


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(x) in (int, float) for x in value)


# Where in its state a run finds what it goes on with, and whether that makes sense: the type that
# it has, or a function. `shape` is looked at where the model is opened, and the loader's position
# where it is restored.
STATE: dict[str, type | Callable[[Any], bool]] = {
    "config": dict,
    **{f"config.{name}": lambda value: type(value) is int and value > 0 for name in SIZES},
    "device": str,
    "kernels.rungs": dict,
    "kernels.digests": dict,
    "kernels.fusions": list,
    "train": dict,
    "stepper.updates": lambda value: type(value) is int and value >= 0,
    "stepper.losses": _are_numbers,
    "stepper.norms": _are_numbers,
}
STATE_OF_FP16: dict[str, type | Callable[[Any], bool]] = {
    "stepper.scale.value": lambda value: type(value) in (int, float) and 0 < value < math.inf,
    "stepper.scale.good_steps": lambda value: type(value) is int and value >= 0,
}


@dataclass(frozen=True)
class Resumed:
    step: int
    tensors: checkpoint.CheckedTensors
    state: dict[str, Any]


def check_directory(directory: Path) -> None:
    """Raise LadderError where a run's folder cannot be made or written."""
    existing = next(p for p in (directory, *directory.absolute().parents) if p.exists())
    if not existing.is_dir():
        raise LadderError(f"-o {directory}: {existing} is a file; name a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise LadderError(f"-o {directory}: {existing} is not writable; choose another folder")


def check_state(state: Mapping[str, Any], where: Path) -> None:
    """Raise LadderError where a training run cannot resume from a checkpoint.

    It may be intact and still not fit: a model stored without its moments, or another version.
    """
    config = state.get("config")
    fp16 = isinstance(config, dict) and config.get("dtype") == "fp16"
    for path, sound in (STATE | STATE_OF_FP16 if fp16 else STATE).items():
        value: Any = state
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if not (isinstance(value, sound) if isinstance(sound, type) else sound(value)):
            raise LadderError(
                f"{where} is not of a training run of this version: its state lacks {path}; train "
                f"from its weights by -e {where} and another -o"
            )


def check_same(config: TrainConfig, resumed: Resumed) -> None:
    """Raise LadderError where a setting differs that must stay the same, or the run is over."""
    before = resumed.state["config"]
    for name, flag in SAME_ON_RESUME.items():
        if before.get(name) != getattr(config, name):
            raise LadderError(
                f"{flag} was {before.get(name)} and is {getattr(config, name)} now; "
                "resume with the same value (--config RUN has all), or start another run by -o"
            )
    if resumed.step > config.steps:
        raise LadderError(
            f"-x {config.steps}: the checkpoint is of step {resumed.step}; "
            f"choose -x {resumed.step} or more"
        )


def note_on_changes(config: TrainConfig, before: Mapping[str, Any], run: str) -> list[str]:
    """One line on the steps and the optimizer where they are not as `before`, in `run`, or none."""
    names = [f.name for f in fields(Flags)]
    changed = "; ".join(
        f"--{name.replace('_', '-')} {now!r}, there {before[name]!r}"
        for name in names[names.index("batch") : names.index("val_every")]
        if (now := getattr(config, name)) != before.get(name, now)
    )
    return [f"other than in {run}: {changed}"] if changed else []


def check_ranks(state: Mapping[str, Any], ranks: int) -> None:
    """Raise LadderError where that many ranks cannot share the steps of a checkpoint's run, whose
    rows (-b, -t) and tokens (-d) stay."""
    batch, sequence, tokens = (state["config"][name] for name in SIZES)
    if (micro_batches := tokens // (batch * sequence)) % ranks:
        raise LadderError(
            f"a step of the checkpoint, -d {tokens}, is {micro_batches} times -b {batch} -t "
            f"{sequence}, which {ranks} ranks cannot share; resume with --ranks {micro_batches} or "
            "a divisor of it"
        )


def run_directory(flags: Flags) -> Path:
    if flags.output is not None:
        return Path(flags.output)
    data = Path(flags.value("dataset")).stem
    if not flags.uses_dataset:
        data = Path(flags.train_data or flags.val_data or "").parent.name or "data"
    return Path("runs") / f"{Path(flags.value('model')).stem}-{data}"


def find_checkpoint(flags: Flags, directory: Path, group: Group = ALONE) -> Resumed | None:
    """The checkpoint in the run's folder that it goes on from; None to start anew, as -y 1 does,
    too, where neither it nor a model is there yet. Rank 0 looks, and every rank reads it."""
    newest = checkpoint.latest(directory) if group.leads else None
    if newest is not None and not flags.resume:
        raise LadderError(
            f"{directory} holds the checkpoints of an earlier run, the last of step {newest}; "
            "continue it with -y 1, choose another folder with -o, or delete it"
        )
    if group.leads and newest is None and flags.resume and kept_model.find(directory):
        raise LadderError(
            f"-y 1: {directory} holds a model and no checkpoint (-n writes them); train from "
            f"it by -e {directory} and another -o, or start anew without -y: both keep the model"
        )
    step: int | None = group.share("the checkpoint", newest)
    if step is None:
        return None
    tensors, state = checkpoint.load(directory, step)
    check_state(state, directory)
    check_ranks(state, group.size)
    return Resumed(step, tensors, state)


def how_to_go_on(directory: Path, every: int) -> str:
    """Which checkpoint is left after a run has broken off. `every`: the value of -n."""
    step = checkpoint.latest(directory)
    if step is None:
        off = f"the first would have been that of step {every}" if every else "they are off"
        return f"there is no checkpoint, since {off} (-n)"
    return f"the checkpoint of step {step} in {directory} is intact; continue with -y 1"


# Beside a master copy, the 16-bit weight that was rounded from it at random.
ROUNDED = ".rounded"


def kept(program: Program) -> list[str]:
    """What a checkpoint holds: a parameter as its float32 master copy, if it has one, and two
    moments."""
    return [name + suffix for name in program.config.parameters() for suffix in ("", ".m", ".v")]


def restore_tensors(
    engine: Engine, tensors: Mapping[str, np.ndarray], group: Group = ALONE
) -> None:
    for name in kept(engine.program):
        group.working(f"{name} of the checkpoint")
        if name not in tensors:
            raise LadderError(f"the checkpoint has no {name}: it is not of a training run")
        engine.write(name, tensors[name])
        if name + ROUNDED in tensors:
            engine.write_stored(name, tensors[name + ROUNDED])


def tensors_of(
    engine: Engine, config: TrainConfig, group: Group, step: int
) -> dict[str, Callable[[], np.ndarray]]:
    """What `restore_tensors` puts back; every weight is there in float32, whatever its type.

    Of a tensor that ranks share, every rank gives its pieces, and must call the function.
    """
    program, shapes = engine.program, engine.program.config.parameter_shapes()
    masters = config.master_weights and engine.real.itemsize < 4

    def read(name: str) -> np.ndarray:
        group.working(f"{name} of the checkpoint of step {step}")
        return np.asarray(engine.read(name), np.float32)

    def read_rounded(name: str) -> np.ndarray:
        group.working(f"{name + ROUNDED} of the checkpoint of step {step}")
        return engine.read_stored(name)

    def gather(name: str, parameter: str) -> np.ndarray:
        own = read(name).reshape(-1)
        whole = np.empty(math.prod(shapes[parameter]) if group.leads else 0, np.float32)
        for rank, part in enumerate(group.gather(name, own)):
            assert program.vector is not None
            for piece, _ in program.vector.pieces(rank, parameter):
                whole[piece.first : piece.first + piece.count] = part[: piece.count]
                part = part[piece.count :]
        return whole.reshape(shapes[parameter]) if group.leads else own

    tensors: dict[str, Callable[[], np.ndarray]] = {}
    for name in kept(program):
        parameter = name.split(".")[0]
        if config.zero and (masters or name != parameter):
            source = name + ".master" if name == parameter else name
            tensors[name] = functools.partial(gather, source, parameter)
        else:  # whole on every rank, as is a weight without a master copy
            tensors[name] = functools.partial(read, name)
    if config.stochastic_rounding and config.master_weights:
        for name in program.config.parameters():
            tensors[name + ROUNDED] = functools.partial(read_rounded, name)
    return tensors
