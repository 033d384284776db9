"""What is known of rungs outlives the process, and no damaged or foreign file gets in its way."""

import json

import pytest
from fakes import FakeGpu, timed_rung

from ladder.common.errors import LadderError
from ladder.contract.rung_file import Rung
from ladder.measure.pick_cache import Fact, Known

DIMS = {"N": 4, "C": 8}
RUNG, OTHER = timed_rung(1, "one", 1), timed_rung(2, "two", 1)


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("KERNEL_LADDER_CACHE", str(tmp_path))
    return tmp_path / "picks"


def known(**options):
    return Known(FakeGpu(), "start.add", "float32", **options)


def test_facts_of_one_rung_add_up_and_are_found_by_the_next_process():
    one = known()
    one.learn(RUNG, DIMS, wrong="")
    one.learn(RUNG, DIMS, rough=2e-6)
    assert one.fact(RUNG, DIMS) == Fact("", 2e-6)
    assert known().fact(RUNG, {"C": 8, "N": 4}) == Fact("", 2e-6)
    assert known().fact(OTHER, DIMS) == known().fact(RUNG, {"N": 4, "C": 9}) == Fact()
    assert Known(FakeGpu(), "start.add", "float16").fact(RUNG, DIMS) == Fact()


def test_what_another_process_learned_meanwhile_is_kept(folder):
    one, two = known(), known()
    assert one.fact(RUNG, DIMS) == two.fact(RUNG, DIMS) == Fact()
    one.learn(RUNG, DIMS, rough=1e-6)
    two.learn(OTHER, DIMS, rough=2e-6)
    assert known().fact(RUNG, DIMS).rough == 1e-6
    assert known().fact(OTHER, DIMS).rough == 2e-6
    assert len(list(folder.iterdir())) == 1, "nothing half-written is left"


def test_fresh_begins_with_nothing_and_replaces():
    known().learn(RUNG, DIMS, wrong="", rough=1e-6, exact=1e-6)
    fresh = known(fresh=True)
    assert fresh.fact(RUNG, DIMS) == Fact()
    fresh.learn(RUNG, DIMS, rough=2e-6)
    assert fresh.fact(RUNG, DIMS) == known().fact(RUNG, DIMS) == Fact(rough=2e-6)


def test_an_edited_file_that_a_rung_includes_makes_it_another(tmp_path):
    path, header = tmp_path / "1_one.cu", tmp_path / "sum.cuh"
    header.write_text("int sum;")
    rung = Rung("1", "one", path, '#include "sum.cuh"\n')
    known().learn(rung, DIMS, rough=1e-6)
    assert known().fact(rung, DIMS).rough == 1e-6
    header.write_text("float sum;")
    assert known().fact(rung, DIMS) == Fact()


@pytest.mark.parametrize(
    "entry",
    [None, [], 7, {"rough": "fast"}, {"exact": [1.0]}, {"wrong": 1.0}, {"seconds": 1.0}],
    ids=str,
)
def test_an_entry_of_another_kind_is_ignored(folder, entry):
    known().learn(RUNG, DIMS, rough=1e-6)
    (path,) = folder.iterdir()
    path.write_text(json.dumps(dict.fromkeys(json.loads(path.read_text()), entry)))
    assert known().fact(RUNG, DIMS) == Fact()


def test_a_cache_that_cannot_be_written_says_so(folder):
    folder.write_text("a file in the place of the folder")
    assert known().fact(RUNG, DIMS) == Fact()
    with pytest.raises(LadderError, match="KERNEL_LADDER_CACHE"):
        known().learn(RUNG, DIMS, rough=1e-6)
