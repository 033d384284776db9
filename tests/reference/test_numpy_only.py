"""The reference can be read and run with NumPy alone."""

import ast
import sys
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parents[2] / "reference").glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_imports_numpy_the_standard_library_and_its_neighbours(path):
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module)
    packages = {module.partition(".")[0] for module in modules}
    assert packages <= {"numpy", "reference", *sys.stdlib_module_names}
