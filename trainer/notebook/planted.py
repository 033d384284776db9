"""The kernels that notebook 11 plants into runs, by their op: one is slow, two are wrong.

The notebook shows a kernel once the reader has found its op.
"""

from pathlib import Path

from ladder.core.common.files import read_text
from ladder.core.contract.ladder import find

FOLDER = Path(__file__).parent


def slow() -> dict[str, str]:
    """A right kernel, parallel over rows and columns; but lanes read addresses OC apart."""
    return {"matmul.backward_bias": read_text(FOLDER / "planted_columns.cu")}


def wrong() -> dict[str, str]:
    """Rung 1 without the sum that the gradient of a softmax subtracts."""
    source, line = find("attention.backward").rung(1).source, "prob * (dprob - delta[row])"
    assert source.count(line) == 1
    return {"attention.backward": source.replace(line, "prob * dprob")}


def odd() -> dict[str, str]:
    """Right where the gradient is 0 before. But the model uses the embedding of tokens twice, at
    its beginning and its end, and adds up two gradients."""
    return {"embedding.backward": read_text(FOLDER / "planted_tokens.cu")}
