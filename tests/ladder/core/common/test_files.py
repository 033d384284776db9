"""A folder has one writer at a time, however the one before it has ended."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ladder.core.common.errors import LadderError
from ladder.core.common.files import alone_in, read_text

HOLDER = """
import sys, time
from pathlib import Path
from ladder.core.common.files import alone_in
with alone_in(Path(sys.argv[1])):
    print("in", flush=True)
    time.sleep(60)
"""


def test_a_folder_is_locked_until_its_process_ends_by_a_kill_too(tmp_path):
    root = Path(__file__).parents[4]
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"in\n"
        with pytest.raises(LadderError, match=f"process {holder.pid}"), alone_in(tmp_path):
            pytest.fail("two are in the folder")
        holder.send_signal(signal.SIGKILL)
    with alone_in(tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_only_folders_that_were_made_and_are_empty_are_removed(tmp_path):
    with alone_in(tmp_path / "a" / "b"):
        pass
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a").mkdir()
    with alone_in(tmp_path / "a" / "b"):
        (tmp_path / "a" / "file").touch()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["file"]


def test_what_a_killed_write_has_left_goes_where_the_folder_is_locked(tmp_path):
    (tmp_path / ".writing-abc").mkdir()
    (tmp_path / ".writing-abc" / "config.json").write_text("{")
    with alone_in(tmp_path, tidy=False):
        assert list(tmp_path.iterdir()) == [tmp_path / ".writing-abc"]
    with alone_in(tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_who_waits_enters_the_folder_that_is_there_and_not_one_that_was_removed(tmp_path):
    folder = tmp_path / "made"
    outer = alone_in(folder)
    outer.__enter__()
    waiter = subprocess.Popen(
        [sys.executable, "-c", HOLDER.replace("argv[1])", "argv[1]), wait=True"), str(folder)],
        cwd=Path(__file__).parents[4],
        stdout=subprocess.PIPE,
    )
    try:
        outer.__exit__(None, None, None)
        assert waiter.stdout.readline() == b"in\n"
        with pytest.raises(LadderError, match=f"process {waiter.pid}"), alone_in(folder):
            pytest.fail("the waiter holds a folder that is not there any more")
    finally:
        waiter.kill()
        waiter.communicate()


def test_a_byte_order_mark_is_not_part_of_a_text(tmp_path):
    path = tmp_path / "windows.txt"
    path.write_bytes("\ufeffone\r\ntwo \ufeff".encode())
    assert read_text(path) == "one\ntwo \ufeff"
