"""The course of the learning rate, and the detector of outlying losses and gradients.

Both behave as in llm.c (llmc/schedulers.h, llmc/outlier_detector.h), so that its settings carry
over.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping

from trainer.flags import Schedule, TrainConfig

WINDOW = 128  # measurements that a z-score is taken over, as in llm.c


def rate_of(config: TrainConfig, step: int) -> float:
    """The learning rate of a step of a run, counted from 0.

    It rises linearly over the warm-up to --lr, then follows the schedule towards `final_lr` times
    that, which it would reach at `step == steps`. Constant is constant from the start.
    """
    name, warmup, steps = config.schedule, config.warmup, config.steps
    if step < warmup and name != "constant":
        return config.lr * (step + 1) / warmup
    final = config.final_lr
    return config.lr * (final + (1 - final) * SCHEDULES[name](step, warmup, steps))


def note_on_warmup(config: TrainConfig) -> list[str]:
    """A line for the user where the run ends before its learning rate has risen to --lr."""
    if config.schedule == "constant" or config.warmup <= config.steps:
        return []
    return [
        f"the warm-up of {config.warmup} steps (-u) is longer than the run: the learning rate "
        f"rises to {rate_of(config, config.steps - 1):.2e}, not to {config.lr:.2e}"
    ]


def _cosine(step: int, warmup: int, steps: int) -> float:
    """Half a cosine wave from 1 to 0 (SGDR, Loshchilov and Hutter 2016)."""
    return 0.5 * (1 + math.cos(math.pi * _progress(step, warmup, steps)))


def _linear(step: int, warmup: int, steps: int) -> float:
    return 1 - _progress(step, warmup, steps)


def _wsd(step: int, warmup: int, steps: int) -> float:
    """Warm-up, stable, decay: 1 for 80 % of the steps, then 1 - sqrt (Hägele et al. 2024)."""
    decay = int(0.8 * steps)
    return 1.0 if step < decay else 1 - math.sqrt(_progress(step, decay, steps))


def _constant(step: int, warmup: int, steps: int) -> float:
    return 1.0


def _progress(step: int, start: int, end: int) -> float:
    """How far `step` lies on the way from `start` to `end`, 0 to 1."""
    return min(1.0, (step - start) / max(1, end - start))


SCHEDULES: Mapping[Schedule, Callable[[int, int, int], float]] = {
    "cosine": _cosine,
    "linear": _linear,
    "constant": _constant,
    "wsd": _wsd,
}


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
