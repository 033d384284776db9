"""The order of shards and of the windows in each: by name, shuffled by a seed, or llm.c's."""

from collections.abc import Sequence

import numpy as np


class SeededOrder:
    """The order of an epoch follows from the seed and the epoch alone.

    windows  how many each shard has
    seed     None: nothing is shuffled
    """

    def __init__(self, windows: Sequence[int], seed: int | None) -> None:
        self._windows, self._seed = windows, seed

    def shards(self, epoch: int) -> np.ndarray:
        return self._shuffled(len(self._windows), epoch)

    def windows(self, epoch: int, number: int) -> np.ndarray:
        shard = int(self.shards(epoch)[number])
        return self._shuffled(self._windows[shard], epoch, 1 + shard)

    def _shuffled(self, n: int, *key: int) -> np.ndarray:
        """0 .. n-1, shuffled by the seed and `key` if at all.

        Sorted by raw random numbers, whose stream NumPy keeps the same for ever; that of
        Generator.permutation may change between versions, and a resumed run with it.
        """
        if self._seed is None:
            return np.arange(n)
        random = np.random.PCG64(np.random.SeedSequence([self._seed, *key]))
        return np.argsort(random.random_raw(n), kind="stable")


class LlmcOrder:
    """llm.c's order (llmc/dataloader.h, llmc/rand.h): rank r draws from the Mersenne Twister
    mt19937 of seed 42 + r. Each epoch shuffles the order of shards that the epoch before has left,
    and each shard the order of its windows, one after the other from the same stream.

    So an order is known only once all orders before it are drawn: to go back is to begin again.
    """

    SEED = 42

    def __init__(self, windows: Sequence[int], rank: int) -> None:
        self._windows, self._rank = windows, rank
        self._begin()

    def shards(self, epoch: int) -> np.ndarray:
        """The order of shards in an epoch."""
        if self._at[0] != epoch:
            self._go_to(epoch, 0)
        return self._shards

    def windows(self, epoch: int, number: int) -> np.ndarray:
        """The order of windows in the shard that comes as `number` in an epoch."""
        self._go_to(epoch, number)
        return _exchanged(np.arange(len(self._draws) + 1), self._draws)

    def _begin(self) -> None:
        # NumPy's older interface, whose seeding is mt19937's own, and stays as it is.
        self._random = np.random.RandomState(self.SEED + self._rank)
        self._shards = np.arange(len(self._windows))
        self._at = (-1, len(self._windows) - 1)  # before the first shard

    def _go_to(self, epoch: int, number: int) -> None:
        """Draw up to the windows of a shard."""
        if (epoch, number) < self._at:
            self._begin()
        while self._at != (epoch, number):
            if self._at[1] + 1 < len(self._shards):
                self._at = (self._at[0], self._at[1] + 1)
            else:
                self._at = (self._at[0] + 1, 0)
                self._shards = _exchanged(self._shards, self._draw(len(self._shards)))
            self._draws = self._draw(self._windows[self._shards[self._at[1]]])

    def _draw(self, n: int) -> np.ndarray:
        """The random words that it takes to shuffle n things."""
        return self._random.randint(0, 1 << 32, n - 1, np.uint32)


def _exchanged(things: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """From the last thing to the second, each changes places with one up to itself that a random
    word picks (Fisher and Yates)."""
    order, n = things.tolist(), len(things)
    partners = draws % np.arange(n, 1, -1, dtype=np.uint32)
    for i, j in zip(range(n - 1, 0, -1), partners.tolist(), strict=True):
        order[i], order[j] = order[j], order[i]
    return np.array(order)
