"""The repository's address stands in pyproject.toml; what must spell it out says the same."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ADDRESS = re.search(
    r'^(?:# with an address: )?Repository = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M
).group(1)
NAMED = re.compile(r"(?:github(?:\.com)?|/gh)/([\w.-]+/kernel-ladder)\b")
PLACES = [ROOT / "README.md", ROOT / "doc" / "where_it_runs.md", ROOT / "CITATION.cff"]
PLACES += [ROOT / "notebooks" / "13_colab.ipynb"]
UNKNOWN = "YOUR_NAME"


@pytest.mark.parametrize("path", PLACES, ids=lambda path: path.name)
def test_the_address_is_that_of_pyproject(path):
    text = path.read_text(encoding="utf-8")
    said = NAMED.findall(text)
    assert said
    assert {f"https://github.com/{name}" for name in said} == {ADDRESS}


def test_make_address_knows_every_file_that_spells_it_out():
    find = f"git grep -lE {UNKNOWN}[/.] -- :!tests :!Makefile".split()
    files = subprocess.run(find, cwd=ROOT, capture_output=True, text=True).stdout.split()
    named = re.search(r"^ADDRESSED := (.*)$", (ROOT / "Makefile").read_text(), re.M).group(1)
    assert {*files} <= {*named.split()}


HIDDEN = [*PLACES, ROOT / "pyproject.toml", ROOT / "action.yml"]


@pytest.mark.parametrize("path", HIDDEN, ids=lambda path: path.name)
def test_what_needs_an_address_shows_nothing_until_there_is_one(path):
    hidden = r"(?m)^ *# with an address: .*|<!-- with an address: .*? -->"
    assert UNKNOWN not in re.sub(hidden, "", path.read_text(encoding="utf-8"))


def test_make_address_enters_the_owner_everywhere(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    copies = {path: tmp_path / path.relative_to(ROOT) for path in HIDDEN}
    for path, copy in copies.items():
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(path, copy)
    subprocess.run(["make", "--silent", "address", "OWNER=octo"], cwd=tmp_path, check=True)
    for path, copy in copies.items():
        before, after = path.read_text(encoding="utf-8"), copy.read_text(encoding="utf-8")
        assert UNKNOWN not in after
        named = len(re.findall(f'{UNKNOWN}[/.]|ADDRESS = ."."', before))
        assert len(re.findall("octo[/.]", after)) == named
