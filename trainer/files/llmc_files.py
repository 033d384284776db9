"""llm.c's binary files: models and debug states in and out; tokenizers out.

All begin with a header of 256 int32: magic, version, then what the file needs. All numbers are
little-endian. Layouts: https://github.com/karpathy/llm.c, train_gpt2.py (`write_model`,
`write_state`, `write_tokenizer`); read there by train_gpt2.c, test_gpt2.c, tokenizer.h.

    model      the fields of the model's config; then its parameters, stacked over layers, with a
               padded vocabulary
    state      B, T; then x, y (B,T) int32, logits (B,T,V), loss (1), and the gradients, as the
               parameters, all in float32
    tokenizer  vocab_size, id of the end-of-text token; then per token its length (1 byte) and bytes
"""

import functools
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.common.files import atomic_write, open_regular, raw_bytes, size_of
from trainer.data.token_files import HEADER_BYTES, header
from trainer.data.tokenizers import Tokenizer
from trainer.files.tensor_file import Pieces, check_finite
from trainer.model.model_config import ModelConfig, format_in
from trainer.model.program import zero_padding
from trainer.model.registry import MODELS

TOKENIZER = 20240328  # magic number; those of models and states are in the models' formats
MODEL_DTYPES = {3: np.dtype("<f4"), 5: np.dtype(ml_dtypes.bfloat16)}  # by version
STATE_VERSION = TOKENIZER_VERSION = 2


def load_model(path: str | Path) -> tuple[ModelConfig, Pieces]:
    """Open a model file; returns its shape and its parameters, piece by piece, as float32.

    A piece is (name, layer, array): one layer's slice of a stacked parameter, or a whole one with
    layer None. Raises LadderError at once for a header that does not fit the file, and for NaN or
    infinity when that piece is read.
    """
    path = Path(path)
    with open_regular(path) as file:
        raw, size = file.read(HEADER_BYTES), size_of(file)
    formats = {m.llmc.model_magic: (m, m.llmc) for m in MODELS.values() if m.llmc is not None}
    if len(raw) < HEADER_BYTES or int(np.frombuffer(raw, "<i4", 1)[0]) not in formats:
        known = " or ".join(map(str, formats))
        raise LadderError(
            f"{path} is no llm.c model file: it does not begin with {known} and "
            "a whole header; fetch it again"
        )
    magic, version, *fields = map(int, np.frombuffer(raw, "<i4"))
    model, form = formats[magic]
    if version not in MODEL_DTYPES:
        raise LadderError(
            f"{path}: version {version} of llm.c's model files is not read, only 3 (fp32) and "
            "5 (bf16); write it again with a current train_gpt2.py"
        )
    config = model(**dict(zip(form.fields, fields, strict=False)))
    if refusal := config.refusal():
        raise LadderError(f"{path}: its header is damaged: {refusal}; fetch it again")
    numbers = sum(math.prod(shape) for shape in config.parameter_shapes().values())
    expected = HEADER_BYTES + numbers * MODEL_DTYPES[version].itemsize
    if size != expected:
        raise LadderError(
            f"{path} has {size} bytes where its header asks for {expected}; fetch it again"
        )
    return config, _pieces(path, config, MODEL_DTYPES[version])


def _pieces(path: Path, config: ModelConfig, dtype: np.dtype) -> Pieces:
    unpadded = config.unpadded_shapes()
    with open_regular(path) as file:
        file.seek(HEADER_BYTES)
        for name, parameter in config.parameters().items():
            first = 1 if parameter.stacked else 0  # dimension of a piece
            for layer in range(parameter.shape[0]) if parameter.stacked else [None]:
                array = _read(file, path, parameter.shape[first:], dtype, name)
                array = array.astype(np.float32, copy=False)
                zero_padding(array, unpadded[name][first:])
                yield name, layer, array


def _read(
    file: io.BufferedReader, path: Path, shape: tuple[int, ...], dtype: Any, what: str
) -> np.ndarray:
    """The next numbers of a file. Raises LadderError where one is not finite."""
    array = np.empty(shape, dtype)
    if file.readinto(raw_bytes(array)) != array.nbytes:
        raise LadderError(f"{path} became shorter while it was read")
    return check_finite(array, f"{path}: {what}")


def save_model(
    path: str | Path,
    config: ModelConfig,
    read: Callable[[str], np.ndarray],
    dtype: str = "float32",
) -> None:
    """Write a model file that llm.c's programs load; `dtype` is "float32" or "bfloat16".

    `read` returns a whole parameter, stacked and padded; one is held at a time.
    """
    version = {"float32": 3, "bfloat16": 5}[dtype]
    form = format_in(config.llmc, "llm.c")
    with atomic_write(path) as file:
        fields = (getattr(config, name) for name in form.fields)
        file.write(header(form.model_magic, version, *fields))
        for name in config.parameters():
            file.write(_bytes(read(name), MODEL_DTYPES[version]))


@dataclass(frozen=True)
class State:
    """What a debug state holds: a batch, and a model's results on it.

    inputs, targets  token ids (B,T)
    logits           (B,T,V); of one to be written, or (B,T,Vp), whose padding is left out
    loss             the mean over all B*T positions
    gradients        by the parameter's name, in the model's order, stacked and padded
    """

    inputs: np.ndarray
    targets: np.ndarray
    logits: np.ndarray
    loss: float
    gradients: Mapping[str, np.ndarray]


def save_state(path: str | Path, config: ModelConfig, state: State) -> None:
    """Write a debug state: llm.c's test_gpt2 compares a step of its own with it."""
    B, T = state.inputs.shape
    form = format_in(config.llmc, "llm.c")
    logits = state.logits.reshape(B, T, -1)[:, :, : config.vocab]
    with atomic_write(path) as file:
        file.write(header(form.state_magic, STATE_VERSION, B, T))
        file.write(_bytes(state.inputs, np.dtype("<i4")))
        file.write(_bytes(state.targets, np.dtype("<i4")))
        for array in (logits, np.array([state.loss]), *state.gradients.values()):
            file.write(_bytes(array, np.dtype("<f4")))


def load_state(path: str | Path, config: ModelConfig) -> State:
    """Read the debug state of a model of this shape.

    Raises LadderError for a file that is none, or of another shape, and for token ids, NaN and
    infinities that no such model has.
    """
    path, form, shapes = Path(path), format_in(config.llmc, "llm.c"), config.parameter_shapes()
    with open_regular(path) as file:
        raw, size = file.read(HEADER_BYTES), size_of(file)
        magic, version, B, T = map(int, np.frombuffer(raw.ljust(HEADER_BYTES, b"\0"), "<i4", 4))
        if len(raw) < HEADER_BYTES or (magic, version) != (form.state_magic, STATE_VERSION):
            raise LadderError(
                f"{path} is no debug state of version {STATE_VERSION}: it does not begin with "
                f"{form.state_magic} and a whole header; write it again with train_gpt2.py, or "
                "with 'python -m trainer export --to debug-state'"
            )
        numbers = B * T * (2 + config.vocab) + 1 + sum(map(math.prod, shapes.values()))
        if B < 1 or not 1 <= T <= config.context or size != HEADER_BYTES + 4 * numbers:
            raise LadderError(
                f"{path} is the debug state of another model, or damaged: B={B}, T={T}, "
                f"{size} bytes; name the model that it was made from with -e"
            )

        read = functools.partial(_read, file, path)
        inputs, targets = (read((B, T), "<i4", what) for what in ("inputs", "targets"))
        if min(inputs.min(), targets.min()) < 0 or max(inputs.max(), targets.max()) >= config.vocab:
            raise LadderError(f"{path} has tokens beyond {config.vocab}; name its model by -e")
        logits = read((B, T, config.vocab), "<f4", "logits")
        loss = float(read((1,), "<f4", "loss")[0])
        gradients = {name: read(shape, "<f4", f"d{name}") for name, shape in shapes.items()}
    return State(inputs, targets, logits, loss, gradients)


def save_tokenizer(path: str | Path, tokenizer: Tokenizer) -> None:
    if tokenizer.eot is None:
        raise LadderError(
            f"llm.c begins a sample with the end-of-text token, and tokenizer {tokenizer.name} has "
            "none; read the text of this model by 'python -m trainer sample', or train it with "
            "--tokenizer bytes or gpt2"
        )
    with atomic_write(path) as file:
        file.write(header(TOKENIZER, TOKENIZER_VERSION, tokenizer.vocab, tokenizer.eot))
        for i in range(tokenizer.vocab):
            token = tokenizer.token_bytes(i)
            file.write(bytes([len(token)]) + token)  # GPT-2's longest token has 128 bytes


def _bytes(array: np.ndarray, dtype: np.dtype) -> memoryview:
    return raw_bytes(np.ascontiguousarray(array, dtype))
