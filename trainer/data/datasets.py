"""Prepare a data set as token files: `python -m trainer prepare tinyshakespeare`.

    tinyshakespeare   1.1 MB of plays, as in char-rnn, nanoGPT and llm.c
    tinystories       2.1 million short stories for children (Eldan and Li 2023), 0.5 G tokens
    fineweb           web pages (Penedo et al. 2024), the sample of 10 G tokens
    fineweb-100B      that of 100 G tokens
    fineweb-edu       educational web pages, fineweb-edu-100B: the same two sizes
    play              the text in trainer/data/play.txt, for a machine without a network
    FILE.txt          a text of your own, its documents apart by lines of <|endoftext|>

The files are written to DATA/NAME/: TOKENIZER_train*.bin, TOKENIZER_val*.bin, and last of all
TOKENIZER_prepared.json, which lists the files of the set. A set without it is incomplete and
is made again.
"""

from __future__ import annotations

import glob
import hashlib
import json
import re
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ladder.common.errors import LadderError
from ladder.common.files import alone_in, atomic_write, read_bytes, read_json
from ladder.common.files import read_text as read_file
from trainer.data import download, tokenizers
from trainer.data.download import DownloadError, data_directory
from trainer.data.hub import HubText, Position, documents, fetch_file, list_files
from trainer.data.shards import (
    Documents,
    Done,
    Tokens,
    cores,
    progress_path,
    read_progress,
    save_progress,
    tokenized,
    write_shards,
)
from trainer.data.token_files import TokenLoader, read_count, write_tokens
from trainer.data.tokenizers import Tokenizer, get_tokenizer

__all__ = ["Prepared", "TokenLoader", "data_directory", "prepare"]

PLAY = Path(__file__).with_name("play.txt")
MOST_TEXT = 1 << 30  # bytes of a text of one's own, which is tokenized in memory
END_OF_TEXT_LINE = r"(?m)^<\|endoftext\|>[^\S\n]*\n?"
LLMC_VALIDATION = 32768  # tokens, at the start of tinyshakespeare
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
NAMES = ("tinyshakespeare", *HUB_TEXTS, "play")

# Set, its name, split, data directory, start -> its documents from there on (hub.documents)
Reader = Callable[[HubText, str, str, str | Path, Position], Documents]


@dataclass(frozen=True)
class Prepared:
    """Glob patterns of the token files, the tokenizer that made them, and, if something else than
    was asked for is used, one line that says what and why."""

    train: str
    val: str
    tokenizer: Tokenizer
    note: str | None = None


def prepare(
    name: str,
    data_dir: str | Path,
    tokenizer: str = "gpt2",
    *,
    fallback: bool = True,
    max_tokens: int | None = None,
    shard_tokens: int | None = None,
    processes: int | None = None,
    read: Reader = documents,
) -> Prepared:
    """The token files of data set `name`, made if they are not there yet.

    With `fallback`, the embedded play replaces tinyshakespeare if that cannot be downloaded, and
    the byte tokenizer replaces GPT-2's vocabulary. Without it, both raise DownloadError.

    Of a text of the Hub, a set that is there is used whatever its size, unless a size is given:
    `max_tokens` ends the training set early, `shard_tokens` is how many a file has. `processes`
    tokenize it (default: as many as there are cores), and `read` reads its documents.
    """
    if name in HUB_TEXTS:
        chosen = get_tokenizer(tokenizer, data_dir)
        sizes = (max_tokens, shard_tokens)
        return _prepare_hub_text(name, data_dir, chosen, read, sizes, processes)
    if name not in NAMES:
        return _prepare_file(Path(name), data_dir, tokenizer, fallback)
    try:
        text = read_text(name, data_dir)
    except DownloadError as error:
        if not fallback:
            raise
        prepared = prepare("play", data_dir, "bytes")
        return Prepared(
            prepared.train,
            prepared.val,
            prepared.tokenizer,
            f"using the embedded play and the byte tokenizer instead of {name}: {error}",
        )
    chosen, note = _tokenizer_or_bytes(tokenizer, data_dir, fallback)
    source = hashlib.sha256(text.encode()).hexdigest()

    def write(place: Path, chosen: Tokenizer) -> dict[str, int]:
        return _write_splits(place, split(encode_sections(text, chosen), chosen))

    return _prepared(name, data_dir, chosen, source, write, note)


def _prepare_file(path: Path, data_dir: str | Path, tokenizer: str, fallback: bool) -> Prepared:
    """A text of one's own, in a folder that is named for the file and for its content: a text that
    was edited is another one."""
    if not path.exists():
        raise LadderError(
            f"there is no data set {str(path)!r}, and no such file; choose one of "
            f"{', '.join(NAMES)}, or name a text file"
        )
    parts = re.split(END_OF_TEXT_LINE, read_file(path, MOST_TEXT))
    texts = [part for part in parts if part.strip()]
    if not texts:
        raise LadderError(f"{path} holds no text")
    source = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    folder = f"{path.stem}-{source[:12]}"
    note = None
    if tokenizer.partition(":")[0] == "chars":
        name = f"{tokenizers.OWN_CHARS}{folder}"
        chosen: Tokenizer = tokenizers.CharTokenizer.of_text("".join(texts), name)
        if tokenizer not in ("chars", name):
            before = tokenizer.removeprefix(tokenizers.OWN_CHARS)
            raise LadderError(
                f"{path} is {folder} now, and the model has the characters of {before}"
            )
        if chosen.vocab > 65536:
            raise LadderError(f"{path} has {chosen.vocab} characters; choose another --tokenizer")
    else:
        chosen, note = _tokenizer_or_bytes(tokenizer, data_dir, fallback)

    def write(place: Path, chosen: Tokenizer) -> dict[str, int]:
        if isinstance(chosen, tokenizers.CharTokenizer):
            chosen.save(place.with_name("chars_vocabulary.json"))
        begin = [] if chosen.eot is None else [chosen.eot]
        parts = [np.array(begin + chosen.encode(text), np.uint16) for text in texts]
        tokens = np.concatenate(parts)
        cut = int(0.9 * len(tokens))
        return _write_splits(place, (tokens[:cut], tokens[cut:]))

    return _prepared(folder, data_dir, chosen, source, write, note)


def _tokenizer_or_bytes(
    name: str, data_dir: str | Path, fallback: bool
) -> tuple[Tokenizer, str | None]:
    """A tokenizer; with `fallback`, that of bytes and a note where its vocabulary is missing."""
    try:
        return get_tokenizer(name, data_dir), None
    except DownloadError as error:
        if not fallback:
            raise
        note = f"using the byte tokenizer instead of {name}: {error}"
        return tokenizers.ByteTokenizer(), note


def _write_splits(place: Path, splits: tuple[np.ndarray, np.ndarray]) -> dict[str, int]:
    """Write the tokens to train and to validate on; returns {file name: tokens}."""
    _remove_others(place, ())
    counts = {}
    for which, tokens in zip(("train", "val"), splits, strict=True):
        path = place.with_name(f"{place.name}_{which}.bin")
        write_tokens(path, tokens)
        counts[path.name] = len(tokens)
    return counts


def read_text(name: str, data_dir: str | Path) -> str:
    """The text of tinyshakespeare or of the play."""
    path = PLAY if name == "play" else download.fetch(download.TINYSHAKESPEARE, data_dir)
    return read_bytes(path).decode("utf-8")


def encode_sections(text: str, tokenizer: Tokenizer) -> np.ndarray:
    """The tokens of a text of sections with blank lines between them, (n,) uint16.

    An end-of-text token stands before each section, if the tokenizer has one; the blank line stays
    with the section before it (karpathy/llm.c, dev/data/tinyshakespeare.py).
    """
    if tokenizer.eot is None:
        return np.array(tokenizer.encode(text), dtype=np.uint16)
    sections = text.split("\n\n")
    tokens: list[int] = []
    for i, section in enumerate(sections):
        last = i + 1 == len(sections)
        tokens += [tokenizer.eot, *tokenizer.encode(section if last else section + "\n\n")]
    return np.array(tokens, dtype=np.uint16)


def split(tokens: np.ndarray, tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """(training, validation): with GPT-2's tokens as llm.c, the first 32768 for validation, so that
    losses can be compared; with others as nanoGPT, the last tenth."""
    if tokenizer.name == "gpt2" and len(tokens) > 2 * LLMC_VALIDATION:
        return tokens[LLMC_VALIDATION:], tokens[:LLMC_VALIDATION]
    cut = int(0.9 * len(tokens))
    return tokens[:cut], tokens[cut:]


def _prepare_hub_text(
    name: str,
    data_dir: str | Path,
    tokenizer: Tokenizer,
    read: Reader,
    sizes: tuple[int | None, int | None],
    processes: int | None,
) -> Prepared:
    """A text of the Hub as shards; sizes: at most so many tokens to train on, tokens in a file."""
    text, (max_tokens, shard_tokens) = HUB_TEXTS[name], sizes
    for flag, number in (
        ("--max-tokens", max_tokens),
        ("--shard-tokens", shard_tokens),
        ("--processes", processes),
    ):
        if number is not None and number < 1:
            raise LadderError(f"{flag} must be at least 1, not {number}")
    in_a_file = shard_tokens or SHARD_TOKENS
    size = f"at most {max_tokens} tokens, {in_a_file} in a file"
    source = f"{text.repository} {text.splits}"

    def write(place: Path, tokenizer: Tokenizer) -> dict[str, int]:
        done = read_progress(place, f"{source}, {size}", text.splits)
        done = done or Done({}, next(iter(text.splits)))
        _remove_others(place, done.counts)
        while True:
            tokens = tokenized(
                read(text, name, done.split, data_dir, done.document),
                *(tokenizer, data_dir, processes or cores()),
            )
            counts = _write_split(
                *(place, f"{source}, {size}", text, done, tokens),
                *(max_tokens, in_a_file),
            )
            left = [*text.splits][[*text.splits].index(done.split) + 1 :]
            if not left:
                break
            done = Done(counts, left[0])
        for which in ("train", "val"):
            if not any(f"_{which}_" in file for file in counts):
                raise LadderError(
                    f"{name} gave only {sum(counts.values())} tokens, none for {which}; "
                    "choose smaller shards by --shard-tokens"
                )
        return counts

    wanted = None if sizes == (None, None) else size
    return _prepared(name, data_dir, tokenizer, source, write, size=size, wanted=wanted)


def _write_split(
    place: Path,
    source: str,
    text: HubText,
    done: Done,
    tokens: Tokens,
    max_tokens: int | None,
    shard_tokens: int,
) -> dict[str, int]:
    """The shards of a split beside `place`, behind what is done; returns those of all splits.

    Where a text has no validation split, its first shard is taken, as llm.c does, and `max_tokens`
    counts the others.
    """
    split, first_is_val = done.split, "val" not in text.splits
    limit = max_tokens if split == "train" else None
    if first_is_val and limit is not None:
        limit += shard_tokens
    mine = {f: n for f, n in done.counts.items() if first_is_val or f"_{split}_" in f}
    others = {f: n for f, n in done.counts.items() if f not in mine}

    def path_of(i: int) -> Path:
        which = "val" if first_is_val and i == 0 else split
        return place.with_name(f"{place.name}_{which}_{i:06d}.bin")

    def save(counts: dict[str, int], document: Position, cut: int) -> None:
        save_progress(place, source, Done(others | counts, split, document, cut))

    return others | write_shards(
        tokens,
        path_of,
        shard_tokens=shard_tokens,
        max_tokens=limit,
        counts=mine,
        cut=done.cut,
        save=save,
    )


def prepare_ready(name: str, shards: int, data_dir: str | Path) -> Prepared:
    """Shards that are tokenized already: the one to validate on, and the first so many to train
    on. Those that are here are not downloaded again. Raises LadderError."""
    if name not in READY:
        raise LadderError(f"there are no shards of {name}, only of {' and '.join(READY)}")
    if shards < 1:
        raise LadderError(f"--shards must be at least 1, not {shards}")
    text, (repository, prefix) = HUB_TEXTS[name], READY[name]

    def write(place: Path, tokenizer: Tokenizer) -> dict[str, int]:
        validation = list_files(repository, f"{prefix}val_", ".bin")[:1]
        training = list_files(repository, f"{prefix}train_", ".bin")[:shards]
        if len(training) < shards:
            raise LadderError(f"--shards {shards}: {repository} has {len(training)}")
        names = {path: f"{place.name}_{path.removeprefix(prefix)}" for path, _ in training}
        names |= {path: f"{place.name}_{path.removeprefix(prefix)}" for path, _ in validation}
        _remove_others(place, names.values())
        counts = {}
        for path, sha256 in (*validation, *training):
            to = f"{place.parent.name}/{names[path]}"
            file = fetch_file(repository, path, sha256, to, place.parent.parent)
            counts[file.name] = read_count(file)
            print(f"{file}: {counts[file.name]:,} tokens", file=sys.stderr)
        return counts

    tokenizer = get_tokenizer("gpt2", data_dir)
    source, size = f"{text.repository} {text.splits}", f"{shards} shards of {repository}"
    return _prepared(name, data_dir, tokenizer, source, write, size=size, wanted=size)


def _prepared(
    name: str,
    data_dir: str | Path,
    tokenizer: Tokenizer,
    source: str,
    write: Callable[[Path, Tokenizer], dict[str, int]],
    note: str | None = None,
    size: str = "",
    wanted: str | None = None,
) -> Prepared:
    """Use a complete set made from the same `source`, in either place; else let `write` make it.

    size    of what `write` makes, in words
    wanted  the size that a set must have to be used; None: any will do
    """
    own_characters = tokenizer.name == f"{tokenizers.OWN_CHARS}{name}"
    label = "chars" if own_characters else tokenizer.name.replace(":", "-")
    relative = f"{name}/{label}"
    for place in download.places(data_dir, relative):
        if _is_complete(place, source, wanted):
            break
    else:
        place = download.writable_place(data_dir, relative)
        try:
            with alone_in(place.parent, wait=True):
                if not _is_complete(place, source, wanted):  # another process may just have made it
                    _make(place, tokenizer, source, size, write)
        except OSError as error:
            raise LadderError(
                f"cannot write the token files in {place.parent} ({error.strerror}); "
                "give a writable folder by --data-dir"
            ) from None
    files = glob.escape(str(place))  # a data directory may be called "data[1]"
    return Prepared(f"{files}_train*.bin", f"{files}_val*.bin", tokenizer, note)


def _make(
    place: Path,
    tokenizer: Tokenizer,
    source: str,
    size: str,
    write: Callable[[Path, Tokenizer], dict[str, int]],
) -> None:
    manifest = _manifest(place)
    manifest.unlink(missing_ok=True)
    content = {"source": source, "size": size, "tokens": write(place, tokenizer)}
    with atomic_write(manifest) as file:
        file.write(json.dumps(content, indent=1).encode())
    progress_path(place).unlink(missing_ok=True)


def _remove_others(place: Path, kept: Collection[str]) -> None:
    """Remove token files of an earlier set: a smaller set must not be read together with the rest
    of a larger one."""
    for stale in place.parent.glob(f"{glob.escape(place.name)}_*.bin"):
        if stale.name not in kept:
            stale.unlink()


def _manifest(place: Path) -> Path:
    return place.with_name(f"{place.name}_prepared.json")


def _is_complete(place: Path, source: str, wanted: str | None) -> bool:
    """Whether the manifest exists and describes `source` in the size that is wanted, and every file
    in it is complete."""
    try:
        manifest = read_json(_manifest(place))
        same = manifest["source"] == source and wanted in (None, manifest["size"])
        return same and all(
            read_count(place.with_name(file)) == count for file, count in manifest["tokens"].items()
        )
    except (ValueError, TypeError, KeyError, AttributeError, LadderError):
        return False
