"""A tokenizer as Hugging Face's libraries read it: tokenizer.json and what belongs beside it.

    tokenizer.json          all of it, for `tokenizers`, and for transformers' AutoTokenizer
    tokenizer_config.json   its class in transformers, and its special tokens
    vocab.json, merges.txt  GPT-2's alone: the same once more, for programs that read these

Byte-level tokens are written as GPT-2's are, each byte as one visible character. Formats:
https://github.com/huggingface/tokenizers (tokenizers/src), and the files of openai-community/gpt2.
"""

import json
from pathlib import Path
from typing import Any

from ladder.core.common.files import atomic_write
from trainer.data.tokenizers import (
    END_OF_TEXT,
    ByteTokenizer,
    CharTokenizer,
    GPT2Tokenizer,
    Tokenizer,
    printable_bytes,
)


def export_tokenizer(directory: str | Path, tokenizer: Tokenizer, context: int) -> None:
    """Write the files of a tokenizer into a folder. `context`: the model's longest sequence.

    A difference remains: the words "<|endoftext|>" in a text are the end-of-text token there, and
    text like any other here.
    """
    if isinstance(tokenizer, GPT2Tokenizer):
        pieces = _byte_level(tokenizer, tokenizer.merges, cut_into_words=True)
    elif isinstance(tokenizer, ByteTokenizer):
        pieces = _byte_level(tokenizer, [], cut_into_words=False)
    elif isinstance(tokenizer, CharTokenizer):
        pieces = _characters(tokenizer)
    else:
        raise ValueError(f"tokenizer {tokenizer.name} has no form in Hugging Face's files")
    end = None if tokenizer.eot is None else END_OF_TEXT
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    special = {"id": tokenizer.eot, "content": end, **plain, "special": True}
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [] if end is None else [special],
        "normalizer": None,
        "post_processor": None,
        **pieces,
    }
    is_gpt2 = isinstance(tokenizer, GPT2Tokenizer)
    settings = {
        "tokenizer_class": "GPT2Tokenizer" if is_gpt2 else "PreTrainedTokenizerFast",
        "model_max_length": context,
        "bos_token": end,
        "eos_token": end,
        "unk_token": end,
        "clean_up_tokenization_spaces": False,
        **({"add_prefix_space": False} if is_gpt2 else {}),
    }
    files = {"tokenizer.json": _json(whole), "tokenizer_config.json": _json(settings)}
    if isinstance(tokenizer, GPT2Tokenizer):
        files["vocab.json"] = _json(pieces["model"]["vocab"] | {END_OF_TEXT: tokenizer.eot})
        files["merges.txt"] = "\n".join(["#version: 0.2", *tokenizer.merges, ""])
    for name, text in files.items():
        with atomic_write(Path(directory) / name) as file:
            file.write(text.encode())


def _byte_level(tokenizer: Tokenizer, merges: list[str], *, cut_into_words: bool) -> dict[str, Any]:
    """Byte-pair encoding of the bytes of UTF-8."""
    character = {byte: character for character, byte in printable_bytes().items()}
    vocab = {
        "".join(character[byte] for byte in tokenizer.token_bytes(i)): i
        for i in range(tokenizer.vocab)
        if i != tokenizer.eot
    }
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "pre_tokenizer": {**bytes_, "use_regex": cut_into_words},
        "decoder": {**bytes_, "use_regex": cut_into_words},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocab,
            "merges": merges,
        },
    }


def _characters(tokenizer: CharTokenizer) -> dict[str, Any]:
    """A token for each character. There is none for others: to encode one is an error."""
    vocab = {symbol: i for i, symbol in enumerate(tokenizer.symbols)}
    return {
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": r"[\s\S]"},
            "behavior": "Isolated",
            "invert": False,
        },
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "no such character"},
    }


def _json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"
