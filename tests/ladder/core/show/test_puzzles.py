"""Puzzles are ops that no table lists; their notebook shows an example, counts and accesses."""

import re
from pathlib import Path

import numpy as np
import pytest

from ladder.__main__ import main
from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find, ladders, puzzles
from ladder.core.show import notebook, progress
from ladder.core.show.pictures import spec

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
    with pytest.raises(LadderError, match=r"did you mean puzzle\.stencil"):
        find("puzzle.stensil")


@pytest.mark.parametrize("name", sorted(puzzles()))
def test_the_spec_of_a_puzzle_computes_finite_numbers_at_its_shapes(name):
    op = find(name).op
    assert op.summary and op.summary.endswith(".")
    for dims in op.shapes[:2]:
        seen = spec.example(op, dims) if name != "puzzle.multiply" else spec.example(op, {"N": 9})
        assert np.isfinite(seen.arrays[seen.output]).all()
        assert all(any(own.any() for own in flags.values()) for flags in seen.needed)


def test_an_example_knows_what_each_element_needs():
    stencil = spec.example(find("puzzle.stencil").op, {"N": 12})
    assert stencil.chosen == (2, 9)
    assert [np.flatnonzero(own["a"]).tolist() for own in stencil.needed] == [[1, 2, 3], [8, 9, 10]]
    product = spec.example(find("puzzle.matmul").op, {"M": 4, "N": 5, "K": 3})
    row, column = divmod(product.chosen[0], 5)
    assert np.argwhere(product.needed[0]["a"]).tolist() == [[row, k] for k in range(3)]
    assert np.argwhere(product.needed[0]["b"]).tolist() == [[k, column] for k in range(3)]


def test_a_count_needs_the_elements_that_have_its_value():
    seen = spec.example(find("puzzle.histogram").op, {"N": 12, "V": 5})
    for value, flags in zip(seen.chosen, seen.needed, strict=True):
        assert np.array_equal(flags["a"], seen.arrays["a"] == value)


def test_an_example_is_small():
    with pytest.raises(LadderError, match="5000 elements is no small example"):
        spec.draw("puzzle.copy", shape="N=5000")


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
    assert "it writes past the end of out, directly after it" in first
    assert "line: kernel.cu:6: " in write and "write of 4 bytes outside of every buffer:" in write
    assert re.fullmatch(r" *element \d+ of out, which has \d+", more)
    assert quote.strip().startswith("6 | out[i] = ")
    reads = " ".join(said.partition(quote)[2].split())
    assert "kernel.cu:5: " in reads
    assert "read of 4 bytes outside of every buffer: element -1 of a, which has" in reads


@pytest.mark.emulator
def test_a_puzzle_counts_beside_the_least_and_draws_the_accesses(capsys, shown):
    notebook.puzzle("puzzle.copy", COPY.format("j * 64 + threadIdx.x"), {"sectors": 250})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("✓ puzzle.copy kernel.cu")
    assert lines[-2].split() == ["read", "from", "a,", "sectors", "125", "125"]
    assert lines[-1].split() == ["write", "to", "out,", "sectors", "125", "125"]
    notebook.puzzle("puzzle.copy", COPY.format("threadIdx.x * each + j"), {"sectors": 250})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("✗ Not yet: The result is right, but the kernel takes too many")
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
    assert said.count("✗ Not yet: ") == 2 and "counted at" not in said
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
    assert "Solved. Your first kernel of this notebook works." in capsys.readouterr().out
    notebook.progress()
    assert "12_puzzles: 1 of 20" in shown[-1]
