"""Every backward function against central finite differences of its forward function, in float64.

A case holds the inputs, the forward pass as a function of them, and the gradients of
sum(out * dout) with respect to them, as the backward functions give them.
"""

from dataclasses import dataclass

import numpy as np
import pytest

from reference import (
    attention,
    attention_dropout,
    crossentropy,
    dropout,
    dropout_residual_layernorm,
    embedding,
    gelu,
    layernorm,
    matmul,
    matmul_gelu,
    matmul_relu,
    relu,
    residual,
    residual_layernorm,
    softmax,
)

EPSILON = 1e-6


@dataclass
class Case:
    inputs: dict
    forward: callable  # **inputs -> out
    backward: callable  # dout, **inputs -> {input: gradient}


def numeric_gradient(case: Case, name: str, dout: np.ndarray) -> np.ndarray:
    x = case.inputs[name]
    gradient = np.empty_like(x)
    for index in np.ndindex(x.shape):
        old = x[index]
        x[index] = old + EPSILON
        above = case.forward(**case.inputs)
        x[index] = old - EPSILON
        below = case.forward(**case.inputs)
        x[index] = old
        gradient[index] = ((above - below) * dout).sum() / (2 * EPSILON)
    return gradient


RNG = np.random.default_rng(0)
TOKENS = np.array([[1, 4, 1], [0, 1, 3]])  # token 1 repeats, within a row and between rows
TARGETS = np.array([2, 0, 4, 4])
STATE = np.array([1, 2, 3, 4], np.uint32)


def normal(*shape):
    return RNG.standard_normal(shape)


def filled(*shape):
    """An array that a function is to overwrite."""
    return np.full(shape, np.nan)


def embedding_forward(wte, wpe):
    out = filled(2, 3, 5)
    embedding.forward(out, TOKENS, wte, wpe)
    return out


def embedding_backward(dout, wte, wpe):
    dwte, dwpe = np.zeros_like(wte), np.zeros_like(wpe)
    embedding.backward(dwte, dwpe, dout, TOKENS)
    return {"wte": dwte, "wpe": dwpe}


def layernorm_all(inp, weight, bias):
    out, mean, rstd = filled(*inp.shape), filled(len(inp)), filled(len(inp))
    layernorm.forward(out, mean, rstd, inp, weight, bias)
    return out, mean, rstd


def layernorm_backward(dout, inp, weight, bias):
    _, mean, rstd = layernorm_all(inp, weight, bias)
    dinp, dweight, dbias = filled(*inp.shape), np.zeros_like(weight), np.zeros_like(bias)
    layernorm.backward(dinp, dweight, dbias, dout, inp, weight, mean, rstd)
    return {"inp": dinp, "weight": dweight, "bias": dbias}


def matmul_forward(inp, weight, bias):
    out = filled(len(inp), len(weight))
    matmul.forward(out, inp, weight, bias)
    return out


def matmul_backward(dout, inp, weight, bias):
    dinp, dweight, dbias = filled(*inp.shape), np.zeros_like(weight), np.zeros_like(bias)
    matmul.backward_input(dinp, dout, weight)
    matmul.backward_weight(dweight, dout, inp)
    matmul.backward_bias(dbias, dout)
    return {"inp": dinp, "weight": dweight, "bias": dbias}


def weight_and_bias_in_one(dout, inp, weight, bias):
    dweight, dbias = np.zeros_like(weight), np.zeros_like(bias)
    matmul.backward_weight_bias(dweight, dbias, dout, inp)
    return {"weight": dweight, "bias": dbias}


def gelu_then_matmul(pre, weight):
    out = filled(*pre.shape)
    gelu.forward(out.reshape(-1), pre.reshape(-1))
    return out @ weight.T


def fused_with_gelu(dout, pre, weight):
    dinp = filled(*pre.shape)
    matmul_gelu.backward_input(dinp, dout, weight, pre)
    return {"pre": dinp}


def relu_mlp(inp, weight, bias, projection):
    out = filled(len(inp), len(weight))
    matmul_relu.forward(out, inp, weight, bias)
    return out @ projection.T


def relu_mlp_backward(dout, inp, weight, bias, projection):
    out, dpre = filled(len(inp), len(weight)), filled(len(inp), len(weight))
    matmul_relu.forward(out, inp, weight, bias)
    matmul_relu.backward_input(dpre, dout, projection, out)
    return {**matmul_backward(dpre, inp, weight, bias), "projection": dout.T @ out}


def attention_all(qkv, NH):
    B, T, width = qkv.shape
    out, lse = filled(B, T, width // 3), filled(B, NH, T)
    attention.forward(out, lse, qkv)
    return out, lse


def attention_case(NH):
    def backward(dout, qkv):
        dqkv = filled(*qkv.shape)
        attention.backward(dqkv, dout, qkv, *attention_all(qkv, NH))
        return {"qkv": dqkv}

    return Case({"qkv": normal(2, 5, 3 * 6)}, lambda qkv: attention_all(qkv, NH)[0], backward)


def attention_dropout_case(B, T, C, NH):
    rng, how = np.array([1, 2, 3, 4], np.uint32), {"p": 0.3, "stream": 5}

    def both(qkv):
        out, lse = filled(B, T, C), filled(B, NH, T)
        attention_dropout.forward(out, lse, qkv, rng, **how)
        return out, lse

    def backward(dout, qkv):
        dqkv = filled(*qkv.shape)
        attention_dropout.backward(dqkv, dout, qkv, *both(qkv), rng, **how)
        return {"qkv": dqkv}

    return Case({"qkv": normal(B, T, 3 * C)}, lambda qkv: both(qkv)[0], backward)


def residual_forward(inp1, inp2):
    out = filled(7)
    residual.forward(out, inp1, inp2)
    return out


def residual_backward(dout, inp1, inp2):
    dinp = np.zeros(7)
    residual.backward(dinp, dout)
    return {"inp1": dinp, "inp2": dinp}


def residual_layernorm_all(inp1, inp2, weight, bias):
    """Both outputs, stacked: the sum, and what it is normalised to."""
    out, mean, rstd = filled(2, *inp1.shape), filled(len(inp1)), filled(len(inp1))
    residual_layernorm.forward(*out, mean, rstd, inp1, inp2, weight, bias)
    return out, mean, rstd


def residual_layernorm_backward(dout, inp1, inp2, weight, bias):
    out, mean, rstd = residual_layernorm_all(inp1, inp2, weight, bias)
    dinp, dweight, dbias = dout[0].copy(), np.zeros_like(weight), np.zeros_like(bias)
    residual_layernorm.backward(dinp, dweight, dbias, dout[1], out[0], weight, mean, rstd)
    return {"inp1": dinp, "inp2": dinp, "weight": dweight, "bias": dbias}


RANDOM = np.array([3, 1, 4, 1], np.uint32)  # seed low, seed high, step, micro-step
DROPPED = {"p": 0.4, "stream": 5}


def dropout_residual_layernorm_all(inp1, inp2, weight, bias):
    """As residual_layernorm_all, with inp2 under a mask."""
    out, mean, rstd = filled(2, *inp1.shape), filled(len(inp1)), filled(len(inp1))
    given = inp1, inp2, weight, bias, RANDOM
    dropout_residual_layernorm.forward(*out, mean, rstd, *given, **DROPPED)
    return out, mean, rstd


def dropout_residual_layernorm_backward(dout, inp1, inp2, weight, bias):
    out, mean, rstd = dropout_residual_layernorm_all(inp1, inp2, weight, bias)
    dinp, dbranch = dout[0].copy(), filled(*inp2.shape)
    dweight, dbias = np.zeros_like(weight), np.zeros_like(bias)
    dropout_residual_layernorm.backward(
        *(dinp, dbranch, dweight, dbias, dout[1], out[0], weight, mean, rstd, RANDOM), **DROPPED
    )
    return {"inp1": dinp, "inp2": dbranch, "weight": dweight, "bias": dbias}


def elementwise(layer, **scalars):
    """A case of a layer with one input and one output, (N)."""
    state = (STATE,) if scalars else ()

    def forward(inp):
        out = filled(inp.size)
        layer.forward(out, inp, *state, **scalars)
        return out

    def backward(dout, inp):
        dinp = filled(inp.size)
        kept = state or (inp,)
        layer.backward(dinp, dout, *kept, **scalars)
        return {"inp": dinp}

    return Case({"inp": 2 * normal(41)}, forward, backward)


def softmax_forward(logits):
    probs = filled(*logits.shape)
    softmax.forward(probs, logits)
    return probs


def softmax_backward(dout, logits):
    dlogits = filled(*logits.shape)
    softmax.backward(dlogits, dout, softmax_forward(logits))
    return {"logits": dlogits}


def crossentropy_forward(probs):
    losses = filled(len(probs))
    crossentropy.forward(losses, probs, TARGETS)
    return losses


def crossentropy_backward(dout, probs):
    dprobs = filled(*probs.shape)
    for n in range(len(probs)):  # one dloss for all rows is the contract; dout differs by row
        row = slice(n, n + 1)
        crossentropy.backward(dprobs[row], probs[row], TARGETS[row], dout[row])
    return {"probs": dprobs}


def fused(logits, dloss):
    losses, logits = filled(len(logits)), logits.copy()
    crossentropy.fused(losses, logits, TARGETS, np.array([dloss]), V=5)
    return losses, logits


def fused_backward(dout, logits):
    rows = [fused(logits, dout[n])[1][n] for n in range(len(logits))]
    return {"logits": np.stack(rows)}


CASES = {
    "embedding": Case(
        {"wte": normal(6, 5), "wpe": normal(4, 5)}, embedding_forward, embedding_backward
    ),
    "layernorm": Case(
        {"inp": normal(4, 7), "weight": normal(7), "bias": normal(7)},
        lambda **inputs: layernorm_all(**inputs)[0],
        layernorm_backward,
    ),
    "matmul": Case(
        {"inp": normal(4, 3), "weight": normal(5, 3), "bias": normal(5)},
        matmul_forward,
        matmul_backward,
    ),
    "matmul, weight and bias in one": Case(
        {"inp": normal(4, 3), "weight": normal(5, 3), "bias": normal(5)},
        matmul_forward,
        weight_and_bias_in_one,
    ),
    "gelu and the matmul behind it": Case(
        {"pre": normal(4, 3), "weight": normal(5, 3)}, gelu_then_matmul, fused_with_gelu
    ),
    "matmul and relu, and the matmul behind": Case(
        {
            **{"inp": normal(4, 3), "weight": normal(5, 3), "bias": normal(5)},
            "projection": normal(3, 5),
        },
        relu_mlp,
        relu_mlp_backward,
    ),
    "attention, one head": attention_case(1),
    "attention, three heads": attention_case(3),
    "attention with dropout": attention_dropout_case(2, 5, 6, 3),
    "attention with dropout, two tiles": attention_dropout_case(1, 18, 2, 1),
    "residual": Case({"inp1": normal(7), "inp2": normal(7)}, residual_forward, residual_backward),
    "residual and layernorm": Case(
        {"inp1": normal(4, 7), "inp2": normal(4, 7), "weight": normal(7), "bias": normal(7)},
        lambda **inputs: residual_layernorm_all(**inputs)[0],
        residual_layernorm_backward,
    ),
    "dropout, residual and layernorm": Case(
        {"inp1": normal(4, 7), "inp2": normal(4, 7), "weight": normal(7), "bias": normal(7)},
        lambda **inputs: dropout_residual_layernorm_all(**inputs)[0],
        dropout_residual_layernorm_backward,
    ),
    "gelu": elementwise(gelu),
    "relu": elementwise(relu),
    "dropout": elementwise(dropout, p=0.4, stream=5),
    "softmax": Case({"logits": normal(4, 5)}, softmax_forward, softmax_backward),
    "crossentropy": Case(
        {"probs": RNG.uniform(0.1, 1, (4, 5))}, crossentropy_forward, crossentropy_backward
    ),
    "softmax and crossentropy": Case(
        {"logits": normal(4, 5)}, lambda logits: fused(logits, 1.0)[0], fused_backward
    ),
    "softmax and crossentropy, padded": Case(
        {"logits": normal(4, 8)}, lambda logits: fused(logits, 1.0)[0], fused_backward
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_backward_is_the_derivative_of_forward(name):
    case = CASES[name]
    dout = np.random.default_rng(1).standard_normal(case.forward(**case.inputs).shape)
    for inp, gradient in case.backward(dout, **case.inputs).items():
        expected = numeric_gradient(case, inp, dout)
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-8, err_msg=inp)


def test_padded_columns_get_no_gradient_and_do_not_change_the_result():
    logits = normal(4, 8)
    losses, dlogits = fused(logits, 0.5)
    assert (dlogits[:, 5:] == 0).all()
    np.testing.assert_array_equal(losses, fused(logits[:, :5], 0.5)[0])


def test_fused_crossentropy_is_softmax_then_crossentropy():
    logits = normal(4, 5)
    np.testing.assert_allclose(fused(logits, 1.0)[0], crossentropy_forward(softmax_forward(logits)))


def test_softmax_and_attention_do_not_overflow():
    np.testing.assert_array_equal(softmax_forward(np.array([[1e4, -1e4]])), [[1, 0]])
    assert np.isfinite(fused(1e4 * normal(4, 5), 1.0)[0]).all()
    assert np.isfinite(attention_all(1e3 * normal(1, 4, 6), 1)[0]).all()


def test_attention_ignores_later_tokens():
    qkv = normal(1, 6, 3 * 4)
    before, _ = attention_all(qkv, 2)
    qkv[:, 4:] = normal(1, 2, 3 * 4)
    after, _ = attention_all(qkv, 2)
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert (before[:, 4:] != after[:, 4:]).all()


def test_gradients_of_parameters_and_of_the_stream_accumulate():
    """Called twice on the same arrays they add up; gradients of activations are overwritten."""
    dout, inp, weight = normal(4, 5), normal(4, 3), normal(5, 3)
    dweight, dbias, dinp = np.zeros((5, 3)), np.zeros(5), filled(4, 3)
    for _ in range(2):
        matmul.backward_weight(dweight, dout, inp)
        matmul.backward_bias(dbias, dout)
        matmul.backward_input(dinp, dout, weight)
    np.testing.assert_allclose(dweight, 2 * dout.T @ inp)
    np.testing.assert_allclose(dbias, 2 * dout.sum(axis=0))
    np.testing.assert_allclose(dinp, dout @ weight)

    dwte, dwpe, dout = np.zeros((6, 5)), np.zeros((4, 5)), normal(2, 3, 5)
    for _ in range(2):
        embedding.backward(dwte, dwpe, dout, TOKENS)
    np.testing.assert_allclose(dwte[1], 2 * (dout[0, 0] + dout[0, 2] + dout[1, 1]))
    np.testing.assert_allclose(dwpe[:3], 2 * dout.sum(axis=0))
    assert (dwpe[3] == 0).all()

    dinp = np.ones(3)
    residual.backward(dinp, np.array([1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(dinp, [2, 3, 4])
