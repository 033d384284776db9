"""kernel_ladder.py has what notebooks and examples import, and they import nothing else of ours."""

import json
import re
from pathlib import Path

import pytest

import kernel_ladder

ROOT = Path(__file__).parents[1]
OWN = re.compile(r"^\s*(?:from|import) (ladder|trainer|reference)\b.*", re.MULTILINE)


@pytest.mark.parametrize("name", kernel_ladder.__all__)
def test_every_public_name_is_there(name):
    assert getattr(kernel_ladder, name) is not None


def test_another_name_is_refused_with_those_that_there_are():
    with pytest.raises(AttributeError, match="default_device"):
        getattr(kernel_ladder, "default_devices")  # noqa: B009


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.stem)
def test_a_notebook_imports_public_names_only(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert [line[0] for line in OWN.finditer(code)] == []
