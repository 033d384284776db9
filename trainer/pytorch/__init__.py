"""Kernel Ladder in PyTorch: `from kernel_ladder import torch as kl`.

kl.op(name, rung, {name: rung})    a rung, or a `.cu` file, as an op, with gradients by other rungs
kl.swap(model)                     transformers' GPT-2 computes with the kernels of the ladders
kl.AdamW(model)                    its optimizer, with clipping, which writes the weights for it
"""

from ladder.core.call.torch_ops import op
from trainer.pytorch.adamw import AdamW
from trainer.pytorch.gpt2 import GPT2, IGNORED
from trainer.pytorch.swap import swap

__all__ = ["GPT2", "IGNORED", "AdamW", "op", "swap"]
