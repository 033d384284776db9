"""Your own kernel runs in a child process: whatever it does, a message comes back."""

import re
import time
from pathlib import Path

import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.contract.binding import bind
from ladder.core.contract.ladder import find
from ladder.core.device.open import Cpu, open_device
from ladder.core.show import pages
from ladder.core.verify import sandbox
from ladder.core.verify.check import check as in_this_process
from tests.ladder.emulation import line

pytestmark = pytest.mark.emulator

SOURCE = (Path(__file__).parents[2] / "planted" / "forward.cu").read_text()
SHAPES = [{"N": 2, "C": 33}]


def check(source, device_name, **options):
    return sandbox.check("layernorm.forward", source, device_name, ["float32"], SHAPES, **options)


def check_here(source, device_name, folder):
    """A check in this process, of what its author is told rather than of what it does."""
    (path := folder / "kernel.cu").write_text(source)
    ladder = find("layernorm.forward")
    device = open_device(device_name)
    return in_this_process(ladder, ladder.find(path), device, ["float32"], SHAPES)


def replaced(old: str, new: str) -> str:
    assert old in SOURCE
    return SOURCE.replace(old, new, 1)


def test_a_sound_kernel_passes_from_source_and_from_a_path(tmp_path, device_name):
    report = check(SOURCE, device_name)
    assert report.passed and report.warnings == (), report
    path = tmp_path / "mine.cu"
    path.write_text(SOURCE)
    assert check(path, device_name).outcomes == report.outcomes


@pytest.mark.costly
def test_a_loop_without_end_is_stopped(device_name):
    # On the emulator a launch is stopped by its own time limit too; this one comes first.
    source = replaced(
        "float sum = 0.0f, squares", "while (C > 0) partial[0] = C;\nfloat sum = 0.0f, squares"
    )
    start = time.monotonic()
    report = check(source, device_name, seconds=2)
    (outcome,) = report.outcomes
    assert outcome.status == "fault"
    assert outcome.dims == ({"N": 2, "C": 33} if device_name == "emulated" else {})
    assert re.search(r"kernel\.cu .* 2 s.* --seconds", outcome.detail)
    assert time.monotonic() - start < 30


@pytest.mark.costly
def test_a_slow_kernel_is_told_how_far_its_check_came_and_not_that_it_is_endless(monkeypatch):
    monkeypatch.setattr(sandbox, "LEAST_SECONDS", 1.0)  # for a check of 5 s
    loop = "for (int i = 0; threadIdx.x == 0 && i < 10000000; i++) x = x * 1664525 + 1013904223;"
    slow = f"unsigned x = 0;\n{loop}\nif (x == 1) return;\n"
    source = replaced("float sum = 0.0f, squares", f"{slow}float sum = 0.0f, squares")
    shapes = [{"N": 1, "C": C} for C in range(1, 2000)]
    report = sandbox.check("layernorm.forward", source, "emulated", ["float32"], shapes, seconds=5)
    *done, last = report.outcomes
    assert done and {outcome.status for outcome in done} == {"passed"}
    assert last.status == "fault" and last.dims
    assert re.search(rf"kernel\.cu .* 5 s.* {len(done)} .* --seconds", last.detail)


def test_a_users_own_kernel_has_warps_of_32_unless_others_are_asked_for():
    source = replaced(
        "float sum = 0.0f, squares", "if (WARP_SIZE == 64) return;\nfloat sum = 0.0f, squares"
    )
    assert check(source, "emulated").passed
    assert not check(source, "emulated:64").passed


def test_branches_of_ones_own_kernel_are_counted_in_a_child(tmp_path):
    path = tmp_path / "mine.cu"
    path.write_text(SOURCE)
    report, spots = sandbox.cover("layernorm.forward", path, "emulated", ["float32"], SHAPES)
    assert report.passed, report
    assert {spot.kind for spot in spots} >= {"if", "for"} and any(any(s.counts) for s in spots)


def test_an_illegal_address_ends_in_a_message(device_name):
    source = replaced("mean[row] = m;", "mean[(size_t)1 << 40] = m;")
    report = check(source, device_name)
    assert not report.passed
    assert report.outcomes[0].status == "fault"
    assert str(report).startswith("layernorm.forward kernel.cu")


def test_a_crash_is_reported_with_the_line_that_caused_it_before_the_way_it_ended(monkeypatch):
    in_child = sandbox.in_child

    def dies(task, request, seconds):
        if task == "check":
            raise sandbox.ChildDied("kernel.cu crashed (SIGABRT): free(): invalid pointer")
        return in_child(task, request, seconds)

    monkeypatch.setattr(sandbox, "in_child", dies)
    line = SOURCE[: SOURCE.index("mean[row] = m;")].count("\n") + 1
    report = check(replaced("mean[row] = m;", "mean[row + N] = m;"), "emulated")
    (outcome,) = report.outcomes
    first, *rest = outcome.detail.split("\n")
    assert outcome.label == "N=2 C=33, float32" and f"kernel.cu:{line}: " in first
    assert [problem[::2] for problem in outcome.problems] == [["out of bounds", line]]
    assert rest[-1].endswith("kernel.cu crashed (SIGABRT): free(): invalid pointer")


def test_a_kernel_that_does_not_compile_shows_its_line(device_name, tmp_path):
    line = SOURCE[: SOURCE.index("mean[row] = m;")].count("\n") + 1
    with pytest.raises(LadderError, match=rf"kernel\.cu:{line}"):
        check(replaced("mean[row] = m;", "mean[row] = undeclared;"), device_name)
    line = SOURCE[: SOURCE.index("float* __restrict__ rstd")].count("\n") + 1
    no_list = replaced("float* __restrict__ rstd,", "const, float* __restrict__ rstd,")
    with pytest.raises(LadderError, match=rf"kernel\.cu:{line}"):
        check_here(no_list, device_name, tmp_path)


def test_the_compilers_warnings_about_ones_own_file_are_part_of_the_report(tmp_path):
    path = tmp_path / "mine.cu"
    path.write_text(replaced("float sum = 0.0f, squares", "int unused;\nfloat sum, squares"))
    report = check(path, "emulated")
    assert report.failures[0].label == "N=2 C=33, float32"
    warnings, first = "\n".join(report.warnings), line(path.read_text(), "int unused;")
    assert warnings in str(report) and f"{path}:{first}: warning: " in warnings
    assert re.search(rf"^{path}:\d+: warning: .*\Wsum\W", warnings, re.MULTILINE)
    path.write_text(replaced("float sum = 0.0f, squares", "int unused;\nfloat sum = 0.0f, squares"))
    report = check(path, "emulated")
    assert report.passed
    assert [warning.split(": ")[1] for warning in report.warnings] == ["warning"]


def test_a_kernel_of_another_name_with_other_arguments_passes_with_args(device_name, tmp_path):
    source = SOURCE.replace("layernorm_forward", "my_layernorm")
    source = source.replace("int N, int C) {", "int C, int rows) {\n    int N = rows;")
    with pytest.raises(LadderError, match=r"my_layernorm .*'int rows'.* adopt"):
        check_here(source, device_name, tmp_path)
    source = source.replace("// Launch:", "// Args: rows = N\n// Launch:")
    assert check_here(source, device_name, tmp_path).passed


def test_a_header_without_a_launch_is_refused_with_an_example(device_name, tmp_path):
    with pytest.raises(LadderError, match=r"'// Launch: layernorm_forward<<<"):
        check_here(SOURCE.replace("// Launch:", "// Left:"), device_name, tmp_path)


def test_a_launch_with_a_condition_runs_where_that_holds(device_name, tmp_path):
    (launch,) = re.findall(r"^// Launch: .*$", SOURCE, re.MULTILINE)
    both = replaced(launch, f"{launch} if C > 40\n{launch} if C <= 40")
    assert check_here(both, device_name, tmp_path).passed
    neither = replaced(launch, f"{launch} if C > 40")
    assert not check_here(neither, device_name, tmp_path).passed


def test_a_dimension_that_an_int_does_not_hold_is_refused():
    op, N = find("gelu.forward").op, 2**31
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (N,), (4,))  # is never touched
    with pytest.raises(LadderError, match="N = 2147483648"):
        bind(op, find(op.name).rung(1), Cpu(), np.float32, {"N": N}, {"out": huge, "inp": huge})


def test_a_child_that_dies_without_an_answer_is_described(tmp_path, monkeypatch):
    """Whatever ends the process: here the operating system's signal for a bad address."""
    killer = tmp_path / "sitecustomize.py"
    killer.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sandbox, "_python_path", lambda: str(tmp_path))
    request = {"op": "layernorm.forward", "path": "mine.cu", "device": "cpu"}
    with pytest.raises(sandbox.ChildDied, match=r"mine\.cu .*SIGSEGV"):
        sandbox.in_child("check", request, 20)


@pytest.mark.costly
def test_the_kernel_of_the_page_on_adding_a_rung_does_what_the_page_says():
    doc = pages.ROOT / "doc"
    page = (doc / "adding_a_rung.md").read_text(encoding="utf-8")
    kernel = (doc / "solutions/layernorm/forward/two_passes.cu").read_text(encoding="utf-8")
    (header,) = re.findall(r"```cpp\n(.*?)```", page, flags=re.DOTALL)
    assert kernel.startswith(header)
    report = sandbox.check("layernorm.forward", kernel, "emulated")
    assert report.passed, report
    counted = f"{len(report.outcomes)} passed; "
    assert counted in str(report) and counted in page
    start = kernel.index("float squares = 0.0f;")
    wrong = kernel[:start] + kernel[start:].replace("i < C;", "i <= C;", 1)
    report = sandbox.check(
        "layernorm.forward", wrong, "emulated", ["float32"], [{"N": 2, "C": 768}]
    )
    assert not report.passed
    assert report.failures[0].detail.startswith("out[0, 6] is 1.38")


@pytest.mark.parametrize(
    ("tiles", "names"),
    [
        ("inp[32]", r"inp\[32\]"),
        ("inp[4, 16]", r"TMA .* 4 x 16 .* float32 \(2, 33\)"),
        ("input[4, 32]", r"Tiles .* input\b"),
    ],
)
def test_a_tile_that_cannot_be_copied_is_refused(tiles, names, tmp_path):
    (launch,) = re.findall(r"^// Launch: .*$", SOURCE, re.MULTILINE)
    name = tiles.partition("[")[0]
    parameter = f"int N, int C, const __grid_constant__ TensorMap {name}_tiles)"
    source = replaced("int N, int C)", parameter).replace(launch, f"{launch}\n// Tiles: {tiles}")
    include = '#include "portable.cuh"'
    assert include in source
    with pytest.raises(LadderError, match=names):
        source = source.replace(include, include + '\n#include "hopper.cuh"')
        check_here(source, "emulated", tmp_path)
