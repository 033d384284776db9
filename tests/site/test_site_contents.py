"""The site's table of contents has every page and every notebook, once."""

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FRONT = ROOT / "doc" / "site" / "index.md"


def contents() -> list[str]:
    """The pages that the front page lists, without suffix, from the root of the repository."""
    listed = []
    for block in re.findall(
        r"^```\{toctree\}\n(.*?)^```", FRONT.read_text(), re.DOTALL | re.MULTILINE
    ):
        for line in filter(None, block.splitlines()):
            if not line.startswith(":"):
                path = re.sub(r".*<(.+)>", r"\1", line)
                listed.append(posixpath.normpath(posixpath.join("doc/site", path)))
    return listed


def test_every_page_and_notebook_is_listed_once():
    pages = [*ROOT.glob("doc/**/*.md"), *ROOT.glob("doc/**/*.rst"), *ROOT.glob("notebooks/*.ipynb")]
    names = {path.relative_to(ROOT).with_suffix("").as_posix() for path in pages if path != FRONT}
    assert sorted(contents()) == sorted(names | {"CONTRIBUTING", "CHANGELOG", "SECURITY"})
