"""Crossentropy: minus the logarithm of the probability that the model gave to the right token.

    loss    = -log(probs[target])
    dprobs  = -dloss / probs[target]   at the target, 0 elsewhere

Behind a softmax the two gradients collapse into one, and the probabilities need not be stored:

    loss    = log(sum(exp(logits))) - logits[target]
    dlogits = dloss * (softmax(logits) - onehot(target))
"""

import numpy as np


def forward(losses: np.ndarray, probs: np.ndarray, targets: np.ndarray) -> None:
    """losses (N) from probs (N, V) and targets (N)."""
    losses[:] = -np.log(probs[np.arange(targets.size), targets])


def backward(dprobs: np.ndarray, probs: np.ndarray, targets: np.ndarray, dloss: np.ndarray) -> None:
    """dprobs (N, V) from probs (N, V), targets (N) and dloss (1), the worth of each row's loss."""
    rows = np.arange(targets.size)
    dprobs[:] = 0
    dprobs[rows, targets] = -dloss / probs[rows, targets]


def fused(
    losses: np.ndarray, logits: np.ndarray, targets: np.ndarray, dloss: np.ndarray, *, V: int
) -> None:
    """Softmax and crossentropy, forward and backward: losses (N); logits (N, Vp) become dlogits.

    The columns from V to Vp only pad the vocabulary to a round size: they take no part in the
    softmax, and their gradient is 0. Row by row, so that a row stays in the cache.
    """
    for n, target in enumerate(targets):
        row = logits[n, :V]
        row -= row.max()
        correct = row[target]
        np.exp(row, out=row)
        total = row.sum()
        losses[n] = np.log(total) - correct
        row *= dloss[0] / total
        row[target] -= dloss[0]
        logits[n, V:] = 0
