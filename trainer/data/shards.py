"""Long texts as shards of token files: tokenized by several threads, resumed at the last shard.

After each whole shard, PLACE_progress.json says what is on the disk, which document comes next, and
how many of its tokens are in the last shard.
"""

import itertools
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_json, write_json
from trainer.data.hub import Position
from trainer.data.token_files import read_count, write_tokens
from trainer.data.tokenizers import Tokenizer

TASK = 128  # documents that a thread tokenizes at a time

Documents = Iterable[tuple[Position, str]]
Tokens = Iterable[tuple[Position, np.ndarray]]


@dataclass(frozen=True)
class Done:
    """What is on the disk: the tokens of each file; the split that is being written, its next
    document, and how many tokens of that are written already."""

    tokens: dict[str, int]
    split: str
    document: Position = (0, 0)
    cut: int = 0


def progress_path(place: Path) -> Path:
    return place.with_name(f"{place.name}_progress.json")


def save_progress(place: Path, source: str, done: Done) -> None:
    """Note how far the writing has come; `source`: what is written, and in which sizes."""
    write_json(progress_path(place), {"source": source, **asdict(done)})


def read_progress(place: Path, source: str, splits: Iterable[str]) -> Done | None:
    """How far an interrupted run has come with the same source; None where there was none, or what
    is on the disk is not what it says."""
    try:
        noted = read_json(progress_path(place))
        counts, (file, row), cut = noted["tokens"], noted["document"], noted["cut"]
        name = re.escape(place.name) + r"_(train|val)_[0-9]{6}\.bin"
        sound = noted["source"] == source and noted["split"] in splits
        sound &= all(type(x) is int and x >= 0 for x in (file, row, cut))
        sound &= all(
            re.fullmatch(name, file) is not None and read_count(place.with_name(file)) == count
            for file, count in counts.items()
        )
        return Done(counts, noted["split"], (file, row), cut) if sound else None
    except (ValueError, TypeError, KeyError, AttributeError, LadderError):
        return None


def tokenized(
    documents: Documents, tokenizer: Tokenizer, threads: int
) -> Iterator[tuple[Position, np.ndarray]]:
    """The tokens of each document (n,), uint16, in the order of documents; an end-of-text token
    stands before each, if the tokenizer has one.

    Documents are read a few tasks ahead of what the threads do.
    """
    if threads == 1:
        for position, text in documents:
            yield position, tokenizer.encode_document(text)
        return

    def encode(texts: list[str]) -> list[np.ndarray]:
        return [tokenizer.encode_document(text) for text in texts]

    iterator = iter(documents)
    under_way: deque[tuple[list[Position], Future[list[np.ndarray]]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        while True:
            while len(under_way) < 2 * threads and (task := [*itertools.islice(iterator, TASK)]):
                positions, texts = [list(part) for part in zip(*task, strict=True)]
                under_way.append((positions, pool.submit(encode, texts)))
            if not under_way:
                return
            positions, future = under_way.popleft()
            yield from zip(positions, future.result(), strict=True)


def write_shards(
    documents: Tokens,
    path_of: Callable[[int], Path],
    *,
    shard_tokens: int,
    max_tokens: int | None = None,
    counts: dict[str, int] | None = None,
    cut: int = 0,
    save: Callable[[dict[str, int], Position, int], None] = lambda counts, document, cut: None,
) -> dict[str, int]:
    """Write documents to files of `shard_tokens` tokens, the last one perhaps shorter; shard i to
    path_of(i). Returns {file name: tokens}.

    counts  of the files that are there already, to go on behind them
    cut     how many tokens of the first document are in them
    save    is told, after each whole shard, the counts, the document that it ends in, and how many
            tokens of that are written

    A document may go on in the next file. Never more than one shard is held in memory.
    """
    shard = np.empty(shard_tokens, dtype=np.uint16)
    counts = dict(counts or {})
    used, total = 0, sum(counts.values())
    before, start, console = total, time.monotonic(), Console(stderr=True)
    bar = Progress(  # on a terminal, how full the shard is; elsewhere a line for a shard
        TextColumn("{task.description}"),
        BarColumn(24),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    task = bar.add_task(f"shard {len(counts)}", total=shard_tokens, speed="")
    with bar:

        def flush() -> None:
            path = path_of(len(counts))
            write_tokens(path, shard[:used])
            counts[path.name] = used
            line = f"{path}: {used:,} tokens"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
            bar.reset(task, description=f"shard {len(counts)}")

        for position, tokens in documents:
            done, cut = cut, 0
            tokens = tokens[done:]
            if max_tokens is not None:
                tokens = tokens[: max_tokens - total]
            total += len(tokens)
            while len(tokens):
                fits = tokens[: shard_tokens - used]
                shard[used : used + len(fits)] = fits
                used, done, tokens = used + len(fits), done + len(fits), tokens[len(fits) :]
                if used == shard_tokens:
                    flush()
                    save(counts, position, done)
                    used = 0
            if not bar.disable:
                speed = (total - before) / max(1e-9, time.monotonic() - start)
                bar.update(task, completed=used, speed=f"{speed:,.0f} tokens/s")
            if total == max_tokens:
                break
        if used:
            flush()
    return counts
