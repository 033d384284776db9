"""The NumPy of the chapter on attention computes what it says."""

import re
from pathlib import Path

import numpy as np
import pytest

from reference import attention

DOC = Path(__file__).resolve().parents[2] / "doc"


def program(page):
    (code,) = re.findall(
        r"```python\n(.*?)```", (DOC / page).read_text(encoding="utf-8"), re.DOTALL
    )
    return code


def test_the_ten_lines_of_online_softmax_compute_attention_of_the_last_query():
    code = program("attention/flash.md")
    T, HS = 50, 8  # the last query sees all keys; the last tile is not full
    qkv = np.random.default_rng(0).standard_normal((1, T, 3 * HS)) * 5
    out, lse = np.empty((1, T, HS)), np.empty((1, 1, T))
    attention.forward(out, lse, qkv)
    q, k, v = qkv[0, -1, :HS], qkv[0, :, HS : 2 * HS], qkv[0, :, 2 * HS :]
    names = {"np": np, "q": q, "k": k, "v": v, "HS": HS, "TILE": 16}
    exec(code, names)
    np.testing.assert_allclose(names["out"], out[0, -1], rtol=1e-12)
    np.testing.assert_allclose(names["lse"], lse[0, 0, -1], rtol=1e-12)


TOTAL, OUT = "total * rescale + p.sum()", "out * rescale + p @ v[start : start + 4]"


@pytest.mark.parametrize(
    ("total", "out", "right"),
    [
        (TOTAL, OUT, True),
        (TOTAL.replace(" * rescale", ""), OUT, False),
        (TOTAL, OUT.replace(" * rescale", ""), False),
        (TOTAL.replace(" * rescale", ""), OUT.replace(" * rescale", ""), False),
        (TOTAL.replace("*", "/"), OUT.replace("*", "/"), False),
        ("p.sum()", "p @ v[start : start + 4]", False),
        ("total + rescale * p.sum()", "out + rescale * (p @ v[start : start + 4])", False),
        ("(total + p.sum()) * rescale", "(out + p @ v[start : start + 4]) * rescale", False),
        (TOTAL, "out * rescale + p @ v[:4]", False),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_exercise_on_online_softmax_tells_right_from_wrong(total, out, right, capsys):
    code = program("attention.md").replace("total = ...", f"total = {total}")
    exec(code.replace("out = ...", f"out = {out}"), {})
    assert capsys.readouterr().out.split() == [str(right)]
