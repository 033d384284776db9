"""What is known of rungs outlives the process, and no damaged or foreign file gets in its way."""

import json
import shutil
from pathlib import Path

import pytest
from fakes import FakeGpu, ladder, pick, timed_rung

from ladder.core.common import cache
from ladder.core.common.errors import LadderError
from ladder.core.contract.rung_file import Rung
from ladder.core.measure import pick_cache, results, timing
from ladder.core.measure.pick_cache import Entry, PickCache, keep, prune

DIMS = {"N": 4, "C": 8}
SHIPPED = results.FOLDER / pick_cache.FOLDER


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
    content = json.loads(cache.load("picks", path.name))
    content["rungs"] = dict.fromkeys(content["rungs"], entry)
    cache.store("picks", path.name, json.dumps(content))
    assert picks().get(RUNG, DIMS) == Entry()


def test_a_cache_that_cannot_be_written_says_so(folder):
    folder.write_text("a file where the folder should be")
    assert picks().get(RUNG, DIMS) == Entry()
    with pytest.raises(LadderError, match="KERNEL_LADDER_CACHE"):
        picks().add(RUNG, DIMS, rough=1e-6)


def test_content_of_another_shape_is_ignored(folder):
    picks().add(RUNG, DIMS, rough=1e-6)
    (path,) = folder.iterdir()
    for content in ("[]", "7", '{"rungs": []}', "{}", "not JSON"):
        cache.store("picks", path.name, content)
        assert picks().get(RUNG, DIMS) == Entry()


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """What a first machine picked is kept in the repository; then the cache is that of a second."""
    rungs = ladder(timed_rung(1, "slow", 30), timed_rung(2, "fast", 10))
    monkeypatch.setattr(timing, "ROTATED_BYTES", 1 << 16)
    monkeypatch.setattr(timing, "WARM_UP_SECONDS", 0)
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    monkeypatch.setattr(pick_cache, "find", lambda op: rungs)
    pick(rungs, FakeGpu(), "float32", {"N": 1000})
    path = keep(FakeGpu())
    monkeypatch.setenv("KERNEL_LADDER_CACHE", str(tmp_path / "second"))
    return rungs, path


def test_nothing_is_measured_where_the_repository_brings_the_picks(kept):
    rungs, path = kept
    gpu = FakeGpu()
    choice = pick(rungs, gpu, "float32", {"N": 1000})
    assert choice.rung == "2"
    assert gpu.launches == 0
    assert "10.0 us (doc/results/picks)" in choice.reasons["2"]
    assert path.name == "fake-9000.json"
    assert pick(rungs, gpu, "float32", {"N": 1001}).rung == "2"
    assert gpu.launches > 0, "another shape is measured"


def test_what_is_kept_later_is_added_to_what_is_there(kept):
    rungs, path = kept
    before = json.loads(path.read_text())["picks"]
    pick(rungs, FakeGpu(), "float32", {"N": 2000})
    keep(FakeGpu())
    after = json.loads(path.read_text())["picks"]
    assert {1000, 2000} <= {one["dims"]["N"] for one in after}
    assert all(one in after for one in before)


def test_a_rung_that_was_edited_since_is_not_kept_again(kept):
    rungs, path = kept
    path.write_text(path.read_text().replace('"1": {"code": "', '"1": {"code": "0'))

    def rungs_at():
        picks = json.loads(path.read_text())["picks"]
        return {one["dims"]["N"]: set(one["rungs"]) for one in picks}

    edited = path.read_text()
    prune(path)
    assert rungs_at()[1000] == {"2"}
    path.write_text(edited)
    pick(rungs, FakeGpu(), "float32", {"N": 2000})
    keep(FakeGpu())
    assert rungs_at()[1000] == {"2"}
    assert rungs_at()[2000] == {"1", "2"}


@pytest.mark.slow
@pytest.mark.parametrize("path", [*SHIPPED.glob("*.json")], ids=lambda path: path.stem)
def test_what_the_repository_brings_is_of_rungs_as_they_are(path, tmp_path):
    pruned = Path(shutil.copy(path, tmp_path))
    prune(pruned)
    stale = sorted({*path.read_text().splitlines()} - {*pruned.read_text().splitlines()})
    assert not stale, (
        "rungs have changed since; run the trainer and `python -m ladder pick --save` on that GPU, "
        "or drop them: `python -m ladder pick --prune`"
    )


def test_picks_of_dimensions_that_the_op_no_longer_has_are_left_aside(kept):
    rungs, path = kept
    path.write_text(
        path.read_text().replace('"dims": {"N": 1000}', '"dims": {"N": 1000, "old": 8}')
    )
    pick(rungs, FakeGpu(), "float32", {"N": 2000})  # measured: no kept pick answers it
    keep(FakeGpu())
    after = [one["dims"] for one in json.loads(path.read_text())["picks"]]
    assert {"N": 2000} in after
    assert all(dims.keys() == {"N"} for dims in after)


@pytest.mark.parametrize(
    "damage",
    [
        {"question": None},
        {
            "question": {"device": "mine", "op": "start.add", "dtype": "float32", "dims": {}},
            "rungs": {"x": {"rough": "fast"}},
        },
    ],
)
def test_a_damaged_file_of_the_cache_is_not_kept(kept, folder, damage):
    rungs, path = kept
    before = path.read_text()
    gpu = FakeGpu()
    if damage["question"]:
        damage["question"]["device"] = [gpu.name, gpu.description()]
    pick(rungs, gpu, "float32", {"N": 2000})
    cache.store(pick_cache.FOLDER, "0.json", json.dumps(damage))
    keep(gpu)
    kept_now = json.loads(path.read_text())["picks"]
    assert {one["dims"]["N"] for one in kept_now} >= {1000, 2000}
    assert len(kept_now) > len(json.loads(before)["picks"])


def test_picks_that_are_damaged_are_refused_by_their_path(kept):
    rungs, path = kept
    path.write_text('{"picks": [{"op": "start.add"}]}')
    with pytest.raises(LadderError, match=r"fake-9000\.json .*'dtype'"):
        pick(rungs, FakeGpu(), "float32", {"N": 1000})


def test_a_machine_that_has_picked_nothing_keeps_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    with pytest.raises(LadderError, match=r"Fake 9000 .*--rungs best"):
        keep(FakeGpu())
