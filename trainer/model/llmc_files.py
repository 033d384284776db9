"""llm.c's binary files: models in and out; debug states and tokenizers out.

All begin with a header of 256 int32: magic, version, then what the file needs. All numbers are
little-endian. Layouts: https://github.com/karpathy/llm.c, train_gpt2.py (`write_model`,
`write_state`, `write_tokenizer`); read there by train_gpt2.c, test_gpt2.c, tokenizer.h.

    model      max_seq_len, vocab_size, num_layers, num_heads, channels, padded_vocab_size;
               then the 16 parameters, stacked over layers, wte padded
    state      B, T; then x, y (B,T) int32, logits (B,T,V), loss (1), and the 16 gradients, as the
               parameters, all in float32
    tokenizer  vocab_size, id of the end-of-text token; then per token its length (1 byte) and bytes
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np

from ladder.common.errors import LadderError
from ladder.common.files import atomic_write
from trainer.data.tokenizers import Tokenizer
from trainer.model.gpt2 import PARAMETERS, GPT2Config
from trainer.model.huggingface import Pieces, check_finite

HEADER_INTS = 256
MODEL, STATE, TOKENIZER = 20240326, 20240327, 20240328  # magic numbers
MODEL_DTYPES = {3: np.dtype("<f4"), 5: np.dtype(ml_dtypes.bfloat16)}  # by version
STATE_VERSION = TOKENIZER_VERSION = 2


def load_model(path: str | Path) -> tuple[GPT2Config, Pieces]:
    """Open a model file; returns its shape and its parameters, piece by piece, as float32.

    A piece is (name, layer, array): one layer's slice of a stacked parameter, or a whole one with
    layer None. Raises LadderError at once for a header that does not describe this very file, and
    for NaN or infinity when it is met.
    """
    path = Path(path)
    if not path.is_file():  # a pipe would let the open below wait for ever
        raise LadderError(f"{path}: no such file")
    try:
        with open(path, "rb") as file:
            raw = file.read(4 * HEADER_INTS)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise LadderError(f"cannot read {path}: {error.strerror or error}") from None
    if len(raw) < 4 * HEADER_INTS or np.frombuffer(raw, "<i4", 1)[0] != MODEL:
        raise LadderError(
            f"{path} is no llm.c model file: it does not begin with {MODEL} and "
            "a whole header; fetch it again"
        )
    header = np.frombuffer(raw, "<i4")
    version = int(header[1])
    if version not in MODEL_DTYPES:
        raise LadderError(
            f"{path}: version {version} of llm.c's model files is not read, only 3 (fp32) and "
            "5 (bf16); write it again with a current train_gpt2.py"
        )
    context, vocab, layers, heads, channels, padded_vocab = map(int, header[2:8])
    if min(context, vocab, layers, heads, channels) < 1 or padded_vocab < vocab:
        raise LadderError(f"{path}: its header is damaged: {header[2:8].tolist()}; fetch it again")
    if channels % heads:
        raise LadderError(f"{path}: {channels} channels do not divide into {heads} heads")
    config = GPT2Config(
        context=context,
        vocab=vocab,
        padded_vocab=padded_vocab,
        layers=layers,
        heads=heads,
        channels=channels,
    )
    numbers = sum(math.prod(shape) for shape in config.parameter_shapes().values())
    expected = 4 * HEADER_INTS + numbers * MODEL_DTYPES[version].itemsize
    if size != expected:
        raise LadderError(
            f"{path} has {size} bytes where its header asks for {expected}; fetch it again"
        )
    return config, _pieces(path, config, MODEL_DTYPES[version])


def _pieces(path: Path, config: GPT2Config, dtype: np.dtype) -> Pieces:
    with open(path, "rb") as file:
        file.seek(4 * HEADER_INTS)
        for name, shape in config.parameter_shapes().items():
            stacked = name not in ("wte", "wpe", "lnfw", "lnfb")
            for layer in range(shape[0]) if stacked else [None]:
                array = np.empty(shape[1:] if stacked else shape, dtype)
                if file.readinto(array.reshape(-1).view(np.uint8)) != array.nbytes:
                    raise LadderError(f"{path} became shorter while it was read")
                array = check_finite(array, f"{path}: {name}").astype(np.float32, copy=False)
                if name == "wte":
                    array[config.vocab :] = 0
                yield name, layer, array


def save_model(
    path: str | Path,
    config: GPT2Config,
    read: Callable[[str], np.ndarray],
    dtype: str = "float32",
) -> None:
    """Write a model file that llm.c's programs load; `dtype` is "float32" or "bfloat16".

    `read` returns a whole parameter, stacked and padded; one is held at a time.
    """
    version = {"float32": 3, "bfloat16": 5}[dtype]
    with atomic_write(path) as file:
        file.write(_header(MODEL, version, *_shape_fields(config)))
        for name in PARAMETERS:
            file.write(_bytes(read(name), MODEL_DTYPES[version]))


def save_state(
    path: str | Path,
    config: GPT2Config,
    inputs: np.ndarray,
    targets: np.ndarray,
    logits: np.ndarray,
    loss: float,
    read: Callable[[str], np.ndarray],
) -> None:
    """Write a debug state, against which llm.c's test_gpt2 compares one step.

    inputs, targets  token ids (B,T)
    logits           (B,T,V) or (B,T,Vp); the padding is not written
    loss             the mean over all B*T positions
    read             returns the gradient of a parameter by the parameter's name, stacked and padded
    """
    B, T = inputs.shape
    logits = logits.reshape(B, T, -1)[:, :, : config.vocab]
    with atomic_write(path) as file:
        file.write(_header(STATE, STATE_VERSION, B, T))
        file.write(_bytes(inputs, np.dtype("<i4")))
        file.write(_bytes(targets, np.dtype("<i4")))
        file.write(_bytes(logits, np.dtype("<f4")))
        file.write(_bytes(np.asarray([loss]), np.dtype("<f4")))
        for name in PARAMETERS:
            file.write(_bytes(read(name), np.dtype("<f4")))


def save_tokenizer(path: str | Path, tokenizer: Tokenizer) -> None:
    """Write a tokenizer file, with which llm.c's programs print the text that they sample."""
    if tokenizer.eot is None:
        raise LadderError(f"llm.c needs an end-of-text token; tokenizer {tokenizer.name} has none")
    with atomic_write(path) as file:
        file.write(_header(TOKENIZER, TOKENIZER_VERSION, tokenizer.vocab, tokenizer.eot))
        for i in range(tokenizer.vocab):
            token = tokenizer.token_bytes(i)
            file.write(bytes([len(token)]) + token)  # GPT-2's longest token has 128 bytes


def _shape_fields(config: GPT2Config) -> Iterator[int]:
    yield from (config.context, config.vocab, config.layers)
    yield from (config.heads, config.channels, config.padded_vocab)


def _header(*fields: int) -> bytes:
    header = np.zeros(HEADER_INTS, "<i4")
    header[: len(fields)] = fields
    return header.tobytes()


def _bytes(array: np.ndarray, dtype: np.dtype) -> memoryview:
    array = np.ascontiguousarray(array, dtype)
    return memoryview(array.reshape(-1).view(np.uint8))
