"""GPT-2 written with PyTorch's own layers and gradients: what the NumPy reference is compared with.

The weights stand in a dictionary under llm.c's names, those of the layers stacked, (L, ...), or as
lists of L, and wte without padded rows.
"""

import math
from typing import Any

import torch

from trainer.commands.torch_gpt2 import logits_of, loss_of

__all__ = ["MATRICES", "logits_of", "loss_of", "optimizer_of", "random_weights"]

MATRICES = ("wte", "wpe", "qkvw", "attprojw", "fcw", "fcprojw")


def optimizer_of(w: dict[str, Any], *, decay: float, **options: Any) -> torch.optim.AdamW:
    """AdamW with weight decay of matrices. `options`: what else it takes."""
    groups: dict[float, list[torch.Tensor]] = {decay: [], 0.0: []}
    for name, tensors in w.items():
        group = groups[decay if name in MATRICES else 0.0]
        group += tensors if isinstance(tensors, list) else [tensors]
    parts = [{"params": params, "weight_decay": decay} for decay, params in groups.items()]
    return torch.optim.AdamW(parts, **options)


def random_weights(
    *, context: int, vocab: int, layers: int, channels: int, seed: int, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Weights with nothing left at 0 or 1, so that no gradient goes unseen.

    Drawn as float32: the same numbers in either dtype.
    """
    L, C = layers, channels
    shapes = {
        **{"wte": (vocab, C), "wpe": (context, C), "ln1w": (L, C), "ln1b": (L, C)},
        **{"qkvw": (L, 3 * C, C), "qkvb": (L, 3 * C), "attprojw": (L, C, C), "attprojb": (L, C)},
        **{"ln2w": (L, C), "ln2b": (L, C), "fcw": (L, 4 * C, C), "fcb": (L, 4 * C)},
        **{"fcprojw": (L, C, 4 * C), "fcprojb": (L, C), "lnfw": (C,), "lnfb": (C,)},
    }
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in shapes.items():
        deviation = 1 / math.sqrt(shape[-1]) if name in MATRICES[2:] else 0.1
        tensor = torch.randn(shape, generator=generator) * deviation
        tensor += 1.0 if name in ("ln1w", "ln2w", "lnfw") else 0.0
        weights[name] = tensor.to(dtype).requires_grad_()
    return weights
