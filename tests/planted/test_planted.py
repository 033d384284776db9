"""The checker is checked: bugs planted into the rungs are caught, and the report names the line."""

import re

import pytest

from ladder.core.contract.ladder import ladders
from tests.mutants.__main__ import make, sample
from tests.mutants.changes import Change, lot
from tests.mutants.trial import judge_all
from tests.planted.__main__ import CLASSES, planted, trial_of

EACH = 2  # of a class, in a sample
SEED = 5  # of the sample: of rungs that are quickly checked
MOST_MISSED = 0.01  # of the bugs of a layer
MOST_SILENT = 0.1  # of those that concern synchronisation or addresses

BUGS = planted()


def test_the_planted_bugs_fit_their_rungs_and_cover_every_layer_and_class():
    assert len(BUGS) > 200
    assert {bug.group for bug in BUGS} == {op.partition(".")[0] for op in ladders()}
    assert {bug.kind for bug in BUGS} == set(CLASSES)
    assert len({bug.rung() for bug in BUGS}) == len(BUGS)
    assert len({str(bug) for bug in BUGS}) == len(BUGS)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", "// a line above\n"),
        ("float a", "float  a"),
        ("// before it is read", "// before anybody reads it"),
        ("    end();", "    __syncthreads();  // all are done\n    end();"),
        ("    begin();", "    __syncthreads();  // none began\n    begin();"),
    ],
)
def test_a_bug_is_planted_in_its_place_whatever_is_edited_around_it(
    tmp_path, monkeypatch, old, new
):
    source = """\
    begin();
    __syncthreads();  // all is written before it is read
    float a = 1;
    __syncthreads();  // all is read before the next step
    end();
"""
    path = tmp_path / "1_any.cu"
    monkeypatch.setattr(Change, "path", path)
    path.write_text(source.replace(old, new, 1))
    barrier = "__syncthreads();  // all is written before it is read"
    planted = Change("layer", "any.cu", "numbers", "none waits", barrier, "here").rung()
    assert re.search(r"here[^\n]*\s+float +a", planted)
    assert planted.count("__syncthreads") == path.read_text().count("__syncthreads") - 1


def caught(bugs):
    return list(zip(bugs, judge_all([trial_of(bug) for bug in bugs]), strict=True))


def score(mutants):
    """The share of mutants that are killed, of those that compile."""
    verdicts = judge_all([mutant.trial for mutant in mutants])
    made = [verdict for verdict in verdicts if verdict.status != "invalid"]
    return sum(verdict.status == "caught" for verdict in made) / len(made)


@pytest.mark.costly
@pytest.mark.emulator
@pytest.mark.parametrize("kind", CLASSES)
def test_a_sample_of_the_planted_bugs_is_caught_with_a_line(kind):
    bugs = sorted((b for b in BUGS if b.kind == kind), key=lambda bug: lot((SEED, str(bug))))
    for bug, verdict in caught(bugs[:EACH]):
        assert verdict.status == "caught", f"{bug}\n{verdict.message}"
        assert verdict.names_line or kind == "numbers", f"{bug}\n{verdict.message}"


@pytest.mark.emulator
def test_a_sample_of_mutants_is_killed():
    assert score(sample(make(["start.sum"]), 4, seed=1)) > 0.6


@pytest.mark.emulator
@pytest.mark.sweep
@pytest.mark.parametrize("layer", sorted({bug.group for bug in BUGS}))
def test_nearly_all_planted_bugs_of_a_layer_are_caught_and_most_with_a_line(layer):
    verdicts = caught([bug for bug in BUGS if bug.group == layer])
    missed = [str(bug) for bug, verdict in verdicts if verdict.status != "caught"]
    assert len(missed) <= max(1, MOST_MISSED * len(verdicts)), missed
    need = [(str(bug), verdict) for bug, verdict in verdicts if bug.kind != "numbers"]
    silent = [title for title, verdict in need if not verdict.names_line]
    assert len(silent) <= max(1, MOST_SILENT * len(need)), silent


@pytest.mark.emulator
@pytest.mark.sweep
def test_a_sample_of_mutants_of_every_layer_is_killed():
    assert score(sample(make(list(ladders())), 4, seed=1)) >= 0.8
