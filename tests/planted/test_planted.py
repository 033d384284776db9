"""The checker is checked: bugs planted into the rungs are caught, and the report names the line."""

import pytest

from ladder.core.contract.ladder import ladders
from tests.mutants.__main__ import make, sample
from tests.mutants.trial import judge_all
from tests.planted.__main__ import CLASSES, name, planted, trial_of

EVERY = 80  # of the planted bugs, how many a sample leaves out before the next
MOST_MISSED = 0.01  # of the bugs of a layer
MOST_SILENT = 0.1  # of those that concern synchronisation or addresses

BUGS = planted()


def test_the_planted_bugs_fit_their_rungs_and_cover_every_layer_and_class():
    assert len(BUGS) > 200
    assert {bug.layer for bug in BUGS} == {op.partition(".")[0] for op in ladders()}
    assert {bug.kind for bug in BUGS} == set(CLASSES)
    assert len({bug.apply() for bug in BUGS}) == len(BUGS)
    assert len({name(bug) for bug in BUGS}) == len(BUGS)


def caught(bugs):
    verdicts = judge_all([trial_of(bug) for bug in bugs])
    return [(name(bug), verdict) for bug, verdict in zip(bugs, verdicts, strict=True)]


@pytest.mark.emulator
def test_a_sample_of_the_planted_bugs_is_caught_with_a_line():
    for title, verdict in caught(BUGS[::EVERY]):
        assert verdict.status == "caught", f"{title}\n{verdict.message}"
        if ": numbers: " not in title:
            assert verdict.names_line, f"{title}\n{verdict.message}"


@pytest.mark.emulator
@pytest.mark.sweep
@pytest.mark.parametrize("layer", sorted({bug.layer for bug in BUGS}))
def test_nearly_all_planted_bugs_of_a_layer_are_caught_and_most_with_a_line(layer):
    found = caught([bug for bug in BUGS if bug.layer == layer])
    missed = [title for title, verdict in found if verdict.status != "caught"]
    assert len(missed) <= max(1, MOST_MISSED * len(found)), missed
    need = [(title, verdict) for title, verdict in found if ": numbers: " not in title]
    silent = [title for title, verdict in need if not verdict.names_line]
    assert len(silent) <= max(1, MOST_SILENT * len(need)), silent


@pytest.mark.emulator
@pytest.mark.sweep
def test_a_sample_of_mutants_is_killed():
    mutants = sample(make(list(ladders())), 4, seed=1)
    verdicts = judge_all([mutant.trial for mutant in mutants])
    made = [verdict for verdict in verdicts if verdict.status != "invalid"]
    killed = sum(verdict.status == "caught" for verdict in made)
    assert killed >= 0.8 * len(made) > 0
