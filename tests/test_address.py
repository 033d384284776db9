"""The repository's address stands in pyproject.toml; what must spell it out says the same."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ADDRESS = re.search(r'^Repository = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M).group(1)
NAMED = re.compile(r"github(?:\.com)?/([\w.-]+/kernel-ladder)\b")
PLACES = [ROOT / "README.md", ROOT / "notebooks" / "13_colab.ipynb", ROOT / "doc/where_it_runs.md"]


@pytest.mark.parametrize("path", PLACES, ids=lambda path: path.name)
def test_the_address_is_that_of_pyproject(path):
    text = path.read_text(encoding="utf-8")
    said = NAMED.findall(text)
    assert said
    assert {f"https://github.com/{name}" for name in said} == {ADDRESS}
