"""Batches whose rows begin anywhere in the text, as nanoGPT's `get_batch` draws them
(karpathy/nanoGPT, train.py)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from trainer.data import token_files


class RandomOffsetLoader:
    """Batches of B rows of T tokens; each row begins at a random position of the text.

    A row is T + 1 consecutive tokens of one shard, and every such piece of text is equally likely.
    So rows overlap, some tokens come twice before others come once, and no row has to be seen
    again from the same token on, as it is with the fixed windows of TokenLoader.

    Row number n of a run begins where the n-th random number of the seed says. A position is
    therefore one number, that of the next batch. Of several ranks, each takes every `ranks`-th
    batch, number `rank` first, and all have the same position: together they see what one process
    sees.
    """

    def __init__(
        self,
        pattern: str | Path,
        B: int,
        T: int,
        *,
        vocab: int,
        seed: int = 0,
        rank: int = 0,
        ranks: int = 1,
        text: str = "",
    ):
        if B < 1 or T < 1:
            raise LadderError(f"B={B} sequences of T={T} tokens: both must be at least 1")
        self.B, self.T, self.vocab = B, T, vocab
        self.seed = seed % 2**64
        self.rank, self.ranks = rank, ranks
        self._paths = token_files.find_shards(pattern)
        self._counts = [token_files.read_count(path) for path in self._paths]
        token_files.refuse_short(self._paths, self._counts, 1, T, text)
        # The offsets of the shards follow one another; a shard's are below its entry here.
        self._ends = np.cumsum([count - T for count in self._counts])
        self.tokens = sum(self._counts)
        self.reset()

    def reset(self) -> None:
        self._batch = 0

    def next_batch(self) -> tuple[np.ndarray, np.ndarray]:
        """inputs (B, T) and targets (B, T), int32; targets[b, t] comes after inputs[b, t].

        Raises LadderError where a token is beyond the vocabulary.
        """
        offsets = self._offsets(self._batch + self.rank)
        self._batch += self.ranks
        shards = np.searchsorted(self._ends, offsets, side="right")
        rows = np.empty((self.B, self.T + 1), np.int32)
        for shard in np.unique(shards):
            (here,) = np.nonzero(shards == shard)
            path, first = self._paths[shard], self._ends[shard] - (self._counts[shard] - self.T)
            starts = (offsets[here] - first).tolist()
            rows[here] = found = token_files.read_rows(path, starts, self.T + 1)
            token_files.check_vocabulary(path, starts, found, self.vocab)
        return rows[:, :-1], rows[:, 1:]

    def _offsets(self, batch: int) -> np.ndarray:
        """(B,) offsets of the rows of a batch, among those of all shards.

        From raw random numbers, whose stream NumPy keeps the same for ever. The remainder prefers
        small offsets by less than (number of offsets) / 2**64, which is nothing.
        """
        random = np.random.PCG64(np.random.SeedSequence([self.seed]))
        random.advance(batch * self.B)
        drawn: np.ndarray = random.random_raw(self.B) % np.uint64(self._ends[-1])
        return drawn.astype(np.int64)

    def state(self) -> dict[str, Any]:
        return self._identity() | {"batch": self._batch}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where another loader's state() was taken.

        Raises LadderError if that loader read other files, or in another order.
        """
        token_files.check_position(self._identity(), state)
        batch = state.get("batch")
        if type(batch) is not int or batch < 0:
            raise LadderError(f"the checkpoint's data position is damaged: batch {batch}")
        self._batch = batch

    def _identity(self) -> dict[str, Any]:
        return {
            "order": "random offsets",
            "B": self.B,
            "T": self.T,
            "seed": self.seed,
            "tokens": self._counts,
        }


Loader = token_files.TokenLoader | RandomOffsetLoader
