"""The museum of real bugs: the checker names each, and passes the kernels without them."""

import dataclasses
import re

import pytest

from tests.museum.__main__ import BUGS, MUSEUM
from tests.mutants.trial import judge, own_cache

LINK = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(?:pull|issues)/\d+")


def test_each_bug_of_the_museum_has_its_kernel_and_its_link_on_the_page():
    links = LINK.findall((MUSEUM / "bugs.txt").read_text())
    assert len({bug.rung() for bug in BUGS}) == len(set(links)) == len(BUGS)
    assert set(links) <= set(LINK.findall(MUSEUM.with_suffix(".md").read_text()))
    assert set(MUSEUM.glob("*/*.cu")) == {bug.path for bug in BUGS}
    assert sum(bug.kind == "line" for bug in BUGS) >= 23


@pytest.mark.costly
@pytest.mark.emulator
@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.what)
def test_a_bug_of_the_museum_is_caught_and_its_kernel_without_it_passes(bug):
    with own_cache():
        right = judge(dataclasses.replace(bug.trial, source=bug.path.read_text()), processes=1)
        wrong = judge(bug.trial, processes=1)
    assert right.status == "survived", right.message
    assert wrong.status == "caught", wrong.message
    assert wrong.names_line == (bug.kind == "line"), wrong.message
