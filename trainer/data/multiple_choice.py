"""llm.c's `.bin` files of multiple choice: a context, four completions, and which one is right.

    offset 0     256 int32: magic 20240522, version 1, number of examples, bytes of the longest
    offset 1024  the examples one after the other, uint16:
                 65535, bytes of this example, its number, label, number of completions,
                 tokens of the context and how many stand before them, the same of each completion

all little-endian (karpathy/llm.c, dev/data/data_common.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.common.files import atomic_write, read_bytes
from trainer.data.token_files import HEADER_BYTES, header

MAGIC, VERSION = 20240522, 1
START = 65535  # begins an example, and is no token
COMPLETIONS = 4
HEAD = 5  # numbers before the context: start, bytes, number, label, completions


@dataclass(frozen=True)
class Example:
    """A question as token ids: the completion number `label` continues the context best."""

    context: Sequence[int]
    completions: Sequence[Sequence[int]]
    label: int


def write_examples(path: str | Path, examples: Sequence[Example]) -> None:
    """Write one file, atomically. Raises LadderError where an example does not fit the format."""
    if len(examples) > START:
        raise LadderError(f"{path}: {len(examples)} examples; a file holds at most {START}")
    parts = [_packed(path, number, example) for number, example in enumerate(examples)]
    longest = max((part.nbytes for part in parts), default=0)
    with atomic_write(path) as file:
        file.write(header(MAGIC, VERSION, len(parts), longest))
        for part in parts:
            file.write(part.tobytes())


def _packed(path: str | Path, number: int, example: Example) -> np.ndarray:
    texts = (example.context, *example.completions)
    sound = len(example.completions) == COMPLETIONS and 0 <= example.label < COMPLETIONS
    sound &= all(len(text) > 0 and 0 <= min(text) <= max(text) < START for text in texts)
    numbers = [START, 0, number, example.label, len(example.completions)]
    for text in texts:
        numbers += [len(text), *text]
    numbers[1] = 2 * len(numbers)
    if not sound or numbers[1] > START:
        raise LadderError(
            f"{path}: example {number} needs {COMPLETIONS} completions, a label that names one of "
            f"them, and from 1 to some {START // 2} token ids below {START} in all"
        )
    return np.array(numbers, dtype="<u2")


def read_examples(path: str | Path, *, vocab: int) -> list[Example]:
    """The examples of one file.

    Raises LadderError where the file is missing, damaged or something else, and where a token is
    beyond the vocabulary of `vocab` tokens.
    """
    data = read_bytes(path)
    if len(data) < HEADER_BYTES:
        raise LadderError(f"{path} is truncated: {len(data)} bytes; prepare it again")
    magic, version, count = (int(x) for x in np.frombuffer(data, dtype="<i4", count=3))
    if magic != MAGIC:
        raise LadderError(
            f"{path} holds no multiple-choice examples: it starts with {magic} instead of {MAGIC}; "
            "run `python -m trainer prepare hellaswag`"
        )
    if version != VERSION:
        raise LadderError(f"{path} has version {version}, not {VERSION}; prepare it again")
    rest = len(data) - HEADER_BYTES
    numbers = np.frombuffer(data, dtype="<u2", count=rest // 2, offset=HEADER_BYTES)
    examples, start = [], 0
    for number in range(count):
        try:
            example, start = _unpacked(numbers, start, number)
        except ValueError as error:
            raise LadderError(
                f"{path} is damaged in example {number} ({error}); prepare it again"
            ) from None
        largest = max(map(max, (example.context, *example.completions)))
        if largest >= vocab:
            raise LadderError(
                f"{path}: example {number} holds token {largest}, beyond the vocabulary of "
                f"{vocab}; prepare it with the model's tokenizer"
            )
        examples.append(example)
    if not examples or 2 * start != rest:
        raise LadderError(
            f"{path} is damaged: its header says {count} examples, and {rest - 2 * start} bytes "
            "follow them; prepare it again"
        )
    return examples


def _unpacked(numbers: np.ndarray, start: int, number: int) -> tuple[Example, int]:
    """The example that begins at `start`, and where the next one begins. Raises ValueError."""
    head = numbers[start : start + HEAD].tolist()
    if len(head) < HEAD:
        raise ValueError("the file ends")
    mark, size, named, label, completions = head
    if (mark, named, completions) != (START, number, COMPLETIONS) or label >= COMPLETIONS:
        raise ValueError(f"it begins with {head}")
    end, at = start + size // 2, start + HEAD
    texts: list[list[int]] = []
    for _ in range(1 + completions):
        if at >= min(end, len(numbers)):
            raise ValueError("it ends too soon")
        length = int(numbers[at])
        texts.append(numbers[at + 1 : at + 1 + length].tolist())
        at += 1 + length
        if length == 0 or len(texts[-1]) < length:
            raise ValueError(f"a text of {length} tokens, of which {len(texts[-1])} are there")
    if size != 2 * (at - start):
        raise ValueError(f"it says {size} bytes, and has {2 * (at - start)}")
    context, *endings = texts
    return Example(context, endings, label), at
