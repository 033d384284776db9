"""LayerNorm (Ba, Kiros, Hinton 2016): rows get mean 0 and variance 1, then a scale and a shift.

    mean = sum(inp) / C        rstd = 1 / sqrt(sum((inp - mean)^2) / C + EPS)
    norm = (inp - mean) * rstd
    out  = norm * weight + bias

Backward, with dnorm = dout * weight (mean() is over a row of C channels):

    dinp    = rstd * (dnorm - mean(dnorm) - norm * mean(dnorm * norm))
    dweight = sum over rows of dout * norm
    dbias   = sum over rows of dout

Kept for backward: mean and rstd, two numbers per row; norm is computed again from them.
"""

import numpy as np

EPS = 1e-5


def forward(
    out: np.ndarray,
    mean: np.ndarray,
    rstd: np.ndarray,
    inp: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
) -> None:
    """out (N, C), mean (N) and rstd (N) from inp (N, C), weight (C) and bias (C)."""
    np.mean(inp, axis=1, out=mean)
    np.subtract(inp, mean[:, None], out=out)  # (N, C)
    variance = np.square(out).mean(axis=1)  # (N)
    rstd[:] = 1 / np.sqrt(variance + EPS)
    out *= rstd[:, None]
    out *= weight
    out += bias


def backward(
    dinp: np.ndarray,
    dweight: np.ndarray,
    dbias: np.ndarray,
    dout: np.ndarray,
    inp: np.ndarray,
    weight: np.ndarray,
    mean: np.ndarray,
    rstd: np.ndarray,
) -> None:
    """dinp (N, C) is written; dweight (C) and dbias (C) accumulate. dout and inp are (N, C)."""
    norm = (inp - mean[:, None]) * rstd[:, None]  # (N, C)
    dweight += (dout * norm).sum(axis=0)
    dbias += dout.sum(axis=0)
    dnorm = np.multiply(dout, weight, out=dinp)  # (N, C)
    along = (dnorm * norm).mean(axis=1)  # (N): the part of dnorm that would change the variance
    dnorm -= dnorm.mean(axis=1)[:, None]
    norm *= along[:, None]
    dnorm -= norm
    dnorm *= rstd[:, None]
