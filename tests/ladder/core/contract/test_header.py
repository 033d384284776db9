"""A header is read as it is meant, or refused with the line and what to write instead."""

import re

import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.contract.device_code import code_identity
from ladder.core.contract.ladder import PACKAGE
from ladder.core.contract.launch_plan import Launch, LaunchLines, Scratch, Tile
from ladder.core.contract.rung_file import parse
from ladder.core.contract.target import Target

HOPPER = Target("sm_90a", 32, 132, 227 << 10, np.dtype(np.float32))
HEADER = """\
// start add, rung 1: an idea
// Before: nothing, and
//         nothing more.
// Needs:  N % 4 == 0; sm >= 80
// Define: EACH = 4; BLOCKS = ceil_div(N, EACH * 256)
// Launch: start_add<<<BLOCKS, 256, 16>>>
// Launch: start_add_finish<<<(1, 2), warp>>> if BLOCKS > 1
// Scratch: float32 sums[BLOCKS, 2]
// Tiles:  a[4, 32]
// Left:   something.
"""
KERNEL = '\nextern "C" __global__ void start_add() {}\n'


@pytest.fixture
def read(tmp_path):
    def read(header):
        path = tmp_path / "mine.cu"
        path.write_text(header + KERNEL)
        return parse(path, "start_add")

    return read


def refusal(read, header):
    with pytest.raises(LadderError) as refused:
        read(header)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("arch", "cdna", "rdna", "sm"),
    [
        *(("gfx90a", 2, 0, 0), ("gfx942", 3, 0, 0), ("gfx950", 4, 0, 0), ("gfx906", 0, 0, 0)),
        *(("gfx1030", 0, 2, 0), ("gfx1101", 0, 3, 0), ("gfx1201", 0, 4, 0), ("sm_90a", 0, 0, 90)),
    ],
)
def test_a_condition_can_name_the_generation_of_a_gpu(read, arch, cdna, rdna, sm):
    target = Target(arch, 32, 1, 0, np.dtype(np.float32))
    assert (target.cdna, target.rdna, target.sm) == (cdna, rdna, sm)
    rung = read(HEADER.replace("sm >= 80", "cdna >= 3 or rdna == 4"))
    claims = rung.claims(target)
    assert claims == (arch in ("gfx942", "gfx950", "gfx1201"))
    refused = rf"cdna >= 3 or rdna == 4\b.*\bcdna = {cdna}, rdna = {rdna}$"
    assert claims or re.search(refused, rung.plan({"N": 4}, target).refusal)
    assert rung.claims(Target("emulated", 64, 1, 0, np.dtype(np.float32)))


def test_words_and_machine_read_lines_are_distinguished(read):
    rung = read(HEADER)
    assert rung.idea == "an idea"
    assert rung.header["before"] == ("nothing, and nothing more.",)
    assert rung.conditions() == ["N % 4 == 0", "sm >= 80"]


def test_a_plan_holds_all_that_a_launch_needs(read):
    plan = read(HEADER).plan({"N": 4096}, HOPPER)
    assert plan.refusal is None
    assert plan.constants == {"EACH": 4, "BLOCKS": 4}
    assert plan.launches == (
        Launch("start_add", (4, 1, 1), (256, 1, 1), 16),
        Launch("start_add_finish", (1, 2, 1), (32, 1, 1)),
    )
    assert plan.scratch == (Scratch("sums", "float32", (4, 2)),)
    assert plan.tiles == (Tile("a", (4, 32)),)
    assert len(read(HEADER).plan({"N": 64}, HOPPER).launches) == 1


def test_a_refused_call_has_a_reason_and_no_launches(read):
    plan = read(HEADER).plan({"N": 7}, HOPPER)
    assert re.search(r"\bN % 4 == 0\b.*\bN = 7$", plan.refusal)
    assert not plan.launches and not plan.scratch and not plan.tiles


@pytest.mark.parametrize("size", ["0, 256", "(1, 65536), 256", "1, 1025", "1, (1, 1, 65)"])
def test_a_launch_that_no_gpu_can_make_is_refused(read, size):
    rung = read(HEADER.replace("BLOCKS, 256, 16", size))
    with pytest.raises(LadderError, match=rf"1,024.*{re.escape(size)}"):
        rung.plan({"N": 64}, HOPPER)


def test_the_emulator_has_the_features_of_every_generation(read):
    rung = read(HEADER.replace("sm >= 80", "sm == 999; warp == 32"))
    emulated = Target("emulated", 64, 4, 227 << 10, np.dtype(np.float32))
    assert re.search("warp == 32.* warp = 64$", rung.plan({"N": 4}, emulated).refusal)
    assert not rung.claims(HOPPER) and not rung.claims(emulated)


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("// Needs:", "// Need:", r"mine\.cu:4: .*\bNeed:.*\bNeeds:"),
        ("// Needs:", "// needs:", r"\bneeds:.*\bNeeds:"),
        ("// Left:", "// Note:", r"\bNote:.*\bBefore\b.*\bLeft\b"),
        ("//         nothing", "// nothing", r"mine\.cu:3: .*'// Change: .*: // nothing"),
        ("// Needs:", "//Needs:", r"mine\.cu:4: .*'// Change: .*: //Needs:"),
        ("// Before:", "//    so:", r"mine\.cu:2: .*'// Change: .*: //    so:"),
        ("// Needs:", "//   Needs:", r"mine\.cu:4: 'Needs:' .*'//'"),
        ("// Left:   something.", "// After:  the last one", "'// After: 3, 16bit.*: the last one"),
        ("// Left:   something.", "// After:  1\n// After: 2", "'// After: 3, 16bit"),
        ("// Left:   something.", "// Pays:   perhaps", "'// Pays: no, .*: perhaps"),
        ("EACH = 4;", "EACH;", r"\bDefine .*'NAME = expression; NAME = expression': EACH$"),
        ("EACH = 4;", "EACH = __import__('os');", "__import__"),
        ("<<<BLOCKS, 256, 16>>>", "<<BLOCKS, 256>>", r"\bLaunch .*'kernel<<<grid, block>>>'"),
        ("<<<BLOCKS, 256, 16>>>", "<<<BLOCKS, (256>>>", r"'BLOCKS, \(256'"),
        ("N % 4 == 0", "N % 4 = 0", "'N % 4 = 0'"),
        ("float32 sums", "double sums", r"\bScratch .*'float32 name\[N, C\]': double sums"),
        ("// Tiles: ", "// Prefetch: a\n// Tiles: ", r"\bPrefetch .*\bLaunch\b"),
        ("a[4, 32]", "a", r"\bTiles .*'argument\[rows, columns\]': a$"),
        ("start add, rung 1: an idea", "an idea", "'// start add: its idea'"),
        ("// start add, rung 1: an idea\n", "", "'// start add: its idea'"),
    ],
)
def test_a_line_that_cannot_be_meant_is_refused_when_it_is_read(read, old, new, names):
    assert old in HEADER
    assert re.search(names, refusal(read, HEADER.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("EACH = 4;", "EACH = real;", "'float32' .*: EACH = real"),
        ("EACH = 4;", "EACH = N // 0;", "'N // 0'"),
        ("EACH = 4;", "EACH, TWO = 4;", r"\bDefine .* 2 .* 1 .*: EACH, TWO = 4"),
        ("BLOCKS, 256, 16", "BLOCKS", r"\bgrid, block\b.*: start_add<<<BLOCKS>>>"),
        ("BLOCKS, 256, 16", "(1, 1, 1, 1), 32", r"\bgrid .*\bblock .*: .*\(1, 1, 1, 1\), 32"),
        ("BLOCKS, 256, 16", "N, 32, -4", "-4 .*: .*N, 32, -4"),
        ("[BLOCKS, 2]", "[BLOCKS - 9]", r"-8 .*: .*\[BLOCKS - 9\]"),
        ("a[4, 32]", "a[4]", r"\brows .*\bcolumns: a\[4\]"),
    ],
)
def test_a_line_that_makes_no_sense_for_a_call_is_refused_with_the_file(read, old, new, names):
    assert old in HEADER
    rung = read(HEADER.replace(old, new, 1))
    with pytest.raises(LadderError, match=rf"^{re.escape(str(rung.path))}: .*{names}"):
        rung.plan({"N": 1024}, HOPPER)


def test_a_constant_from_a_comparison_is_a_number(read):
    plan = read(HEADER.replace("EACH = 4;", "EACH = 4; LARGE = N > 9;")).plan({"N": 16}, HOPPER)
    assert plan.constants["LARGE"] == 1 and type(plan.constants["LARGE"]) is int


def test_the_names_that_pages_list_are_those_of_expressions():
    page = (PACKAGE.parent / "doc" / "rung_files.md").read_text(encoding="utf-8")
    table = page.partition("| name | is |")[2].partition("\n\n")[0]
    for name in re.findall(r"^\| `(\w+)`", table, re.MULTILINE):
        LaunchLines.parse({"needs": (f"{name} == {name}",)}).plan({}, HOPPER)
    with pytest.raises(LadderError, match=r"\bvectors\b.*\bvector\?"):
        LaunchLines.parse({"needs": ("vectors == 4",)}).plan({}, HOPPER)


def test_a_constant_takes_another_value_and_what_follows_from_it_too(read):
    rung = read(HEADER)
    other = rung.with_constant("EACH", 8)
    plan = other.plan({"N": 4096}, HOPPER)
    assert plan.constants == {"EACH": 8, "BLOCKS": 2}
    assert rung.plan({"N": 4096}, HOPPER).constants == {"EACH": 4, "BLOCKS": 4}
    assert other.idea == "an idea, EACH = 8"
    assert code_identity(other) != code_identity(rung)
    with pytest.raises(LadderError, match=r"\bWIDTH\b.*\bEACH, BLOCKS"):
        rung.with_constant("WIDTH", 8)
