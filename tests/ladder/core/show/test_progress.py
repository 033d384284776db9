"""Exercises that are solved stay solved, whatever is in the file that says so."""

import json

import pytest

from ladder.core.common.errors import LadderError
from ladder.core.show import progress

START = progress.exercises()["00_start"]
ONE = START[-1]
PUZZLES = progress.exercises()["12_puzzles"]


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path / "state"))
    return tmp_path / "state" / "solved.json"


def test_every_kind_of_exercise_is_found_and_no_title_occurs_twice():
    titles_of = progress.exercises()
    assert len(START) == 5 and ONE == "many elements per thread"
    assert titles_of["10_gpt2"] == ["check_order", "check_floor"]
    assert len(titles_of["11_climb"]) == 6 and titles_of["11_climb"][0] == "check_next_climb"
    assert len(PUZZLES) == 20
    titles = [title for own in titles_of.values() for title in own]
    assert len(titles) == len(set(titles))


def test_a_solved_exercise_is_kept_and_praised_once(file):
    said = progress.record(PUZZLES[0])
    assert "1 of 20 here" in said
    assert progress.record(PUZZLES[0]) == ""
    assert "2 of 20 here" in progress.record(PUZZLES[1])
    said = [progress.record(title) for title in START]
    assert ["Half" in text for text in said] == [False] * 5  # 3 of 5 are more
    assert "5 of 5 here, 7 of" in said[-1]
    assert progress.solved() == {*START, *PUZZLES[:2]}
    assert json.loads(file.read_text())["solved"] == sorted([*START, *PUZZLES[:2]])


def test_a_kernel_that_is_no_exercise_is_not_kept(file):
    assert progress.record("a kernel of my own") == ""
    assert not file.exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\xfe", b"[]", b'{"solved": 3}', b'{"solved": [1]}', b"[" * 60_000, b" " * 99_999],
    ids=["empty", "no text", "a list", "a number", "numbers", "too deep", "too long"],
)
def test_a_damaged_file_is_named_and_left_as_it_is(file, content):
    file.parent.mkdir()
    file.write_bytes(content)
    with pytest.raises(LadderError, match=r"solved\.json"):
        progress.solved()
    assert "solved.json" in progress.record(ONE)
    assert file.read_bytes() == content


def test_unknown_titles_stay_but_do_not_count(file):
    file.parent.mkdir()
    file.write_text(json.dumps({"solved": ["of another version", "<script>"]}))
    assert "1 of 5 here, 1 of" in progress.record(ONE)
    assert progress.solved() == {"of another version", "<script>", ONE}
    assert "script" not in progress.draw().svg()
