"""A tokenizer in Hugging Face's files makes the same tokens, and the same text again."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.huggingface_tokenizer import export_tokenizer
from trainer.data.tokenizers import CharTokenizer, get_tokenizer

DATA = Path(os.environ.get("KERNEL_LADDER_DATA", "data"))
needs_gpt2 = pytest.mark.skipif(
    not (DATA / "gpt2" / "vocab.bpe").is_file(), reason=f"no gpt2/vocab.bpe in {DATA}"
)
ALPHABET = "\n !,.'abcdefgh\t\x00\u00a0\u00e9\u2019\U0001f600"
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Each tokenizer, and what the library `tokenizers` makes of its files."""
    library = pytest.importorskip("tokenizers")
    pairs = {}

    def get(name):
        if name not in pairs:
            ours = CharTokenizer.of_text(ALPHABET) if name == "chars" else get_tokenizer(name, DATA)
            folder = tmp_path_factory.mktemp(name)
            export_tokenizer(folder, ours, context=64)
            pairs[name] = ours, library.Tokenizer.from_file(str(folder / "tokenizer.json"))
        return pairs[name]

    return get


def assert_same(ours, theirs, text):
    ids = theirs.encode(text).ids
    assert ids == ours.encode(text)
    assert theirs.decode(ids, skip_special_tokens=False) == text


@needs_gpt2
@given(text=TEXTS)
def test_gpt2s_tokens_are_the_same(opened, text):
    assert_same(*opened("gpt2"), text)


@given(text=TEXTS)
def test_bytes_are_the_same(opened, text):
    assert_same(*opened("bytes"), text)


@given(text=st.text(st.sampled_from(ALPHABET), max_size=80))
def test_characters_are_the_same(opened, text):
    assert_same(*opened("chars"), text)


@pytest.mark.parametrize("name", [pytest.param("gpt2", marks=needs_gpt2), "bytes"])
def test_the_end_of_text_is_a_special_token(opened, name):
    ours, theirs = opened(name)
    assert theirs.get_vocab_size() == ours.vocab
    assert theirs.encode("a<|endoftext|>").ids == [*ours.encode("a"), ours.eot]
    assert theirs.decode([ours.eot]) == ""


@needs_gpt2
def test_the_older_files_of_gpt2_are_openais(tmp_path):
    export_tokenizer(tmp_path, get_tokenizer("gpt2", DATA), context=1024)
    assert (tmp_path / "merges.txt").read_bytes() == (DATA / "gpt2" / "vocab.bpe").read_bytes()
    theirs = DATA / "gpt2" / "encoder.json"
    if theirs.is_file():
        vocab = json.loads((tmp_path / "vocab.json").read_text())
        assert vocab == json.loads(theirs.read_text(encoding="utf-8"))


def test_a_tokenizer_without_an_end_of_text_has_no_special_tokens(tmp_path):
    export_tokenizer(tmp_path, CharTokenizer(["a", "b"]), context=7)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    whole = json.loads((tmp_path / "tokenizer.json").read_text())
    assert settings["eos_token"] is settings["bos_token"] is None
    assert settings["model_max_length"] == 7
    assert whole["added_tokens"] == [] and whole["model"]["vocab"] == {"a": 0, "b": 1}
