"""AdamW (Kingma and Ba 2015; Loshchilov and Hutter 2019) with clipping by the global norm.

    g = grad * inv_scale * min(1, clip / (norm * inv_scale + 1e-6))     clip = 0: no clipping
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g^2
    weight -= lr * (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * weight)

inv_scale undoes a loss scale (1 outside float16 runs); norm is that of grad, still with the scale.

A weight of 16 bits is rounded from float32: to nearest, or at random (see rounding.py), with a
random word that follows from the rng, the stream and the element (see philox.py).
"""

import numpy as np

from reference.blocks import on_all_cores
from reference.philox import random_words
from reference.rounding import round_at_random

HYPER = (
    *("lr", "beta1", "beta2", "eps", "weight_decay", "clip"),
    *("correction1", "correction2", "inv_scale"),  # 1 - beta1^t and 1 - beta2^t
)


def hyper(
    *,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    clip: float,
    inv_scale: float = 1.0,
    dtype: type = np.float32,
) -> np.ndarray:
    """The (9) array of HYPER for the `step`-th update, counted from 1.

    The corrections belong to the betas as `dtype` rounds them: 1 - 0.999 is off by 1e-5 in float32.
    """
    beta1, beta2 = float(dtype(beta1)), float(dtype(beta2))
    corrections = (1 - beta1**step, 1 - beta2**step)
    return np.array([lr, beta1, beta2, eps, weight_decay, clip, *corrections, inv_scale], dtype)


def update(
    weight: np.ndarray,
    m: np.ndarray,
    v: np.ndarray,
    master: np.ndarray | None,
    grad: np.ndarray,
    norm: np.ndarray,
    hyper: np.ndarray,
    rng: np.ndarray | None = None,
    *,
    decay: float,
    stream: int = 0,
    first: int = 0,
) -> None:
    """weight, m, v and master, all (N), move one step along grad (N), whose norm is norm (1).

    master, if not None, is the float32 copy that is updated in place of a 16-bit weight, and
    rounded to it: at random if there is an rng (4), whose `stream` tells tensors apart. first, a
    multiple of 4: the arrays are a piece of a tensor, which starts with that element. decay: 1
    where weight decay applies, 0 where it does not.
    """
    lr, beta1, beta2, eps, weight_decay, clip, correction1, correction2, inv_scale = hyper.tolist()
    scale = inv_scale
    if clip > 0:
        scale *= min(1.0, clip / (float(norm[0]) * inv_scale + 1e-6))

    def step(block: slice) -> None:
        m_, v_, g = m[block], v[block], grad[block] * scale
        m_ *= beta1
        t = g * (1 - beta1)
        m_ += t
        v_ *= beta2
        np.multiply(g, g, out=t)
        t *= 1 - beta2
        v_ += t
        np.sqrt(v_, out=t)  # from here on t is the denominator, then the step
        t *= correction2**-0.5
        t += eps
        np.divide(m_, t, out=t)
        t *= lr / correction1
        stored = weight[block]
        exact = stored if master is None else master[block]
        if exact.itemsize < 4:
            exact = exact.astype(np.float32)
        exact *= 1 - lr * weight_decay * decay
        exact -= t
        if rng is not None and weight.itemsize < 4:
            places = slice(first + block.start, first + block.stop)
            exact = round_at_random(exact, random_words(rng, stream, places), weight.dtype)
        if exact is not stored:
            stored[...] = exact

    on_all_cores(step, weight.size)
