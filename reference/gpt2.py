"""GPT-2 (Radford et al. 2019), forward and backward, made of the layers beside this file.

    x = wte[tokens] + wpe
    for each of L layers:
        x = x + attproj(attention(qkv(ln1(x))))
        x = x + fcproj(gelu(fc(ln2(x))))
    logits = lnf(x) @ wte.T                              the head shares the token table
    loss = mean(-log(softmax(logits)[target]))

Weights and gradients are dictionaries under llm.c's names; those of the layers are stacked:

    wte (V, C)              wpe (P, C)                   tables of tokens and of positions, T <= P
    ln1w, ln1b (L, C)       ln2w, ln2b (L, C)            lnfw, lnfb (C)
    qkvw (L, 3C, C)         qkvb (L, 3C)
    attprojw (L, C, C)      attprojb (L, C)
    fcw (L, 4C, C)          fcb (L, 4C)
    fcprojw (L, C, 4C)      fcprojb (L, C)

Every layer but embedding and attention sees batch and time as N = B * T rows. There is no dropout.
The trainer's GPT-2 (trainer/model/gpt2.py) makes the same calls in the same order, with softmax and
crossentropy in one.
"""

from typing import Any

import numpy as np

from reference import attention, crossentropy, embedding, gelu, layernorm, matmul, residual, softmax

Tensors = dict[str, np.ndarray]
Kept = tuple[Any, ...]  # what a backward pass reads of its forward pass
STACKED = ("ln1", "qkv", "attproj", "ln2", "fc", "fcproj")  # each as a weight "w" and a bias "b"


def forward(
    w: Tensors, tokens: np.ndarray, targets: np.ndarray, NH: int
) -> tuple[np.ndarray, float, Kept]:
    """logits (B, T, V) and the mean loss from tokens (B, T) and targets (B, T)."""
    B, T = tokens.shape
    C = w["wte"].shape[1]
    encoded = np.empty((B, T, C), w["wte"].dtype)
    embedding.forward(encoded, tokens, w["wte"], w["wpe"])
    x = encoded.reshape(B * T, C)  # the residual stream
    blocks = []
    for layer in range(len(w["qkvw"])):
        x, of_block = block(of_layer(w, layer), x, B, NH)  # (N, C)
        blocks.append(of_block)
    lnf, of_lnf = norm(w, "lnf", x)  # (N, C)
    logits = np.empty((B * T, len(w["wte"])), x.dtype)  # (N, V)
    matmul.forward(logits, lnf, w["wte"], None)
    probs, losses = np.empty_like(logits), np.empty(B * T, x.dtype)
    softmax.forward(probs, logits)
    crossentropy.forward(losses, probs, targets.ravel())
    kept = (tokens, targets, blocks, lnf, of_lnf, probs)
    return logits.reshape(B, T, -1), float(losses.mean()), kept


def backward(w: Tensors, kept: Kept) -> Tensors:
    """The gradient of the mean loss with respect to every weight."""
    tokens, targets, blocks, lnf, of_lnf, probs = kept
    dw = {name: np.zeros_like(tensor) for name, tensor in w.items()}
    dloss = np.array([1 / tokens.size], lnf.dtype)  # each row's share of the mean
    dprobs, dlogits = np.empty_like(probs), np.empty_like(probs)  # (N, V)
    crossentropy.backward(dprobs, probs, targets.ravel(), dloss)
    softmax.backward(dlogits, dprobs, probs)
    dlnf, dx = np.empty_like(lnf), np.zeros_like(lnf)  # (N, C)
    matmul.backward_weight(dw["wte"], dlogits, lnf)
    matmul.backward_input(dlnf, dlogits, w["wte"])
    norm_backward(dx, dw, w, "lnf", dlnf, of_lnf)
    for layer in reversed(range(len(blocks))):
        block_backward(dx, of_layer(dw, layer), of_layer(w, layer), blocks[layer])
    embedding.backward(dw["wte"], dw["wpe"], dx.reshape(*tokens.shape, -1), tokens)
    return dw


def of_layer(w: Tensors, layer: int) -> Tensors:
    """One layer's slices of the stacked tensors: views, so that writing them writes `w`."""
    return {name + end: w[name + end][layer] for name in STACKED for end in "wb"}


def block(w: Tensors, x: np.ndarray, B: int, NH: int) -> tuple[np.ndarray, Kept]:
    """(N, C), the residual stream behind one layer, from x (N, C), the stream before it."""
    (N, C), T = x.shape, len(x) // B
    ln1, of_ln1 = norm(w, "ln1", x)  # (N, C)
    qkv = linear(w, "qkv", ln1).reshape(B, T, 3 * C)
    atty, lse = np.empty((B, T, C), x.dtype), np.empty((B, NH, T), x.dtype)
    attention.forward(atty, lse, qkv)
    x2 = add(x, linear(w, "attproj", atty.reshape(N, C)))
    ln2, of_ln2 = norm(w, "ln2", x2)  # (N, C)
    fch = linear(w, "fc", ln2)  # (N, 4C)
    fch_gelu = np.empty_like(fch)
    gelu.forward(fch_gelu.reshape(-1), fch.reshape(-1))
    x3 = add(x2, linear(w, "fcproj", fch_gelu))
    return x3, (ln1, of_ln1, qkv, atty, lse, ln2, of_ln2, fch, fch_gelu)


def block_backward(dx: np.ndarray, dw: Tensors, w: Tensors, kept: Kept) -> None:
    """dx (N, C): in, the gradient of the layer's output; out, that of its input. dw accumulates."""
    ln1, of_ln1, qkv, atty, lse, ln2, of_ln2, fch, fch_gelu = kept
    dfch_gelu = linear_backward(dw, w, "fcproj", dx, fch_gelu)  # (N, 4C)
    dfch = np.empty_like(fch)
    gelu.backward(dfch.reshape(-1), dfch_gelu.reshape(-1), fch.reshape(-1))
    dln2 = linear_backward(dw, w, "fc", dfch, ln2)
    norm_backward(dx, dw, w, "ln2", dln2, of_ln2)
    datty = linear_backward(dw, w, "attproj", dx, atty.reshape(dx.shape))
    dqkv = np.empty_like(qkv)  # (B, T, 3C)
    attention.backward(dqkv, datty.reshape(atty.shape), qkv, atty, lse)
    dln1 = linear_backward(dw, w, "qkv", dqkv.reshape(len(dx), -1), ln1)
    norm_backward(dx, dw, w, "ln1", dln1, of_ln1)


# The layers, each with memory for its results.


def linear(w: Tensors, name: str, inp: np.ndarray) -> np.ndarray:
    """(N, OC) from inp (N, C)."""
    out = np.empty((len(inp), len(w[name + "w"])), inp.dtype)
    matmul.forward(out, inp, w[name + "w"], w[name + "b"])
    return out


def linear_backward(
    dw: Tensors, w: Tensors, name: str, dout: np.ndarray, inp: np.ndarray
) -> np.ndarray:
    """dinp (N, C) from dout (N, OC) and inp (N, C); the layer's dw accumulate."""
    dinp = np.empty_like(inp)
    matmul.backward_bias(dw[name + "b"], dout)
    matmul.backward_weight(dw[name + "w"], dout, inp)
    matmul.backward_input(dinp, dout, w[name + "w"])
    return dinp


def norm(w: Tensors, name: str, inp: np.ndarray) -> tuple[np.ndarray, Kept]:
    """(N, C) from inp (N, C)."""
    out, mean, rstd = np.empty_like(inp), np.empty_like(inp[:, 0]), np.empty_like(inp[:, 0])
    layernorm.forward(out, mean, rstd, inp, w[name + "w"], w[name + "b"])
    return out, (inp, mean, rstd)


def norm_backward(
    dx: np.ndarray, dw: Tensors, w: Tensors, name: str, dout: np.ndarray, kept: Kept
) -> None:
    """dx (N, C), the gradient of the stream, gains what comes back through the norm of dout."""
    inp, mean, rstd = kept
    dinp = np.empty_like(inp)  # (N, C)
    layernorm.backward(dinp, dw[name + "w"], dw[name + "b"], dout, inp, w[name + "w"], mean, rstd)
    residual.backward(dx, dinp)


def add(x: np.ndarray, branch: np.ndarray) -> np.ndarray:
    """(N, C), the residual stream after a branch has joined it."""
    out = np.empty_like(x)
    residual.forward(out, x, branch)
    return out
