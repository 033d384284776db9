"""What PyTorch calls for the work of an op, to be timed beside our rungs (torch_timing.py).

Each function below computes what the op's contract says, in the same types. Its parameters after
`torch` are arguments, scalars and dimensions of the op by their names, or what `prepare` made of
these before the clock starts. An argument that accumulates and that the function does not take is
not added to: the function gives the increment. Its docstring, or `call`, says on the pages what is
called, and where it does more or less than the contract.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Values = dict[str, Any]  # tensors and numbers by their names


@dataclass(frozen=True)
class Baseline:
    """A function of PyTorch's that does the work of an op.

    function  (torch, inputs by name) -> {argument: what was computed}
    call      what it calls, as Markdown, for the pages; where it is empty, the docstring says it
    prepare   each of these, in turn, changes an op's inputs into what the function takes
    compiled  the same work written out, for torch.compile; None: `function`, whose calls it fuses
    """

    function: Callable[..., Values]
    call: str = ""
    prepare: Sequence[Callable[[Any, Values], None]] = ()
    compiled: Callable[..., Values] | None = None

    @property
    def said(self) -> str:
        """`call`, or else the docstring."""
        return self.call or " ".join((self.function.__doc__ or "").split())

    @property
    def functions(self) -> Mapping[str, Callable[..., Values]]:
        """What is timed as it is, and what torch.compile gets."""
        return {"eager": self.function, "compiled": self.compiled or self.function}


def taken(function: Callable[..., Values]) -> tuple[str, ...]:
    """The names of what a function takes after `torch`."""
    return tuple(inspect.signature(function).parameters)[1:]


# ---- layernorm ----------------------------------------------------------------------------------


def _layernorm_forward(torch: Any, inp: Any, weight: Any, bias: Any) -> Values:
    """`torch.native_layer_norm`, the function below `F.layer_norm`: it returns `mean` and `rstd`,
    too"""
    out, mean, rstd = torch.native_layer_norm(inp, inp.shape[-1:], weight, bias, 1e-5)
    return {"out": out, "mean": mean.flatten(), "rstd": rstd.flatten()}


def _layernorm_backward(
    torch: Any, dout: Any, inp: Any, mean: Any, rstd: Any, weight: Any
) -> Values:
    """`native_layer_norm_backward`, which autograd calls. `dweight` and `dbias` have the type of
    `weight` and are not accumulated"""
    bias = weight  # of the bias, only the shape is used
    dinp, dweight, dbias = torch.ops.aten.native_layer_norm_backward(
        dout, inp, inp.shape[-1:], mean[:, None], rstd[:, None], weight, bias, [True] * 3
    )
    return {"dinp": dinp, "dweight": dweight, "dbias": dbias}


def _residual_layernorm_forward(torch: Any, inp1: Any, inp2: Any, weight: Any, bias: Any) -> Values:
    """`inp1 + inp2`, then `torch.native_layer_norm`"""
    residual = inp1 + inp2
    return {"residual": residual, **_layernorm_forward(torch, residual, weight, bias)}


def _residual_layernorm_backward(
    torch: Any, dinp: Any, dout: Any, inp: Any, mean: Any, rstd: Any, weight: Any
) -> Values:
    """`native_layer_norm_backward`, and `dinp + ...` into new memory: the same bytes. `dweight` and
    `dbias` have the type of `weight` and are not accumulated"""
    gradients = _layernorm_backward(torch, dout, inp, mean, rstd, weight)
    return {**gradients, "dinp": dinp + gradients["dinp"]}


# ---- embedding ----------------------------------------------------------------------------------


def _embedding_backward(torch: Any, dwte: Any, dwpe: Any, dout: Any, tokens: Any) -> Values:
    """`dwte.index_add_`, and `dwpe += dout.sum(0)`. Eager converts `dout` to float32 in memory
    first. `nn.Embedding` itself would fill a new table instead of adding to this one"""
    dwte.index_add_(0, tokens.flatten(), dout.flatten(0, 1).to(dwte.dtype))
    dwpe[: tokens.shape[1]] += dout.sum(0, dtype=dwpe.dtype)
    return {"dwte": dwte, "dwpe": dwpe}


# ---- activations and sums -----------------------------------------------------------------------


def _gelu_forward(torch: Any, inp: Any) -> Values:
    """`F.gelu(inp, approximate="tanh")`"""
    return {"out": torch.nn.functional.gelu(inp, approximate="tanh")}


def _gelu_backward(torch: Any, dout: Any, inp: Any) -> Values:
    """`gelu_backward(dout, inp, approximate="tanh")`, which autograd calls"""
    return {"dinp": torch.ops.aten.gelu_backward(dout, inp, approximate="tanh")}


def _matmul_gelu_forward(torch: Any, inp: Any, weight: Any, bias: Any) -> Values:
    """`F.linear(inp, weight, bias)`, then `F.gelu(approximate="tanh")`"""
    pre = torch.nn.functional.linear(inp, weight, bias)
    return {"pre": pre, **_gelu_forward(torch, pre)}


def _dropout_forward(torch: Any, inp: Any, p: float) -> Values:
    """`torch.native_dropout`, which `F.dropout` calls. It draws its own random numbers, and writes
    the mask besides, a byte for each element"""
    out, mask = torch.native_dropout(inp, p, True)
    return {"out": out, "mask": mask}


def _dropout_backward(torch: Any, dout: Any, mask: Any, p: float) -> Values:
    """`native_dropout_backward`, which autograd calls. It reads the mask, a byte for each element,
    and draws nothing"""
    return {"dinp": torch.ops.aten.native_dropout_backward(dout, mask, 1 / (1 - p))}


def _dropout_residual_layernorm_forward(
    torch: Any, inp1: Any, inp2: Any, weight: Any, bias: Any, p: float
) -> Values:
    """`torch.native_dropout` with its own random numbers, which writes the mask, a byte for each
    element; then `inp1 + ...` and `torch.native_layer_norm`"""
    dropped = _dropout_forward(torch, inp2, p)
    joined = _residual_layernorm_forward(torch, inp1, dropped["out"], weight, bias)
    return {**joined, "mask": dropped["mask"]}


def _dropout_residual_layernorm_backward(
    torch: Any,
    dinp: Any,
    dout: Any,
    inp: Any,
    mean: Any,
    rstd: Any,
    weight: Any,
    mask: Any,
    p: float,
) -> Values:
    """`native_layer_norm_backward`, `dinp + ...` into new memory, and `native_dropout_backward`,
    which reads the mask and draws nothing"""
    gradients = _residual_layernorm_backward(torch, dinp, dout, inp, mean, rstd, weight)
    dropped = _dropout_backward(torch, gradients["dinp"], mask, p)
    return {**gradients, "dbranch": dropped["dinp"]}


def _draw_mask(torch: Any, values: Values) -> None:
    values["mask"] = torch.rand_like(values["dout"], dtype=torch.float32) >= values["p"]


# ---- softmax and crossentropy -------------------------------------------------------------------


def _crossentropy_backward(torch: Any, probs: Any, targets: Any, dloss: Any) -> Values:
    """`zeros_like(probs).scatter_(1, targets, ...)`. The targets have 8 bytes"""
    correct = probs.gather(1, targets[:, None]).float()
    slope = (-dloss / correct).to(probs.dtype)
    return {"dprobs": torch.zeros_like(probs).scatter_(1, targets[:, None], slope)}


def _crossentropy_fused(torch: Any, logits: Any, targets: Any, dloss: Any) -> Values:
    """`F.cross_entropy(logits, targets, reduction="none")` and its backward pass, by the calls of
    autograd. The gradient goes to new memory. In 16 bits eager rounds the logarithms of the
    probabilities in between, and the losses. The columns from V to Vp hold -infinity"""
    aten, each_row, ignored = torch.ops.aten, 0, -100
    log_probs = aten._log_softmax(logits, 1, False)
    losses, total = aten.nll_loss_forward(log_probs, targets, None, each_row, ignored)
    dlosses = dloss.to(logits.dtype).expand(targets.shape)
    dlog_probs = aten.nll_loss_backward(dlosses, log_probs, targets, None, each_row, ignored, total)
    dlogits = aten._log_softmax_backward_data(dlog_probs, log_probs, 1, logits.dtype)
    return {"losses": losses, "logits": dlogits}


def _wide_targets(torch: Any, values: Values) -> None:
    values["targets"] = values["targets"].long()


def _without_padding(torch: Any, values: Values) -> None:
    """Columns that pad the vocabulary get the probability 0, by their logits."""
    values["logits"][:, values["V"] :] = -math.inf


# ---- attention ----------------------------------------------------------------------------------


def _attention_forward(torch: Any, qkv: Any, NH: int, p: float) -> Values:
    """in 16 bits cuDNN's attention, which `F.scaled_dot_product_attention(is_causal=True)` calls
    for `SDPBackend.CUDNN_ATTENTION`; in float32 the one for `EFFICIENT_ATTENTION`. The same call
    writes the log-sum-exp, as in training. q, k and v are views of `qkv`"""
    out, lse, *_ = _attention(torch, p, *_heads(qkv, NH))
    return {"out": out.transpose(1, 2).flatten(2), "lse": lse.flatten(2)}


def _attention_backward(
    torch: Any, qkv: Any, NH: int, dout: Any, out: Any, lse: Any, rest: list[Any], p: float
) -> Values:
    """the gradient of the call that is timed beside attention.forward, as autograd computes it.
    Eager leaves `dq`, `dk` and `dv` in three arrays; compiled packs them into `dqkv`, with one more
    pass over them"""
    q, k, v = _heads(qkv, NH)
    (do,) = _heads(dout, NH, 1)
    return {"dqkv": _attention_gradients(torch, p, do, q, k, v, out, lse, *rest)}


def _attention_backward_packed(
    torch: Any, qkv: Any, NH: int, dout: Any, out: Any, lse: Any, rest: list[Any], p: float
) -> Values:
    gradients = _attention_backward(torch, qkv, NH, dout, out, lse, rest, p)["dqkv"]
    return {"dqkv": torch.cat([each.transpose(1, 2).flatten(2) for each in gradients], 2)}


def _heads(packed: Any, NH: int, parts: int = 3) -> Any:
    """(B, T, parts * C) seen as `parts` tensors (B, NH, T, HS)."""
    return packed.unflatten(2, (parts, NH, -1)).permute(2, 0, 3, 1, 4)


def _attention(torch: Any, p: float, q: Any, k: Any, v: Any) -> Any:
    """(out (B, NH, T, HS), lse, ...) by the kernel that training takes for tensors of such a type.

    F.scaled_dot_product_attention calls it if it is told which. Without gradients to come it would
    leave the log-sum-exp out.

    p  the share of the probabilities that is dropped; the one for CPUs drops none
    """
    aten = torch.ops.aten
    if not q.is_cuda:
        return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, p, True)
    if q.dtype == torch.float32:  # which cuDNN does not take
        return aten._scaled_dot_product_efficient_attention(q, k, v, None, True, p, True)
    return aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, p, True)


def _attention_gradients(torch: Any, p: float, do: Any, q: Any, k: Any, v: Any, *kept: Any) -> Any:
    """dq, dk, dv (B, NH, T, HS), as autograd computes them from what `_attention` returned."""
    aten = torch.ops.aten
    out, lse, *rest = kept
    if not q.is_cuda:
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
        return backward(do, q, k, v, out, lse, p, True)
    if q.dtype == torch.float32:
        backward = aten._scaled_dot_product_efficient_attention_backward
        wanted = [True, True, True, False]  # no gradient of a bias
        return backward(do, q, k, v, None, out, lse, *rest, p, wanted, True)[:3]
    backward = aten._scaled_dot_product_cudnn_attention_backward
    *lengths, seed, offset, _ = rest
    return backward(do, q, k, v, out, lse, seed, offset, None, *lengths, p, True)


def _drop_nothing(torch: Any, values: Values) -> None:
    values["p"] = 0.0


def _attend(torch: Any, values: Values) -> None:
    """What the forward pass of the same kernel keeps for its backward pass.

    The efficient kernel leaves its random state in the host's memory, where a captured graph can
    read it only if it is pinned.
    """
    heads = _heads(values["qkv"], values["NH"])
    values["out"], values["lse"], *rest = _attention(torch, values["p"], *heads)
    values["rest"] = [_pinned(torch, each) for each in rest]


def _pinned(torch: Any, value: Any) -> Any:
    on_host = torch.is_tensor(value) and torch.cuda.is_available() and not value.is_cuda
    return value.pin_memory() if on_host else value


# ---- decoding -----------------------------------------------------------------------------------


def _decode_embedding(torch: Any, window: Any, positions: Any, wte: Any, wpe: Any) -> Values:
    """`F.embedding(window.gather(1, positions), wte) + wpe[positions]`. The positions have 8 bytes,
    and no token is -1"""
    tokens = window.gather(1, positions[:, None]).flatten()
    return {"out": torch.nn.functional.embedding(tokens, wte) + wpe[positions]}


def _decode_append(torch: Any, kv: Any, qkv: Any, texts: Any, steps: Any, C: int) -> Values:
    """`kv.index_put_`, with indices of 8 bytes for each token that are made beforehand"""
    return {"kv": kv.index_put_((texts, steps), qkv[:, :, C:])}


def _decode_attention(torch: Any, qkv: Any, kv: Any, NH: int, C: int, seen: Any) -> Values:
    """`F.scaled_dot_product_attention` of one query over the cache, with a mask that leaves out the
    keys beyond each position; the mask is made beforehand"""
    q = qkv[:, None, :C].unflatten(2, (NH, -1)).transpose(1, 2)  # (B, NH, 1, HS)
    keys, values = _heads(kv, NH, 2)  # (B, NH, P, HS) each
    function = torch.nn.functional.scaled_dot_product_attention
    return {"out": function(q, keys, values, attn_mask=seen).flatten(1)}


def _decode_append_attention(
    torch: Any, kv: Any, qkv: Any, NH: int, C: int, texts: Any, steps: Any, seen: Any
) -> Values:
    """`kv.index_put_`, then `F.scaled_dot_product_attention` as beside decode.attention; indices
    and mask are made beforehand"""
    appended = _decode_append(torch, kv, qkv[:, None], texts, steps, C)
    return {**appended, **_decode_attention(torch, qkv, kv, NH, C, seen)}


def _decode_sample(
    torch: Any, window: Any, positions: Any, logits: Any, V: int, temperature: float
) -> Values:
    """`torch.softmax` in float32, then `torch.multinomial`, which draws its own random numbers;
    `scatter_` writes the token. The positions have 8 bytes, and no logit is infinite"""
    probs = torch.softmax(logits[:, :V].float() / temperature, 1)
    tokens = torch.multinomial(probs, 1).to(window.dtype)
    window.scatter_(1, positions[:, None] + 1, tokens)
    return {"window": window, "positions": positions.add_(1).clamp_(max=window.shape[1] - 2)}


def _wide_positions(torch: Any, values: Values) -> None:
    values["positions"] = values["positions"].long()


def _where_to_append(torch: Any, values: Values) -> None:
    """The indices (B, T) of the texts and of the positions that are written."""
    starts = values["starts"] if "starts" in values else values["positions"]
    steps = torch.arange(values.get("T", 1), device=starts.device)
    values["steps"] = starts[:, None] + steps
    values["texts"] = torch.arange(values["B"], device=starts.device)[:, None]


def _which_are_seen(torch: Any, values: Values) -> None:
    """A mask (B, 1, 1, P) of the keys up to each text's position."""
    steps = torch.arange(values["P"], device=values["kv"].device)
    values["seen"] = (steps <= values["positions"][:, None])[:, None, None]


# ---- optimizer ----------------------------------------------------------------------------------


def _adamw(
    torch: Any, weight: Any, m: Any, v: Any, master: Any, grad: Any, step: Any, settings: Values
) -> Values:
    """eager is `_fused_adamw_`, which `torch.optim.AdamW(fused=True)` calls, on all float32 weights
    as one tensor, then a copy to the weights of the model; without the clipping, which takes passes
    of its own there. Compiled is the whole formula, with clipping"""
    torch._fused_adamw_(
        [master], [grad], [m], [v], [], [step], amsgrad=False, maximize=False, **settings
    )
    return {"weight": weight.copy_(master), "master": master, "m": m, "v": v}


def _adamw_written_out(
    torch: Any, weight: Any, m: Any, v: Any, master: Any, grad: Any, norm: Any, hyper: Any
) -> Values:
    lr, beta1, beta2, eps, decay, clip, correction1, correction2, inv_scale = hyper.unbind()
    clipped = (clip / (norm * inv_scale + 1e-6)).clamp(max=1.0)
    g = grad * inv_scale * torch.where(clip > 0, clipped, 1.0)
    m.copy_(beta1 * m + (1 - beta1) * g)
    v.copy_(beta2 * v + (1 - beta2) * g * g)
    change = m / correction1 / ((v / correction2).sqrt() + eps) + decay * master
    master.copy_(master - lr * change)
    return {"weight": weight.copy_(master), "master": master, "m": m, "v": v}


def _optimizer_settings(torch: Any, values: Values) -> None:
    """hyper as an optimizer of PyTorch's gets it: numbers, and the count of steps as a tensor."""
    lr, beta1, beta2, eps, decay, _, correction1, *_ = values["hyper"].tolist()
    values["settings"] = dict(lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=decay)
    step = round(math.log(1 - correction1) / math.log(beta1))
    values["step"] = torch.tensor(float(step), device=values["grad"].device)


BASELINES = {
    "layernorm.forward": Baseline(_layernorm_forward),
    "layernorm.backward": Baseline(_layernorm_backward),
    "residual_layernorm.forward": Baseline(_residual_layernorm_forward),
    "residual_layernorm.backward": Baseline(_residual_layernorm_backward),
    "embedding.forward": Baseline(
        lambda torch, tokens, wte, wpe: {
            "out": torch.nn.functional.embedding(tokens, wte) + wpe[: tokens.shape[1]]
        },
        "`F.embedding(tokens, wte) + wpe[:T]`",
    ),
    "embedding.backward": Baseline(_embedding_backward),
    "residual.forward": Baseline(lambda torch, inp1, inp2: {"out": inp1 + inp2}, "`inp1 + inp2`"),
    "residual.backward": Baseline(
        lambda torch, dinp, dout: {"dinp": dinp.add_(dout)}, "`dinp.add_(dout)`"
    ),
    "gelu.forward": Baseline(_gelu_forward),
    "gelu.backward": Baseline(_gelu_backward),
    "relu.forward": Baseline(lambda torch, inp: {"out": torch.relu(inp)}, "`torch.relu(inp)`"),
    "relu.backward": Baseline(
        lambda torch, dout, out: {"dinp": torch.ops.aten.threshold_backward(dout, out, 0)},
        "`threshold_backward(dout, out, 0)`, which autograd calls",
    ),
    "matmul_gelu.forward": Baseline(_matmul_gelu_forward),
    "matmul_gelu.backward_input": Baseline(
        lambda torch, dout, weight, pre: _gelu_backward(torch, dout @ weight, pre),
        '`dout @ weight`, then `gelu_backward(approximate="tanh")`',
    ),
    "matmul_relu.forward": Baseline(
        lambda torch, inp, weight, bias: {
            "out": torch.relu(torch.nn.functional.linear(inp, weight, bias))
        },
        "`F.linear(inp, weight, bias)`, then `torch.relu`",
    ),
    "matmul_relu.backward_input": Baseline(
        lambda torch, dout, weight, out: {
            "dinp": torch.ops.aten.threshold_backward(dout @ weight, out, 0)
        },
        "`dout @ weight`, then `threshold_backward(…, out, 0)`",
    ),
    "matmul_residual.forward": Baseline(
        lambda torch, stream, inp, weight, bias: {
            "out": stream + torch.nn.functional.linear(inp, weight, bias)
        },
        "`stream + F.linear(inp, weight, bias)`",
    ),
    "matmul.backward_bias": Baseline(
        lambda torch, dbias, dout: {"dbias": dbias.add_(dout.sum(0, dtype=dbias.dtype))},
        "`dbias.add_(dout.sum(0))`, summed in float32",
    ),
    "matmul.backward_weight_bias": Baseline(
        lambda torch, dout, inp: {"dweight": dout.T @ inp, "dbias": dout.sum(0)},
        "`dout.T @ inp` and `dout.sum(0)`, as autograd computes them for `F.linear`: in the type "
        "of `dout`, and not accumulated",
    ),
    "dropout.forward": Baseline(_dropout_forward),
    "dropout.backward": Baseline(_dropout_backward, prepare=(_draw_mask,)),
    "dropout_residual_layernorm.forward": Baseline(_dropout_residual_layernorm_forward),
    "dropout_residual_layernorm.backward": Baseline(
        _dropout_residual_layernorm_backward, prepare=(_draw_mask,)
    ),
    "softmax.forward": Baseline(
        lambda torch, logits: {"probs": torch.softmax(logits, 1)}, "`torch.softmax(logits, 1)`"
    ),
    "softmax.backward": Baseline(
        lambda torch, dprobs, probs: {
            "dlogits": torch.ops.aten._softmax_backward_data(dprobs, probs, 1, probs.dtype)
        },
        "`_softmax_backward_data(dprobs, probs, 1)`, which autograd calls",
    ),
    "crossentropy.forward": Baseline(
        lambda torch, probs, targets: {
            "losses": -probs.gather(1, targets[:, None]).flatten().float().log()
        },
        "`-probs.gather(1, targets).float().log()`. The targets have 8 bytes",
        (_wide_targets,),
    ),
    "crossentropy.backward": Baseline(_crossentropy_backward, prepare=(_wide_targets,)),
    "crossentropy.fused": Baseline(_crossentropy_fused, prepare=(_wide_targets, _without_padding)),
    "adamw.update": Baseline(_adamw, prepare=(_optimizer_settings,), compiled=_adamw_written_out),
    "global_norm.forward": Baseline(
        lambda torch, grad: {"norm": torch.linalg.vector_norm(grad).reshape(1)},
        "`torch.linalg.vector_norm(grad)`, which `clip_grad_norm_` calls",
    ),
    "attention.forward": Baseline(_attention_forward, prepare=(_drop_nothing,)),
    "attention.backward": Baseline(
        _attention_backward, prepare=(_drop_nothing, _attend), compiled=_attention_backward_packed
    ),
    "attention_dropout.forward": Baseline(
        _attention_forward,
        "the call that is timed beside attention.forward, with `dropout_p`. It draws its own "
        "random numbers",
    ),
    "attention_dropout.backward": Baseline(
        _attention_backward,
        "the gradient of that call, which draws its mask again. Eager leaves `dq`, `dk` and `dv` "
        "in three arrays; compiled packs them into `dqkv`, with one more pass over them",
        (_attend,),
        _attention_backward_packed,
    ),
    "decode.attention": Baseline(_decode_attention, prepare=(_which_are_seen,)),
    "decode.append": Baseline(_decode_append, prepare=(_where_to_append,)),
    "decode.append_attention": Baseline(
        _decode_append_attention, prepare=(_where_to_append, _which_are_seen)
    ),
    "decode.embedding": Baseline(_decode_embedding, prepare=(_wide_positions,)),
    "decode.linear_gelu": Baseline(
        lambda torch, inp, weight, bias: _gelu_forward(
            torch, torch.nn.functional.linear(inp, weight, bias)
        ),
        '`F.linear(inp, weight, bias)`, then `F.gelu(approximate="tanh")`',
    ),
    "decode.sample": Baseline(_decode_sample, prepare=(_wide_positions,)),
    "start.add": Baseline(lambda torch, a, b: {"c": a + b}, "`a + b`"),
    "start.sum": Baseline(
        lambda torch, inp: {"total": inp.sum().reshape(1)}, "`inp.sum()`, not accumulated"
    ),
}
