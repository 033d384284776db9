"""Every rung keeps the rules; a file that breaks one is named with the line and what to do."""

import dataclasses

import pytest

from ladder.__main__ import main
from ladder.core.contract.ladder import find
from ladder.core.show import lint

RUNG = find("layernorm.forward").rung(3)
OWN = """\
// start add: an idea
// Before: rung 1 has one thread per element.
// Change: one warp per element.
// Expect: slower.
// Needs:  nothing
// Launch: start_add<<<N, warp>>>
// After:  1
// Left:   all lanes but one idle.

#include "portable.cuh"

extern "C" __global__ void start_add(
    float* __restrict__ c,        // (N)
    const float* __restrict__ a,  // (N)
    const float* __restrict__ b,  // (N)
    int N) {
    if (threadIdx.x % WARP_SIZE == 0) {
        c[blockIdx.x] = a[blockIdx.x] + b[blockIdx.x];
    }
}
"""
SUM = "        c[blockIdx.x] = a[blockIdx.x] + b[blockIdx.x];\n"


def test_every_rung_keeps_the_rules(capsys):
    assert main(["lint"]) == 0, capsys.readouterr().out
    assert main(["lint", "start.add", "1", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("2 files")


@pytest.mark.parametrize(
    ("rule", "old", "new", "line"),
    [
        ("title", "// start add: ", "//  start add: ", 1),
        ("header", "// Needs:  nothing", "// Nedes: nothing", 5),
        ("header", "// Before: rung 1 has one thread per element.\n", "", 1),
        ("header", "// After:  1\n// Left:", "// Left:   much.\n// After:  1\n// Left:", 8),
        ("parent", "// After:  1\n", "", 1),
        ("parent", "#include", "int rows_of(int);\n" * 101 + "#include", 7),
        ("parent", "// After:  1\n", "// After:  1\n// Rewrite: all is new\n", 8),
        ("length", "#include", "// why it is so\n" * 300 + "#include", 301),
        ("layout", SUM, f"        // {'why ' * 25}so\n{SUM}", 18),
        ("layout", SUM, SUM.replace("\n", "\t//\n"), 18),
        ("layout", SUM, SUM.replace("\n", " \n"), 18),
        ("layout", SUM, SUM.replace("        ", "      "), 18),
        ("portable", SUM, f'        asm("");\n{SUM}', 18),
        ("portable", "% WARP_SIZE", "% 32", 17),
        ("measured", SUM, f"        // it takes 4 ms\n{SUM}", 18),
        ("measured", SUM, f"        /* at most\n           80 % */\n{SUM}", 19),
        ("barrier", SUM, f"{SUM}        __syncthreads();\n", 19),
        ("arguments", "float* __restrict__ c,        // (N)", "int c,", 12),
        ("arguments", "a,  // (N)", "a,", 12),
    ],
)
def test_a_file_from_outside_that_breaks_a_rule_is_named_with_the_line(
    tmp_path, rule, old, new, line
):
    path = tmp_path / "mine.cu"
    assert old in OWN
    path.write_text(OWN.replace(old, new, 1))
    violations = lint.lint(path)
    assert (rule, line) in [(violation.rule, violation.line) for violation in violations]
    assert {violation.rule for violation in violations} == {rule}


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        (lint.name, {"id": "4"}),
        (lint.alone, {"source": '#include "2_block_per_row.cuh"\n'}),
    ],
)
def test_a_rung_of_the_repository_keeps_to_its_ladder(rule, change):
    ladder = find("layernorm.forward")
    assert not list(rule(ladder, RUNG))
    assert list(rule(ladder, dataclasses.replace(RUNG, **change)))


def test_the_command_prints_a_line_for_each_place(tmp_path, capsys):
    path = tmp_path / "mine.cu"
    path.write_text(OWN)
    assert main(["lint", str(path)]) == 0
    path.write_text(OWN.replace(SUM, SUM.replace("\n", " \n")))
    assert main(["lint", str(path)]) == 1
    (line,) = capsys.readouterr().out.splitlines()[1:]
    assert line.startswith(f"{path}:18: ") and "; " in line
    path.write_text("int main() {}\n")
    assert main(["lint", str(path)]) == 1
    assert "layernorm forward: your idea" in capsys.readouterr().out
    assert main(["lint", str(tmp_path / "none.cu")]) == 2
