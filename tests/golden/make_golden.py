"""Write the golden files, with PyTorch in float64: `python -m tests.golden.make_golden`.

Each file holds one small model: its shape, weights, ten batches, the logits, loss and gradients of
the first batch, then ten steps of AdamW with clipping and weight decay: losses, gradient norms and
the weights at the end.
"""

from pathlib import Path

import numpy as np
import torch

from tests.golden.torch_gpt2 import logits_of, loss_of, optimizer_of, random_weights

FOLDER = Path(__file__).parent

# T is no multiple of 4, the vocabulary no round number; `padded` is what the reference pads it to.
MODELS = {
    "one_head": dict(context=9, vocab=37, padded=37, layers=2, heads=1, channels=10, B=2, T=7),
    "three_heads": dict(context=13, vocab=53, padded=64, layers=2, heads=3, channels=12, B=3, T=13),
}
STEPS = 10
HYPER = dict(lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip=1.3)


def make(model: dict[str, int], seed: int) -> dict[str, np.ndarray]:
    sizes = {name: model[name] for name in ("context", "vocab", "layers", "channels")}
    weights = random_weights(**sizes, seed=seed, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed + 1)
    shape = (STEPS, model["B"], model["T"] + 1)
    text = torch.randint(model["vocab"], shape, generator=generator)
    tokens, targets = text[..., :-1], text[..., 1:]
    out = {"shape." + name: np.array(value) for name, value in model.items()}
    out |= {"hyper." + name: np.array(value) for name, value in HYPER.items()}
    out |= {"tokens": tokens.int().numpy(), "targets": targets.int().numpy()}
    # The first weights are float32 numbers, kept as such: half the size.
    out |= {"weight." + n: w.detach().numpy().astype(np.float32) for n, w in weights.items()}

    betas = (HYPER["beta1"], HYPER["beta2"])
    decay = HYPER["weight_decay"]
    optimizer = optimizer_of(weights, lr=HYPER["lr"], betas=betas, eps=HYPER["eps"], decay=decay)
    losses, norms = [], []
    for step in range(STEPS):
        logits = logits_of(weights, tokens[step], model["heads"])
        loss = loss_of(logits, targets[step])
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            out["logits"] = logits.detach().numpy()
            out |= {"gradient." + n: w.grad.numpy().copy() for n, w in weights.items()}
        losses.append(loss.item())
        norm = torch.nn.utils.clip_grad_norm_(list(weights.values()), HYPER["clip"])
        norms.append(norm.item())
        optimizer.step()
    out |= {"losses": np.array(losses), "norms": np.array(norms)}
    out |= {"after." + n: w.detach().numpy() for n, w in weights.items()}
    return out


def main() -> None:
    for seed, (name, model) in enumerate(MODELS.items()):
        arrays = make(model, seed)
        np.savez_compressed(FOLDER / f"{name}.npz", **arrays)
        print(name, "loss", arrays["losses"].round(3), "norm", arrays["norms"].round(3))


if __name__ == "__main__":
    main()
