"""The museum of real bugs: the checker names each, and passes the kernels without them."""

import re

import pytest

from tests.museum.__main__ import BUGS, MUSEUM
from tests.mutants.trial import Trial, judge, own_cache

PATHS = sorted({bug.path for bug in BUGS})
LINK = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(?:pull|issues)/\d+")


def test_each_bug_of_the_museum_has_its_kernel_and_its_link_on_the_page():
    links = LINK.findall((MUSEUM / "bugs.txt").read_text())
    assert len({bug.rung() for bug in BUGS}) == len(set(links)) == len(BUGS)
    assert set(links) <= set(LINK.findall(MUSEUM.with_suffix(".md").read_text()))
    assert set(MUSEUM.glob("*/*.cu")) == set(PATHS)
    assert sum(bug.kind == "line" for bug in BUGS) >= 23


@pytest.mark.emulator
@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_kernel_of_the_museum_passes_without_its_bugs(path):
    with own_cache():
        verdict = judge(Trial(path.parent.name, path, path.read_text()), processes=1)
    assert verdict.status == "survived", verdict.message


@pytest.mark.emulator
@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.what)
def test_a_bug_of_the_museum_is_caught(bug):
    with own_cache():
        verdict = judge(bug.trial, processes=1)
    assert verdict.status == "caught", verdict.message
    assert verdict.names_line == (bug.kind == "line"), verdict.message
