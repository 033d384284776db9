"""The product that makes logits, and their crossentropy, in one op: fused linear crossentropy.

The loss is the logarithm of a sum, once the target's logit is subtracted from all of the row:

    logits  = inp @ weight.T
    e       = exp(logits - logits[target])      e[target] is 1
    total   = sum(e)
    loss    = log(total)
    dlogits = factor * (e - total * onehot(target))     factor = dloss / total

So neither logits nor dlogits are stored, but `exps`, the bracket, and one factor for each row. The
factor goes to the other side of both products that follow:

    dinp    = dlogits @ weight = factor * (exps @ weight)
    dweight = dlogits.T @ inp  = exps.T @ scaled        scaled = factor * inp

The last one is the plain `matmul.backward_weight`. No exponential is above 2^90, so that total and
factor are ordinary float32 numbers: a loss above 90 log(2) = 62 is too small.
"""

import numpy as np

from reference import matmul

MOST = 90 * np.log(2)  # exponents are cut off here


def forward(
    exps: np.ndarray,
    losses: np.ndarray,
    factors: np.ndarray,
    scaled: np.ndarray,
    inp: np.ndarray,
    weight: np.ndarray,
    targets: np.ndarray,
    dloss: np.ndarray,
    *,
    V: int,
) -> None:
    """exps (N, OC), losses (N), factors (N) and scaled (N, C) from inp (N, C), weight (OC, C),
    targets (N) and dloss (1). The columns from V to OC pad the vocabulary: exps are 0 there."""
    rows = np.arange(targets.size)
    matmul.forward(exps, inp, weight, None)
    exps[:, V:] = -np.inf
    exps -= exps[rows, targets][:, None].copy()
    np.exp(np.minimum(exps, MOST), out=exps)
    total = exps.sum(1)
    exps[rows, targets] = 1 - total
    losses[:] = np.log(total)
    factors[:] = dloss[0] / total
    scaled[:] = factors[:, None] * inp


def backward_input(
    dinp: np.ndarray, exps: np.ndarray, factors: np.ndarray, weight: np.ndarray
) -> None:
    """dinp (N, C) from exps (N, OC), factors (N) and weight (OC, C)."""
    matmul.backward_input(dinp, exps, weight)
    dinp *= factors[:, None]
