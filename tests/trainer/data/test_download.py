"""Files are used only if their hash is right, and a machine without a network finds out quickly."""

import hashlib
import socket
import time

import pytest

from ladder.core.common.errors import LadderError
from tests.trainer.web_server import serve
from trainer.data import download
from trainer.data.download import (
    DownloadError,
    Source,
    data_directory,
    fetch,
    places,
    writable_place,
)

GOOD = b"First Citizen:\nBefore we proceed any further, hear me speak.\n" * 50
SHA256 = hashlib.sha256(GOOD).hexdigest()


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNEL_LADDER_CACHE", str(tmp_path / "cache"))
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def server():
    answers = {
        "/good": (200, GOOD, len(GOOD)),
        "/other": (200, b"<html>Please log in", 19),
        "/gone": (404, b"", 0),
        "/cut": (200, GOOD[:100], len(GOOD)),
    }
    with serve(answers) as running:
        yield running


def source(url):
    return Source("set/input.txt", url, SHA256)


def files_under(directory):
    return sorted(p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file())


def test_the_flag_goes_before_the_environment_and_that_before_the_default(tmp_path, monkeypatch):
    monkeypatch.delenv(download.VARIABLE, raising=False)
    assert str(data_directory()) == "data"
    monkeypatch.setenv(download.VARIABLE, str(tmp_path / "environment"))
    assert data_directory() == tmp_path / "environment"
    assert data_directory(tmp_path / "flag") == tmp_path / "flag"


def test_a_data_directory_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "data").write_text("")
    with pytest.raises(LadderError, match="--data-dir"):
        data_directory(tmp_path / "data")


@pytest.mark.parametrize("locked, path", [("data", "new/x.bin"), ("data/set", "set/x.bin")])
def test_nothing_is_made_in_a_folder_marked_read_only(tmp_path, locked, path):
    (tmp_path / "data" / "set").mkdir(parents=True)
    (tmp_path / locked).chmod(0o555)
    assert writable_place(tmp_path / "data", path) == tmp_path / "cache" / "data" / path
    (tmp_path / locked).chmod(0o755)


def test_a_file_is_downloaded_once(tmp_path, server):
    wanted = source(server.url + "/good")
    path = fetch(wanted, tmp_path / "data")
    assert path == tmp_path / "data" / "set" / "input.txt"
    assert path.read_bytes() == GOOD
    assert fetch(wanted, tmp_path / "data") == path
    assert server.downloads == 1


def test_a_download_for_a_read_only_data_directory_is_kept_in_the_cache(tmp_path, server):
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o555)
    path = fetch(source(server.url + "/good"), data)
    assert path == places(data, "set/input.txt")[1]
    assert fetch(source(server.url + "/good"), data) == path
    assert server.downloads == 1
    assert files_under(data) == []
    data.chmod(0o755)


@pytest.mark.parametrize(
    "path, names",
    [("/other", SHA256), ("/gone", r"/gone .* 404\)"), ("/cut", r"/cut: \w+Error\)")],
)
def test_a_failed_download_says_why_and_leaves_nothing(tmp_path, server, path, names):
    with pytest.raises(DownloadError, match=names) as caught:
        fetch(source(server.url + path), tmp_path / "data")
    assert "\n" not in str(caught.value)
    assert files_under(tmp_path) == []


def test_a_damaged_file_is_reported_by_name_and_hash_and_replaced(tmp_path, server, capsys):
    path = tmp_path / "data" / "set" / "input.txt"
    path.parent.mkdir(parents=True)
    path.write_bytes(GOOD[:-1])
    assert fetch(source(server.url + "/good"), tmp_path / "data") == path
    assert path.read_bytes() == GOOD
    told = capsys.readouterr().err
    assert str(path) in told and SHA256 in told
    assert hashlib.sha256(GOOD[:-1]).hexdigest() in told


def test_a_damaged_file_that_cannot_be_replaced_is_an_error_and_stays(tmp_path, server):
    path = tmp_path / "data" / "set" / "input.txt"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"mine")
    with pytest.raises(LadderError, match=hashlib.sha256(b"mine").hexdigest()) as caught:
        fetch(source(server.url + "/gone"), tmp_path / "data")
    assert not isinstance(caught.value, DownloadError)  # nothing may quietly take its place
    assert str(path) in str(caught.value)
    assert path.read_bytes() == b"mine"


def test_a_refused_connection_is_a_download_error(tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with pytest.raises(DownloadError, match=r" 127\.0\.0\.1\)"):
            fetch(source(f"http://127.0.0.1:{port}/x"), tmp_path)


def test_a_silent_network_is_given_up_within_the_time_of_the_probe(tmp_path, monkeypatch):
    monkeypatch.setattr(download, "PROBE_SECONDS", 0.2)
    with socket.socket() as silent:  # takes the connection, never says a word
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        start = time.monotonic()
        with pytest.raises(DownloadError, match=r" 127\.0\.0\.1\)"):
            fetch(source(f"http://127.0.0.1:{silent.getsockname()[1]}/x"), tmp_path)
        assert time.monotonic() - start < 2


def test_a_disk_that_cannot_be_written_is_not_a_download_error(tmp_path, server, monkeypatch):
    (tmp_path / "file").write_text("")  # the cache cannot be a folder inside a file
    monkeypatch.setenv("KERNEL_LADDER_CACHE", str(tmp_path / "file"))
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o555)
    with pytest.raises(LadderError, match=str(tmp_path / "file" / "data")) as caught:
        fetch(source(server.url + "/good"), data)
    assert not isinstance(caught.value, DownloadError)
    data.chmod(0o755)
