"""The course of the learning rate, and the detector of outlying losses and gradients.

Both behave as in llm.c (llmc/schedulers.h, llmc/outlier_detector.h), so that its settings carry
over.
"""

import math
from collections import deque

from trainer.flags import TrainConfig

WINDOW = 128  # measurements that a z-score is taken over, as in llm.c


def rate_of(config: TrainConfig, step: int) -> float:
    """The learning rate of a step of a run, counted from 0.

    It rises linearly over the warm-up to --lr, then follows the schedule towards `final_lr` times
    that, which it would reach at `step == steps`:

    cosine    half a cosine wave (SGDR, Loshchilov and Hutter 2016)
    linear    a straight line
    wsd       --lr for 80 % of the steps, then 1 - sqrt (Hägele et al. 2024)
    constant  --lr from the start, without a warm-up
    """
    name, start, steps, final = config.schedule, config.warmup, config.steps, config.final_lr
    if step < start and name != "constant":
        return config.lr * (step + 1) / start
    if name == "wsd":
        start = int(0.8 * steps)
    way = min(1.0, max(0, step - start) / max(1, steps - start))  # from 0 to 1
    if name == "constant":
        left = 1.0
    elif name == "cosine":
        left = 0.5 * (1 + math.cos(math.pi * way))
    else:
        left = 1 - (math.sqrt(way) if name == "wsd" else way)
    return config.lr * (final + (1 - final) * left)


def note_on_warmup(config: TrainConfig) -> list[str]:
    """A line for the user where the run ends before its learning rate has risen to --lr."""
    if config.schedule == "constant" or config.warmup <= config.steps:
        return []
    return [
        f"the warm-up of {config.warmup} steps (-u) is longer than the run: the learning rate "
        f"rises to {rate_of(config, config.steps - 1):.2e}, not to {config.lr:.2e}"
    ]


class OutlierDetector:
    """How many standard deviations a measurement lies above the mean of the last `WINDOW`."""

    def __init__(self) -> None:
        self.window: deque[float] = deque(maxlen=WINDOW)

    def update(self, value: float) -> float:
        """Take in a measurement and return its z-score; NaN until the window is full.

        Like llm.c's, the window that is measured against includes the value itself.
        """
        full = len(self.window) == WINDOW
        self.window.append(value)
        if not full:
            return math.nan
        mean = math.fsum(self.window) / WINDOW
        deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in self.window) / WINDOW)
        return (value - mean) / deviation if deviation > 0 else 0.0

    def state(self) -> list[float]:
        return list(self.window)

    def restore(self, state: list[float]) -> None:
        self.window = deque(state, maxlen=WINDOW)
