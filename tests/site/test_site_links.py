"""Links inside the built site lead to files and anchors that exist; others, to the repository."""

import re
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.site

_LINK = re.compile(r'<(?:a|img|script|link)\b[^>]*?\s(?:href|src)="([^"]*)"')
_ID = re.compile(r'\s(?:id|name)="([^"]+)"')


def test_every_link_leads_somewhere(site):
    pages = [path for path in site.rglob("*.html") if path.name != "404.html"]  # shown anywhere
    texts = {path.resolve(): path.read_text(encoding="utf-8") for path in pages}
    ids = {path: set(_ID.findall(text)) for path, text in texts.items()}
    assert len(texts) > 40
    broken, followed = set(), 0
    for path, text in texts.items():
        for link in map(unescape, _LINK.findall(text)):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            followed += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            here = path.relative_to(site.resolve())
            if not target.is_file():
                broken.add(f"{here}: {link}")
            elif anchor and target in ids and anchor not in ids[target]:
                broken.add(f"{here}: {link}: no such anchor")
    assert sorted(broken) == []
    assert followed > 1000


def test_the_front_page_is_at_the_top_and_the_menu_leads_back_to_it(site):
    assert "Kernel Ladder" in (site / "index.html").read_text(encoding="utf-8")
    assert 'href="../index.html"' in (site / "doc" / "gelu.html").read_text(encoding="utf-8")
    assert not Path(site / "doc" / "site" / "index.html").exists()


def test_every_picture_is_described_in_words(site):
    for path in site.rglob("*.html"):
        for image in re.findall(r"<img\b[^>]*>", path.read_text(encoding="utf-8")):
            words = re.search(r'\balt="([^"]*)"', image)
            assert words and " " in words[1] and "/" not in words[1].split()[0], (path.name, image)
