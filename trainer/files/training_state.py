"""The tensors of a run's checkpoints: which there are, and how an engine gives and takes them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

import numpy as np

from ladder.core.common.errors import LadderError
from trainer.engine.engine import Engine
from trainer.flags import TrainConfig
from trainer.model.program import Program
from trainer.ranks.group import ALONE, Group

# Beside a master copy, the 16-bit weight that was rounded from it at random.
ROUNDED = ".rounded"


def kept(program: Program) -> list[str]:
    """What a checkpoint holds: a parameter as its float32 master copy, if it has one, and two
    moments."""
    return [name + suffix for name in program.parameters for suffix in ("", ".m", ".v")]


def restore_tensors(
    engine: Engine, tensors: Mapping[str, np.ndarray], group: Group = ALONE
) -> None:
    """Put back what a checkpoint holds."""
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
        for rank, found in enumerate(group.gather(name, own)):
            assert program.vector is not None
            for piece, _ in program.vector.pieces(rank, parameter):
                whole[piece.first : piece.first + piece.count] = found[: piece.count]
                found = found[piece.count :]
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
        for name in program.parameters:
            tensors[name + ROUNDED] = functools.partial(read_rounded, name)
    return tensors
