"""Texts and shards of the Hub, from a server on this machine."""

import contextlib
import hashlib
import io
import json
import re

import numpy as np
import pytest

from ladder.core.common.command_line import run
from ladder.core.common.errors import LadderError
from tests.trainer.web_server import serve
from trainer.commands import prepare as prepare_command
from trainer.data import datasets, hub, hub_texts
from trainer.data.datasets import prepare
from trainer.data.download import DownloadError
from trainer.data.hub import HubText, documents, list_files
from trainer.data.hub_texts import prepare_ready
from trainer.data.token_files import find_shards, read_tokens
from trainer.data.tokenizers import ByteTokenizer

TEXT = HubText("someone/texts", {"train": "sample/1B/"})
TREE = "/api/datasets/someone/texts/tree/main/sample/1B"
FILES = {  # each line is a document
    "sample/1B/000_00001.parquet": b"third\n \nfifth",
    "sample/1B/000_00000.parquet": b"first\nsecond",
    "sample/1B/notes.txt": b"x",
}


@contextlib.contextmanager
def hub_of(monkeypatch, repository, files, damaged=()):
    """A Hub on this machine with a data set; the list of its files has two pages."""

    def entry(path):
        of = b"other" if path in damaged else files[path]
        lfs = {"oid": hashlib.sha256(of).hexdigest(), "size": len(of), "pointerSize": 134}
        return {"type": "file", "path": path, "oid": "1", "size": len(of), "lfs": lfs}

    answers = {}
    for path, content in files.items():
        url = f"/datasets/{repository}/resolve/main/{path}"
        answers[url] = (200, content, len(content))
    with serve(answers) as server:
        for folder in {path.rpartition("/")[0] for path in files}:
            url = f"/api/datasets/{repository}/tree/main/{folder}".rstrip("/")
            first, *rest = [entry(path) for path in files if path.rpartition("/")[0] == folder]
            page, last = (
                json.dumps(x).encode()
                for x in ([first], [{"type": "directory", "path": "x", "oid": "2"}, *rest])
            )
            link = ("Link", f'<{server.url}{url}?cursor=2>; rel="next"')
            answers[url] = (200, page, len(page), link)
            answers[f"{url}?cursor=2"] = (200, last, len(last))
        monkeypatch.setenv("HF_ENDPOINT", server.url + "/")
        server.answers = answers
        yield server


class Lines:
    """Stands in for pyarrow.parquet: a file's rows are its lines, read two at a time."""

    class ParquetFile:
        def __init__(self, path):
            self.rows = path.read_text().split("\n")

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            pass

        def iter_batches(self, batch_size, columns):
            assert columns == ["text"]
            for start in range(0, len(self.rows), 2):
                yield Batch(self.rows[start : start + 2])


class Batch:
    def __init__(self, rows):
        self.num_rows, self.to_pylist = len(rows), lambda: rows

    def column(self, i):
        return self


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNEL_LADDER_CACHE", str(tmp_path / "cache"))
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(hub, "pyarrow_parquet", lambda: Lines)


@pytest.mark.slow
def test_documents_come_in_the_order_of_files_and_rows_from_any_position(tmp_path, monkeypatch):
    with hub_of(monkeypatch, "someone/texts", FILES) as server:
        every = list(documents(TEXT, "texts", "train", tmp_path))
        expected = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
        assert [position for position, _ in every] == expected
        assert [text for _, text in every] == ["first", "second", "third", " ", "fifth"]
        for i, position in enumerate(expected):
            assert list(documents(TEXT, "texts", "train", tmp_path, position)) == every[i:]
        server.downloads = 0
        assert next(documents(TEXT, "texts", "train", tmp_path, (1, 2))) == every[4]
        assert server.downloads == 3  # two pages of the list, and one file
        assert [path.name for path in tmp_path.rglob("*.parquet")] == ["000_00001.parquet"]
        list(documents(TEXT, "texts", "train", tmp_path, (1, 2)))  # goes on with it, and removes it
    assert list(tmp_path.rglob("*.parquet")) == []


def test_a_file_that_was_here_stays(tmp_path, monkeypatch):
    (tmp_path / "texts").mkdir()
    own = tmp_path / "texts" / "000_00000.parquet"
    own.write_bytes(FILES["sample/1B/000_00000.parquet"])
    with hub_of(monkeypatch, "someone/texts", FILES):
        assert len(list(documents(TEXT, "texts", "train", tmp_path))) == 5
    assert list(tmp_path.rglob("*.parquet")) == [own]


def test_a_text_of_the_hub_becomes_shards(tmp_path, monkeypatch):
    monkeypatch.setitem(hub_texts.HUB_TEXTS, "fineweb", TEXT)
    with hub_of(monkeypatch, "someone/texts", FILES):
        prepare("fineweb", tmp_path, "bytes", shard_tokens=5, max_tokens=10, threads=1)
        assert list(tmp_path.rglob("*.parquet")) == [], "also of a file not read to its end"
        made = prepare("fineweb", tmp_path, "bytes", shard_tokens=8, threads=1)
    parts = [read_tokens(p) for x in (made.val, made.train) for p in find_shards(x)]
    whole = np.concatenate(parts)
    assert whole.astype(np.uint8).tobytes() == b"\0first\0second\0third\0 \0fifth"


def test_a_file_with_another_hash_than_the_hub_says_is_refused(tmp_path, monkeypatch):
    broken = "sample/1B/000_00000.parquet"
    with (
        hub_of(monkeypatch, "someone/texts", FILES, damaged=[broken]),
        pytest.raises(DownloadError, match=hashlib.sha256(b"other").hexdigest()),
    ):
        list(documents(TEXT, "texts", "train", tmp_path))
    assert list(tmp_path.rglob("*.parquet")) == []


@pytest.mark.parametrize(
    "page",
    [b"<html>", b"{}", b"[1]", b'[{"type": "file"}]', b'[{"type": "file", "path": "a", "lfs": 1}]'],
)
def test_an_answer_that_is_no_list_of_files_is_one_line(monkeypatch, page):
    with hub_of(monkeypatch, "someone/texts", FILES) as server:
        server.answers[TREE] = (200, page, len(page))
        with pytest.raises(DownloadError, match="someone/texts"):
            list_files("someone/texts", "sample/1B/", ".parquet")


def test_a_path_that_leaves_its_folder_is_not_listed(monkeypatch):
    files = {**FILES, "sample/1B/...parquet": b"x", "sample/1B/a b.parquet": b"x"}
    with hub_of(monkeypatch, "someone/texts", files):
        listed = list_files("someone/texts", "sample/1B/", ".parquet")
    assert [path for path, _ in listed] == sorted(FILES)[:2]


def test_without_a_network_it_is_one_line(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match="HF_ENDPOINT"):
        list_files("someone/texts", "sample/1B/", ".parquet")


def test_pyarrow_is_asked_for_before_anything_is_downloaded(tmp_path, monkeypatch):
    def missing():
        raise LadderError("pyarrow is not installed")

    monkeypatch.setitem(hub_texts.HUB_TEXTS, "fineweb", TEXT)
    with hub_of(monkeypatch, "someone/texts", FILES):
        made = prepare("fineweb", tmp_path, "bytes", shard_tokens=8, threads=1)
    monkeypatch.setattr(hub, "pyarrow_parquet", missing)
    assert prepare("fineweb", tmp_path, "bytes").train == made.train  # it is there
    monkeypatch.setattr(datasets, "get_tokenizer", None)
    with pytest.raises(LadderError, match="pyarrow is not installed"):
        prepare("tinystories", tmp_path, "gpt2")


def test_pyarrow_reads_what_it_writes(tmp_path, monkeypatch):
    """And damage is one line that names the file."""
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table
    monkeypatch.undo()
    packed = io.BytesIO()
    rows = [f"document {i} é" for i in range(3000)]
    parquet.write_table(table({"id": rows, "text": rows}), packed)
    path = tmp_path / "x.parquet"
    path.write_bytes(packed.getvalue())
    assert list(hub._rows(hub.pyarrow_parquet(), path, 1500)) == list(enumerate(rows))[1500:]
    parquet.write_table(table({"id": rows}), path)
    for damage in (lambda: None, lambda: path.write_bytes(packed.getvalue()[:-9])):
        damage()
        with pytest.raises(LadderError, match=r"x\.parquet .* text "):
            list(hub._rows(hub.pyarrow_parquet(), path, 0))


def test_own_parquet_files_become_shards_without_the_hub(tmp_path, monkeypatch):
    """Those of a folder in the order of their names; the same files are prepared once."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    folder = tmp_path / "stories"
    folder.mkdir()
    (folder / "b.parquet").write_text("third")
    (folder / "a.parquet").write_text("first\nsecond")
    (folder / "notes.txt").write_text("x")
    words = [str(folder), "--tokenizer", "bytes", "--data-dir", str(tmp_path / "data")]
    more = ["--shard-tokens", "7", "--threads", "1"]
    assert prepare_command.main([*words, *more]) == 0
    prepared = prepare(str(folder), tmp_path / "data", "bytes")  # what training does
    files = find_shards(prepared.val) + find_shards(prepared.train)
    tokens = np.concatenate([read_tokens(path) for path in files]).tolist()
    assert tokens == [256, *b"first", 256, *b"second", 256, *b"third"]
    assert [path.name for path in find_shards(prepared.val)] == ["bytes_val_000000.bin"]
    (folder / "b.parquet").write_text("other")
    sizes = {"shard_tokens": 4, "threads": 1}
    other = prepare(str(folder / "b.parquet"), tmp_path / "data", "bytes", **sizes)
    assert [len(read_tokens(path)) for path in find_shards(other.train)] == [2]


def test_own_parquet_files_that_cannot_be_prepared_are_named(tmp_path):
    with pytest.raises(LadderError, match=rf"{tmp_path} .*\.parquet"):
        prepare(str(tmp_path), tmp_path / "data", "bytes")
    (tmp_path / "a.parquet").write_text("few")
    with pytest.raises(LadderError, match=r"train; .*--shard-tokens"):
        prepare(str(tmp_path), tmp_path / "data", "bytes", threads=1)
    with pytest.raises(LadderError, match=r"chars .* gpt2"):
        prepare(str(tmp_path), tmp_path / "data", "chars")


# Shards that are tokenized already


def shard(first):
    packed = io.BytesIO()
    packed.write(np.array([20240520, 1, 30] + [0] * 253, "<i4").tobytes())
    packed.write(np.arange(first, first + 30, dtype="<u2").tobytes())
    return packed.getvalue()


@pytest.fixture
def ready(tmp_path, monkeypatch):
    files = {f"web_train_{i:06d}.bin": shard(100 * i) for i in (1, 2, 3)}
    files = {"web_val_000000.bin": shard(0), "README.md": b"x", **files}
    monkeypatch.setitem(hub_texts.READY, "fineweb-100B", ("someone/shards", "web_"))
    for module in (datasets, hub_texts):
        monkeypatch.setattr(module, "get_tokenizer", lambda name, _: Gpt2())
    with hub_of(monkeypatch, "someone/shards", files) as server:
        yield server


class Gpt2(ByteTokenizer):
    name = "gpt2"


def test_ready_shards_are_downloaded_by_count_and_once(tmp_path, ready):
    prepared = prepare_ready("fineweb-100B", 2, tmp_path)
    assert [read_tokens(p)[0] for p in find_shards(prepared.train)] == [100, 200]
    assert [p.name for p in find_shards(prepared.val)] == ["gpt2_val_000000.bin"]
    ready.downloads = 0
    more = prepare_ready("fineweb-100B", 3, tmp_path)
    assert len(find_shards(more.train)) == 3
    assert ready.downloads == 4 + 1  # two lists of two pages, and one shard
    assert prepare("fineweb-100B", tmp_path).train == more.train  # what training does
    assert len(find_shards(prepare_ready("fineweb-100B", 1, tmp_path).train)) == 1


def test_shards_in_the_cache_are_copied_to_the_rest_of_a_set(tmp_path, ready):
    """They came when the data directory was read-only."""
    prepare_ready("fineweb-100B", 1, tmp_path / "cache" / "data")
    prepared = prepare_ready("fineweb-100B", 2, tmp_path / "data")
    assert [read_tokens(p)[0] for p in find_shards(prepared.train)] == [100, 200]
    assert [read_tokens(p)[0] for p in find_shards(prepared.val)] == [0]


def test_a_text_is_not_resumed_behind_ready_shards(tmp_path, ready, monkeypatch):
    """They may have the names and sizes of those that an interrupted run has written."""

    def read(text, name, split, data_dir, start):
        yield from (((0, row), "x" * 29) for row in range(start[1], 3))
        if not ready_came:
            raise LadderError("interrupted")

    ready_came, sizes = False, {"shard_tokens": 30, "threads": 1}
    monkeypatch.setattr(hub, "documents", read)
    with pytest.raises(LadderError, match="interrupted"):
        prepare("fineweb-100B", tmp_path, **sizes)
    prepare_ready("fineweb-100B", 2, tmp_path)
    ready_came = True
    prepared = prepare("fineweb-100B", tmp_path, **sizes)
    first = [read_tokens(path)[:2].tolist() for path in find_shards(prepared.val)]
    assert first == [[256, ord("x")]], "the text's own, not the ready one's"


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["fineweb-100B", "--shards", "4"], "--shards 4: someone/shards .*3"),
        (["fineweb-100B", "--shards", "1", "--tokenizer", "bytes"], "--shards: .*GPT-2"),
        (["fineweb", "--shard-tokens", "2147483648"], "--shard-tokens: .* 2147483647,"),
    ],
)
def test_shards_that_are_not_there_are_refused_in_one_line(tmp_path, ready, capsys, words, names):
    assert run(prepare_command.main, [*words, "--data-dir", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert re.search(names, told) and told.count("\n") == 1


def test_shards_stay_a_set_where_more_of_them_are_not_to_be_had(tmp_path, ready):
    two = prepare_ready("fineweb-100B", 2, tmp_path)
    with pytest.raises(LadderError, match=r"someone/shards .*3"):
        prepare_ready("fineweb-100B", 4, tmp_path)
    ready.answers.clear()
    with pytest.raises(DownloadError):
        prepare_ready("fineweb-100B", 3, tmp_path)
    assert prepare("fineweb-100B", tmp_path).train == two.train
    assert len(find_shards(two.train)) == 2
