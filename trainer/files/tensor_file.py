"""Safetensors files, written and read one tensor at a time.

The format (https://huggingface.co/docs/safetensors): 8 bytes, the little-endian length of the
header; the header, JSON `{name: {"dtype", "shape", "data_offsets"}}` that may end in spaces; then
the tensors' bytes, without gaps.

The `safetensors` library checks the header of a file that is read. The tensors are read here,
because the library maps the file into memory, and the process dies if another one truncates it. The
library's writer needs all tensors in memory at once: for GPT-2 124M and its AdamW moments 1.5 GB of
copies, besides the 2 GB of training. `write_tensors` holds one tensor at a time; it writes the
header last, into space that it left free.
"""

import hashlib
import io
import json
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from ladder.core.common.errors import LadderError
from ladder.core.common.files import open_regular, raw_bytes, size_of

CODES = {
    np.dtype(np.float64): "F64",
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(np.int64): "I64",
    np.dtype(np.int32): "I32",
    np.dtype(np.int16): "I16",
    np.dtype(np.int8): "I8",
    np.dtype(np.uint64): "U64",
    np.dtype(np.uint32): "U32",
    np.dtype(np.uint16): "U16",
    np.dtype(np.uint8): "U8",
    np.dtype(np.bool_): "BOOL",
}
MOST_HEADER_BYTES = 100_000_000  # as the library has it
ENTRY_BYTES = 256  # of a tensor's header entry, its name apart; enough for eight dimensions

# A model's weights one at a time: (parameter, layer or None for all of it, float32 array).
Pieces = Iterable[tuple[str, int | None, np.ndarray]]


def write_tensors(
    file: BinaryIO,
    tensors: Mapping[str, Callable[[], np.ndarray]],
    metadata: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Write tensors to an empty file, calling each function once and holding one array at a time.

    Other readers may need an array to start at a multiple of its item size, so give 2-byte
    tensors with an odd number of elements after the wider ones.
    Returns the `digest` of every tensor.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    space = len(json.dumps(header)) + sum(len(json.dumps(name)) + ENTRY_BYTES for name in tensors)
    space += -space % 8
    file.seek(8 + space)
    digests = {}
    offset = 0
    for name, read in tensors.items():
        array = np.asarray(read(), order="C")
        digests[name] = digest(name, array)
        file.write(raw_bytes(array))
        end = offset + array.nbytes
        shape = list(array.shape)
        header[name] = {"dtype": CODES[array.dtype], "shape": shape, "data_offsets": [offset, end]}
        offset = end
        del array  # before the next one is made
    text = json.dumps(header).encode()
    if len(text) > space:
        raise ValueError(f"the header needs {len(text)} bytes and has {space}")
    file.seek(0)
    file.write(struct.pack("<Q", space) + text.ljust(space))
    return digests


def check_finite(array: np.ndarray, where: str) -> np.ndarray:
    """The array, if every element is a finite number; else LadderError."""
    if not np.isfinite(array).all():
        raise LadderError(f"{where} holds NaN or infinity; fetch or export the weights again")
    return array


def digest(name: str, array: np.ndarray) -> str:
    """SHA-256 over a tensor's name, dtype, shape and bytes."""
    if array.dtype not in CODES:
        raise ValueError(f"{name}: a tensor file cannot hold {array.dtype}")
    seen = hashlib.sha256(json.dumps([name, CODES[array.dtype], list(array.shape)]).encode())
    seen.update(raw_bytes(array))
    return seen.hexdigest()


class TensorFile(Mapping[str, np.ndarray]):
    """A safetensors file as a mapping from name to array; an array is read when it is asked for.

    `layout` maps every name to (dtype, shape) without reading; `metadata` holds what else its
    writer says, as text. The file is opened anew for each tensor, and copied, not mapped
    (ladder/core/common/files.py). Raises LadderError if the file is missing, is not safetensors, or
    has an unknown dtype; for a tensor, if the file was truncated since.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        dtypes = {code: dtype for dtype, code in CODES.items()}
        self.layout: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        self._offsets: dict[str, int] = {}
        with open_regular(self.path) as file:
            self.bytes = size_of(file)
            header, self.metadata, begin = self._read_header(file)
        for name, entry in header.items():
            if entry["dtype"] not in dtypes:
                raise LadderError(
                    f"{self.path}: {name} is of type {entry['dtype']}, "
                    f"which is not one of {', '.join(dtypes)}"
                )
            self.layout[name] = (dtypes[entry["dtype"]], tuple(entry["shape"]))
            self._offsets[name] = begin + entry["data_offsets"][0]

    def __getitem__(self, name: str) -> np.ndarray:
        dtype, shape = self.layout[name]
        with open_regular(self.path) as file:
            if size_of(file) == self.bytes:  # before memory is taken for it
                array = np.empty(shape, dtype)
                file.seek(self._offsets[name])
                if file.readinto(raw_bytes(array)) == array.nbytes:
                    return array
        raise LadderError(f"{self.path} changed while it was read; start again")

    def __contains__(self, name: object) -> bool:  # Mapping's would read the tensor to find out
        return name in self.layout

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout)

    def __len__(self) -> int:
        return len(self.layout)

    def _read_header(self, file: io.BufferedReader) -> tuple[dict[str, Any], dict[str, str], int]:
        """The entry of every tensor, the metadata, and where in the file the tensors' bytes begin.

        The library says whether the header is sound. It maps what it opens, so it is given a copy
        of the header in a file of ours, followed by a hole as long as the tensors are.
        """
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        text = file.read(min(length, MOST_HEADER_BYTES, self.bytes))
        with tempfile.NamedTemporaryFile() as copy:
            copy.write(start + text)
            copy.truncate(self.bytes)
            try:
                with safe_open(copy.name, framework="numpy") as checked:
                    names = set(checked.keys())
            except (SafetensorError, OSError) as error:  # OSError: the library's for an empty file
                raise LadderError(
                    f"{self.path} is truncated or no safetensors file ({error}); fetch or save it "
                    "again"
                ) from None
        header = json.loads(text)
        return {name: header[name] for name in names}, header.get("__metadata__") or {}, 8 + length
