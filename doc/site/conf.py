"""The site: Sphinx shows doc/ and notebooks/ as they are. `make site` writes it to build/site.

The source folder is the repository, so that a link on a page means the same as on GitHub. Only
this folder has pages that are made for Sphinx: index.md, the front page with the table of contents,
and api.rst. Notebooks are not run: they show the outputs that they were saved with.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parents[1])]

import repository  # noqa: E402

project = "Kernel Ladder"
root_doc = "doc/site/index"
include_patterns = ["doc/**", "notebooks/*.ipynb", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinxext.opengraph",
    "notfound.extension",
    "repository",
    "docstrings",
]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 6
nb_execution_mode = "off"
nb_render_markdown_format = "gfm"

# MathJax comes with the site, which needs no other server. What only other outputs need stays out.
MATHJAX = Path(find_spec("sphinx-mathjax-offline").origin).parent / "static"
mathjax_path = "mathjax/tex-chtml.js"
exclude_patterns = [
    *(f"mathjax/{folder}/**" for folder in ("a11y", "adaptors", "input", "output/svg", "sre")),
    *(f"mathjax/{files}" for files in ("*mml*", "*svg*", "*full*", "node-main.js")),
]

autodoc_default_options = {"member-order": "bysource"}
add_module_names = False
python_display_short_literal_types = True

html_theme = "furo"
html_title = project
html_static_path = ["static", str(MATHJAX)]
if repository.BROWSER.exists():
    html_static_path.append(str(repository.BROWSER))
html_css_files = ["site.css"]
html_js_files = [("menu.js", {"defer": "defer"})]
html_search_scorer = str(FOLDER / "static" / "scorer.js")
html_favicon = "static/ladder.svg"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_use_index = False
html_domain_indices = False
ogp_site_url = repository.published()  # each page has a description and a picture for previews
ogp_enable_meta_description = True
ogp_social_cards = {"enable": bool(ogp_site_url)}  # a preview's picture needs a whole address
notfound_urls_prefix = urlsplit(ogp_site_url).path or None
copybutton_exclude = ".linenos, .gp, .go"
html_theme_options = {"light_logo": "ladder.svg", "dark_logo": "ladder.svg", **repository.theme()}
highlight_language = "none"  # fences without a language are output, tables and drawings
pygments_style = "github-light-high-contrast"
pygments_dark_style = "github-dark"
