"""What was found of rungs outlives the process, and no damaged or foreign file gets in its way."""

import json

import pytest
from fakes import FakeGpu, timed_rung

from ladder.common import cache
from ladder.common.errors import LadderError
from ladder.contract.rung_file import Rung
from ladder.measure.pick_cache import Entry, PickCache

DIMS = {"N": 4, "C": 8}
RUNG, OTHER = timed_rung(1, "one", 1), timed_rung(2, "two", 1)


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("KERNEL_LADDER_CACHE", str(tmp_path))
    return tmp_path / "picks"


def picks(**options):
    return PickCache(FakeGpu(), "start.add", "float32", **options)


def test_results_of_a_rung_add_up_and_the_next_process_finds_them():
    one = picks()
    one.add(RUNG, DIMS, wrong="")
    one.add(RUNG, DIMS, rough=2e-6)
    assert one.get(RUNG, DIMS) == Entry("", 2e-6)
    assert picks().get(RUNG, {"C": 8, "N": 4}) == Entry("", 2e-6)
    assert picks().get(OTHER, DIMS) == picks().get(RUNG, {"N": 4, "C": 9}) == Entry()
    assert PickCache(FakeGpu(), "start.add", "float16").get(RUNG, DIMS) == Entry()


def test_results_that_another_process_added_are_kept(folder):
    one, two = picks(), picks()
    assert one.get(RUNG, DIMS) == two.get(RUNG, DIMS) == Entry()
    one.add(RUNG, DIMS, rough=1e-6)
    two.add(OTHER, DIMS, rough=2e-6)
    assert picks().get(RUNG, DIMS).rough == 1e-6
    assert picks().get(OTHER, DIMS).rough == 2e-6
    assert len(list(folder.iterdir())) == 1, "nothing half-written is left"


def test_fresh_starts_empty_and_replaces_the_cache():
    picks().add(RUNG, DIMS, wrong="", rough=1e-6, exact=1e-6)
    fresh = picks(fresh=True)
    assert fresh.get(RUNG, DIMS) == Entry()
    fresh.add(RUNG, DIMS, rough=2e-6)
    assert fresh.get(RUNG, DIMS) == picks().get(RUNG, DIMS) == Entry(rough=2e-6)


def test_an_edit_of_an_included_file_invalidates_the_cached_results_of_a_rung(tmp_path):
    path, header = tmp_path / "1_one.cu", tmp_path / "sum.cuh"
    header.write_text("int sum;")
    rung = Rung("1", "one", path, '#include "sum.cuh"\n')
    picks().add(rung, DIMS, rough=1e-6)
    assert picks().get(rung, DIMS).rough == 1e-6
    header.write_text("float sum;")
    assert picks().get(rung, DIMS) == Entry()


@pytest.mark.parametrize(
    "entry",
    [None, [], 7, {"rough": "fast"}, {"exact": [1.0]}, {"wrong": 1.0}, {"seconds": 1.0}],
    ids=str,
)
def test_an_entry_of_another_kind_is_ignored(folder, entry):
    picks().add(RUNG, DIMS, rough=1e-6)
    (path,) = folder.iterdir()
    names = json.loads(cache.load("picks", path.name))
    cache.store("picks", path.name, json.dumps(dict.fromkeys(names, entry)))
    assert picks().get(RUNG, DIMS) == Entry()


def test_a_cache_that_cannot_be_written_says_so(folder):
    folder.write_text("a file where the folder should be")
    assert picks().get(RUNG, DIMS) == Entry()
    with pytest.raises(LadderError, match="KERNEL_LADDER_CACHE"):
        picks().add(RUNG, DIMS, rough=1e-6)
