"""The tree of a ladder, and what changes from rung to rung."""

from pathlib import Path

import pytest

from ladder.__main__ import main
from ladder.core.contract.ladder import Ladder, find, ladders
from ladder.core.contract.rung_file import Rung
from ladder.core.show import source_code

START = find("start.add")
LAYERNORM = find("layernorm.forward")


GROWN = {  # id -> the id of the rung that it grew from
    "0": "",
    "1": "",
    "2": "1",
    "16bit-3": "2",
    "16bit-4": "16bit-3",
    "float32-3": "2",
    "float32-4": "float32-3",
    "float32-5": "layernorm.forward 2",
    "float32-6": "float32-5",
    "float32-7": "layernorm.forward 2",
}


class Grown(Ladder):
    """A ladder of rungs without files."""

    @property
    def rungs(self):
        headers = {id: {"after": (parent,)} if parent else {} for id, parent in GROWN.items()}
        return tuple(Rung(id, "", header=header) for id, header in headers.items())


def test_a_branch_is_drawn_where_several_rungs_grew_from_one():
    drawn = [branch + name for branch, name, _ in source_code.tree(Grown(START.op))]
    assert drawn == [
        "0",
        "1",
        "2",
        "├ 16bit-3",
        "│ 16bit-4",
        "└ float32-3",
        "  float32-4",
        "layernorm.forward 2",
        "├ float32-5",
        "│ float32-6",
        "└ float32-7",
    ]


def test_the_tree_holds_every_rung_once():
    for ladder in ladders().values():
        drawn = [name for _, name, _ in source_code.tree(ladder) if " " not in name]
        assert sorted(drawn) == sorted(rung.id for rung in ladder.rungs)


def names(ladder, before, after):
    return f"--- {ladder.rung(before).path.name}\n+++ {ladder.rung(after).path.name}\n"


def test_a_diff_without_header_shows_code_only():
    text = source_code.diff(START, START.rung(2), START.rung(3))
    assert text.startswith(f"{names(START, 2, 3)}@@\n")
    assert "+// Launch: start_add<<<ceil_div(N, 256), 256>>>" in text
    assert "Before:" not in text and "After:" not in text


def test_a_diff_indents_unchanged_lines_as_the_later_rung_does():
    before = Rung("1", "", path=Path("1.cu"), source="\nvoid f() {\n    g();\n}\n")
    after = Rung(
        "2", "", path=Path("2.cu"), source="\nvoid f() {\n    if (x) {\n        g();\n    }\n}\n"
    )
    assert source_code.code_diff(START, before, after) == (
        "@@\n void f() {\n+    if (x) {\n         g();\n     }\n+}\n"
    )


def test_changed_lines_count_code_only():
    before = Rung(
        "1", "", source="// x forward, rung 1: a\n\nint f() {\n    return 1;  // one\n}\n"
    )
    after = Rung("2", "", source="// x forward, rung 2: b\n\nint f() {\n  return 1;\n}\nint g;\n")
    assert source_code.changed_lines(before, after) == 1


def said(capsys, *arguments):
    assert main(["diff", *arguments]) == 0
    return capsys.readouterr().out


def test_diff_shows_a_rung_against_the_one_that_it_grew_from(capsys):
    out = said(capsys, "layernorm.forward", "11")
    assert out.startswith(names(LAYERNORM, 8, 11))
    assert out == said(capsys, "layernorm.forward", "8", "11")


def test_diff_follows_a_rung_into_another_ladder(capsys):
    out = said(capsys, "matmul_gelu.forward", "16bit/cp_async_pipeline")
    assert out.startswith(
        "--- matmul/forward/16bit/11_grouped_block_order.cu\n"
        "+++ matmul_gelu/forward/16bit/5_cp_async_pipeline.cu\n"
    )


def test_diff_of_an_op_goes_up_the_whole_ladder(capsys):
    out = said(capsys, "start.add")
    assert out.count("\n+++ ") == len(START.rungs) - 2  # neither the reference nor rung 1


def test_diff_of_your_own_file_follows_its_header(capsys, tmp_path):
    mine = tmp_path / "mine.cu"
    mine.write_text(START.rung(2).source)
    first = START.rung(1).path.name
    assert said(capsys, "start.add", str(mine)).startswith(f"--- {first}\n+++ mine.cu\n")


@pytest.mark.parametrize("header", [[], ["--header"]])
def test_the_first_rung_of_a_ladder_has_no_parent_to_diff(capsys, header):
    assert main(["diff", "start.add", "1", *header]) == 2
    assert START.rung(1).label in capsys.readouterr().err
