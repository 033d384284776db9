"""The identity of a rung's code changes with what runs, and with nothing else."""

import dataclasses
import importlib

import pytest

from ladder.core.contract import device_code, rung_file
from ladder.core.contract.device_code import code_identity
from ladder.core.contract.ladder import PACKAGE, find, ladders
from ladder.matmul import tiles

TEXT = """\
// any layer, rung 1: one thread per element
// Launch: any<<<ceil_div(N, 256), 256>>>
#include "outer.cuh"
extern "C" __global__ void any(float* out, int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) {
        out[i] = value("// no comment");
    }
}
"""
DRAWING = {"attention_dropout", "dropout", "dropout_residual_layernorm"}  # random numbers
TAKING_MAXIMA = {"attention", "crossentropy", "decode", "softmax"}
INNER = """\
#define ONE 1
#ifdef KERNEL_LADDER_EMULATOR
inline float value(const char*) { return 0; }
#elif defined(__HIP__)
inline float value(const char*) { return 3; }
#else
inline float value(const char*) { return ONE; }
#endif
template <int COUNT>
inline float of_others() { return COUNT; }
"""


@pytest.fixture
def edited(tmp_path):
    """A function (file name, old text, new text) that edits one of three files that include each
    other; it returns the rung as it then is."""
    (tmp_path / "1_any.cu").write_text(TEXT)
    (tmp_path / "outer.cuh").write_text('#include "inner.cuh"\n')
    (tmp_path / "inner.cuh").write_text(INNER)

    def edit(name="1_any.cu", old="", new=""):
        text = (tmp_path / name).read_text()
        assert old in text
        (tmp_path / name).write_text(text.replace(old, new, 1))
        return rung_file.parse(tmp_path / "1_any.cu", "any")

    return edit


@pytest.mark.parametrize(
    "change",
    [
        ("1_any.cu", "one thread per element", "a better title"),
        ("1_any.cu", "// Launch", "// Expect: more words.\n// Launch"),
        ("1_any.cu", "    if (i < N) {", "\n    // the last block is not full\n    if (i < N) {  "),
        ("1_any.cu", "if (i < N) {", "if (i < N) {  /* of two\nlines */"),
        ("inner.cuh", "inline", "// what it is\n\ninline"),
        ("inner.cuh", "return 0", "return 2"),
        ("inner.cuh", "return COUNT", "return 2 * COUNT"),
        ("outer.cuh", "\n", "\n#define MORE\n"),
    ],
    ids=[
        *("title", "header", "comment", "block comment", "included"),
        *("emulator's branch", "unused function", "unused macro"),
    ],
)
def test_comments_and_unused_helpers_do_not_change_the_identity(edited, change):
    rung = edited()
    before, exact = code_identity(rung), code_identity(rung, exact=True)
    rung = edited(*change)
    assert code_identity(rung) == before
    assert code_identity(rung, exact=True) != exact


@pytest.mark.parametrize(
    "change",
    [
        ("1_any.cu", "i < N", "i <= N"),
        ("1_any.cu", "// no comment", "// nor here"),
        ("1_any.cu", "256), 256", "128), 128"),
        ("1_any.cu", "// Launch", "// Define: ROWS = 4\n// Launch"),
        ("1_any.cu", "// Launch", "// Scratch: float32 partial[N]\n// Launch"),
        ("inner.cuh", "return ONE", "return ONE + 1"),
        ("inner.cuh", "return 3", "return 4"),
        ("inner.cuh", "#define ONE 1", "#define ONE 2"),
        ("inner.cuh", "#ifdef", "#ifndef"),
    ],
    ids=[
        *("code", "string", "launch", "define", "scratch", "function"),
        *("on AMD", "macro of it", "condition"),
    ],
)
def test_code_and_launch_change_the_identity(edited, change):
    before = code_identity(edited())
    assert code_identity(edited(*change)) != before


@pytest.mark.slow
@pytest.mark.parametrize(
    "header, old, new, touched",
    [
        ("portable.cuh", "fmaxf(value,", "fmaxf(0,", TAKING_MAXIMA),
        ("philox.cuh", "philox4x32(", "philox(", {*DRAWING, "adamw"}),
        ("peers.cuh", "T* at[8]", "T* at[16]", {"all_reduce"}),
        ("dependent_launch.cuh", "griddepcontrol.wait", "griddepcontrol.no", {"decode"}),
        ("portable.cuh", "constexpr int V", "constexpr int MORE = 1;\nconstexpr int V", set()),
    ],
    ids=["warp_max", "philox4x32", "Peers", "wait_for_previous", "a new constant"],
)
def test_an_edit_of_a_helper_touches_the_rungs_that_use_it(
    header, old, new, touched, tmp_path, monkeypatch
):
    for path in device_code.INCLUDE.glob("*.cuh"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(device_code, "INCLUDE", tmp_path)
    rungs = [rung for ladder in ladders().values() for rung in ladder.rungs if rung.path]
    before = [code_identity(rung) for rung in rungs]
    text = (tmp_path / header).read_text()
    assert old in text
    (tmp_path / header).write_text(text.replace(old, new))
    changed = [r.path for r, was in zip(rungs, before, strict=True) if code_identity(r) != was]
    assert {path.relative_to(PACKAGE).parts[0] for path in changed} == touched


def test_the_rungs_of_a_ladder_differ():
    rungs = find("matmul.forward").rungs
    assert len({code_identity(rung) for rung in rungs}) == len(rungs)
    assert code_identity(rungs[0]) == ""


def test_the_identity_of_a_python_function_ignores_comments_and_docstrings(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def identity_of(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        run = importlib.import_module(name).run
        return code_identity(dataclasses.replace(find("matmul.forward").rungs[-1], run=run))

    text = 'def run(device):\n    """Words."""\n    return "#1"\n'
    before = identity_of("library_one", text)
    assert identity_of("library_two", text.replace("Words", "Other words\nand more")) == before
    assert identity_of("library_three", text.replace('"#1"', '"#1"  # why')) == before
    assert identity_of("library_four", text.replace("#1", "#2")) != before


def test_a_tile_heuristic_and_its_constants_change_the_identity(edited, monkeypatch):
    line = "// Define: PARTS = matmul.tiles.split_rows(4, N, 8)\n// Launch"
    rung = edited("1_any.cu", "// Launch", line)
    before = code_identity(rung)
    monkeypatch.setattr(tiles, "TILES_PER_ROW", 6)
    constant = code_identity(rung)
    monkeypatch.setattr(tiles.split_rows, "__code__", tiles.stream_k.__code__)
    assert len({before, constant, code_identity(rung)}) == 3
