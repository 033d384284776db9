"""Prepared sets have exactly the tokens they should, are complete or absent, and work offline."""

import hashlib
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from ladder.core.common.command_line import run
from ladder.core.common.errors import LadderError
from trainer.commands import prepare as prepare_command
from trainer.data import datasets, download, hub, sets
from trainer.data.datasets import PLAY, encode_sections, prepare
from trainer.data.download import DownloadError
from trainer.data.shards import tokenized, write_shards
from trainer.data.token_files import TokenLoader, find_shards, read_tokens, write_tokens
from trainer.data.tokenizers import ByteTokenizer, CharTokenizer, get_tokenizer
from trainer.engine.generation import decode_stream

DATA = Path(os.environ.get("KERNEL_LADDER_DATA", "data"))
needs_data = pytest.mark.skipif(
    not all((DATA / name).is_file() for name in ("tinyshakespeare/input.txt", "gpt2/vocab.bpe")),
    reason=f"no tinyshakespeare/input.txt and gpt2/vocab.bpe in {DATA}",
)
TEXT = "".join(f"Speaker:\nThis is what is said in section {i}.\n\n" for i in range(40))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNEL_LADDER_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def offline(monkeypatch):
    def fail(source, target):
        raise DownloadError(f"cannot download {source.path} (no connection to nowhere)")

    monkeypatch.setattr(download, "_download", fail)


@pytest.fixture
def small(tmp_path, monkeypatch, offline):
    """A data directory with a small text in place of tinyshakespeare, and nothing else."""
    sha256 = hashlib.sha256(TEXT.encode()).hexdigest()
    source = download.Source("tinyshakespeare/input.txt", "", sha256)
    monkeypatch.setattr(download, "TINYSHAKESPEARE", source)
    path = tmp_path / "data" / source.path
    path.parent.mkdir(parents=True)
    path.write_text(TEXT)
    return tmp_path / "data"


def tokens_of(pattern):
    return np.concatenate([read_tokens(path) for path in find_shards(pattern)])


def as_bytes(tokens):
    """Byte tokens as text in which a zero byte stands for the end of text."""
    return tokens.astype(np.uint8).tobytes()


def file_times(directory):
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()}


# tinyshakespeare


@pytest.fixture
def real(tmp_path):
    """The real files in a data directory that can be written."""
    for name in ("tinyshakespeare/input.txt", "gpt2/vocab.bpe"):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True)
        path.symlink_to((DATA / name).resolve())
    return tmp_path / "data"


@pytest.mark.slow
@needs_data
def test_tinyshakespeare_has_llmcs_tokens_exactly(real):
    prepared = prepare("tinyshakespeare", real)
    train, val = tokens_of(prepared.train), tokens_of(prepared.val)
    assert (len(train), len(val)) == (305_260, 32_768)
    assert prepared.note is None and prepared.tokenizer.name == "gpt2"
    text = (real / "tinyshakespeare" / "input.txt").read_text()
    everything = np.concatenate([val, train])  # llm.c takes the beginning for validation
    assert everything[:6].tolist() == [50256, 5962, 22307, 25, 198, 8421]
    assert (everything == 50256).sum() == len(text.split("\n\n")) == 7222
    assert "".join(decode_stream(prepared.tokenizer, everything[everything != 50256])) == text


@pytest.mark.slow
@needs_data
def test_tinyshakespeare_has_nanogpts_characters_exactly(real):
    prepared = prepare("tinyshakespeare", real, "chars")
    train, val = tokens_of(prepared.train), tokens_of(prepared.val)
    assert (len(train), len(val)) == (1_003_854, 111_540)
    assert prepared.tokenizer.vocab == 65
    text = (real / "tinyshakespeare" / "input.txt").read_text()
    assert "".join(decode_stream(prepared.tokenizer, np.concatenate([train, val]))) == text


def test_a_data_directory_may_have_any_name(tmp_path):
    prepared = prepare("play", tmp_path / "data [a-b]*", "bytes")
    assert len(tokens_of(prepared.train)) > len(tokens_of(prepared.val)) > 0


def test_two_runs_that_start_at_once_make_a_set_once(tmp_path, monkeypatch):
    """And neither takes away what the other has just made."""
    both_are_here, written, made = Barrier(2), [], []
    complete = sets._is_complete

    def look(place, source, wanted):
        there = complete(place, source, wanted)
        if len(made) < 2:  # the first look of each, before any of them writes
            made.append(there)
            both_are_here.wait(10)
        return there

    def write(path, tokens):
        written.append(path.name)
        write_tokens(path, tokens)

    monkeypatch.setattr(sets, "_is_complete", look)
    monkeypatch.setattr(datasets, "write_tokens", write)
    monkeypatch.setattr(download, "places", lambda data_dir, path: (Path(data_dir) / path,))
    monkeypatch.setattr(download, "writable_place", lambda data_dir, path: Path(data_dir) / path)
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(prepare, "play", tmp_path, "bytes") for _ in range(2)]
        assert [len(tokens_of(run.result().train)) > 0 for run in runs] == [True, True]
    assert made == [False, False]
    assert written == ["bytes_train.bin", "bytes_val.bin"]


def test_an_end_of_text_stands_before_each_section_and_the_blank_line_after_it():
    text = "A:\nx\n\nB:\ny\n"
    assert as_bytes(encode_sections(text, ByteTokenizer())) == b"\0A:\nx\n\n\0B:\ny\n"
    assert encode_sections(text, CharTokenizer.of_text(text)).size == len(text)


# A set is complete or absent


def test_a_prepared_set_is_used_again(small):
    first = prepare("tinyshakespeare", small, "bytes")
    times = file_times(small)
    again = prepare("tinyshakespeare", small, "bytes")
    assert (again.train, again.val) == (first.train, first.val)
    assert file_times(small) == times


def test_sets_of_several_tokenizers_are_stored_side_by_side(small):
    prepared = {name: prepare("tinyshakespeare", small, name) for name in ("bytes", "chars")}
    assert len(tokens_of(prepared["chars"].train)) == int(0.9 * len(TEXT))
    assert tokens_of(prepared["bytes"].train)[0] == 256
    for set_ in prepared.values():
        TokenLoader(set_.train, 2, 8, vocab=set_.tokenizer.vocab, shuffle=True).next_batch()


@pytest.mark.parametrize("damage", ["cut", "remove", "no manifest", "other text", "bad manifest"])
def test_an_incomplete_set_is_made_again(small, damage):
    prepared = prepare("tinyshakespeare", small, "bytes")
    whole = tokens_of(prepared.train)
    (val,) = find_shards(prepared.val)
    manifest = val.with_name("bytes_prepared.json")
    if damage == "cut":
        val.write_bytes(val.read_bytes()[:-1])
    elif damage == "remove":
        val.unlink()
    elif damage == "no manifest":
        manifest.unlink()
    elif damage == "other text":
        manifest.write_text(re.sub('"source": ".', '"source": "?', manifest.read_text()))
    else:
        manifest.write_text("[]")
    prepare("tinyshakespeare", small, "bytes")
    assert len(tokens_of(prepared.val)) + len(whole) == len(TEXT) + TEXT.count("\n\n") + 1


# Without a network


def test_offline_the_play_and_bytes_replace_tinyshakespeare(tmp_path, offline):
    prepared = prepare("tinyshakespeare", tmp_path / "data")
    assert prepared.tokenizer.name == "bytes"
    assert "play" in prepared.note and "no connection" in prepared.note
    assert "\n" not in prepared.note
    everything = np.concatenate([tokens_of(prepared.train), tokens_of(prepared.val)])
    assert bytes(everything[everything < 256].astype(np.uint8)) == PLAY.read_bytes()
    TokenLoader(prepared.val, 4, 1024, vocab=257, shuffle=False).next_batch()


def test_offline_bytes_replace_the_gpt2_vocabulary(small):
    prepared = prepare("tinyshakespeare", small, "gpt2")
    assert prepared.tokenizer.name == "bytes"
    assert "vocab.bpe" in prepared.note and "byte tokenizer" in prepared.note
    assert "tinyshakespeare" in prepared.train


def test_without_fallback_a_failed_download_is_an_error(tmp_path, offline, capsys):
    with pytest.raises(DownloadError, match=r"input\.txt"):
        prepare("tinyshakespeare", tmp_path / "data", fallback=False)
    assert run(prepare_command.main, ["tinyshakespeare", "--data-dir", str(tmp_path / "data")]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert str(tmp_path / "data" / "tinyshakespeare" / "input.txt") in told


# A text of one's own


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "my book [1].txt"
    path.write_text("Once.\n\nTwice, é.\n<|endoftext|>\n\nOther <|endoftext|> words.\n" * 9)
    return path


def test_a_text_of_ones_own_is_split_into_documents_by_its_marks(tmp_path, book):
    prepared = prepare(str(book), tmp_path / "data", "bytes")
    train, val = tokens_of(prepared.train), tokens_of(prepared.val)
    whole = "\0Once.\n\nTwice, é.\n" + "\0\nOther <|endoftext|> words.\nOnce.\n\nTwice, é.\n" * 8
    whole += "\0\nOther <|endoftext|> words.\n"
    assert as_bytes(np.concatenate([train, val])) == whole.encode()
    assert len(train) == int(0.9 * len(whole.encode()))
    assert Path(prepared.train).parent.name.startswith("my book")
    times = file_times(tmp_path / "data")
    assert prepare(str(book), tmp_path / "data", "bytes").train == prepared.train
    assert file_times(tmp_path / "data") == times


def test_characters_are_those_of_the_text_and_their_name_finds_them_again(tmp_path, book):
    prepared = prepare(str(book), tmp_path / "data", "chars")
    text = "".join(re.split(r"(?m)^<\|endoftext\|>\n", book.read_text()))
    tokens = np.concatenate([tokens_of(prepared.train), tokens_of(prepared.val)])
    assert "".join(decode_stream(prepared.tokenizer, tokens)) == text
    assert prepared.tokenizer.vocab == len(set(text))
    again = get_tokenizer(prepared.tokenizer.name, tmp_path / "data")
    assert again.symbols == prepared.tokenizer.symbols and again.name == prepared.tokenizer.name
    assert prepare(str(book), tmp_path / "data", again.name).train == prepared.train
    book.write_text("Another text.")
    with pytest.raises(LadderError, match="my book"):
        prepare(str(book), tmp_path / "data", again.name)
    with pytest.raises(LadderError, match=r"'\.\./my book \[1\]'.*--data-dir"):
        get_tokenizer("chars:../my book [1]", tmp_path / "data" / "sub")


def test_an_edited_text_is_another_set(tmp_path, book):
    first = prepare(str(book), tmp_path / "data", "bytes")
    book.write_text("New words. " * 9)
    second = prepare(str(book), tmp_path / "data", "bytes")
    assert Path(first.train).parent != Path(second.train).parent
    assert len(tokens_of(first.train)) > len(tokens_of(second.train))


# Texts of the Hub, in shards


def stories(text, name, split, data_dir, start=(0, 0)):
    """Thirty short documents, as hub.documents reads them: in files of twelve."""
    for i in range(12 * start[0] + start[1], 30):
        story = f"{split} story {i}\n"
        yield divmod(i, 12), story.strip() if text.strip else story


def joined(split, end=""):
    return b"".join(b"\0" + f"{split} story {i}{end}".encode() for i in range(30))


def prepare_stories(name, tmp_path, read=stories, **how):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub, "documents", read)
        patch.setattr(hub, "pyarrow_parquet", lambda: None)
        return prepare(name, tmp_path, "bytes", threads=1, **how)


def tokens(count=30):
    for i in range(count):
        yield (0, i), np.array([256, *f"x story {i}".encode()], np.uint16)


def test_files_of_two_tokenizers_are_no_set(tmp_path):
    for name in ("gpt2_train.bin", "chars_train.bin"):
        (tmp_path / name).touch()
    with pytest.raises(LadderError, match=r"chars .*gpt2"):
        find_shards(tmp_path / "*train*.bin")


def test_documents_run_on_over_shards_of_the_given_size(tmp_path):
    counts = write_shards(tokens(), lambda i: tmp_path / f"x_{i}.bin", shard_tokens=50)
    whole = joined("x")
    assert list(counts.values()) == [50] * (len(whole) // 50) + [len(whole) % 50]
    read = np.concatenate([read_tokens(tmp_path / name) for name in counts])
    assert (read[0], as_bytes(read)) == (256, whole)


def test_a_document_longer_than_a_shard_fills_several(tmp_path):
    long = [((0, 0), np.zeros(100, np.uint16))]
    counts = write_shards(long, lambda i: tmp_path / f"x_{i}.bin", shard_tokens=40)
    assert list(counts.values()) == [40, 40, 20]


def test_reading_stops_at_the_number_of_tokens_asked_for(tmp_path):
    some = tokens()
    counts = write_shards(some, lambda i: tmp_path / f"x_{i}.bin", shard_tokens=50, max_tokens=70)
    assert list(counts.values()) == [50, 20]
    assert next(some)[0] == (0, 7)  # 10 tokens each: the rest was not even read


def test_several_threads_tokenize_in_the_order_of_documents():
    some = [((0, i), f"story {i}") for i in range(500)]
    alone, together = ([*tokenized(some, ByteTokenizer(), threads)] for threads in (1, 2))
    assert [position for position, _ in together] == [(0, i) for i in range(500)]
    assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(alone, together, strict=True))


def test_tinystories_has_both_splits_of_its_source_stripped(tmp_path):
    prepared = prepare_stories("tinystories", tmp_path, shard_tokens=100)
    assert as_bytes(tokens_of(prepared.train)) == joined("train")
    assert as_bytes(tokens_of(prepared.val)) == joined("val")
    assert len(find_shards(prepared.train)) == 5


@pytest.mark.parametrize("name", ["fineweb", "fineweb-100B", "fineweb-edu", "fineweb-edu-100B"])
def test_finewebs_first_shard_is_for_validation_and_documents_stay_as_they_are(tmp_path, name):
    prepared = prepare_stories(name, tmp_path, shard_tokens=100)
    assert as_bytes(tokens_of(prepared.val)) == joined("train", "\n")[:100]
    assert as_bytes(tokens_of(prepared.train)) == joined("train", "\n")[100:]
    numbers = [path.name for path in find_shards(prepared.train)]
    assert numbers[0] == "bytes_train_000001.bin"


def test_a_smaller_set_is_not_mixed_with_files_left_from_a_larger_one(tmp_path):
    large = prepare_stories("tinystories", tmp_path, shard_tokens=100)
    assert len(tokens_of(large.train)) > 150
    small = prepare_stories("tinystories", tmp_path, shard_tokens=100, max_tokens=150)
    assert len(tokens_of(small.train)) == 150


def test_a_set_stays_where_another_size_of_it_cannot_be_read(tmp_path):
    def unreadable(text, name, split, data_dir, start=(0, 0)):
        raise DownloadError("no connection")
        yield

    before = prepare_stories("fineweb", tmp_path, shard_tokens=50)
    with pytest.raises(DownloadError):
        prepare_stories("fineweb", tmp_path, unreadable, shard_tokens=70)
    after = prepare_stories("fineweb", tmp_path, read=None)
    assert tokens_of(after.train).size == tokens_of(before.train).size > 0


@pytest.mark.parametrize(
    "name, documents", [("fineweb", 3), ("fineweb", 25), ("tinystories", 12), ("tinystories", 50)]
)
def test_an_interrupted_set_goes_on_behind_its_last_whole_shard(tmp_path, name, documents):
    """With the same bytes, and without reading again what is in whole shards."""
    whole = prepare_stories(name, tmp_path / "whole", shard_tokens=70)
    left, was_read = [documents], []

    def interrupted(text, name, split, data_dir, start=(0, 0)):
        for position, story in stories(text, name, split, data_dir, start):
            if left[0] == 0:
                raise DownloadError("the line went dead")
            left[0] -= 1
            was_read.append((split, position))
            yield position, story

    of_all = 30 if name == "fineweb" else 60
    with pytest.raises(DownloadError):
        prepare_stories(name, tmp_path / "parts", interrupted, shard_tokens=70)
    assert not list((tmp_path / "parts").rglob("*prepared.json"))
    left[0] = -1
    parts = prepare_stories(name, tmp_path / "parts", interrupted, shard_tokens=70)
    assert len(was_read) - of_all < 8  # a shard has five or six stories
    for a, b in ((whole.train, parts.train), (whole.val, parts.val)):
        names = [[path.name for path in find_shards(pattern)] for pattern in (a, b)]
        assert names[0] == names[1]
        assert np.array_equal(tokens_of(a), tokens_of(b))
    assert not list((tmp_path / "parts").rglob("*progress.json"))


@pytest.mark.parametrize("damage", ["[]", "{}", "cut", "size", "name"])
def test_a_progress_that_does_not_fit_the_disk_begins_again(tmp_path, damage):
    def interrupted(*where):
        for position, story in stories(*where):
            if position == (1, 0):
                raise DownloadError("the line went dead")
            yield position, story

    with pytest.raises(DownloadError):
        prepare_stories("fineweb", tmp_path, interrupted, shard_tokens=70)
    noted = tmp_path / "fineweb" / "bytes_progress.json"
    content = json.loads(noted.read_text())
    if damage == "cut":
        content["cut"] = -1
    elif damage == "size":
        content["tokens"]["bytes_val_000000.bin"] = 69
    elif damage == "name":
        content["tokens"]["../../x.bin"] = 70
    noted.write_text(damage if damage in ("[]", "{}") else json.dumps(content))
    prepared = prepare_stories("fineweb", tmp_path, shard_tokens=70)
    everything = np.concatenate([tokens_of(prepared.val), tokens_of(prepared.train)])
    assert as_bytes(everything) == joined("train", "\n")
