"""The NumPy of the chapter on attention computes what it says."""

import re
from pathlib import Path

import numpy as np

from reference import attention

CHAPTER = Path(__file__).resolve().parents[2] / "doc" / "attention" / "flash.md"


def test_the_ten_lines_of_online_softmax_compute_attention_of_the_last_query():
    (code,) = re.findall(r"```python\n(.*?)```", CHAPTER.read_text(encoding="utf-8"), re.DOTALL)
    T, HS = 50, 8  # the last query sees all keys; the last tile is not full
    qkv = np.random.default_rng(0).standard_normal((1, T, 3 * HS)) * 5
    out, lse = np.empty((1, T, HS)), np.empty((1, 1, T))
    attention.forward(out, lse, qkv)
    q, k, v = qkv[0, -1, :HS], qkv[0, :, HS : 2 * HS], qkv[0, :, 2 * HS :]
    names = {"np": np, "q": q, "k": k, "v": v, "HS": HS, "TILE": 16}
    exec(code, names)
    np.testing.assert_allclose(names["out"], out[0, -1], rtol=1e-12)
    np.testing.assert_allclose(names["lse"], lse[0, 0, -1], rtol=1e-12)
