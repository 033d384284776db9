"""Prepare a data set as token files: `python -m trainer prepare tinyshakespeare`.

    tinyshakespeare   1.1 MB of plays, as in char-rnn, nanoGPT and llm.c
    tinystories       2.1 million short stories for children (Eldan and Li 2023), 0.5 G tokens
    fineweb           web pages (Penedo et al. 2024), the 10 G token sample
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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ladder.common.errors import LadderError
from ladder.common.files import alone_in, atomic_write, read_bytes, read_json
from ladder.common.files import read_text as read_file
from trainer.data import download, tokenizers
from trainer.data.download import DownloadError, data_directory
from trainer.data.token_files import TokenLoader, read_count, write_tokens
from trainer.data.tokenizers import Tokenizer, get_tokenizer

__all__ = ["Prepared", "TokenLoader", "data_directory", "prepare"]

PLAY = Path(__file__).with_name("play.txt")
MOST_TEXT = 1 << 30  # bytes of a text of one's own, which is tokenized in memory
END_OF_TEXT_LINE = r"(?m)^<\|endoftext\|>[^\S\n]*\n?"
LLMC_VALIDATION = 32768  # tokens, at the start of tinyshakespeare
SHARD_TOKENS = 10**8  # 200 MB a file

STREAMED = {
    "tinystories": {"path": "roneneldan/TinyStories"},
    "fineweb": {"path": "HuggingFaceFW/fineweb", "name": "sample-10BT"},
}
NAMES = ("tinyshakespeare", *STREAMED, "play")

Stream = Callable[[str, str], Iterable[str]]  # data set, split -> documents


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
    shard_tokens: int = SHARD_TOKENS,
    stream: Stream | None = None,
) -> Prepared:
    """The token files of data set `name`, made if they are not there yet.

    With `fallback`, the embedded play replaces tinyshakespeare if that cannot be downloaded, and
    the byte tokenizer replaces GPT-2's vocabulary. Without it, both raise DownloadError.
    `max_tokens` ends the training set of tinystories and fineweb early; `stream` replaces the
    function that reads their documents.
    """
    if name not in NAMES:
        return _prepare_file(Path(name), data_dir, tokenizer, fallback)
    if name in STREAMED:
        if shard_tokens < 1 or (max_tokens is not None and max_tokens < 1):
            raise LadderError("--shard-tokens and --max-tokens must be at least 1")
        source = f"{STREAMED[name]}, at most {max_tokens} tokens, {shard_tokens} in a file"
        return _prepared(
            name,
            data_dir,
            get_tokenizer(tokenizer, data_dir),
            source,
            lambda place, chosen: _stream_into(
                place, chosen, name, stream or stream_documents, max_tokens, shard_tokens
            ),
        )
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
    documents = re.split(END_OF_TEXT_LINE, read_file(path, MOST_TEXT))
    documents = [document for document in documents if document.strip()]
    if not documents:
        raise LadderError(f"{path} holds no text")
    source = hashlib.sha256("\0".join(documents).encode()).hexdigest()
    folder = f"{path.stem}-{source[:12]}"
    note = None
    if tokenizer.partition(":")[0] == "chars":
        name = f"{tokenizers.OWN_CHARS}{folder}"
        chosen: Tokenizer = tokenizers.CharTokenizer.of_text("".join(documents), name)
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
        parts = [np.array(begin + chosen.encode(text), np.uint16) for text in documents]
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


def stream_documents(name: str, split: str) -> Iterator[str]:
    """The documents of a data set on the Hugging Face hub, as they arrive; nothing is kept."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise LadderError(
            f"{name} is read with the library `datasets`, which is not installed; "
            "run: .venv/bin/python -m pip install 'datasets>=3'"
        ) from None
    try:
        for row in load_dataset(**STREAMED[name], split=split, streaming=True):
            yield row["text"]
    except OSError as error:  # those of the hub's library derive from it
        raise DownloadError(f"cannot download {name} ({type(error).__name__})") from None


def write_shards(
    documents: Iterable[str],
    tokenizer: Tokenizer,
    path_of: Callable[[int], Path],
    *,
    shard_tokens: int = SHARD_TOKENS,
    max_tokens: int | None = None,
) -> dict[str, int]:
    """Write documents to files of `shard_tokens` tokens, the last one perhaps shorter; shard i to
    path_of(i). Returns {file name: tokens}.

    An end-of-text token stands before each document, if the tokenizer has one. A document may go on
    in the next file. Never more than one shard is held in memory.
    """
    begin = [] if tokenizer.eot is None else [tokenizer.eot]
    shard = np.empty(shard_tokens, dtype=np.uint16)
    used, total = 0, 0
    counts: dict[str, int] = {}

    def flush() -> None:
        path = path_of(len(counts))
        write_tokens(path, shard[:used])
        counts[path.name] = used
        print(f"{path}: {used:,} tokens", file=sys.stderr)

    for document in documents:
        tokens = np.array(begin + tokenizer.encode(document.strip()), dtype=np.uint16)
        if max_tokens is not None:
            tokens = tokens[: max_tokens - total]
        total += len(tokens)
        while len(tokens):
            fits = tokens[: shard_tokens - used]
            shard[used : used + len(fits)] = fits
            used, tokens = used + len(fits), tokens[len(fits) :]
            if used == shard_tokens:
                flush()
                used = 0
        if total == max_tokens:
            break
    if used:
        flush()
    return counts


def _stream_into(
    place: Path,
    tokenizer: Tokenizer,
    name: str,
    stream: Stream,
    max_tokens: int | None,
    shard_tokens: int,
) -> dict[str, int]:
    """Shards beside `place`. fineweb has no validation split: its first shard is taken, as llm.c
    does, and `max_tokens` counts the others."""

    def path_of(which: str, i: int) -> Path:
        return place.with_name(f"{place.name}_{which}_{i:06d}.bin")

    def write(
        split: str, limit: int | None, path_of_shard: Callable[[int], Path]
    ) -> dict[str, int]:
        documents = stream(name, split)
        return write_shards(
            documents, tokenizer, path_of_shard, shard_tokens=shard_tokens, max_tokens=limit
        )

    if name == "fineweb":
        limit = None if max_tokens is None else max_tokens + shard_tokens
        counts = write("train", limit, lambda i: path_of("train" if i else "val", i))
    else:
        counts = write("train", max_tokens, lambda i: path_of("train", i))
        counts |= write("validation", None, lambda i: path_of("val", i))
    for which in ("train", "val"):
        if not any(f"_{which}_" in file for file in counts):
            raise LadderError(
                f"{name} gave only {sum(counts.values())} tokens, none for {which}; "
                "choose smaller shards by --shard-tokens"
            )
    return counts


def _prepared(
    name: str,
    data_dir: str | Path,
    tokenizer: Tokenizer,
    source: str,
    write: Callable[[Path, Tokenizer], dict[str, int]],
    note: str | None = None,
) -> Prepared:
    """Use a complete set made from the same `source`, in either place; else let `write` make it."""
    own_characters = tokenizer.name == f"{tokenizers.OWN_CHARS}{name}"
    label = "chars" if own_characters else tokenizer.name.replace(":", "-")
    relative = f"{name}/{label}"
    for place in download.places(data_dir, relative):
        if _is_complete(place, source):
            break
    else:
        place = download.writable_place(data_dir, relative)
        try:
            with alone_in(place.parent, wait=True):
                if not _is_complete(place, source):  # another process may just have made it
                    _make(place, tokenizer, source, write)
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
    write: Callable[[Path, Tokenizer], dict[str, int]],
) -> None:
    manifest = _manifest(place)
    manifest.unlink(missing_ok=True)
    # A smaller set must not be read together with the rest of a larger one.
    for stale in place.parent.glob(f"{place.name}_*.bin"):
        stale.unlink()
    counts = write(place, tokenizer)
    with atomic_write(manifest) as file:
        file.write(json.dumps({"source": source, "tokens": counts}, indent=1).encode())


def _manifest(place: Path) -> Path:
    return place.with_name(f"{place.name}_prepared.json")


def _is_complete(place: Path, source: str) -> bool:
    """Whether the manifest exists and describes `source`, and every file in it is complete."""
    try:
        manifest = read_json(_manifest(place))
        return manifest["source"] == source and all(
            read_count(place.with_name(file)) == count for file, count in manifest["tokens"].items()
        )
    except (ValueError, TypeError, KeyError, AttributeError, LadderError):
        return False
