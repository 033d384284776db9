"""Every backward function against central finite differences of its forward function, in float64.

The contracts say what both take: the backward pass is given what the forward pass was given and
what it made, and `dout` for `out`; it makes `dinp` for `inp`. What it adds to begins at random.
"""

from collections.abc import Callable

import numpy as np
import pytest

from ladder.core.contract.ladder import find, ladders
from ladder.core.verify.inputs import make_inputs, scalars
from reference import (
    attention,
    crossentropy,
    gelu,
    matmul,
    matmul_crossentropy,
    matmul_gelu,
    matmul_relu,
    softmax,
)

EPSILON = 1e-6
RNG = np.random.default_rng(0)

# By backward op: dimensions, and which of the forward inputs a gradient is for, where its name does
# not say so.
CASES = {
    "embedding.backward": ({"B": 2, "T": 4, "C": 3, "V": 3, "P": 5}, {}),
    "layernorm.backward": ({"N": 4, "C": 7}, {}),
    "matmul.backward_input": ({"N": 4, "C": 3, "OC": 5}, {}),
    "matmul.backward_weight": ({"N": 4, "C": 3, "OC": 5}, {}),
    "matmul.backward_bias": ({"N": 4, "C": 3, "OC": 5}, {}),
    "matmul.backward_weight_bias": ({"N": 4, "C": 3, "OC": 5}, {}),
    "attention.backward": ({"B": 2, "T": 5, "C": 6, "NH": 3}, {}),
    "attention_dropout.backward": ({"B": 1, "T": 18, "C": 4, "NH": 2}, {}),
    "residual.backward": ({"N": 7}, {"dinp": ("inp1", "inp2")}),
    "residual_layernorm.backward": ({"N": 4, "C": 7}, {"dinp": ("inp1", "inp2")}),
    "dropout_residual_layernorm.backward": (
        {"N": 4, "C": 7},
        {"dinp": ("inp1",), "dbranch": ("inp2",)},
    ),
    "gelu.backward": ({"N": 41}, {}),
    "relu.backward": ({"N": 41}, {}),
    "dropout.backward": ({"N": 41}, {}),
    "softmax.backward": ({"N": 4, "V": 5}, {}),
    "crossentropy.backward": ({"N": 4, "V": 5}, {}),
}
OTHERWISE = {  # tested on their own
    f"{layer}.backward_input" for layer in ("matmul_gelu", "matmul_relu", "matmul_crossentropy")
}


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def slope(x: np.ndarray, value: Callable[[], float]) -> np.ndarray:
    """The derivative of a function of what stands in an array, element by element."""
    gradient = np.empty_like(x)
    for index in np.ndindex(x.shape):
        old = x[index]
        x[index] = old + EPSILON
        above = value()
        x[index] = old - EPSILON
        gradient[index] = (above - value()) / (2 * EPSILON)
        x[index] = old
    return gradient


def assert_close(got: np.ndarray, expected: np.ndarray, name: str = "") -> None:
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-8, err_msg=name)


def drawn(op, dims) -> dict[str, np.ndarray]:
    """Inputs of an op, in float64, and none 0, where relu has no derivative; what it overwrites is
    NaN."""
    made = make_inputs(op, dims, np.dtype(np.float64), RNG)
    for name, array in made.items():
        if array.dtype.kind == "f":
            made[name] = np.where(array, array, 0.5).astype(np.float64)
    return {
        arg.name: made.get(arg.name, np.full(arg.resolve_shape(dims), np.nan)) for arg in op.args
    }


def test_every_backward_op_is_tested():
    backward = {name for name in ladders() if ".backward" in name}
    assert backward == set(CASES) | OTHERWISE


@pytest.mark.parametrize("name", CASES)
def test_backward_is_the_derivative_of_forward(name):
    dims, gradient_of = CASES[name]
    op = find(name).op
    before = find(f"{op.layer}.forward").op
    arrays = drawn(before, dims)
    before.compute(list(arrays.values()), dims, scalars(before))
    made = {arg.name: arrays[arg.name].copy() for arg in before.args if arg.role == "out"}
    if "residual" in made:  # the normalised sum, which the backward pass is given
        arrays["inp"] = made["residual"]

    given = {arg.name: arrays.get(arg.name) for arg in op.args}
    by = {}  # the derivative of the loss by each output
    for arg in op.args:
        of = {"dloss": "losses"}.get(arg.name, arg.name[1:])
        if arg.role == "in" and given[arg.name] is None:
            by[of] = given[arg.name] = normal(*arg.resolve_shape(dims))
        elif arg.role != "in":
            shape = arg.resolve_shape(dims)
            given[arg.name] = normal(*shape) if arg.role == "inout" else np.full(shape, np.nan)
    starts = {arg.name: given[arg.name].copy() for arg in op.args if arg.role == "inout"}
    if "residual" in made:  # dinp begins as the derivative by the sum
        by["residual"] = starts.pop("dinp")
    op.compute(list(given.values()), dims, scalars(op))

    def loss() -> float:
        before.compute(list(arrays.values())[: len(before.args)], dims, scalars(before))
        return sum((arrays[out] * by[out]).sum() for out in by)

    for arg in op.args:
        if arg.role != "in":
            gradient = given[arg.name] - starts.get(arg.name, 0)
            for inp in gradient_of.get(arg.name, (arg.name[1:],)):
                assert_close(gradient, slope(arrays[inp], loss), inp)


@pytest.mark.parametrize("layer", ["gelu", "relu"])
def test_a_product_is_taken_back_through_the_activation_before_it(layer):
    pre, weight, dout = normal(4, 3), normal(5, 3), normal(4, 5)
    dinp, out = np.full((4, 3), np.nan), np.maximum(pre, 0)
    if layer == "gelu":
        matmul_gelu.backward_input(dinp, dout, weight, pre)
    else:
        matmul_relu.backward_input(dinp, dout, weight, out)

    def loss() -> float:
        active = np.maximum(pre, 0)
        if layer == "gelu":
            gelu.forward(active.reshape(-1), pre.reshape(-1))
        return (active @ weight.T * dout).sum()

    assert_close(dinp, slope(pre, loss))


def fused(logits: np.ndarray, dloss: float) -> tuple[np.ndarray, np.ndarray]:
    losses, logits = np.full(len(logits), np.nan), logits.copy()
    crossentropy.fused(losses, logits, np.array([2, 0, 4, 4]), np.array([dloss]), V=5)
    return losses, logits


@pytest.mark.parametrize("columns", [5, 8])  # with columns that pad the vocabulary, too
def test_the_fused_loss_leaves_the_derivative_in_the_place_of_the_logits(columns):
    logits = normal(4, columns)
    losses, dlogits = fused(logits, 0.5)
    assert_close(dlogits, slope(logits, lambda: 0.5 * fused(logits, 1.0)[0].sum()))
    assert (dlogits[:, 5:] == 0).all()
    probs, apart = np.empty((4, 5)), np.empty(4)
    softmax.forward(probs, logits[:, :5])
    crossentropy.forward(apart, probs, np.array([2, 0, 4, 4]))
    assert_close(losses, apart)


def head(inp: np.ndarray, weight: np.ndarray, V: int) -> list[np.ndarray]:
    """Losses, dlogits, dinp and dweight by the fused op."""
    (N, C), OC = inp.shape, len(weight)
    exps, losses, factors, scaled = np.empty((N, OC)), np.empty(N), np.empty(N), np.empty((N, C))
    made = exps, losses, factors, scaled
    matmul_crossentropy.forward(*made, inp, weight, TARGETS, np.array([0.5]), V=V)
    dinp, dweight = np.empty((N, C)), np.zeros((OC, C))
    matmul_crossentropy.backward_input(dinp, exps, factors, weight)
    matmul.backward_weight(dweight, exps, scaled)
    return [losses, factors[:, None] * exps, dinp, dweight]


def head_apart(inp: np.ndarray, weight: np.ndarray, V: int) -> list[np.ndarray]:
    """The same by a product, crossentropy.fused, and two products."""
    logits, losses = np.empty((len(inp), len(weight))), np.empty(len(inp))
    matmul.forward(logits, inp, weight, None)
    crossentropy.fused(losses, logits, TARGETS, np.array([0.5]), V=V)
    dinp, dweight = np.empty(inp.shape), np.zeros(weight.shape)
    matmul.backward_input(dinp, logits, weight)
    matmul.backward_weight(dweight, logits, inp)
    return [losses, logits, dinp, dweight]


TARGETS = np.array([2, 0, 4, 4])


@pytest.mark.parametrize("columns", [5, 8])  # with columns that pad the vocabulary, too
@pytest.mark.parametrize("size", [0, 3, 30])  # of the largest logit; no loss reaches 62
def test_the_head_by_exponentials_computes_what_product_and_loss_do(columns, size):
    inp, weight = normal(4, 3), normal(columns, 3)
    weight *= size / np.abs(inp @ weight.T).max()
    for got, expected in zip(head(inp, weight, 5), head_apart(inp, weight, 5), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


def test_the_head_cuts_off_losses_above_62_and_stays_finite():
    inp, weight = np.ones((4, 1)), np.zeros((6, 1))
    weight[[0, 5]] = 87  # the second row's target, and padding
    losses, dlogits, *gradients = head(inp, weight, 5)
    most = 90 * np.log(2)
    np.testing.assert_allclose(losses, [most, 4 * np.exp(-87), most, most], rtol=1e-15, atol=1e-15)
    expected = head_apart(inp, weight, 5)
    np.testing.assert_allclose(dlogits, expected[1], rtol=1e-15, atol=1e-15)  # 0.5 and -0.5
    for got, other in zip(gradients, expected[2:], strict=True):
        np.testing.assert_allclose(got, other, rtol=1e-12, atol=1e-12)
    with np.errstate(over="raise"):
        assert all(np.isfinite(array).all() for array in head(1e4 * inp, normal(6, 1), 5))


def attend(qkv: np.ndarray, NH: int) -> np.ndarray:
    B, T, width = qkv.shape
    out = np.full((B, T, width // 3), np.nan)
    attention.forward(out, np.empty((B, NH, T)), qkv)
    return out


def test_softmax_and_attention_do_not_overflow():
    probs = np.empty((1, 2))
    softmax.forward(probs, np.array([[1e4, -1e4]]))
    np.testing.assert_array_equal(probs, [[1, 0]])
    assert np.isfinite(fused(1e4 * normal(4, 5), 1.0)[0]).all()
    assert np.isfinite(attend(1e3 * normal(1, 4, 6), 1)).all()
