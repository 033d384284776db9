"""Helpers of the tests that run whole models: an engine on the CPU with the reference's rungs."""

from collections.abc import Iterable, Mapping

import numpy as np

from ladder.core.contract.ladder import ladders
from ladder.core.device.open import Cpu
from trainer.engine.engine import Engine
from trainer.model.gpt2 import GPT2Config
from trainer.model.program import build


def cpu_engine(config: GPT2Config, B: int, T: int, real: type, **options: object) -> Engine:
    """`options` are those of `build`."""
    rungs = {name: ladder.rung(0) for name, ladder in ladders().items()}
    return Engine(build(config, B, T, **options), Cpu(), real, rungs)


def write_weights(engine: Engine, weights: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write tensors by name; missing rows of wte, those that pad the vocabulary, become 0."""
    for name, tensor in weights:
        missing = engine.program.buffers[name].shape[0] - len(tensor)
        if name == "wte" and missing:
            tensor = np.pad(tensor, ((0, missing), (0, 0)))
        engine.write(name, tensor)


def run_batch(engine: Engine, tokens: np.ndarray, targets: np.ndarray) -> float:
    """Forward and backward of one batch, gradients from zero; returns the mean loss."""
    engine.write("tokens", tokens)
    engine.write("targets", targets)
    engine.write("dloss", np.array([1 / tokens.size]))
    engine.zero_gradients()
    engine.forward()
    engine.backward()
    return float(engine.read("losses").mean(dtype=np.float64))


def assert_derivatives(engine: Engine, tokens: np.ndarray, targets: np.ndarray) -> None:
    """The gradient of each tensor is the derivative of the loss: by central differences in float64,
    along one random direction."""
    run_batch(engine, tokens, targets)
    gradients = {name: engine.read("d" + name) for name in engine.program.config.parameters()}
    rng = np.random.default_rng(1)
    for name, gradient in gradients.items():
        old, direction = engine.read(name), rng.standard_normal(gradient.shape)
        losses = []
        for step in (1e-6, -1e-6):
            engine.write(name, old + step * direction)
            engine.forward()
            losses.append(engine.read("losses").mean())
        engine.write(name, old)
        slope = (losses[0] - losses[1]) / 2e-6
        expected = (gradient * direction).sum()
        assert abs(slope - expected) <= max(1e-6 * abs(expected), 1e-8), name


def distance(actual: np.ndarray, expected: np.ndarray) -> float:
    """Length of the difference over length of what is expected; NaN counts as far off."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape
    result = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    return float(np.nan_to_num(result, nan=np.inf))


def assert_close(
    actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], tolerance: float
) -> None:
    """Tensor by tensor, `distance` is at most the tolerance."""
    far = {name: distance(actual[name], expected[name]) for name in expected}
    far = {name: f"{d:.1e}" for name, d in far.items() if d > tolerance}
    assert not far, f"off by more than {tolerance}: {far}"


def without_key_bias(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights without the part of qkvb whose gradient is 0: the keys' bias adds the same to all
    scores of a query. What is computed for it is rounding error, and AdamW makes steps of that."""
    q, _, v = np.split(weights["qkvb"], 3, axis=1)
    return {**weights, "qkvb": np.concatenate([q, v], axis=1)}
