"""The repository's address stands in pyproject.toml; what must spell it out says the same."""

import json
import re
import shutil
import subprocess
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


def test_no_other_page_spells_it_out():
    pages = [*ROOT.glob("*.md"), *(ROOT / "doc").rglob("*.md"), *ROOT.glob("notebooks/*.ipynb")]
    assert {page for page in pages if NAMED.search(page.read_text())} == set(PLACES)


@pytest.mark.parametrize("path", PLACES[:2], ids=lambda path: path.name)
def test_a_link_to_colab_names_a_notebook_that_exists(path):
    owner_and_name = ADDRESS.removeprefix("https://github.com/")
    begin = f"{COLAB}{owner_and_name}/blob/main/"
    links = re.findall(re.escape(begin) + r"([\w./-]+)", path.read_text(encoding="utf-8"))
    assert links
    assert all((ROOT / link).is_file() for link in links)


def test_make_address_enters_the_owner_everywhere_and_drops_what_explains_the_gap(tmp_path):
    for path in ["Makefile", "pyproject.toml", *(path.relative_to(ROOT) for path in PLACES)]:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    before = {path: path.read_text() for path in tmp_path.rglob("*.*")}
    assert subprocess.run(["make", "address"], cwd=tmp_path, capture_output=True).returncode == 2
    subprocess.run(["make", "address", "OWNER=someone"], cwd=tmp_path, check=True)
    placeholder = "YOUR_NAME" in ADDRESS
    for path, text in before.items():
        assert "YOUR_NAME" not in path.read_text()
        assert ("someone/kernel-ladder" in path.read_text()) == placeholder
        assert ("YOUR_NAME" in text) == placeholder
    json.loads((tmp_path / "notebooks/13_colab.ipynb").read_text())
