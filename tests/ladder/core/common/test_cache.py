"""The cache of compiled kernels: atomic, safe with several processes, and clear when unwritable."""

import errno
import multiprocessing
import os
from pathlib import Path

import pytest

from ladder.core.common import cache
from ladder.core.common.errors import LadderError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def fill(path):
    path.mkdir()
    (path / "content").write_text("built")


def test_builds_once_and_then_reuses(folder):
    calls = []

    def build(path):
        calls.append(path)
        fill(path)

    first = cache.cached("text", "key", build)
    second = cache.cached("text", "key", build)
    assert first == second == folder / "text" / "key"
    assert (first / "content").read_text() == "built"
    assert len(calls) == 1


def test_failed_build_leaves_nothing_behind(folder):
    def build(path):
        path.write_text("half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.cached("text", "key", build)
    assert list((folder / "text").iterdir()) == []


def _build_at_the_same_time(barrier, results):
    def build(path):
        path.mkdir()
        barrier.wait(30)  # every process is in the middle of building
        (path / "content").write_text("x" * 100_000)

    results.put(len((cache.cached("text", "key", build) / "content").read_text()))


def test_processes_that_build_at_once_all_succeed(folder):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(3), context.Queue()
    processes = [
        context.Process(target=_build_at_the_same_time, args=(barrier, results)) for _ in range(3)
    ]
    for process in processes:
        process.start()
    assert [results.get(timeout=30) for _ in processes] == [100_000] * 3
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    assert [path.name for path in (folder / "text").iterdir()] == ["key"]


DAMAGE = {
    "missing": lambda file: file.unlink(),
    "empty": lambda file: file.write_bytes(b""),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "cut off": lambda file: os.truncate(file, file.stat().st_size - 1),
    "one bit": lambda file: file.write_bytes(
        bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:]
    ),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
    "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
    "one more": lambda file: file.with_name("more").touch(),
}


@pytest.mark.parametrize("name", ["content", cache.CHECKSUMS])
@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_entry_is_made_again(folder, how, name):
    entry = cache.cached("text", "key", fill)
    DAMAGE[how](entry / name)
    cache.cached("text", "key", fill)
    assert (entry / "content").read_text() == "built"
    assert sorted(path.name for path in entry.iterdir()) == [cache.CHECKSUMS, "content"]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.write_text("a file")])
def test_what_is_no_entry_makes_room_for_one(folder, make):
    (folder / "text").mkdir(parents=True)
    make(folder / "text" / "key")
    assert (cache.cached("text", "key", fill) / "content").read_text() == "built"


def test_a_text_that_was_changed_is_not_there(folder):
    assert cache.load("text", "key") is None
    cache.store("text", "key", "1.5")
    assert cache.load("text", "key") == "1.5"
    (folder / "text" / "key").write_text((folder / "text" / "key").read_text().replace("5", "6"))
    assert cache.load("text", "key") is None


def test_nobody_else_can_read_or_write_what_is_made(folder):
    old = os.umask(0)
    try:
        cache.cached("text", "key", fill)
    finally:
        os.umask(old)
    assert (folder / "text").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_folder_that_others_may_write_to_is_refused(folder, mode):
    cache.cached("text", "key", fill)
    (folder / "text").chmod(mode)
    with pytest.raises(LadderError, match=r"text.* KERNEL_LADDER_CACHE"):
        cache.cached("text", "key", fill)


def test_a_folder_of_another_user_is_refused(folder, monkeypatch):
    cache.cached("text", "key", fill)
    monkeypatch.setattr(
        Path, "stat", lambda path, **_: os.stat_result((0o40700, *[0] * 3, 4711, *[0] * 5))
    )
    with pytest.raises(LadderError, match=r"\b4711\b.* KERNEL_LADDER_CACHE"):
        cache.cached("text", "key", fill)


def test_unwritable_directory_names_the_remedy(tmp_path, monkeypatch):
    blocked = tmp_path / "file"  # permissions would not stop root, a file in the way does
    blocked.write_text("")
    monkeypatch.setenv(cache.VARIABLE, str(blocked / "cache"))
    with pytest.raises(LadderError, match="KERNEL_LADDER_CACHE"):
        cache.cached("text", "key", fill)


def test_full_disk_names_the_remedy(folder):
    def build(path):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(LadderError, match=r"No space left.*KERNEL_LADDER_CACHE"):
        cache.cached("text", "key", build)
