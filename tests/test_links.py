"""Links of pages and notebooks lead to files that exist, and to headings that these have."""

import functools
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "doc").rglob("*.md"))]
PAGES += sorted(ROOT.glob("notebooks/*.ipynb"))
_LINK = re.compile(r"\]\((?!https?:|mailto:)(?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")


_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def text_of(page: Path) -> str:
    """A page's text; of a notebook, its cells of text and what the others show as Markdown."""
    text = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    parts = [cell["source"] for cell in cells if cell["cell_type"] == "markdown"]
    shown = [output.get("data", {}) for cell in cells for output in cell.get("outputs", ())]
    parts += [data["text/markdown"] for data in shown if "text/markdown" in data]
    return "\n".join("".join(part) for part in parts)


@functools.cache
def anchors(page: Path) -> set[str]:
    """What GitHub lets a link name on a page: its headings, numbered where equal, and `<a id>`."""
    text = text_of(page)
    names = set(re.findall(r'<a id="([\w-]+)">', text))
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        names.add(next(n for n in (name, *(f"{name}-{i}" for i in range(1, 99))) if n not in names))
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page):
    prose = _CODE.sub("", text_of(page))
    for link in _LINK.finditer(prose):
        target = (page.parent / link["path"]).resolve() if link["path"] else page
        assert target.exists(), link[0]
        if link["anchor"] and target.suffix == ".md":
            assert link["anchor"] in anchors(target), link[0]
