"""`match` finds the op's argument behind another name, and leaves open what it cannot know."""

from ladder.core.adopt.declarations import of_text
from ladder.core.adopt.matching import match
from ladder.core.contract.ladder import find


def matched(op, *theirs):
    (function,) = of_text(f"__global__ void k({', '.join(theirs)}) {{}}").declarations
    return match(find(op).op, function.parameters, {})[0]


def test_other_names_are_found_behind_one_that_is_ours():
    ours = matched("gelu.forward", "const float* inp", "float* y", "int n")
    assert ours == {"inp": "inp", "y": "out", "n": "N"}


def test_batch_and_time_are_rows_of_an_op_that_has_rows_only():
    assert matched("layernorm.forward", "int B", "int T", "int C") == {"B": "1", "T": "N", "C": "C"}


def test_time_is_no_number_of_an_op_of_one_token_per_text():
    assert matched("decode.attention", "int B", "int T", "int C") == {"B": "B", "C": "C"}


def test_a_prefix_of_device_pointers_is_no_part_of_the_name():
    assert matched("gelu.forward", "const float* d_in", "float* d_out") == {
        "d_in": "inp",
        "d_out": "out",
    }
    assert matched("gelu.forward", "float* d_y") == {}, "this may be a gradient, of y"
