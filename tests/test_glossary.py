"""The glossary defines every term once, and pages link a term where they first use it."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = ROOT / "doc" / "glossary.md"
PAGES = [ROOT / "README.md", *sorted(set((ROOT / "doc").rglob("*.md")) - {GLOSSARY})]
PAGES = [page for page in PAGES if page.parent.name != "results"]  # records, not lessons
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

# - <a id="warp"></a>**warp** (more on its name): one sentence. First in [where](link).
_ENTRY = re.compile(
    r'- <a id="(?P<id>[\w-]+)"></a>\*\*(?P<term>.+?)\*\*(?P<more> \(.+?\))?: (?P<meaning>.+)\. '
    r"First in \[.+?\]\((?P<place>[^)]+)\)\."
)
_LINK = re.compile(r"\[(?P<text>[^]]+)\]\((?:doc/|\.\./doc/|\.\./)?glossary\.md#(?P<id>[\w-]+)\)")


def entries() -> list[re.Match[str]]:
    """The entries of the glossary, in its order."""
    lines = GLOSSARY.read_text(encoding="utf-8").splitlines()
    found = [(line, _ENTRY.fullmatch(line)) for line in lines if line.startswith("- ")]
    assert all(entry for _, entry in found), [line for line, entry in found if not entry]
    return [entry for _, entry in found if entry]


def text_of(page: Path) -> str:
    """A page's text; of a notebook, the Markdown cells."""
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    return "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


def sentences_of(page: Path) -> str:
    """What people wrote on a page: no code, headings, generated blocks or targets of links."""
    text = re.sub(r"<!-- ladder:begin.*?ladder:end -->", "", text_of(page), flags=re.DOTALL)
    text = re.sub(r"^```.*?^```|^#.*?$|^    .*?$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"(?<!\[)`[^`\n]*`", "", text)
    return re.sub(r"\]\((?!\S*glossary\.md#)[^)]*\)", "]", text)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def test_every_entry_has_one_anchor_and_the_groups_are_in_alphabetical_order():
    ids = [entry["id"] for entry in entries()]
    assert len(ids) == len(set(ids))
    for group in GLOSSARY.read_text(encoding="utf-8").split("\n## ")[1:]:
        terms = re.findall(r"\*\*(.+?)\*\*", group)
        assert terms == sorted(terms, key=str.casefold)


def test_an_entry_is_one_sentence():
    for entry in entries():
        plain = re.sub(r"`[^`]*`", "", entry["meaning"]).replace("et al.", "")
        assert not re.search(r"[.!?] [A-Z]", plain), entry["id"]


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry["id"])
def test_the_place_where_a_term_first_matters_exists(entry):
    path, _, anchor = entry["place"].partition("#")
    place = (GLOSSARY.parent / path).resolve()
    assert place.exists()
    assert not anchor or anchor in anchors(place)


@pytest.mark.parametrize(
    "page", [*PAGES, *NOTEBOOKS], ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_a_link_into_the_glossary_leads_to_an_entry(page):
    links = re.findall(r"glossary\.md#([\w-]+)", text_of(page))
    assert set(links) <= {entry["id"] for entry in entries()} | anchors(GLOSSARY)


def test_every_entry_is_linked_from_a_page_or_a_notebook():
    linked = {link["id"] for page in [*PAGES, *NOTEBOOKS] for link in _LINK.finditer(text_of(page))}
    assert {entry["id"] for entry in entries()} - linked == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_links_a_term_once_and_at_its_first_use(page):
    text = sentences_of(page)
    names = {entry["id"]: entry["term"] for entry in entries()}
    links = list(_LINK.finditer(text))
    assert len(links) == len({link["id"] for link in links}), "a term is linked twice"
    for link in links:
        before = _LINK.sub(lambda other: f"[{'x' * len(other['text'])}]", text[: link.start()])
        name = re.escape(names[link["id"]])
        earlier = re.search(rf"\b{name}(s|es)?\b", before, re.IGNORECASE)
        assert not earlier, f"{names[link['id']]} is used before its link: …{before[-300:]}"
