"""Whatever is typed, or stands in a header: a value, or one line that says what is wrong."""

import json
import os
import string

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ladder.__main__ import main
from ladder.core.common.errors import LadderError
from ladder.core.contract import expressions
from ladder.core.contract.device_code import code_identity
from ladder.core.contract.ladder import find, find_rung
from ladder.core.contract.rung_file import KEYS
from ladder.core.contract.target import Target
from ladder.core.emulator.source import prepare
from tests.trainer.damage import damaged
from trainer.commands.parser import parse
from trainer.files import logs
from trainer.files.tensor_file import TensorFile
from trainer.flags import Flags

GELU = find("gelu.forward").rung("1").path.read_bytes()
FLAGS = [name for field in Flags.__dataclass_fields__.values() for name in field.metadata["names"]]
TOKENS = [
    *("N", "C", "warp", "real", "float32", "0", "1", "-1", "9" * 30, "1.5", "'a'", "f'{1}'"),
    *("(", ")", "[", "]", ",", "+", "-", "*", "//", "%", "/", "**", "<<", "==", "<", "in", "not"),
    *("and", "or", "if", "else", "lambda:", "for", "min(", "ceil_div(", "matmul.tiles.stream_k("),
    *("().__class__", "__import__('os')", ":=", "...", "None", "\0", "\\", "\ud800"),
]
WORDS = st.sampled_from([*TOKENS, "", "=", "gelu.forward=1", "gelu.forward=", "nan", "1e400", "\n"])
EXPRESSIONS = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=14).map(" ".join)
fast = settings(
    max_examples=60,
    deadline=2000,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def one_line(error):
    assert len(str(error).splitlines()) == 1
    assert str(error).isprintable()


@fast
@given(EXPRESSIONS)
@example("(" * 400)
@example("-" * 499 + "1")
@example("*".join(["N"] * 29))
@example("min(" * 29 + "N" + ")" * 29)
def test_an_expression_has_a_bounded_value_or_is_refused(text):
    try:
        value = expressions.parse(text).evaluate({"N": 2**40, "warp": 32, "real": "float32"})
    except LadderError as error:
        one_line(error)
    else:
        for part in value if isinstance(value, tuple) else (value,):
            assert isinstance(part, str | tuple) or abs(part) < expressions.MOST


@fast
@given(
    st.one_of(
        damaged(GELU),
        st.lists(st.tuples(st.sampled_from(tuple(KEYS)), EXPRESSIONS), max_size=5).map(
            lambda lines: b"".join(
                f"// {key}: {text}\n".encode("utf-8", "replace") for key, text in lines
            ).join(GELU.split(b"\n", 1))
        ),
    )
)
@example(GELU + b'extern "C" __global__ void gelu_forward')
def test_a_kernel_file_is_read_or_refused(tmp_path, content):
    path = tmp_path / "mine.cu"
    path.write_bytes(content)
    try:
        rung = find_rung("gelu.forward", path)
        rung.plan({"N": 1000}, Target("sm_90a", 32, 132, 232448, np.dtype(np.float32)))
        text, _ = prepare(path, rung.source, [])
        assert len(code_identity(rung)) == 16 and text.startswith("#line 1 ")
    except LadderError as error:
        assert str(path) in str(error)


def test_a_comment_without_an_end_is_read_once(tmp_path):
    path = tmp_path / "mine.cu"
    path.write_bytes(GELU + b"/*" * 200_000)  # once for each /* would take minutes
    assert len(code_identity(find_rung("gelu.forward", path))) == 16


@pytest.mark.slow
@fast
@given(st.lists(st.one_of(st.sampled_from(FLAGS), WORDS), max_size=5))
def test_a_command_line_of_the_trainer_is_understood_or_refused(words):
    try:
        flags = parse(words)
    except LadderError as error:
        one_line(error)
    except SystemExit as end:  # it has shown its help
        assert end.code == 0 and {"--help", "-h"} & set(words)
    else:
        assert isinstance(flags, Flags)


@pytest.mark.slow
@fast
@given(
    st.sampled_from(["list", "show", "diff", "trace", "sass", "export", "pick"]),
    st.lists(st.one_of(WORDS, st.sampled_from(["--shape", "--dtype", "--warp"])), max_size=4),
)
def test_a_command_line_of_the_ladder_is_understood_or_refused(capsys, command, words):
    status = main([command, "no.such.op", *words])
    error = capsys.readouterr().err
    assert status == 2 and len(error.splitlines()) == 1 and error.startswith("ladder: ")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(string.ascii_letters, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["dtype", "shape", "data_offsets", "a"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@pytest.mark.slow
@fast
@given(
    st.dictionaries(
        st.sampled_from("ab"),
        JSON
        | st.fixed_dictionaries(
            {
                "dtype": st.sampled_from(["F32", "U8", "F8_E4M3"]) | JSON,
                "shape": st.lists(st.integers(-1, 2**63), max_size=3) | JSON,
                "data_offsets": st.lists(st.integers(0, 40), min_size=2, max_size=2) | JSON,
            }
        ),
    )
)
def test_a_header_of_tensors_is_believed_only_as_far_as_the_file_goes(tmp_path, header):
    path = tmp_path / "a.safetensors"
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
    try:
        file = TensorFile(path)
        assert sum(file[name].nbytes for name in file) == 16
    except LadderError as error:
        assert str(path) in str(error)
        one_line(error)


@pytest.mark.slow
@fast
@given(
    st.lists(
        st.dictionaries(st.sampled_from(["step", "val_loss", "train_loss", "sample"]), JSON),
        max_size=4,
    )
)
def test_a_line_of_a_log_that_makes_no_sense_is_left_out(tmp_path, lines):
    path = tmp_path / "log.jsonl"
    path.write_bytes(os.linesep.join(map(json.dumps, lines)).encode())
    history = logs.read_history(path)
    for step, loss in history.train + history.val:
        assert isinstance(step, int) and isinstance(loss, float)
