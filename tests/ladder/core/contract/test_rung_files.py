"""The files of the ladders keep to the rules that make them one series."""

import re
from itertools import pairwise

import pytest

from ladder.core.contract.dtypes import DTYPES
from ladder.core.contract.ladder import PACKAGE, find, ladders
from ladder.core.contract.rung_file import KEYS
from ladder.core.contract.signature import mismatch
from ladder.core.contract.target import Target
from ladder.core.show import pages
from ladder.core.show.source_code import changed_lines

MOST_CHANGED = 100  # lines added and removed: what a person reads in one go

FILES = [
    pytest.param(ladder, rung, id=f"{ladder.op.name}-{rung.id}")
    for ladder in ladders().values()
    for rung in ladder.rungs
    if rung.path is not None
]
PAGES = [pytest.param(ladder, id=ladder.op.name) for ladder in ladders().values()]
FORM = ("Why", "What is counted", "What was measured", "What still limits it")
CHAPTERS = [  # the pages of a layer that has more than one
    page
    for layer in sorted({ladder.op.layer for ladder in ladders().values()})
    for page in pages.of_layer(layer)
    if len(pages.of_layer(layer)) > 1
]
IN_FORM = CHAPTERS + [  # and those in which a section has the form of the chapters' sections
    page
    for page in sorted((pages.ROOT / "doc").glob("*.md"))
    if page not in CHAPTERS and "**Why.**" in page.read_text(encoding="utf-8")
]

# A number with a unit of time or rate: it belongs into doc/results.
MEASURED = re.compile(r"\d\s*(µs|us|ms|GB/s|TB/s|TFLOP|GFLOP)|\d\s*%|\dx faster|times faster")


def code_of(rung) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", rung.source, flags=re.DOTALL)


def comments_of(rung) -> str:
    return "\n".join(re.findall(r"//([^\n]*)", rung.source))


@pytest.mark.parametrize(("ladder", "rung"), FILES)
def test_the_header_is_complete(ladder, rung):
    direction = ladder.op.name.split(".")[1]
    title = rung.source.splitlines()[0]
    assert title == f"// {ladder.op.layer} {direction}, {rung.name}: {rung.idea}"
    for key in ("before", "change", "expect", "needs", "launch", "left"):
        assert rung.header.get(key), f"{rung.path} lacks '// {key.capitalize()}:'"


@pytest.mark.parametrize(("ladder", "rung"), FILES)
def test_no_measured_numbers_stand_in_comments(ladder, rung):
    assert not MEASURED.findall(comments_of(rung))


@pytest.mark.parametrize(("ladder", "rung"), FILES)
def test_a_file_is_plain_and_portable(ladder, rung):
    code = code_of(rung)
    assert not re.search(r"\basm\b", code), "inline PTX belongs into ladder/include"
    if not any("warp == 32" in condition for condition in rung.conditions()):
        assert not re.search(r"\b32\b", code), "write WARP_SIZE"
    assert "\t" not in rung.source
    assert max(map(len, rung.source.splitlines())) <= 100
    assert not re.search(r"[ \t]$", rung.source, re.MULTILINE)


@pytest.mark.parametrize(("ladder", "rung"), FILES)
def test_a_file_is_short_enough_to_read(ladder, rung):
    assert 15 <= len(rung.source.splitlines()) <= 280  # the backward pass of attention needs it


@pytest.mark.parametrize(("ladder", "rung"), FILES)
def test_the_arguments_are_those_of_the_contract(ladder, rung):
    assert mismatch(ladder.op, rung) is None


@pytest.mark.parametrize(("ladder", "rung"), FILES)
def test_a_barrier_names_the_hazard_that_it_prevents(ladder, rung):
    for before, line in pairwise(rung.source.splitlines()):
        if "__syncthreads();" in line:
            assert "//" in line or before.lstrip().startswith("//"), line


H200 = ("sm_90a", 32, 132, 227 << 10)


@pytest.mark.parametrize(("ladder", "rung"), FILES)
def test_a_rung_can_be_launched_at_a_measured_shape(ladder, rung):
    arch, *rest = ("gfx942", 64, 304, 64 << 10) if rung.track == "amd" else H200
    able = 0
    for real in ladder.op.reals:
        target = Target(arch, *rest, DTYPES[real])
        for dims in ladder.op.bench.values():
            plan = rung.plan(dims, target)
            if plan.refusal is None:
                able += 1
                assert plan.launches
    assert able


@pytest.mark.parametrize("ladder", PAGES)
def test_the_lines_of_a_header_stand_in_the_usual_order(ladder):
    order = [key.lower() for key in KEYS]
    for rung in ladder.rungs:
        if rung.path is not None:
            assert list(rung.header) == sorted(rung.header, key=order.index), rung.path


@pytest.mark.parametrize(("ladder", "rung"), FILES)
def test_what_a_rung_grew_from_leads_to_the_first_rung_of_a_ladder(ladder, rung):
    seen = [rung.file]
    while (parent := ladder.parent(rung)) is not None:
        ladder, rung = find(rung.after[0] or ladder.op.name), parent
        assert rung.file not in seen, "it grew from itself"
        seen.append(rung.file)
    assert rung.number == "1", "its header has no line '// After: '"


@pytest.mark.parametrize(("ladder", "rung"), FILES)
def test_a_rung_changes_little_of_its_parent_or_says_why_it_is_a_rewrite(ladder, rung):
    parent = ladder.parent(rung)
    if parent is not None and "rewrite" not in rung.header:
        assert changed_lines(parent, rung) <= MOST_CHANGED, "say why: '// Rewrite: ...'"


@pytest.mark.parametrize("ladder", PAGES)
def test_every_rung_has_one_section_in_the_page_or_its_chapters(ladder):
    """A page that exists has a heading for each rung, and names its file."""
    text = page_of(ladder)
    for rung in ladder.rungs:
        if rung.path is not None:
            heading = f"\n### {ladder.op.name} {rung.name}: {rung.idea}\n"
            assert text.count(heading) == 1, heading
            assert f"{rung.path.parent.name}/{rung.path.name}" in text, rung.path.name


@pytest.mark.parametrize("ladder", PAGES)
def test_every_page_shows_what_was_measured(ladder):
    assert f"<!-- ladder:begin table {ladder.op.name} -->" in page_of(ladder)


def page_of(ladder) -> str:
    """The layer's page and the chapters below it; skips the test where there is none."""
    written = pages.of_layer(ladder.op.layer)
    if not written:
        pytest.skip(f"{ladder.op.layer}.md is not written yet")
    return "\n".join(page.read_text(encoding="utf-8") for page in written)


@pytest.mark.parametrize("page", CHAPTERS, ids=lambda page: page.relative_to(pages.ROOT).as_posix())
def test_a_chapter_is_read_in_one_sitting(page):
    """Some 1,500 words of an overview, 3,500 of a page with rungs, beside what is generated, and
    what is folded: hints, solutions, asides."""
    text = re.sub(
        r"<!-- ladder:begin .*?ladder:end -->|<!--.*?-->|<details>.*?</details>",
        "",
        page.read_text("utf-8"),
        flags=re.DOTALL,
    )
    words = text.split()
    assert len(words) <= (3700 if "**Why.**" in text else 1700)


@pytest.mark.parametrize("page", IN_FORM, ids=lambda page: page.relative_to(pages.ROOT).as_posix())
def test_every_section_of_a_page_has_the_same_form(page):
    for section in re.split(r"^## .*$", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
        for rung in section.split("\n### ")[1:]:
            title = rung.splitlines()[0]
            if " rung " not in title:  # what precedes the rungs of the op
                assert "**Why.**" not in rung, title
                continue
            form = [label for label in FORM if "measured" not in label or " amd rung " not in title]
            places = [rung.find(f"**{label}.**") for label in form]
            assert -1 not in places, (title, form)
            assert places == sorted(places), rung.splitlines()[0]
            assert re.search("ladder:begin (change|diff|source) ", rung), rung.splitlines()[0]


def test_no_kernel_file_is_outside_a_ladder():
    known = {rung.path for ladder in ladders().values() for rung in ladder.rungs}
    for path in PACKAGE.glob("*/*/**/*.cu"):
        assert path in known or path.is_relative_to(PACKAGE / "core"), path


@pytest.mark.parametrize("ladder", PAGES)
def test_a_layer_has_its_reference(ladder):
    assert (pages.ROOT / "reference" / f"{ladder.op.layer}.py").exists()
