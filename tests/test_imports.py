"""Imports run one way: by the table in doc/the_house.md, and without circles between files."""

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # they read every file
ROOT = Path(__file__).parents[1]
TOPS = ("ladder", "reference", "trainer")
LAYER = "ladder/<layer>"  # the row for each folder that holds an ops.py

Graph = dict[str, set[str]]  # file -> files that it imports, all relative to the root


def rows(text: str) -> dict[str, set[str]]:
    """folder, or a file that stands for itself -> what it may import, from the table whose columns
    have these names."""
    lines = iter(text.splitlines())
    header = next(line for line in lines if line.startswith("| folder |"))
    column = [cell.strip() for cell in header.strip("|").split("|")].index("may import")
    next(lines)  # |---|
    table = {}
    for line in lines:
        if not line.startswith("|"):
            break
        cells = line.strip("|").split("|")
        (folder,) = re.findall(r"`([^`]+)`", cells[0])
        table[folder] = set(re.findall(r"`([^`]+)`", cells[column]))
    return table


def imported(source: str) -> Iterator[tuple[str, ...]]:
    """For each import statement, wherever it stands, the modules that it may mean: a.b or a."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name,) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports here are absolute"
            module = node.module or ""
            yield from ((f"{module}.{alias.name}", module) for alias in node.names)


@functools.cache
def read_repository() -> dict[str, str]:
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for top in TOPS
        for path in sorted((ROOT / top).rglob("*.py"))
    }


@functools.cache
def whole_graph() -> Graph:
    """Which files import which. An import that means none of them is left out: another
    package's."""
    sources, graph = read_repository(), {}
    for file, source in sources.items():
        graph[file] = set()
        for names in imported(source):
            paths = [name.replace(".", "/") for name in names]
            files = [path for name in paths for path in (f"{name}.py", f"{name}/__init__.py")]
            graph[file].update([path for path in files if path in sources][:1])
        graph[file].discard(file)
    return graph


def circle(graph: Graph) -> list[str]:
    """A circle of imports, [a, b, a]; empty if there is none."""
    done: set[str] = set()

    def search(file: str, above: list[str]) -> list[str]:
        if file in above:
            return [*above[above.index(file) :], file]
        if file not in done:
            for other in sorted(graph[file]):
                if files := search(other, [*above, file]):
                    return files
            done.add(file)
        return []

    return next((files for file in sorted(graph) if (files := search(file, []))), [])


def layers() -> set[str]:
    return {str(Path(file).parent) for file in read_repository() if file.endswith("/ops.py")}


def against(table: dict[str, set[str]], graph: Graph, layers: set[str]) -> list[str]:
    """Imports that the table does not allow, as "a.py imports b.py"."""

    def row(file: str) -> str:
        folder = str(Path(file).parent)
        if file in table:
            return file
        return LAYER if folder in layers else folder

    return [
        f"{file} imports {other}"
        for file, others in graph.items()
        for other in sorted(others)
        if row(other) != row(file) and row(other) not in table[row(file)]
    ]


TABLE = rows((ROOT / "doc/the_house.md").read_text(encoding="utf-8"))


def test_no_file_imports_itself_through_others():
    assert " -> ".join(circle(whole_graph())) == ""


def test_every_import_is_in_the_table():
    assert against(TABLE, whole_graph(), layers()) == []


def test_the_reference_can_be_run_with_numpy_alone():
    sources = [text for file, text in read_repository().items() if file.startswith("reference/")]
    names = {names[-1].partition(".")[0] for text in sources for names in imported(text)}
    assert names <= {"numpy", "reference", *sys.stdlib_module_names}


def test_the_table_names_the_folders_that_there_are():
    sources = read_repository()
    folders = {str(Path(file).parent) for file, text in sources.items() if text} - layers()
    folders |= {str(path.parent.relative_to(ROOT)) for path in ROOT.glob("ladder/*/*.cuh")}
    assert {row for row in TABLE if row not in sources} == folders | {LAYER}
    assert set().union(*TABLE.values()) <= set(TABLE)
