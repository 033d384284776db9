"""The models that `-e` names, and where their first weights come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ladder.common.errors import LadderError
from trainer.model import checkpoint, huggingface, llmc_files
from trainer.model.gpt2 import PARAMETERS, GPT2Config, initial_parameters

# layers: (channels, heads); GPT-2's four sizes and llm.c's smaller and larger ones
DEPTHS = {
    6: (384, 6),
    12: (768, 12),
    24: (1024, 16),
    36: (1280, 20),
    48: (1600, 25),
    60: (1920, 30),
    72: (2880, 30),
    84: (3456, 36),
}
PRETRAINED = dict(zip(huggingface.PRETRAINED, (12, 24, 36, 48), strict=True))  # name: layers
PRETRAINED_VOCAB = 50257
INSTEAD = "using random initial weights instead of"
CHAR = GPT2Config(context=256, layers=6, heads=6, channels=384, dropout=0.2)  # nanoGPT's

Pieces = Iterable[tuple[str, int | None, np.ndarray]]  # (parameter, layer or None, float32 array)


@dataclass(frozen=True)
class Model:
    """A model's shape and its first weights, one piece at a time.

    `source` says where the weights come from; `note`, if something else than was asked for is
    used, is one line that says what and why. `tokenizer` is the one that a run's checkpoint names.
    """

    shape: GPT2Config
    pieces: Pieces
    source: str
    trained: bool = True
    note: str | None = None
    tokenizer: str | None = None


def open_model(name: str, *, vocab: int, seed: int, data_dir: Path) -> Model:
    """The model that `-e NAME` means, for a tokenizer of `vocab` tokens.

    gpt2 ... gpt2-xl fall back to random weights, with a note, where the pretrained ones cannot be
    had. Raises LadderError for an unknown name and for files that are not a model.
    """
    shape = named_shape(name, vocab)
    if shape is None:
        return open_file(Path(name), data_dir)
    if name not in PRETRAINED:
        return random_model(shape, seed)
    if vocab != PRETRAINED_VOCAB:
        note = f"{INSTEAD} {name}'s, which belong to GPT-2's tokens"
        return random_model(shape, seed, note)
    try:
        return Model(*huggingface.load_huggingface(name, data_dir), f"pretrained {name}")
    except huggingface.DownloadError as error:
        return random_model(shape, seed, f"{error}: {INSTEAD} {name}")


def open_file(path: Path, data_dir: Path) -> Model:
    """A model from llm.c's `.bin`, Hugging Face safetensors, or the newest checkpoint of a run."""
    _refuse_missing(path)
    if path.suffix == ".bin":
        return Model(*llmc_files.load_model(path), str(path))
    if path.is_dir() and (step := checkpoint.latest(path)) is not None:
        tensors, state = checkpoint.load(path, step)
        shape = shape_of(tensors, state)
        pieces = (
            (name, None, huggingface.check_finite(tensors[name], f"{path}: {name}"))
            for name in PARAMETERS
        )
        source = f"{path}, step {step}"
        return Model(shape, pieces, source, tokenizer=state.get("tokenizer") or None)
    if path.suffix == ".safetensors" or path.is_dir():
        return Model(*huggingface.load_huggingface(path, data_dir), str(path))
    raise LadderError(
        f"-e {path}: not a kind of file that holds a model; those are llm.c's .bin, .safetensors, "
        "and the folder of a run with checkpoints"
    )


def _refuse_missing(path: Path) -> None:
    if not path.exists():
        names = ", ".join([*PRETRAINED, *(f"d{depth}" for depth in DEPTHS), "char"])
        raise LadderError(f"-e {path}: no such file or folder, and no model's name ({names})")


def tokenizer_of(name: str) -> str:
    """The name of the tokenizer that belongs to a model: a run's checkpoint tells its own."""
    path = Path(name)
    if named_shape(name, PRETRAINED_VOCAB) is None:
        _refuse_missing(path)  # before a tokenizer's vocabulary is downloaded for it
        if path.is_dir() and (step := checkpoint.latest(path)) is not None:
            return checkpoint.load(path, step)[1].get("tokenizer") or "gpt2"
    return "chars" if name == "char" else "gpt2"


def shape_of(tensors: checkpoint.CheckedTensors, state: Mapping[str, Any]) -> GPT2Config:
    """The model's shape from the state of a checkpoint, once its tensors are seen to have it."""
    try:
        shape = GPT2Config(**state["shape"])
        expected = shape.parameter_shapes()
        sound = shape.channels % shape.heads == 0 and 0 <= shape.dropout < 1
        sound &= 0 < shape.vocab <= shape.padded_vocab
        sizes = replace(shape, dropout=0)
        sound &= all(type(size) is int for size in asdict(sizes).values())
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        raise LadderError(f"{tensors.path.parent} does not say what model it holds") from None
    for name, dimensions in expected.items():
        if not sound or tensors.file.layout.get(name, ((), ()))[1] != dimensions:
            raise LadderError(f"{tensors.path} does not hold the model that its state describes")
    return shape


def random_model(shape: GPT2Config, seed: int, note: str | None = None) -> Model:
    """GPT-2's random initialisation."""
    pieces = ((name, None, array) for name, array in initial_parameters(shape, seed))
    return Model(shape, pieces, f"random, seed {seed}", trained=False, note=note)


def named_shape(name: str, vocab: int) -> GPT2Config | None:
    """The shape that a name of `-e` means, with the tokenizer's vocabulary; None for a path."""
    sizes = {"vocab": vocab, "padded_vocab": huggingface.padded(vocab)}
    if name == "char":
        return replace(CHAR, **sizes)
    layers = PRETRAINED.get(name)
    if layers is None and name[:1] == "d" and name[1:].isdecimal():
        layers = int(name[1:])
        if layers not in DEPTHS:
            known = " ".join(f"d{depth}" for depth in DEPTHS)
            raise LadderError(f"-e {name}: llm.c knows no such depth; choose one of {known}")
    if layers is None:
        return None
    channels, heads = DEPTHS[layers]
    return GPT2Config(layers=layers, channels=channels, heads=heads, **sizes)
