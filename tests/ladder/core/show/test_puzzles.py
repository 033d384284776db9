"""Puzzles are ops that no table lists; their notebook shows an example, counts and accesses."""

import re
from pathlib import Path

import numpy as np
import pytest

from ladder.__main__ import main
from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find, ladders, puzzles
from ladder.core.show import notebook, progress, source_code
from ladder.core.verify.guards import WRITES

COPY = """// puzzle copy: by chunks of {0}
// Launch: puzzle_copy<<<1, 64>>>
extern "C" __global__ void puzzle_copy(float* out, const float* a, int N) {{
    int each = (N + 63) / 64;
    for (int j = 0; j < each; j++) {{
        int i = {0};
        if (i < N) out[i] = a[i];
    }}
}}
"""


def test_puzzles_are_found_by_name_and_are_no_layers():
    assert find("puzzle.stencil") is puzzles()["puzzle.stencil"]
    assert not set(puzzles()) & set(ladders())
    with pytest.raises(LadderError, match=r"puzzle\.stencil"):
        find("puzzle.stensil")


@pytest.mark.parametrize("name", sorted(puzzles()))
def test_the_drawing_of_a_puzzle_shows_what_it_computes(name, shown):
    op = find(name).op
    notebook.spec(name)
    shape = re.search(f"<title>{name} at (.*)</title>", shown[0])[1]
    numbers = map(float, re.findall(r'font-size="11" [^>]*"middle">([^<]*)<', shown[0]))
    if name in ("puzzle.reverse", "puzzle.scan", "puzzle.warp_sum"):  # rows without numbers
        return
    dims = source_code.parse_shape(op, shape)
    arrays = {arg.name: np.zeros(arg.resolve_shape(dims)) for arg in op.args}
    for arg in sorted(op.args, key=lambda arg: arg.role != "in"):  # as they are drawn
        drawn = np.reshape([next(numbers) for _ in arrays[arg.name].flat], arg.resolve_shape(dims))
        if arg.role == "in":
            arrays[arg.name] = drawn.astype(arg.dtype)
        else:
            op.compute(list(arrays.values()), dims)
            assert np.allclose(arrays[arg.name], drawn, atol=0.051)
    assert not list(numbers)


@pytest.fixture
def shown(monkeypatch):
    monkeypatch.setattr(notebook, "default_device", lambda: "emulated")
    seen = []
    monkeypatch.setattr(notebook, "_draw", seen.append)
    return seen


NO_GUARDS = """// puzzle stencil: a load before the start, and no guard
// Launch: puzzle_stencil<<<ceil_div(N, 256), 256>>>
extern "C" __global__ void puzzle_stencil(float* out, const float* a, int N) {
    int i = blockIdx.x * 256 + threadIdx.x;
    float left = a[i > 0 ? 0 : -1];
    out[i] = left / 3.0f;
}
"""


@pytest.mark.emulator
def test_a_write_past_the_end_is_named_before_reads_that_come_first(capsys, shown):
    notebook.puzzle("puzzle.stencil", NO_GUARDS)
    said = capsys.readouterr().out
    first, write, more, quote, *_ = said.splitlines()
    assert WRITES in first and "end of out" in first and "kernel.cu:6: " in write
    assert re.fullmatch(r" *element \d+ of out, which has \d+", more)
    assert quote.strip().startswith("6 | out[i] = ")
    reads = " ".join(said.partition(quote)[2].split())
    assert re.search(r"kernel\.cu:5: .* element -1 of a\b", reads)


@pytest.mark.emulator
def test_a_puzzle_counts_beside_the_least_and_draws_the_accesses(capsys, shown):
    notebook.puzzle("puzzle.copy", COPY.format("j * 64 + threadIdx.x"), {"sectors": 250})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("✓ puzzle.copy kernel.cu")
    assert lines[-2].split() == ["read", "from", "a,", "sectors", "125", "125"]
    assert lines[-1].split() == ["write", "to", "out,", "sectors", "125", "125"]
    notebook.puzzle("puzzle.copy", COPY.format("threadIdx.x * each + j"), {"sectors": 250})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("✗ ")
    assert lines[-2].split()[-2:] == ["1,000", "125"]
    assert [image[:4] for image in shown] == ["<svg", "<svg"]


@pytest.mark.emulator
@pytest.mark.slow
def test_the_puzzle_on_the_page_can_be_typed(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[4] / "doc" / "start.md").read_text(encoding="utf-8")
    (puzzles_section,) = re.findall(r"^## Puzzles\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    (kernel,) = re.findall(r"```cpp\n(.*?)```", puzzles_section, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("mine.cu").write_text(kernel, encoding="utf-8")
    commands = re.findall(r"^    \$ python -m ladder (.*)", puzzles_section, re.MULTILINE)
    assert [main(command.split()) for command in commands] == [0, 0]
    said = capsys.readouterr().out
    assert "puzzle.copy mine.cu" in said and "write out" in said


@pytest.mark.emulator
@pytest.mark.sweep
def test_a_puzzle_that_breaks_off_is_not_traced(capsys, shown):
    notebook.puzzle("puzzle.copy", COPY.format("threadIdx.x + 1000000"))
    notebook.puzzle("puzzle.copy", COPY.format("nonsense"))
    said = capsys.readouterr().out
    assert said.count("✗ ") == 2 and "sectors" not in said
    assert shown == []


@pytest.mark.emulator
def test_an_exercise_counts_as_solved_unless_the_notebook_gave_the_kernel(
    capsys, shown, tmp_path, monkeypatch
):
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path))
    title = "one thread for each element"
    given = notebook.solution(title)
    notebook.check("puzzle.plus_ten", given, shapes=[{"N": 33}])
    assert progress.solved() == set()
    notebook.check("puzzle.plus_ten", str(given), shapes=[{"N": 33}])
    assert progress.solved() == {title}
    assert "1 of 20 here" in capsys.readouterr().out
    notebook.progress()
    assert "12_puzzles: 1 of 20" in shown[-1]
