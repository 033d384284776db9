"""llm.c's `.bin` token files, and the loader that cuts batches from them.

    offset 0     256 int32: magic 20240520, version 1, number of tokens, then zeros
    offset 1024  the tokens, uint16

all little-endian (karpathy/llm.c, dev/data/data_common.py). A large data set is several such files,
its shards. Of them only one batch is read at a time: a training set may be larger than the memory.
"""

import glob
import io
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.common.files import atomic_write, open_regular, raw_bytes, size_of
from trainer.data.batch_order import LlmcOrder, SeededOrder
from trainer.flags import DATASETS

MAGIC, VERSION = 20240520, 1
HEADER_BYTES = 256 * 4  # of all of llm.c's files
LARGEST = 2**31 - 1  # tokens in one file: the header's count is an int32

MOST_DRAWS = 1 << 31  # of random words, to find a position in llm.c's order again: some seconds

# Magic numbers of llm.c's other files: what such a file holds, and what to do with it.
OTHER_KINDS = {
    20240801: "32-bit tokens of Llama 3's vocabulary; give their text by --dataset",
    20240522: "the questions of an evaluation; name it to `python -m trainer eval`",
    20240326: "a model; give it by -e",
    20240328: "a tokenizer; give a text by --dataset",
}


def header(*fields: int) -> bytes:
    """How a file of llm.c's begins: 256 int32, the magic number, the version, and what follows."""
    return np.array([*fields, *[0] * (HEADER_BYTES // 4 - len(fields))], "<i4").tobytes()


def write_tokens(path: str | Path, tokens: np.ndarray) -> None:
    """Write one file, atomically. tokens: (n,) integers from 0 to 65535."""
    tokens = np.asarray(tokens)
    if len(tokens) > LARGEST:
        raise LadderError(f"{path}: {len(tokens)} tokens do not fit in one file; use shards")
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() <= 65535:
        raise LadderError(f"{path}: token ids must be from 0 to 65535, to fit in 16 bits")
    with atomic_write(path) as file:
        file.write(header(MAGIC, VERSION, len(tokens)))
        file.write(np.ascontiguousarray(tokens, dtype="<u2").data)


def read_count(path: str | Path) -> int:
    """The number of tokens in one file.

    Raises LadderError where the file is missing, truncated or something else.
    """
    with open_regular(path) as file:
        return _checked_count(file, path)


def read_tokens(path: str | Path) -> np.ndarray:
    """All tokens of one file, uint16."""
    return read_rows(path, [0], read_count(path)).reshape(-1)


def read_rows(path: str | Path, starts: Sequence[int], length: int) -> np.ndarray:
    """(len(starts), length) tokens of one file, uint16: row i from token `starts[i]` on.

    They are copied: a file that another process cuts short raises LadderError, and does not end
    this process as a mapping of it would. Raises LadderError as `read_count`.
    """
    rows = np.empty((len(starts), length), dtype="<u2")
    with open_regular(path) as file:
        _checked_count(file, path)
        for row, start in zip(rows, starts, strict=True):
            file.seek(HEADER_BYTES + row.itemsize * start)
            if file.readinto(raw_bytes(row)) != row.nbytes:
                raise LadderError(f"{path} became shorter while it was read; prepare it again")
    return rows


def _checked_count(file: io.BufferedReader, path: str | Path) -> int:
    """The number of tokens that the header says, once it agrees with the file's size."""
    size = size_of(file)
    raw = file.read(HEADER_BYTES)
    if raw and int.from_bytes(raw[:4], "little") != MAGIC:
        raise LadderError(f"{path} is not a token file: {_what_else(Path(path), raw)}")
    if len(raw) < HEADER_BYTES:
        raise LadderError(
            f"{path} is truncated: {size} bytes, and the header alone has {HEADER_BYTES}; "
            "prepare it again"
        )
    _, version, count = (int(x) for x in np.frombuffer(raw, dtype="<i4", count=3))
    if version != VERSION:
        raise LadderError(f"{path} has version {version}, not {VERSION}; prepare it again")
    if size != HEADER_BYTES + 2 * count:
        what = "truncated" if size < HEADER_BYTES + 2 * count else "damaged"
        raise LadderError(
            f"{path} is {what}: its header says {count} tokens, its size {size} bytes means "
            f"{(size - HEADER_BYTES) / 2:g}; prepare it again"
        )
    return count


def is_text(path: str | Path) -> bool:
    """Whether a file holds text and not tokens: it has another suffix, and begins otherwise."""
    if Path(path).suffix == ".bin" or not os.path.isfile(path):
        return False
    with open_regular(path) as file:
        return file.read(4) != MAGIC.to_bytes(4, "little")


def _what_else(path: Path, raw: bytes) -> str:
    """What a file most likely is that begins with these bytes, and what to do with it."""
    magic = int.from_bytes(raw[:4], "little")
    if magic in OTHER_KINDS:
        return f"it holds {OTHER_KINDS[magic]}"
    if b"\0" not in raw:
        return f"it looks like text; give it by --dataset {path}"
    new = str(path.with_name(f"headed_{path.name}"))
    return (
        f"it starts with {magic} instead of {MAGIC}; give its text by --dataset, or, if these are "
        "uint16 tokens without a header, as nanoGPT writes them, put one before them: "
        f'python -c "import numpy; from {__name__} import write_tokens; '
        f"write_tokens({new!r}, numpy.fromfile({str(path)!r}, 'uint16'))\""
    )


def find_shards(pattern: str | Path) -> list[Path]:
    """The files that a glob pattern matches, sorted; a plain path may hold any character."""
    if os.path.exists(pattern):
        return [Path(pattern)]
    paths = sorted(path for path in map(Path, glob.glob(str(pattern))) if path.is_file())
    if not paths:
        words = re.sub("[^a-z0-9]", "", str(pattern).lower()).replace("edufineweb", "finewebedu")
        sets = sorted({*DATASETS} - {"play"}, key=len, reverse=True)
        known = next((f" {name}" for name in sets if name.replace("-", "").lower() in words), "")
        raise LadderError(
            f"no token file matches {pattern}; fix the path, or name a text instead, by "
            f"--dataset{known}"
        )
    # Sets of one text lie side by side, named by their tokenizers (sets.py): *train*.bin has all.
    mixed = sorted({path.name.partition("_")[0] for path in paths} & {"gpt2", "bytes", "chars"})
    if len(mixed) > 1:
        raise LadderError(
            f"{pattern} matches the tokens of {' and of '.join(mixed)}; name those of one, such as "
            f"{mixed[-1]}_train*.bin"
        )
    return paths


def spelled_out(pattern: str, split: str) -> str:
    """A pattern, or what it stands for where it is what llm.c named a set by at first: the part
    before _train.bin and _val.bin."""
    whole = f"{pattern}_{split}.bin"
    return whole if os.path.isfile(whole) and not os.path.isfile(pattern) else pattern


def pair_of(pattern: str, split: str, other: str) -> str | None:
    """The pattern of the files of the other split, where there are any: sets are named
    NAME_train*.bin and NAME_val*.bin."""
    folder, name = os.path.split(pattern)
    before, found, after = name.rpartition(split)
    pair = os.path.join(folder, f"{before}{other}{after}")
    return pair if found and (os.path.exists(pair) or glob.glob(pair)) else None


def refuse_short(
    paths: Sequence[Path], counts: Sequence[int], rows: int, T: int, text: str = ""
) -> None:
    """Raise LadderError where a file has too few tokens for so many rows of T.

    text  what an error calls a file that was made of a user's text; "": its path
    """
    for path, count in zip(paths, counts, strict=True):
        if count < rows * T + 1:
            flags = [flag for flag, size in (("-b", rows), ("-t", T)) if size > 1 and count > 1]
            lower = f"lower {' or '.join(flags)}, or " if flags else ""
            other = " or leave out this file" if len(paths) > 1 else ""
            raise LadderError(
                f"{text or path} has {count} token{'s' * (count != 1)}, fewer than the "
                f"{rows * T + 1} that B={rows} T={T} needs; {lower}take a longer text{other}"
            )


@dataclass(eq=False)
class Loader(ABC):
    """Batches of B rows of T tokens from the files of a pattern.

    Of several ranks, each takes every `ranks`-th batch, number `rank` first, and all have the same
    position: together they see what one process sees. `text`: as in `refuse_short`.
    """

    pattern: str | Path
    B: int
    T: int
    _: KW_ONLY
    vocab: int
    seed: int = 0
    rank: int = 0
    ranks: int = 1
    text: str = ""

    def __post_init__(self) -> None:
        if self.B < 1 or self.T < 1:
            raise LadderError(f"B={self.B} sequences of T={self.T} tokens: both must be at least 1")
        self.seed %= 2**64
        self._paths = find_shards(self.pattern)
        self._counts = [read_count(path) for path in self._paths]
        self.tokens = sum(self._counts)

    @abstractmethod
    def reset(self) -> None:
        """Go back to the first batch."""

    @abstractmethod
    def next_batch(self) -> tuple[np.ndarray, np.ndarray]:
        """inputs (B, T) and targets (B, T), int32; targets[b, t] comes after inputs[b, t].

        Raises LadderError where a token is beyond the vocabulary.
        """

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """The position, for restore(): numbers and lists only, for a JSON file."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where another loader's state() was taken.

        Raises LadderError if that loader read other files, or in another order.
        """
        for key, value in self._identity().items():
            if state.get(key) != value:
                raise LadderError(
                    f"the checkpoint's data position does not fit: {key} was {state.get(key)} and "
                    f"is {value} now; resume with the same data and flags"
                )

    def _identity(self) -> dict[str, Any]:
        """What must not change for a position to keep its meaning."""
        return {"B": self.B, "T": self.T, "seed": self.seed, "tokens": self._counts}

    def _read(self, path: Path, starts: Sequence[int], length: int) -> np.ndarray:
        """As `read_rows`, int32. Raises LadderError where a token is beyond the vocabulary.

        That is looked for in what is read anyway, since looking through a large set at the start
        would take minutes.
        """
        rows = read_rows(path, starts, length).astype(np.int32)
        if (largest := int(rows.max())) >= self.vocab:
            row, column = divmod(int(rows.argmax()), length)
            raise LadderError(
                f"{path}: token {starts[row] + column} is {largest}, beyond the vocabulary of "
                f"{self.vocab}; prepare the file with the model's tokenizer"
            )
        return rows


@dataclass(eq=False)
class TokenLoader(Loader):
    """Batches of B sequences of T tokens from all shards, epoch after epoch.

    As in llm.c (llmc/dataloader.h): a batch is a window of B*T + 1 tokens, whose first B*T are the
    inputs and whose last B*T the targets; windows advance by B*T, so the last token of one is the
    first of the next; what is left at the end of a shard, less than a window, is not used. With
    `shuffle`, each epoch takes the shards in a new order, and the windows of each shard in a new
    order. The order depends on the seed and the epoch only, so that a position is three numbers.

    With `llmc_order`, the order is llm.c's own (batch_order.py): a run of llm.c and one here see
    the same batches. A window has then B*T*ranks + 1 tokens, and each rank takes its part of the
    next window of its own order. A position counts the batches of the epoch, since ranks come to
    shards of different sizes at different times.
    """

    _: KW_ONLY
    shuffle: bool
    llmc_order: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        shared = self.ranks if self.llmc_order else 1  # batches of a window
        self._span = shared * self.B * self.T
        self._first = self.rank * self.B * self.T if self.llmc_order else 0  # token of a window
        refuse_short(self._paths, self._counts, self.B * shared, self.T, self.text)
        self._windows = [(count - 1) // self._span for count in self._counts]
        self._order: SeededOrder | LlmcOrder = (
            LlmcOrder(self._windows, self.rank)
            if self.llmc_order
            else SeededOrder(self._windows, self.seed if self.shuffle else None)
        )
        self.batches = shared * sum(self._windows)  # in an epoch
        self.reset()

    def reset(self) -> None:
        self._go_to(epoch=0, shard=0, batch=0)

    def next_batch(self) -> tuple[np.ndarray, np.ndarray]:
        if self.llmc_order:
            return self._read_batch()
        self._skip(self.rank)
        batch = self._read_batch()
        self._skip(self.ranks - self.rank - 1)
        return batch

    def _skip(self, count: int) -> None:
        for _ in range(count):
            self._settle()
            self._batch += 1

    def _settle(self) -> None:
        """Where a shard is used up, go to the next one."""
        if self._batch == len(self._window_order):
            last = self._shard + 1 == len(self._paths)
            self._go_to(self._epoch + last, 0 if last else self._shard + 1, 0)

    def _read_batch(self) -> tuple[np.ndarray, np.ndarray]:
        self._settle()
        start = int(self._window_order[self._batch]) * self._span + self._first
        (window,) = self._read(self._path, [start], self.B * self.T + 1)
        self._batch += 1
        return window[:-1].reshape(self.B, self.T), window[1:].reshape(self.B, self.T)

    def state(self) -> dict[str, Any]:
        shard, batch = self._shard, self._batch
        if self.llmc_order:
            done = self._order.shards(self._epoch)[:shard]
            shard, batch = 0, batch + sum(self._windows[which] for which in done)
        return self._identity() | {"epoch": self._epoch, "shard": shard, "batch": batch}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        position: list[Any] = [state.get(key) for key in ("epoch", "shard", "batch")]
        epoch, shard, batch = position
        if not all(type(x) is int and x >= 0 for x in position) or not (shard < len(self._paths)):
            raise LadderError(f"the checkpoint's data position is damaged: {epoch, shard, batch}")
        if self.llmc_order:
            if epoch * sum(self._windows) > MOST_DRAWS:
                raise LadderError(f"the checkpoint's data position is damaged: epoch {epoch}")
            order = self._order.shards(epoch)
            while batch > (here := self._windows[order[shard]]) and shard + 1 < len(order):
                shard, batch = shard + 1, batch - here
        self._go_to(epoch, shard, batch)

    def _identity(self) -> dict[str, Any]:
        order, ranks = ("llm.c", self.ranks) if self.llmc_order else (None, None)
        own = {"order": order, "ranks": ranks, "shuffle": self.shuffle}
        return own | super()._identity()

    def _go_to(self, epoch: int, shard: int, batch: int) -> None:
        """Open the epoch's shard number `shard`, to take its window number `batch` next."""
        which = int(self._order.shards(epoch)[shard])
        path, count = self._paths[which], self._counts[which]
        if (now := read_count(path)) != count:
            raise LadderError(f"{path} changed during the run: {count} tokens, now {now}")
        if batch > self._windows[which]:
            raise LadderError(
                f"the checkpoint's data position is damaged: batch {batch} of "
                f"{self._windows[which]} in {path}"
            )
        self._path = path
        self._window_order = self._order.windows(epoch, shard)
        self._epoch, self._shard, self._batch = epoch, shard, batch


class RandomOffsetLoader(Loader):
    """Batches of B rows of T tokens; each row begins at a random position of the text, as
    nanoGPT's `get_batch` draws it (karpathy/nanoGPT, train.py).

    A row is T + 1 consecutive tokens of one shard, and every such piece of text is equally likely.
    So rows overlap, some tokens come twice before others come once, and no row has to be seen
    again from the same token on, as it is with the fixed windows of TokenLoader.

    Row number n of a run begins where the n-th random number of the seed says. A position is
    therefore one number, that of the next batch.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_short(self._paths, self._counts, 1, self.T, self.text)
        # The offsets of the shards follow one another; a shard's are below its entry here.
        self._ends = np.cumsum([count - self.T for count in self._counts])
        self.reset()

    def reset(self) -> None:
        self._batch = 0

    def next_batch(self) -> tuple[np.ndarray, np.ndarray]:
        offsets = self._offsets(self._batch + self.rank)
        self._batch += self.ranks
        shards = np.searchsorted(self._ends, offsets, side="right")
        rows = np.empty((self.B, self.T + 1), np.int32)
        for shard in np.unique(shards):
            (here,) = np.nonzero(shards == shard)
            path, first = self._paths[shard], self._ends[shard] - (self._counts[shard] - self.T)
            rows[here] = self._read(path, (offsets[here] - first).tolist(), self.T + 1)
        return rows[:, :-1], rows[:, 1:]

    def _offsets(self, batch: int) -> np.ndarray:
        """(B,) offsets of the rows of a batch, among those of all shards.

        From raw random numbers, whose stream NumPy keeps the same for ever. The remainder prefers
        small offsets by less than (number of offsets) / 2**64, which is nothing.
        """
        random = np.random.PCG64(np.random.SeedSequence([self.seed]))
        random.advance(batch * self.B)
        drawn: np.ndarray = random.random_raw(self.B) % np.uint64(self._ends[-1])
        return drawn.astype(np.int64)

    def state(self) -> dict[str, Any]:
        return self._identity() | {"batch": self._batch}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        batch = state.get("batch")
        if type(batch) is not int or batch < 0:
            raise LadderError(f"the checkpoint's data position is damaged: batch {batch}")
        self._batch = batch

    def _identity(self) -> dict[str, Any]:
        return {"order": "random offsets"} | super()._identity()
