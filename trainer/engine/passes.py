"""Single passes of an engine: a batch in, a loss out; and the mean loss of a validation."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from trainer.data.random_offsets import Loader
from trainer.data.token_files import TokenLoader
from trainer.engine.engine import Engine
from trainer.ranks.group import ALONE, Group


def write_batch(engine: Engine, loader: Loader, *, again: bool = False) -> None:
    """Hand the engine the next batch; with `again` always the first one."""
    if again:
        loader.reset()
    tokens, targets = loader.next_batch()
    engine.write("tokens", tokens)
    engine.write("targets", targets)


def write_rng(engine: Engine, seed: int, step: int, micro_step: int) -> None:
    """Write where the random words of a micro-batch start, which is counted over all ranks; nothing
    where the program draws none."""
    if "rng" in engine.arrays:
        words = [seed & 0xFFFFFFFF, seed >> 32, step, micro_step]
        engine.write("rng", np.array(words, np.uint32))


def one_batch(engine: Engine, tokens: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, float]:
    """Forward and backward on one batch (B,T), gradients from 0; returns the logits (B,T,Vp) and
    the mean loss."""
    engine.write("tokens", tokens)
    engine.write("targets", targets)
    engine.write("dloss", np.array([1 / tokens.size], np.float32))
    engine.predict()
    logits = engine.read("logits").reshape(*tokens.shape, -1)  # `forward` leaves their gradient
    engine.zero_gradients()
    engine.forward()
    engine.backward()
    return logits, fetch_loss(engine)()


def fetch_loss(engine: Engine) -> Callable[[], float]:
    """The mean of the losses of the last pass, summed in float64; the result waits for it."""
    losses = engine.fetch("losses")
    return lambda: float(losses().mean(dtype=np.float64))


def mean_loss(group: Group, what: str, losses: list[float]) -> float:
    """The mean over the batches of all ranks, which take turns: the first batch is rank 0's. Added
    up in the order of batches, so that it does not depend on the number of ranks."""
    turns = itertools.zip_longest(*group.collect(what, losses))
    in_order: list[float] = [loss for turn in turns for loss in turn if loss is not None]
    return sum(in_order) / len(in_order)


def validate(
    engine: Engine,
    loader: TokenLoader,
    batches: int,
    stop: Callable[[], bool],
    group: Group = ALONE,
) -> float | None:
    """The mean loss over the first `batches` batches, or over all if there are fewer or it is -1.

    None if `stop` says so between two batches, which it must on all ranks or on none.

    Where there are fewer, llm.c starts over and counts batches twice; here each counts once.
    """
    loader.reset()
    count = loader.batches if batches < 0 else min(batches, loader.batches)
    losses: list[float] = []
    under_way: Callable[[], float] | None = None
    for first in range(0, count, group.size):
        if stop():
            return None
        group.progress(f"batch {first // group.size + 1} of the validation")
        if first + group.rank >= count:
            continue  # the last batches are fewer than the ranks
        write_batch(engine, loader)
        engine.evaluate()
        before, under_way = under_way, fetch_loss(engine)
        if before is not None:
            losses.append(before())  # while the device works on the next
    if under_way is not None:
        losses.append(under_way())
    return mean_loss(group, "the validation loss", losses)
