"""Batches whose rows begin anywhere in the text, as nanoGPT's `get_batch` draws them
(karpathy/nanoGPT, train.py)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from trainer.data import token_files


class RandomOffsetLoader(token_files.Loader):
    """Batches of B rows of T tokens; each row begins at a random position of the text.

    A row is T + 1 consecutive tokens of one shard, and every such piece of text is equally likely.
    So rows overlap, some tokens come twice before others come once, and no row has to be seen
    again from the same token on, as it is with the fixed windows of TokenLoader.

    Row number n of a run begins where the n-th random number of the seed says. A position is
    therefore one number, that of the next batch.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        token_files.refuse_short(self._paths, self._counts, 1, self.T, self.text)
        # The offsets of the shards follow one another; a shard's are below its entry here.
        self._ends = np.cumsum([count - self.T for count in self._counts])
        self.reset()

    def reset(self) -> None:
        self._batch = 0

    def next_batch(self) -> tuple[np.ndarray, np.ndarray]:
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
        super().restore(state)
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
