"""GPT-2 in NumPy: against PyTorch's numbers, and its gradients against finite differences."""

from pathlib import Path

import numpy as np
import pytest

from reference import gpt2
from tests.trainer.cpu_engines import distance

FILES = sorted((Path(__file__).parents[1] / "golden").glob("*.npz"))
golden = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def load(path, real=np.float64):
    """The arrays of a file that tests/golden/make_golden.py wrote, the weights, and the heads."""
    arrays = dict(np.load(path, allow_pickle=False))
    names = [key.removeprefix("weight.") for key in arrays if key.startswith("weight.")]
    weights = {name: arrays[f"weight.{name}"].astype(real) for name in names}
    return arrays, weights, int(arrays["shape.heads"])


@golden
@pytest.mark.parametrize(("real", "tolerance"), [(np.float64, 1e-10), (np.float32, 1e-5)])
def test_logits_loss_and_all_gradients_are_pytorchs(path, real, tolerance):
    arrays, weights, heads = load(path, real)
    logits, loss, kept = gpt2.forward(weights, arrays["tokens"][0], arrays["targets"][0], heads)
    assert logits.dtype == real
    assert distance(logits, arrays["logits"]) < tolerance
    assert loss == pytest.approx(arrays["losses"][0], rel=tolerance)
    gradients = gpt2.backward(weights, kept)
    assert gradients.keys() == weights.keys()
    for name, gradient in gradients.items():
        assert distance(gradient, arrays[f"gradient.{name}"]) < tolerance, name
