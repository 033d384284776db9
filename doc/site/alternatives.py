"""What the pictures of notebooks show, in words, for those who cannot see them.

A drawing says so itself, in its title and description; a plot, in the metadata of the output.
"""

import base64
import hashlib
import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

_WORDS = re.compile(r"<(title|desc)>(.*?)</\1>", re.DOTALL)
UNKNOWN = "Plot, drawn by the code above it"


class Alternatives(SphinxTransform):
    """Gives each picture in an output its alternative text."""

    default_priority = 400

    def apply(self, **_: Any) -> None:
        path = self.env.doc2path(self.env.docname)
        if path.suffix != ".ipynb":
            return
        texts = dict(pictures(nbformat.read(path, as_version=4)))
        for image in self.document.findall(nodes.image):
            if "alt" not in image:
                image["alt"] = texts.get(Path(image["uri"]).stem, UNKNOWN)


def pictures(notebook: nbformat.NotebookNode) -> Iterator[tuple[str, str]]:
    """The name of each picture, which is the hash of its content, and what it shows."""
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        for kind, content in output.get("data", {}).items():
            if kind == "image/svg+xml":
                lines = "\n".join(content.splitlines())
                words = [html.unescape(found[1]) for found in _WORDS.findall(lines[:10000])[:2]]
                yield hashlib.sha256(lines.encode()).hexdigest(), ". ".join(words) or UNKNOWN
            elif kind == "image/png":
                said = output.metadata.get(kind, {}).get("alt") or UNKNOWN
                yield hashlib.sha256(base64.b64decode(content)).hexdigest(), said


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(Alternatives)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
