"""Texts in Parquet files, the Hugging Face Hub's or one's own, as shards of tokens."""

import hashlib
import itertools
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ladder.core.common.errors import LadderError
from ladder.core.common.files import atomic_write
from ladder.core.common.install import cores
from trainer.data import hub, shards
from trainer.data.download import hash_of
from trainer.data.hub import UNREAD, HubText, Position, fetch_file, list_files, own_documents
from trainer.data.sets import Prepared, note_complete, remove_others, use_or_make
from trainer.data.token_files import LARGEST, read_count
from trainer.data.tokenizers import Tokenizer, get_tokenizer

SHARD_TOKENS = 10**8  # 200 MB a file

HUB_TEXTS = {
    "tinystories": HubText(
        "roneneldan/TinyStories", {"train": "data/train-", "val": "data/validation-"}, strip=True
    ),
    "fineweb": HubText("HuggingFaceFW/fineweb", {"train": "sample/10BT/"}),
    "fineweb-100B": HubText("HuggingFaceFW/fineweb", {"train": "sample/100BT/"}),
    "fineweb-edu": HubText("HuggingFaceFW/fineweb-edu", {"train": "sample/10BT/"}),
    "fineweb-edu-100B": HubText("HuggingFaceFW/fineweb-edu", {"train": "sample/100BT/"}),
}
# Tokenized already, by llm.c's dev/data/fineweb.py: the repository, and how its files' names begin.
READY = {
    "fineweb-100B": ("chrisdryden/FineWebTokenizedGPT2", "fineweb_"),
    "fineweb-edu-100B": ("karpathy/fineweb-edu-100B-gpt2-token-shards", "edu_fineweb_"),
}


@dataclass(frozen=True)
class Text:
    """A text in Parquet files: the name of its set, what it is made from, its splits, and the
    documents of a split from a position on."""

    name: str
    source: str
    splits: list[str]
    documents: Callable[[str, Position], shards.Documents]


def of_the_hub(name: str, data_dir: str | Path) -> Text:
    """A text of the Hub."""
    text = HUB_TEXTS[name]

    def documents(split: str, start: Position) -> shards.Documents:
        return hub.documents(text, name, split, data_dir, start)

    return Text(name, f"{text.repository} {text.splits}", list(text.splits), documents)


def is_parquet(path: Path) -> bool:
    """Whether a path is of Parquet files of one's own: one, or a folder of them."""
    return path.is_dir() or (path.suffix == ".parquet" and path.is_file())


def of_files(path: Path) -> Text:
    """Parquet files of one's own, in the order of their names. The first shard is to validate on.
    The set's folder is named for the path and for the content."""
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.glob("*.parquet") if file.is_file())
    if not files:
        raise LadderError(
            f"the folder {path} holds no .parquet files; of plain text, name one file"
        )
    source = hashlib.sha256(" ".join(map(hash_of, files)).encode()).hexdigest()
    name = f"{path.resolve().stem}-{source[:12]}"
    return Text(name, source, ["train"], lambda split, start: own_documents(files, start))


def prepare_text(
    text: Text,
    data_dir: str | Path,
    tokenizer: Tokenizer,
    max_tokens: int | None,
    shard_tokens: int | None,
    threads: int | None,
    note: str | None = None,
) -> Prepared:
    """A text as shards: at most so many tokens to train on, so many in a file."""
    for flag, number in (
        ("--max-tokens", max_tokens),
        ("--shard-tokens", shard_tokens),
        ("--threads", threads),
    ):
        if number is not None and number < 1:
            raise LadderError(f"{flag} must be at least 1, not {number}")
    if shard_tokens is not None and shard_tokens > LARGEST:
        raise LadderError(f"--shard-tokens: a file holds at most {LARGEST}, not {shard_tokens}")
    in_a_file = shard_tokens or SHARD_TOKENS
    size = f"at most {max_tokens} tokens, {in_a_file} in a file"

    def write(place: Path, tokenizer: Tokenizer) -> dict[str, int]:
        told, splits = f"{text.source}, {size}", text.splits
        done = shards.read_progress(place, told, splits) or shards.Done({}, splits[0])
        counts = done.tokens
        for split in splits[splits.index(done.split) :]:
            done = done if split == done.split else shards.Done(counts, split)
            read_on = _begun(text.documents(split, done.document))
            remove_others(place, counts)
            tokens = shards.tokenized(read_on, tokenizer, threads or cores())
            counts = _write_split(
                place, told, "val" not in splits, done, tokens, max_tokens, in_a_file
            )
        for which in ("train", "val"):
            if not any(f"_{which}_" in file for file in counts):
                raise LadderError(
                    f"{text.name} gave only {sum(counts.values())} tokens, none for {which}; "
                    "choose smaller shards by --shard-tokens"
                )
        shards.progress_path(place).unlink(missing_ok=True)
        # With --max-tokens the last file was not read to its end.
        shutil.rmtree(place.with_name(UNREAD), ignore_errors=True)
        return counts

    wanted = None if max_tokens is shard_tokens is None else size
    where = text.name, data_dir, tokenizer, text.source
    return use_or_make(*where, write, note, size=size, wanted=wanted)


def _begun(documents: shards.Documents) -> shards.Documents:
    """The documents, the first of them read already: where that fails, the files of an earlier set
    are still there."""
    iterator = iter(documents)
    return itertools.chain(list(itertools.islice(iterator, 1)), iterator)


def _write_split(
    place: Path,
    source: str,
    first_is_val: bool,
    done: shards.Done,
    tokens: shards.Tokens,
    max_tokens: int | None,
    shard_tokens: int,
) -> dict[str, int]:
    """The shards of a split beside `place`, behind what is done; returns those of all splits.

    Where a text has no validation split, its first shard is taken, as llm.c does, and `max_tokens`
    counts the others.
    """
    split = done.split
    limit = max_tokens if split == "train" else None
    if first_is_val and limit is not None:
        limit += shard_tokens
    mine = {f: n for f, n in done.tokens.items() if first_is_val or f"_{split}_" in f}
    others = {f: n for f, n in done.tokens.items() if f not in mine}

    def path_of(i: int) -> Path:
        which = "val" if first_is_val and i == 0 else split
        return place.with_name(f"{place.name}_{which}_{i:06d}.bin")

    def save(counts: dict[str, int], document: Position, cut: int) -> None:
        shards.save_progress(place, source, shards.Done(others | counts, split, document, cut))

    return others | shards.write_shards(
        tokens,
        path_of,
        shard_tokens=shard_tokens,
        max_tokens=limit,
        counts=mine,
        cut=done.cut,
        save=save,
    )


def prepare_ready(name: str, count: int, data_dir: str | Path) -> Prepared:
    """Shards that are tokenized already: the one to validate on, and the first so many to train
    on. Those that are here are not downloaded again, and after an interruption they are a smaller
    set. Raises LadderError."""
    if name not in READY:
        raise LadderError(f"there are no shards of {name}, only of {' and '.join(READY)}")
    if count < 1:
        raise LadderError(f"--shards must be at least 1, not {count}")
    text, (repository, prefix) = HUB_TEXTS[name], READY[name]
    source = f"{text.repository} {text.splits}"

    def size_of(training: int) -> str:
        return f"{training} shards of {repository}"

    def write(place: Path, tokenizer: Tokenizer) -> dict[str, int]:
        validation = list_files(repository, f"{prefix}val_", ".bin")[:1]
        training = list_files(repository, f"{prefix}train_", ".bin")[:count]
        if len(training) < count:
            raise LadderError(f"--shards {count}: {repository} has {len(training)}")
        files = (*validation, *training)
        names = {path: f"{place.name}_{path.removeprefix(prefix)}" for path, _ in files}
        remove_others(place, names.values())
        shards.progress_path(place).unlink(missing_ok=True)  # of other files with the same names
        counts = {}
        for path, sha256 in files:
            to = f"{place.parent.name}/{names[path]}"
            file = fetch_file(repository, path, sha256, to, place.parent.parent)
            if file.parent != place.parent:  # in the cache; a set lies in one folder
                cached, file = file, place.with_name(file.name)
                with cached.open("rb") as source_file, atomic_write(file) as copy:
                    shutil.copyfileobj(source_file, copy)
            counts[file.name] = read_count(file)
            print(f"{file}: {counts[file.name]:,} tokens", file=sys.stderr)
            if len(counts) > 1:
                note_complete(place, source, size_of(len(counts) - 1), counts)
        return counts

    tokenizer = get_tokenizer("gpt2", data_dir)
    size = size_of(count)
    return use_or_make(name, data_dir, tokenizer, source, write, size=size, wanted=size)
