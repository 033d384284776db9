"""Every tokenizer gives back what it was given; GPT-2's is GPT-2's, id by id."""

import hashlib
import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder.core.common.errors import LadderError
from trainer.data import download
from trainer.data.datasets import token_files
from trainer.data.tokenizers import ByteTokenizer, CharTokenizer, get_tokenizer
from trainer.engine.generation import decode_stream

DATA = Path(os.environ.get("KERNEL_LADDER_DATA", "data"))
needs_gpt2 = pytest.mark.skipif(
    not (DATA / "gpt2" / "vocab.bpe").is_file(), reason=f"no gpt2/vocab.bpe in {DATA}"
)
ALPHABET = "\n !,.abcdefgh\u00e9\u2019"


@pytest.fixture(scope="module")
def gpt2():
    return get_tokenizer("gpt2", DATA)


def without_surrogates(**sizes):
    return st.text(st.characters(exclude_categories=["Cs"]), **sizes)


@given(without_surrogates())
def test_bytes_give_back_any_text(text):
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert bytes(ids) == text.encode() and "".join(decode_stream(tokenizer, ids)) == text


def test_the_end_of_text_is_the_last_byte_token():
    tokenizer = ByteTokenizer()
    assert (tokenizer.vocab, tokenizer.eot) == (257, 256)
    assert "".join(decode_stream(tokenizer, [72, 105, 256])) == "Hi<|endoftext|>"


def test_text_cut_within_a_character_still_decodes():
    tokenizer = ByteTokenizer()
    assert "".join(decode_stream(tokenizer, tokenizer.encode("caf\u00e9")[:-1])) == "caf\ufffd"


@given(st.text(st.sampled_from(ALPHABET)))
def test_characters_give_back_any_text_of_theirs(text):
    tokenizer = CharTokenizer.of_text(ALPHABET)
    ids = tokenizer.encode(text)
    assert len(ids) == len(text) and "".join(decode_stream(tokenizer, ids)) == text


def test_characters_are_numbered_in_sorted_order_and_have_no_end_of_text():
    tokenizer = CharTokenizer.of_text("banana\n")
    assert tokenizer.symbols == ["\n", "a", "b", "n"]
    assert (tokenizer.vocab, tokenizer.eot) == (4, None)
    assert tokenizer.encode("ban") == [2, 1, 3]


def test_unknown_characters_are_named_with_their_file(tmp_path):
    tokenizer = CharTokenizer.of_text("abc")
    (text := tmp_path / "x.txt").write_text("zabyz")
    with pytest.raises(LadderError, match=r"x\.txt: .*'abc': 'y', 'z'; .*--tokenizer bytes"):
        token_files(str(text), tmp_path, tokenizer)
    with pytest.raises(LadderError, match=r"'4', \.\.\.;"):
        tokenizer.encode("0123456789")


@pytest.mark.parametrize(
    "content",
    [b"", b"null", b"[]", b"{}", b"[1]", b'["a", "a"]', b'["ab"]', b'["\\ud800"]', b'["\xff"]'],
)
def test_a_damaged_vocabulary_is_refused_by_name(tmp_path, content):
    (path := tmp_path / "vocabulary.json").write_bytes(content)
    with pytest.raises(LadderError, match=re.escape(str(path))):
        CharTokenizer.load(path)


def test_the_characters_are_those_of_tinyshakespeare_and_stored_beside_it(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNEL_LADDER_CACHE", str(tmp_path / "cache"))  # the user's may hold one
    text = "To be, or not to be\n"
    monkeypatch.setattr(
        download,
        "TINYSHAKESPEARE",
        download.Source("tinyshakespeare/input.txt", "", hashlib.sha256(text.encode()).hexdigest()),
    )
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt").write_text(text)
    first = get_tokenizer("chars", tmp_path)
    assert first.symbols == sorted(set(text))
    (tmp_path / "tinyshakespeare" / "input.txt").unlink()  # sampling needs the vocabulary alone
    assert get_tokenizer("chars", tmp_path).symbols == first.symbols


@needs_gpt2
def test_gpt2_numbers_every_token_as_openai_does(gpt2):
    path = DATA / "gpt2" / "encoder.json"
    if not path.is_file():
        pytest.skip(f"no {path}")
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable}
    byte_of |= {chr(256 + i): byte for i, byte in enumerate(others)}
    theirs = json.loads(path.read_text(encoding="utf-8"))
    assert len(theirs) == gpt2.vocab == 50257
    assert theirs.pop("<|endoftext|>") == gpt2.eot == 50256
    assert all(
        gpt2.token_bytes(i) == bytes(byte_of[character] for character in token)
        for token, i in theirs.items()
    )


@needs_gpt2
def test_gpt2_encodes_known_sentences(gpt2):
    assert gpt2.encode("Hello, world!") == [15496, 11, 995, 0]
    assert gpt2.encode("First Citizen:\n") == [5962, 22307, 25, 198]
    assert gpt2.token_bytes(50256) == b"<|endoftext|>"


@needs_gpt2
def test_gpt2_does_not_take_a_users_text_for_the_end_of_text(gpt2):
    assert gpt2.eot not in gpt2.encode("<|endoftext|>")


@needs_gpt2
@given(text=without_surrogates(max_size=200))
def test_gpt2_gives_back_any_text(gpt2, text):
    ids = gpt2.encode(text)
    assert "".join(decode_stream(gpt2, ids)) == text
    assert b"".join(map(gpt2.token_bytes, ids)) == text.encode()
