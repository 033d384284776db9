"""Prepare a data set as token files: `python -m trainer prepare tinyshakespeare`.

    tinyshakespeare   1.1 MB of plays, as in char-rnn, nanoGPT and llm.c
    tinystories       2.1 million short stories for children (Eldan and Li 2023), 0.5 G tokens
    fineweb           web pages (Penedo et al. 2024), the sample of 10 G tokens
    fineweb-100B      that of 100 G tokens
    fineweb-edu       educational web pages, fineweb-edu-100B: the same two sizes
    play              the text in trainer/data/play.txt, for a machine without a network
    FILE.txt          a text of your own, its documents apart by lines of <|endoftext|>
    FILE.parquet      your own documents, the column "text"; or a folder of such files

sets.py says how the files lie there.
"""

import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_bytes
from ladder.core.common.files import read_text as read_file
from trainer.data import download, hub, tokenizers
from trainer.data.download import DownloadError
from trainer.data.hub_texts import HUB_TEXTS, is_parquet, of_files, of_the_hub, prepare_text
from trainer.data.sets import Prepared, remove_others, use_or_make
from trainer.data.token_files import is_text, spelled_out, write_tokens
from trainer.data.tokenizers import CHARS_VOCABULARY, Tokenizer, get_tokenizer
from trainer.flags import DATASETS

PLAY = Path(__file__).with_name("play.txt")
MOST_TEXT = 1 << 30  # bytes of a text of one's own, which is tokenized in memory
END_OF_TEXT_LINE = r"(?m)^<\|endoftext\|>[^\S\n]*\n?"
LLMC_VALIDATION = 32768  # tokens, at the start of tinyshakespeare


def prepare(
    name: str,
    data_dir: str | Path,
    tokenizer: str = "gpt2",
    *,
    fallback: bool = True,
    max_tokens: int | None = None,
    shard_tokens: int | None = None,
    threads: int | None = None,
) -> Prepared:
    """The token files of data set `name`, made if they are not there yet.

    With `fallback`, the embedded play replaces tinyshakespeare if that cannot be downloaded, and
    the byte tokenizer replaces GPT-2's vocabulary. Without it, both raise DownloadError.

    Of Parquet files, the Hub's or your own, a set that is there is used whatever its size, unless
    a size is given: `max_tokens` ends the training set early, `shard_tokens` is how many a file
    has. `threads` tokenize it (default: as many as there are cores).
    """
    sizes = max_tokens, shard_tokens, threads
    if name in HUB_TEXTS:
        made = download.places(data_dir, f"{name}/{tokenizer}_prepared.json")
        if not any(path.exists() for path in made):
            hub.pyarrow_parquet()  # where it is missing, nothing is downloaded
        chosen = get_tokenizer(tokenizer, data_dir)
        return prepare_text(of_the_hub(name, data_dir), data_dir, chosen, *sizes)
    if name not in DATASETS and is_parquet(Path(name)):
        if tokenizer.partition(":")[0] == "chars":
            raise LadderError(
                f"{name}: the tokenizer chars is for text files; choose gpt2 or bytes"
            )
        chosen, note = _tokenizer_or_bytes(tokenizer, data_dir, fallback)
        return prepare_text(of_files(Path(name)), data_dir, chosen, *sizes, note)
    if name not in DATASETS:
        return _prepare_file(Path(name), data_dir, tokenizer, fallback)
    if fallback and (why := play_instead(name, data_dir)):
        return dataclasses.replace(prepare("play", data_dir, "bytes"), note=why)
    text = read_text(name, data_dir)
    chosen, note = _tokenizer_or_bytes(tokenizer, data_dir, fallback)
    source = hashlib.sha256(text.encode()).hexdigest()

    def write(place: Path, chosen: Tokenizer) -> dict[str, int]:
        tokens = encode_sections(text, chosen)
        return _write_splits(place, split(tokens, llmc=chosen.name == "gpt2"))

    return use_or_make(name, data_dir, chosen, source, write, note)


def play_instead(name: str, data_dir: str | Path) -> str | None:
    """Why the embedded play and the byte tokenizer replace data set `name`, in one line; None where
    they do not. tinyshakespeare is downloaded for that if it is not here yet."""
    if name == "tinyshakespeare":
        try:
            read_text(name, data_dir)
        except DownloadError as error:
            return f"using the embedded play and the byte tokenizer instead of {name}: {error}"
    return None


def _prepare_file(path: Path, data_dir: str | Path, tokenizer: str, fallback: bool) -> Prepared:
    """A text of one's own, in a folder that is named for the file and for its content: a text that
    was edited is another one."""
    if not path.exists():
        raise LadderError(
            f"there is no data set {str(path)!r}, and no such file; choose one of "
            f"{', '.join(DATASETS)}, or name a text file or Parquet files"
        )
    texts, source = _documents(path)
    folder = _folder(path, source)
    note = None
    if tokenizer.partition(":")[0] == "chars":
        name = f"{tokenizers.OWN_CHARS}{folder}"
        chosen: Tokenizer = tokenizers.CharTokenizer.of_text("".join(texts), name)
        if tokenizer not in ("chars", name):
            before = tokenizer.removeprefix(tokenizers.OWN_CHARS)
            raise LadderError(
                f"the model has the characters of {before}, and {path} is another text "
                f"({folder}); a model that is trained with --tokenizer bytes reads any"
            )
        if chosen.vocab > 65536:
            raise LadderError(f"{path} has {chosen.vocab} characters; choose another --tokenizer")
    else:
        chosen, note = _tokenizer_or_bytes(tokenizer, data_dir, fallback)

    def write(place: Path, chosen: Tokenizer) -> dict[str, int]:
        if isinstance(chosen, tokenizers.CharTokenizer):
            chosen.save(place.with_name(CHARS_VOCABULARY))
        return _write_splits(place, split(_encode_documents(texts, chosen), llmc=False))

    prepared = use_or_make(folder, data_dir, chosen, source, write, note)
    parts = f"{path}: its training part", f"{path}: its last tenth, which validates,"
    return dataclasses.replace(prepared, parts=parts)


def token_files(name: str, data_dir: str | Path, tokenizer: Tokenizer) -> str:
    """The pattern of the token files to validate on that a user names: the name itself, or where it
    is that of a text, the file made of all of it."""
    if not is_text(name):
        return spelled_out(name, "val")
    texts, source = _documents(Path(name))

    def write(place: Path, chosen: Tokenizer) -> dict[str, int]:
        try:
            return _write_splits(place, {"val": _encode_documents(texts, chosen)})
        except LadderError as error:
            raise LadderError(f"{name}: {error}") from None

    folder = f"{_folder(Path(name), source)}-whole"
    return use_or_make(folder, data_dir, tokenizer, source, write).val


def is_another_text(name: str, files: str) -> bool:
    """Whether a text of one's own is another one now than that which these token files hold."""
    if name in DATASETS or is_parquet(Path(name)) or not is_text(name):
        return False
    _, source = _documents(Path(name))
    return _folder(Path(name), source) not in files


def _folder(path: Path, source: str) -> str:
    return f"{path.stem}-{source[:12]}"


def _documents(path: Path) -> tuple[list[str], str]:
    """The documents in a text of one's own, and the hash of their content."""
    parts = re.split(END_OF_TEXT_LINE, read_file(path, MOST_TEXT))
    texts = [part for part in parts if part.strip()]
    if not texts:
        raise LadderError(f"{path} holds no text")
    return texts, hashlib.sha256("\0".join(texts).encode()).hexdigest()


def _encode_documents(texts: Sequence[str], tokenizer: Tokenizer) -> np.ndarray:
    return np.concatenate([tokenizer.encode_document(text) for text in texts])


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


def _write_splits(place: Path, splits: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Write the tokens of "train" and "val", each to its file; returns {file name: tokens}."""
    remove_others(place, ())
    counts = {}
    for which, tokens in splits.items():
        path = place.with_name(f"{place.name}_{which}.bin")
        write_tokens(path, tokens)
        counts[path.name] = len(tokens)
    return counts


def read_text(name: str, data_dir: str | Path) -> str:
    path = PLAY if name == "play" else download.fetch(download.TINYSHAKESPEARE, data_dir)
    return read_bytes(path).decode("utf-8")


def encode_sections(text: str, tokenizer: Tokenizer) -> np.ndarray:
    """The tokens of a text of sections with blank lines between them, (n,) uint16.

    An end-of-text token stands before each section, if the tokenizer has one; the blank line stays
    with the section before it (karpathy/llm.c, dev/data/tinyshakespeare.py).
    """
    *sections, last = text.split("\n\n")
    return _encode_documents([*(f"{section}\n\n" for section in sections), last], tokenizer)


def split(tokens: np.ndarray, llmc: bool) -> dict[str, np.ndarray]:
    """Training and validation: as llm.c, the first 32768 for validation, so that losses can be
    compared; or as nanoGPT, the last tenth."""
    if llmc and len(tokens) > 2 * LLMC_VALIDATION:
        return {"train": tokens[LLMC_VALIDATION:], "val": tokens[:LLMC_VALIDATION]}
    cut = int(0.9 * len(tokens))
    return {"train": tokens[:cut], "val": tokens[cut:]}
