"""Rungs as ops of PyTorch, on the emulator: opcheck, and values and gradients beside PyTorch's."""

import re
from pathlib import Path

import pytest

import kernel_ladder
from ladder.core.call import arrays
from ladder.core.common.errors import LadderError
from tests.ladder.core.call.by_address import ByAddress

torch = pytest.importorskip("torch")
F, kl = torch.nn.functional, kernel_ladder.torch

pytestmark = [pytest.mark.torch, pytest.mark.emulator]

B, T, C, NH, V, P = 2, 8, 32, 2, 40, 16


def attention(qkv):
    q, k, v = qkv.view(B, T, 3, NH, C // NH).permute(2, 0, 3, 1, 4)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out.transpose(1, 2).reshape(B, T, C)


FOLDED = {"matmul_gelu.backward_input": "1"}
PRODUCT = ("matmul.backward_input", "matmul.backward_weight_bias", "matmul.backward_weight")
OPS = {  # backward ops, shapes of the inputs, integers, PyTorch's own
    "layernorm.forward": (
        ("layernorm.backward",),
        ((B, T, C), (C,), (C,)),
        (),
        lambda x, w, b: F.layer_norm(x, (C,), w, b),
    ),
    "gelu.forward": (
        ("gelu.backward",),
        ((B, T, C),),
        (),
        lambda x: F.gelu(x, approximate="tanh"),
    ),
    "matmul.forward": (PRODUCT, ((B, T, C), (48, C), (48,)), (), F.linear),
    "attention.forward": (("attention.backward",), ((B, T, 3 * C),), (NH,), attention),
    "embedding.forward": (
        ("embedding.backward",),
        ("tokens", (V, C), (P, C)),
        (),
        lambda tokens, wte, wpe: wte[tokens.long()] + wpe[:T],
    ),
}


def made(name, rung="1"):
    backward, shapes, ints, own = OPS[name]
    torch.manual_seed(0)
    tokens = torch.randint(0, V, (B, T), dtype=torch.int32)
    inputs = [tokens if s == "tokens" else torch.randn(s, requires_grad=True) for s in shapes]
    return kl.op(name, rung, dict.fromkeys(backward, rung)), inputs, ints, own


def first(result):
    return result if isinstance(result, torch.Tensor) else result[0]


def with_gradients(call, inputs):
    out = first(call(*inputs))
    floats = [t for t in inputs if t.requires_grad]
    torch.manual_seed(1)
    return [out.detach(), *torch.autograd.grad(out, floats, torch.randn_like(out))]


def assert_same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", OPS)
def test_values_and_gradients_are_those_of_pytorch(name):
    op, inputs, ints, own = made(name)
    ours = with_gradients(lambda *tensors: op(*tensors, *ints), inputs)
    assert_same(ours, with_gradients(own, inputs))


@pytest.mark.slow
@pytest.mark.parametrize("name", OPS)
def test_opcheck_passes(name):
    op, inputs, ints, _ = made(name)
    torch.library.opcheck(op, (*inputs, *ints))


def test_a_product_without_a_bias_takes_the_gradient_that_has_none():
    op, (x, w, _), _, _ = made("matmul.forward")
    assert_same(
        with_gradients(lambda x, w: op(x, w, None), [x, w]), with_gradients(F.linear, [x, w])
    )


def test_parameters_keep_their_type_beside_activations_in_16_bits():
    op, (x, w, b), _, _ = made("layernorm.forward")
    out, *gradients = with_gradients(op, [x.detach().bfloat16().requires_grad_(), w, b])
    wanted = [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]
    assert [t.dtype for t in (out, *gradients)] == wanted


def test_views_that_kernels_cannot_take_are_copied():
    op, (*_, b), _, own = made("layernorm.forward")
    rows = torch.randn(T, C + 1)[:, 1:]  # neither contiguous nor aligned
    weight = torch.randn(C + 1)[1:]
    assert_same([first(op(rows, weight, b))], [own(rows, weight, b)])


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda op, x, w, b: op(x, w.long(), b), r"\bweight .*\bfloat64, float32"),
        (lambda op, x, w, b: kl.op("dropout.forward", "1"), r"kernel_ladder\.load\b"),
        (
            lambda op, x, w, b: kl.op("layernorm.forward", "1", {"gelu.backward": "1"}),
            r"gelu\.backward .*layernorm\.forward",
        ),
        (  # the gradient of what GELU took, in the layer before
            lambda op, x, w, b: kl.op("matmul_gelu.forward", "1", FOLDED),
            r"matmul_gelu\.backward_input .*matmul_gelu\.forward",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(call, names):
    op, inputs, _, _ = made("layernorm.forward")
    with torch.no_grad(), pytest.raises(LadderError, match=names):
        call(op, *inputs)


def test_a_gradient_that_would_be_missing_is_refused_by_name():
    (x, w, b), inner = made("matmul.forward")[1], kl.op("matmul.forward", "1", {PRODUCT[0]: "1"})
    with pytest.raises(LadderError, match="no op was named for dweight"):
        inner(x, w, b).sum().backward()


def test_load_takes_tensors_as_they_are():
    x, w, b = torch.randn(B, T, C, dtype=torch.bfloat16), *torch.randn(2, C, dtype=torch.bfloat16)
    out, mean, rstd = torch.empty_like(x), torch.empty(B, T), torch.empty(B, T)
    kernel_ladder.load("layernorm.forward", "warp_per_row")(out, mean, rstd, x, w, b)
    torch.testing.assert_close(out, F.layer_norm(x, (C,), w, b), rtol=2**-7, atol=2**-7)


def test_the_examples_of_the_page_run():
    page = (Path(__file__).parents[4] / "doc/torch.md").read_text(encoding="utf-8")
    names = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL)[:2]:
        exec(block, names)
    torch.testing.assert_close(
        names["out"], F.layer_norm(names["x"], (64,), names["weight"], names["bias"])
    )
    assert names["x"].grad is not None


@pytest.fixture
def by_address(monkeypatch):
    device = ByAddress()
    monkeypatch.setattr(arrays, "device_at", lambda gpu: device)
    monkeypatch.setattr(
        arrays, "place_of", lambda array: arrays.Place("torch", 0, ByAddress.stream)
    )
    return device


def test_a_call_at_the_same_addresses_is_bound_once(by_address):
    loaded = kernel_ladder.load("gelu.forward", 1)
    inp, out = torch.randn(2, 64)
    for _ in range(3):
        inp.normal_()
        loaded(out, inp)
        assert_same([out], [F.gelu(inp, approximate="tanh")])
    assert by_address.borrowed == 2


def test_an_address_may_be_that_of_another_shape_later(by_address):
    """A tensor map holds both."""
    loaded = kernel_ladder.load("matmul.forward", "16bit-13")
    memory = torch.randn(3, 1 << 15).bfloat16()
    for N, OC, width in ((128, 128, 64), (128, 128, 128), (256, 128, 64), (128, 128, 64)):
        x, w = memory[0][: N * width].view(N, width), memory[1][: OC * width].view(OC, width)
        out = memory[2][: N * OC].view(N, OC)
        loaded(out, x, w, None)
        torch.testing.assert_close(out, F.linear(x, w), rtol=2**-6, atol=2**-6)
    with pytest.raises(LadderError, match=r"\binp .*contiguous"):
        square = memory[0][: 1 << 14].view(128, 128)
        loaded(out.view(-1)[: 1 << 14].view(128, 128), square, w.new_ones(128, 128), None)
        loaded(out.view(-1)[: 1 << 14].view(128, 128), square.T, w.new_ones(128, 128), None)
