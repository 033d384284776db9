"""Single passes of an engine: a batch in, a loss out; and the mean loss of a validation."""

import itertools
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from trainer.data.token_files import Loader, TokenLoader
from trainer.engine.engine import Engine
from trainer.ranks.group import ALONE, Group

Result = TypeVar("Result")


def write_batch(engine: Engine, loader: Loader, *, again: bool = False) -> None:
    """Hand the engine the next batch; with `again` always the first one."""
    if again:
        loader.reset()
    write_rows(engine, *loader.next_batch())


def write_rows(engine: Engine, tokens: np.ndarray, targets: np.ndarray) -> None:
    """Hand the engine inputs and targets (n, T), n up to its B; zeros fill the other rows."""
    if missing := engine.program.B - len(tokens):
        tokens, targets = (np.pad(rows, ((0, missing), (0, 0))) for rows in (tokens, targets))
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
    write_rows(engine, tokens, targets)
    engine.write("dloss", np.array([1 / tokens.size], np.float32))
    engine.predict()
    logits = engine.read("logits").reshape(*tokens.shape, -1)  # `forward` leaves their gradient
    engine.zero_gradients()
    engine.forward()
    engine.backward()
    return logits, fetch_loss(engine)()


def fetch_loss(engine: Engine, rows: int | None = None) -> Callable[[], float]:
    """The mean of the losses of the last pass, or of its first rows, summed in float64; the result
    waits for it."""
    losses = engine.fetch("losses")
    return lambda: float(losses()[:rows].mean(dtype=np.float64))


def mean_loss(group: Group, what: str, losses: list[float]) -> float:
    """The mean over the batches of all ranks, which take turns: the first batch is rank 0's. Added
    up in the order of batches, so that it does not depend on the number of ranks."""
    every = of_all_batches(group, what, losses)
    return sum(every) / len(every)


def own_batches(
    group: Group,
    what: str,
    count: int,
    submit: Callable[[int], Callable[[], Result]],
    stop: Callable[[], bool],
) -> list[Result] | None:
    """What comes of a rank's share of `count` batches: every `group.size`-th.

    submit  starts the work on a batch; the result waits for it, while the device works on the next
    stop    is asked between two batches, and must say the same on all ranks; then, None is returned
    """
    results: list[Result] = []
    under_way: Callable[[], Result] | None = None
    for first in range(0, count, group.size):
        if stop():
            return None
        group.progress(f"batch {first // group.size + 1} of the {what}")
        if first + group.rank >= count:
            continue  # the last batches are fewer than the ranks
        before, under_way = under_way, submit(first + group.rank)
        if before is not None:
            results.append(before())
    if under_way is not None:
        results.append(under_way())
    return results


def of_all_batches(group: Group, what: str, own: list[Result]) -> list[Result]:
    """The results of all ranks, each JSON, in the order of batches."""
    turns = itertools.zip_longest(*group.collect(what, own))
    return [result for turn in turns for result in turn if result is not None]


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

    def submit(batch: int) -> Callable[[], float]:
        write_batch(engine, loader)
        engine.evaluate()
        return fetch_loss(engine, loader.B)

    losses = own_batches(group, "validation", count, submit, stop)
    return None if losses is None else mean_loss(group, "the validation loss", losses)
