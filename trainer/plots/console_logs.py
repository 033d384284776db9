"""Reads again what a run or a comparison has printed: the logs in doc/results/logs.

    step   10/74 | loss 11.942462 | norm 80.6441 | ...      the loss that step 10 began with
    val loss 7.632870 (step 20)                             after 20 steps
    --- sample at step 20 ---                               its text, up to a line ---
       4   bf16  PyTorch, compiled      13.65     300,090      3.5      from tests/gpu_vs_torch.py

Other lines are passed over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_STEP = re.compile(r"step +(\d+)/\d+ \| loss (\S+) ")
_VALIDATION = re.compile(r"val loss (\S+) \(step (\d+)\)")
_SAMPLE = re.compile(r"^--- sample at step (\d+) ---\n(.*?)\n---$", re.DOTALL | re.MULTILINE)
_TIMES = re.compile(r"^ *(\d+) +(\w+) +(\S.*?) {2,}([\d.,]+) +([\d,]+) +[\d.]+$", re.MULTILINE)


@dataclass
class Printed:
    """What a run has printed. Steps are counted from 1, as it does; losses are in nats."""

    train: list[tuple[int, float]] = field(default_factory=list)
    val: list[tuple[int, float]] = field(default_factory=list)
    samples: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Timed:
    """A row of `python -m tests.gpu_vs_torch times`: the time of a training step."""

    B: int
    dtype: str
    what: str
    ms: float


def read_run(text: str) -> Printed:
    """What `python -m trainer` printed, or a part of it."""
    run = Printed()
    for sample in _SAMPLE.finditer(text):
        run.samples[int(sample[1])] = sample[2]
    for line in _SAMPLE.sub("", text).splitlines():  # a sample may look like anything
        if step := _STEP.match(line):
            run.train.append((int(step[1]), float(step[2])))
        elif validation := _VALIDATION.match(line):
            run.val.append((int(validation[2]), float(validation[1])))
    return run


def read_times(text: str) -> list[Timed]:
    """The rows that `python -m tests.gpu_vs_torch times` printed."""
    return [
        Timed(int(B), dtype, what, _number(ms)) for B, dtype, what, ms, _ in _TIMES.findall(text)
    ]


def _number(text: str) -> float:
    return float(text.replace(",", ""))
