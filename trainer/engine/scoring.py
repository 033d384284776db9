"""Multiple choice: which completion a model finds likeliest after a context.

That is the one whose tokens have the least loss in sum (accuracy) or on average (normalized
accuracy), as in llm.c's dev/data/hellaswag.py. llm.c's training program logs the second.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.device import Device
from ladder.core.contract.expressions import ceil_div
from trainer.data.multiple_choice import COMPLETIONS, Example
from trainer.engine.engine import Engine
from trainer.engine.passes import of_all_batches, own_batches, write_rows
from trainer.ranks.group import ALONE, Group

GRAIN = 16  # T is a multiple of it
KERNEL_GRAIN = 64  # the same where kernels run: the tiles of fast ones divide it


class NoAnswer(LadderError):
    """The losses of a completion are not finite, so there is no likeliest one."""


class Score(NamedTuple):
    """How many of some examples were answered right, by the sum of the losses and by their mean."""

    examples: int
    right: int
    right_normalized: int


def evaluate(
    engine: Engine,
    examples: Sequence[Example],
    stop: Callable[[], bool] = lambda: False,
    group: Group = ALONE,
    show: Callable[[int], None] = lambda done: None,
) -> Score | None:
    """The score of the engine's weights on the examples.

    Every completion is a row of a batch, behind its context, so any batch size will do; where both
    are longer than T + 1 tokens, the beginning of the context is left out. Of several ranks each
    takes every `group.size`-th batch.

    stop  is asked between two batches, and must say the same on all ranks; the result is None then
    show  is told how many examples are done

    Raises NoAnswer where a loss is not finite.
    """
    rows = [(example.context, c) for example in examples for c in example.completions]
    B, T = engine.program.B, engine.program.T
    batches = [rows[first : first + B] for first in range(0, len(rows), B)]

    def submit(batch: int) -> Callable[[], list[float]]:
        show(batch * B // COMPLETIONS)
        return _submit(engine, batches[batch])

    own = own_batches(group, "evaluation", len(batches), submit, stop)
    if own is None:
        return None
    every = of_all_batches(group, "the losses of the completions", own)
    losses = [loss for batch in every for loss in batch]
    show(len(examples))
    sums = np.array(losses).reshape(-1, COMPLETIONS)
    if not np.isfinite(sums).all():
        raise NoAnswer(
            "the losses are not finite; if the logits are too large for --dtype fp16, try fp32 or "
            "bf16"
        )
    tokens = np.array([min(len(completion), T) for _, completion in rows]).reshape(sums.shape)
    labels = np.array([example.label for example in examples])
    right, normalized = (
        int(np.count_nonzero(scores.argmin(axis=1) == labels)) for scores in (sums, sums / tokens)
    )
    return Score(len(examples), right, normalized)


def _submit(
    engine: Engine, rows: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> Callable[[], list[float]]:
    """Start a forward pass over rows (context, completion); the result waits for the sum of each
    completion's losses."""
    B, T = engine.program.B, engine.program.T
    tokens, targets = np.zeros((2, B, T), np.int32)
    counted = np.zeros((B, T), bool)
    for b, (context, completion) in enumerate(rows):
        ids = [*context, *completion][-(T + 1) :]
        n = len(ids) - 1  # the last token is only a target
        tokens[b, :n], targets[b, :n] = ids[:-1], ids[1:]
        counted[b, max(0, n - len(completion)) : n] = True
    write_rows(engine, tokens, targets)
    engine.evaluate()
    losses = engine.fetch("losses")

    def sums() -> list[float]:
        of_rows = np.where(counted, losses(), 0.0).sum(axis=1, dtype=np.float64)
        return [float(loss) for loss in of_rows[: len(rows)]]

    return sums


def longest(examples: Sequence[Example]) -> int:
    """Tokens of the longest row: a context and its longest completion, without the last token."""
    return max(len(e.context) + max(map(len, e.completions)) for e in examples) - 1


def in_groups(
    examples: Sequence[Example], B: int, context: int, device: Device
) -> Mapping[int, Sequence[Example]]:
    """The examples by the T of their batches, the longest first: those of similar length share a
    batch of B rows, so that little of it is padding.

    Where kernels run, there is one T: the fast ones are compiled for one B*T, and were chosen by
    their times at it.
    """

    def length_for(some: Sequence[Example], grain: int) -> int:
        return min(ceil_div(longest(some), grain) * grain, context)

    if device.runs_kernels:
        return {length_for(examples, KERNEL_GRAIN): examples}
    ordered = sorted(examples, key=lambda example: longest([example]), reverse=True)
    together = max(1, B // COMPLETIONS)
    groups: dict[int, list[Example]] = {}
    for first in range(0, len(ordered), together):
        batch = ordered[first : first + together]
        groups.setdefault(length_for(batch, GRAIN), []).extend(batch)
    return groups


def note_on_length(examples: Sequence[Example], T: int) -> list[str]:
    """A line for the user where examples do not fit into T tokens."""
    cut = sum(longest([example]) > T for example in examples)
    if not cut:
        return []
    return [f"{cut} of {len(examples)} examples are longer than {T} tokens: they begin later"]
