"""The whole model against files that tests/golden/make_golden.py wrote with PyTorch in float64."""

from pathlib import Path

import numpy as np
import pytest

from reference import adamw
from tests.trainer.cpu_engines import (
    assert_close,
    cpu_engine,
    run_batch,
    without_key_bias,
    write_weights,
)
from tests.trainer.tiny import PARAMETERS
from trainer.model.gpt2 import GPT2Config

FILES = sorted((Path(__file__).parents[2] / "golden").glob("*.npz"))
TOLERANCES = {np.float64: 1e-10, np.float32: 1e-5}

pytestmark = [
    pytest.mark.parametrize("real", TOLERANCES, ids=lambda real: real.__name__),
    pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem),
]


def load(path, real):
    """The arrays of a golden file, and an engine that holds its first weights."""
    golden = dict(np.load(path, allow_pickle=False))
    shape = {key.split(".")[1]: int(golden[key]) for key in golden if key.startswith("shape.")}
    B, T, padded = shape.pop("B"), shape.pop("T"), shape.pop("padded")
    engine = cpu_engine(GPT2Config(**shape, padded_vocab=padded), B, T, real)
    write_weights(engine, group(golden, "weight").items())
    return golden, engine


def group(golden, prefix):
    return {name: golden[f"{prefix}.{name}"] for name in PARAMETERS}


def unpad(tensors, vocab):
    """Without the rows of wte that pad the vocabulary, which must be 0."""
    assert not tensors["wte"][vocab:].any()
    return {**tensors, "wte": tensors["wte"][:vocab]}


def test_all_gradients_and_ten_steps_of_adamw(path, real):
    golden, engine = load(path, real)
    hyper = {k.split(".")[1]: float(golden[k]) for k in golden if k.startswith("hyper.")}
    tolerance, vocab = TOLERANCES[real], int(golden["shape.vocab"])
    losses, norms = [], []
    for step, batch in enumerate(zip(golden["tokens"], golden["targets"], strict=True), 1):
        losses.append(run_batch(engine, *batch))
        if step == 1:
            gradients = {name: engine.read("d" + name) for name in PARAMETERS}
            assert_close(unpad(gradients, vocab), group(golden, "gradient"), tolerance)
        norms.append(engine.gradient_norm())
        engine.write("hyper", adamw.hyper(step=step, **hyper, dtype=real))
        engine.update()
    assert min(golden["norms"]) < hyper["clip"] < max(golden["norms"])  # some are clipped
    np.testing.assert_allclose(losses, golden["losses"], rtol=tolerance)
    np.testing.assert_allclose(norms, golden["norms"], rtol=tolerance)
    after = unpad({name: engine.read(name) for name in PARAMETERS}, vocab)
    expected = group(golden, "after")
    if real == np.float32:
        after, expected = without_key_bias(after), without_key_bias(expected)
    assert_close(after, expected, tolerance)
