"""The repository's address stands in pyproject.toml; what must spell it out says the same."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ADDRESS = re.search(r'^Repository = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M).group(1)
COLAB = "https://colab.research.google.com/github/"
NAMED = re.compile(r"github(?:\.com)?/([\w.-]+/kernel-ladder)\b")
PLACES = [ROOT / "README.md", ROOT / "notebooks" / "13_colab.ipynb", ROOT / "doc/where_it_runs.md"]


@pytest.mark.parametrize("path", PLACES, ids=lambda path: path.name)
def test_the_address_is_that_of_pyproject(path):
    text = path.read_text(encoding="utf-8")
    said = NAMED.findall(text)
    assert said
    assert {f"https://github.com/{name}" for name in said} == {ADDRESS}


@pytest.mark.parametrize("path", PLACES[:2], ids=lambda path: path.name)
def test_a_link_to_colab_names_a_notebook_that_exists(path):
    owner_and_name = ADDRESS.removeprefix("https://github.com/")
    begin = f"{COLAB}{owner_and_name}/blob/main/"
    links = re.findall(re.escape(begin) + r"([\w./-]+)", path.read_text(encoding="utf-8"))
    assert links
    assert all((ROOT / link).is_file() for link in links)
