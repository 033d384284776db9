"""Matmul and ReLU in one: around the ReLU of a transformer block's MLP, one product each way.

    out  = max(inp @ weight.T + bias, 0)        forward: fc, the product before the ReLU
    dinp = dout @ weight where out > 0, else 0  backward: fcproj, the product behind the ReLU

In the MLP, fcproj(relu(fc(x))), the gradient comes from fcproj, so `backward_input` has fcproj's
weight, and its `out` is the ReLU's output, which is fcproj's input (reference/matmul_gelu.py).

Kept for backward: out, which fcproj keeps anyway, and inp.
"""

import numpy as np

from reference import matmul, relu


def forward(out: np.ndarray, inp: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> None:
    """out (N, OC) from inp (N, C), weight (OC, C) and bias (OC)."""
    matmul.forward(out, inp, weight, bias)
    relu.forward(out.reshape(-1), out.reshape(-1))


def backward_input(dinp: np.ndarray, dout: np.ndarray, weight: np.ndarray, out: np.ndarray) -> None:
    """dinp (N, C) from dout (N, OC), weight (OC, C) and the ReLU's output, out (N, C)."""
    matmul.backward_input(dinp, dout, weight)
    dinp[~(out > 0)] = 0
