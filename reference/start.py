"""The two operations of notebooks/00_start.ipynb, before the layers of GPT-2 begin.

add:  c_i = a_i + b_i
sum:  total += inp_1 + inp_2 + … + inp_N
"""

import numpy as np


def add(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """c, a, b: (N,)."""
    np.add(a, b, out=c)


def sum(total: np.ndarray, inp: np.ndarray) -> None:
    """total: (1,), accumulated; inp: (N,)."""
    total += inp.sum(dtype=total.dtype)
