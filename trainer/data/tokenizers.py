"""Text to token ids and back: GPT-2's byte-pair encoding, plain bytes, or plain characters.

The first is tiktoken's work, with the merge list read from the data directory. The other two are
what one would write first, and are all that a small model on a small text needs.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_json, read_text, write_json
from trainer.data import download
from trainer.flags import TOKENIZERS

CHARS_VOCABULARY = "chars_vocabulary.json"  # in the folder of a text
OWN_CHARS = "chars:"  # and the folder of a text of one's own
END_OF_TEXT = "<|endoftext|>"

# How GPT-2 cuts text into words before merging (openai/gpt-2, src/encoder.py).
GPT2_WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


class Tokenizer(ABC):
    """`vocab` ids from 0; `eot` is the id that stands before each document, if there is one."""

    name: str
    vocab: int
    eot: int | None

    @abstractmethod
    def encode(self, text: str) -> list[int]: ...

    @abstractmethod
    def token_bytes(self, i: int) -> bytes: ...

    def encode_document(self, text: str) -> np.ndarray:
        """Its tokens (n,), uint16, with `eot` before them."""
        begin = [] if self.eot is None else [self.eot]
        return np.array(begin + self.encode(text), np.uint16)


class GPT2Tokenizer(Tokenizer):
    """GPT-2's 50257 tokens: 256 bytes, 50000 merges, and the end of text."""

    name, vocab, eot = "gpt2", 50257, 50256

    def __init__(self, merges: str | Path):
        """`merges`: OpenAI's vocab.bpe, a title line and then one merge a line, first come first.

        A token's id is its place: the bytes first, then what each merge makes. The list is thus
        the whole vocabulary, and the 1 MB encoder.json beside it says nothing new.
        """
        self._path = Path(merges)

    @cached_property
    def merges(self) -> list[str]:
        """The merges in their order, each two tokens with a space between them."""
        return read_text(self._path).split("\n")[1:-1]

    @cached_property
    def _encoding(self) -> Any:
        import tiktoken  # a tenth of a second, and few runs need it

        byte_of = printable_bytes()
        ranks = {bytes([byte]): i for i, byte in enumerate(byte_of.values())}
        for line in self.merges:
            token = bytes(byte_of[character] for character in line if character != " ")
            ranks[token] = len(ranks)
        return tiktoken.Encoding(
            "gpt2",
            pat_str=GPT2_WORDS,
            mergeable_ranks=ranks,
            special_tokens={END_OF_TEXT: self.eot},
            explicit_n_vocab=self.vocab,
        )

    def encode(self, text: str) -> list[int]:
        """The words "<|endoftext|>" in a text are text like any other."""
        ids: list[int] = self._encoding.encode_ordinary(text)
        return ids

    def encode_document(self, text: str) -> np.ndarray:
        """As for any tokenizer, but several threads at a time: no list of Python's is made."""
        tokens = self._encoding.encode_to_numpy(text, disallowed_special=())
        return np.append(np.uint16(self.eot), tokens.astype(np.uint16))

    def token_bytes(self, i: int) -> bytes:
        return bytes(self._encoding.decode_single_token_bytes(int(i)))


def printable_bytes() -> dict[str, int]:
    """GPT-2's files write each byte as one visible character: itself, or one from 256 on.

    The order is the order of the byte tokens: the visible ones first, then the others.
    """
    visible = {chr(byte): byte for byte in range(256) if chr(byte).isprintable() and byte != 32}
    others = [byte for byte in range(256) if chr(byte) not in visible]
    return visible | {chr(256 + i): byte for i, byte in enumerate(others)}


class ByteTokenizer(Tokenizer):
    """The bytes of UTF-8, and the end of text: any text, no vocabulary file, 257 tokens."""

    name, vocab, eot = "bytes", 257, 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def token_bytes(self, i: int) -> bytes:
        return END_OF_TEXT.encode() if i == self.eot else bytes([i])


class CharTokenizer(Tokenizer):
    """One token for each character of one text, in sorted order, as nanoGPT's shakespeare_char.

    name  "chars" for the characters of tinyshakespeare, "chars:FOLDER" for those of another text,
          whose vocabulary is in that folder of the data directory
    """

    eot = None

    def __init__(self, symbols: Sequence[str], name: str = "chars"):
        self.name = name
        self.symbols = list(symbols)
        self.vocab = len(self.symbols)
        self._ids = {symbol: i for i, symbol in enumerate(self.symbols)}

    @classmethod
    def of_text(cls, text: str, name: str = "chars") -> "CharTokenizer":
        return cls(sorted(set(text)), name)

    @classmethod
    def load(cls, path: str | Path, name: str = "chars") -> "CharTokenizer":
        """From a list, or the tokenizer.json that stands beside a model, in the order of ids."""
        symbols = read_json(path)
        try:
            if isinstance(symbols, dict):
                symbols = list(symbols["model"]["vocab"])
            json.dumps(symbols, ensure_ascii=False).encode()  # no half of a surrogate pair
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise LadderError(f"cannot read the characters in {path}: {error}") from None
        if (
            not isinstance(symbols, list)
            or not all(isinstance(symbol, str) and len(symbol) == 1 for symbol in symbols)
            or not 0 < len(set(symbols)) == len(symbols) <= 65536
        ):
            raise LadderError(f"{path} is not a list of distinct characters; remove it")
        return cls(symbols, name)

    def save(self, path: str | Path) -> None:
        write_json(path, self.symbols, indent=None)

    def encode(self, text: str) -> list[int]:
        if missing := sorted(set(text) - self._ids.keys()):
            first = ", ".join(map(repr, missing[:5])) + (", ..." if len(missing) > 5 else "")
            known = repr("".join(self.symbols[:100])) + (", ..." if self.vocab > 100 else "")
            raise LadderError(
                f"not among the {self.vocab} characters of the training text, {known}: {first}; "
                "leave them out, or train again with --tokenizer bytes"
            )
        return [self._ids[symbol] for symbol in text]

    def token_bytes(self, i: int) -> bytes:
        return self.symbols[i].encode("utf-8")


def get_tokenizer(name: str, data_dir: str | Path, model: Path | None = None) -> Tokenizer:
    """The tokenizer `name`, its vocabulary from the folder of a model that a run has left, from the
    data directory, or downloaded.

    Raises DownloadError where the vocabulary is not there and cannot be downloaded.
    """
    left = [] if model is None else [model / "merges.txt", model / "tokenizer.json"]
    if name == "gpt2":
        return GPT2Tokenizer(download.fetch(download.GPT2_MERGES, data_dir, *left[:1]))
    if name == "bytes":
        return ByteTokenizer()
    own = name.startswith(OWN_CHARS)
    folder = name.removeprefix(OWN_CHARS) if own else "tinyshakespeare"
    if (own and "/" not in folder) or name == "chars":  # a checkpoint may be a stranger's
        for path in (*left[1:], *download.places(data_dir, f"{folder}/{CHARS_VOCABULARY}")):
            if path.is_file():
                return CharTokenizer.load(path, name)
    if name == "chars":
        text = read_text(download.fetch(download.TINYSHAKESPEARE, data_dir))
        tokenizer = CharTokenizer.of_text(text)
        tokenizer.save(download.writable_place(data_dir, f"{folder}/{CHARS_VOCABULARY}"))
        return tokenizer
    if own:
        raise LadderError(
            f"the characters of {folder!r} are not in the data directory {data_dir}; name the one "
            "where the text was prepared by --data-dir"
        )
    raise LadderError(f"there is no tokenizer {name!r}; choose one of {', '.join(TOKENIZERS)}")
