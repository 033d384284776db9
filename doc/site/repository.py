"""What ties the site to the repository: links to files, anchors, and the address of the front page.

A page may link to any file or folder of the repository. Links to pages stay on the site; all others
lead to the repository on the web, whose address is `address()`, the only place that knows it.
"""

import os
import re
import subprocess
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from docutils import nodes
from ipython_pygments_lexers import IPython3Lexer
from pygments.lexer import bygroups, using
from pygments.lexers.c_like import CudaLexer
from pygments.token import Keyword
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).resolve().parents[2]
BROWSER = ROOT / "build" / "browser" / "static"  # what `make site` builds for the page "try it"
_ANCHOR = re.compile(r'<a id="([\w-]+)">')


def address() -> str:
    """The repository on the web, without a slash at its end; "" where none is known.

    A workflow on GitHub sets GITHUB_REPOSITORY (owner/name). Elsewhere it is the remote `origin`.
    """
    if name := os.environ.get("GITHUB_REPOSITORY"):
        return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}"
    ask = ["git", "-C", str(ROOT), "config", "--get", "remote.origin.url"]
    remote = subprocess.run(ask, capture_output=True, text=True).stdout.strip()
    found = re.fullmatch(r"(?:https://|(?:ssh://)?git@)([\w.-]+)[:/](.+?)(?:\.git)?/?", remote)
    return f"https://{found[1]}/{found[2]}" if found else ""


def published() -> str:
    """Where GitHub Pages shows the site of a repository at GitHub; "" for one elsewhere."""
    found = re.fullmatch(r"https://github\.com/([\w-]+)/([\w.-]+)", address())
    return f"https://{found[1].lower()}.github.io/{found[2]}/" if found else ""


def branch() -> str:
    return os.environ.get("GITHUB_REF_NAME", "main")


def theme() -> dict[str, Any]:
    """Options of the theme: each page links to its source, and to the repository."""
    if not address():
        return {}
    link = {"name": "The repository", "url": address(), "html": "The repository", "class": ""}
    return {
        **{"source_repository": address(), "source_branch": branch(), "source_directory": ""},
        "footer_icons": [link],
    }


class LinksToFiles(SphinxTransform):
    """A link to a file or folder that is no page leads to the repository on the web.

    Where no address is known, the site has a copy of the file, and a folder is no link.
    """

    default_priority = 400

    def apply(self, **_: Any) -> None:
        for link in list(self.document.findall(nodes.reference)):  # in outputs of notebooks
            uri = link.get("refuri", "")
            if uri and not urlsplit(uri).scheme and not uri.startswith("#"):
                self.lead(link, uri)
        for link in list(self.document.findall(addnodes.download_reference)):
            self.lead(link, link["reftarget"])
        for link in list(self.document.findall(addnodes.pending_xref)):
            if link["reftype"] == "myst" and self.path(link["reftarget"]).is_dir():
                self.lead(link, link["reftarget"])

    def path(self, target: str) -> Path:
        return Path(self.env.relfn2path(target, self.env.docname)[1]).resolve()

    def lead(self, link: nodes.Element, target: str) -> None:
        """Make a link lead to the path `target`, relative to its page."""
        path, anchor = self.path(target.partition("#")[0]), target.partition("#")[2]
        known: dict[str, Any] = {"refdoc": self.env.docname, "reftype": "myst", "refexplicit": True}
        new: nodes.Element
        if page := self.env.path2doc(path):
            new = addnodes.pending_xref(
                "", refdomain="doc", reftarget=page, reftargetid=anchor or None, **known
            )
        elif address():
            kind = "tree" if path.is_dir() else "blob"
            place = path.relative_to(ROOT).as_posix()
            new = nodes.reference("", "", refuri=f"{address()}/{kind}/{branch()}/{place}")
        elif path.is_dir():
            new = nodes.inline()
        else:
            new = addnodes.download_reference("", refdomain=None, reftarget=target, **known)
        formatted = isinstance(link[0], nodes.Element)
        new += link.children if formatted else nodes.inline("", "", *link.children)
        link.replace_self(new)


class Anchors(SphinxTransform):
    """Lets other pages link to `<a id="warp"></a>`, as GitHub does."""

    default_priority = 400

    def apply(self, **_: Any) -> None:
        known = self.env.metadata[self.env.docname].setdefault("myst_slugs", {})
        for raw in self.document.findall(nodes.raw):
            for anchor in _ANCHOR.findall(raw.astext()):
                known[anchor] = (raw.line, anchor, "")


class Site(StandaloneHTMLBuilder):
    """HTML, with the front page as index.html at the top, where a web server looks for it."""

    def _place(self, page: str) -> str:
        return "index" if page == self.config.root_doc else page

    def get_output_path(self, page: str) -> Path:
        return Path(self.outdir, self._place(page) + self.out_suffix)

    def get_target_uri(self, page: str, typ: str | None = None) -> str:
        return super().get_target_uri(self._place(page), typ)


def _add_explorer(app: Sphinx, page: str, *_: Any) -> None:
    """The pages of doc/explore have a script each, and one in common."""
    if page.startswith("doc/explore/"):
        app.add_js_file("explore.js", loading_method="defer")
        app.add_js_file(f"{Path(page).name}.js", loading_method="defer")
    if page == "doc/try" and BROWSER.exists():
        app.add_js_file("explore.js", loading_method="defer")
        app.add_js_file("try/page.js", type="module")


class Cells(IPython3Lexer):
    """A cell of a notebook: Python, which may hold !commands, or CUDA below %%kernel."""

    kernel = r"(?s)\A(%%kernel\b[^\n]*\n)(.*)", bygroups(Keyword, using(CudaLexer))
    tokens: ClassVar = {**IPython3Lexer.tokens, "root": [kernel, *IPython3Lexer.tokens["root"]]}


def _leave_out_of_search(app: Sphinx, env: Any) -> None:
    """A search loads the index of all words: pages of numbers, which lessons link to, stay out."""
    for page in env.found_docs:
        if page.endswith("/measured") or page.startswith("doc/results/"):
            env.metadata[page]["nosearch"] = ""


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_lexer("cpp", CudaLexer)  # GitHub has no colours for CUDA, so pages call it cpp
    app.add_lexer("ipython3", Cells)
    app.add_builder(Site, override=True)
    app.add_transform(LinksToFiles)
    app.add_transform(Anchors)
    app.connect("html-page-context", _add_explorer)
    app.connect("env-check-consistency", _leave_out_of_search)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
