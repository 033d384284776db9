"""A model that trains in milliseconds, and runs of it."""

import dataclasses
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from ladder.core.contract.ladder import find
from ladder.core.contract.target import Target
from ladder.core.device.open import cpp_compiler
from trainer.engine.kernel_settings import KernelSettings, resolve_kernels
from trainer.files import checkpoint, logs
from trainer.files.weights import state_of
from trainer.flags import DeviceChoice, Flags, TrainConfig, resolve_run
from trainer.model import registry
from trainer.model.calls import Call
from trainer.model.gpt2 import GPT2Config
from trainer.model.model_config import Size
from trainer.model.program import initial_parameters
from trainer.report import Outcome
from trainer.train import train

SHAPE = GPT2Config(
    context=32, vocab=257, padded_vocab=384, layers=2, heads=2, channels=16, dropout=0.0
)

PARAMETERS = tuple(SHAPE.parameters())

needs_compiler = pytest.mark.skipif(
    cpp_compiler().remedy is not None, reason="no C++ compiler for the emulator"
)


def add_size(patch: pytest.MonkeyPatch, name: str, **fields: float) -> None:
    """Let `-e name` mean a GPT-2 of this size for the rest of the test."""
    config = GPT2Config(**fields)
    size = dataclasses.replace(registry.SIZES.get(name, Size(config)), config=config)
    patch.setitem(registry.SIZES, name, size)


def save_model(directory: Path, dropout: float = 0.0, factor: float = 1.0) -> str:
    """A random model as a checkpoint, its weights times `factor`; returns what `-e` takes.

    dropout  also that inside attention
    """
    shape = dataclasses.replace(SHAPE, dropout=dropout, attention_dropout=dropout)
    arrays = {name: array * np.float32(factor) for name, array in initial_parameters(shape, 1)}
    tensors = {name: (lambda name=name: arrays[name]) for name in arrays}
    state = {**state_of(shape), "tokenizer": "bytes"}
    checkpoint.save(directory, 0, tensors, state)
    return str(directory)


def settings(tmp_path: Path, **changes: object) -> dict:
    """Settings of a short run on the embedded play."""
    model = tmp_path / "model"
    if "model" not in changes and not model.exists():
        save_model(model)
    return {
        "model": str(model),
        "dataset": None if "val_data" in changes else "play",
        "data_dir": str(tmp_path / "data"),
        "output": str(tmp_path / "run"),
        "device": "cpu",
        "batch": 2,
        "sequence": 16,
        "steps": 6,
        "lr": 1e-2,
        "val_every": 0,
        "val_batches": 2,
        "sample_every": 0,
        "plot": False,
        "keep_model": False,
        **changes,
    }


def run(tmp_path: Path, **changes: object) -> tuple[Outcome, str]:
    """Train; returns the outcome and what was printed."""
    screen = io.StringIO()
    flags = Flags(**settings(tmp_path, **changes))
    return train(flags, Console(file=screen, width=100)), screen.getvalue()


def place_of(kind: str, flags: Flags) -> DeviceChoice:
    """A device of a kind ("cpu", "emulated", "cuda"), and the type that flags mean on it."""
    gpu = kind == "cuda"
    return DeviceChoice(flags.device or kind, gpu, flags.value("dtype", gpu))


def resolved_kernels(kind: str, **typed: Any) -> KernelSettings:
    """The settings of a run's kernels, by what was typed."""
    flags = Flags(**typed)
    return resolve_kernels(flags, place_of(kind, flags))


def resolved(kind: str, context: int = 1024, **typed: Any) -> TrainConfig:
    """The settings of a run on a device ("cpu", "emulated", "cuda"), by what was typed."""
    flags = Flags(**typed)
    return resolve_run(
        flags,
        place_of(kind, flags),
        context=context,
        dataset="play",
        train_data="play_train.bin",
        val_data="play_val.bin",
        tokens=1 << 20,
        tokenizer="bytes",
        data_dir="data",
        output="run",
    )


def losses(directory: Path) -> list[float]:
    """The training losses of a run, step by step."""
    return [e["train_loss"] for e in logs.read(directory / "log.jsonl") if "train_loss" in e]


def parameters(directory: Path, step: int) -> dict[str, np.ndarray]:
    """All tensors of a checkpoint."""
    return dict(checkpoint.load(directory, step)[0])


def assert_same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    """The same tensors, to the bit."""
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype and a[name].tobytes() == b[name].tobytes(), name


def whole(config, pieces) -> tuple[Any, dict[str, np.ndarray]]:
    """The configuration, and the parameters of a file put together as the engine does."""
    arrays = {name: np.full(shape, np.nan) for name, shape in config.parameter_shapes().items()}
    for name, layer, array in pieces:
        assert array.dtype == np.float32
        target = arrays[name] if layer is None else arrays[name][layer]
        assert array.shape == target.shape
        target[...] = array
    return config, arrays


def highest_rungs(calls: Iterable[Call], target: Target) -> dict[str, str]:
    """What `--rung` takes for the last kernel of each op's ladder that `target` can run: the most
    intricate. Those of AMD's track are left out: no GPU has them and NVIDIA's at once; and those in
    TF32, which have to be allowed."""
    highest = {}
    for call in calls:
        for rung in find(call.op).rungs:
            left_out = rung.track == "amd" or rung.tf32
            if rung.path and not left_out and rung.plan(call.dims, target).refusal is None:
                highest[call.op] = rung.id
    return highest
