"""One optimizer step, and one validation: what the loop in train.py repeats."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference import adamw
from trainer.config import TrainConfig
from trainer.data import TokenLoader
from trainer.engine import Engine
from trainer.schedule import OutlierDetector, learning_rate

NOT_FINITE = "loss or gradient is not finite"


@dataclass(frozen=True)
class Step:
    """What is known of one optimizer step.

    loss     mean over the step's tokens before the update, in nats per token
    norm     length of the gradient before clipping
    ms       wall-clock time, data included
    skipped  why the update was left out; None if it was made
    """

    number: int
    loss: float
    norm: float
    lr: float
    ms: float
    skipped: str | None = None


class Stepper:
    """Takes optimizer steps: accumulates gradients, watches for outliers, clips, updates."""

    def __init__(self, config: TrainConfig, engine: Engine, train: TokenLoader, steps: int) -> None:
        """`steps`: of the whole run, for the schedule."""
        self.config, self.engine, self.train, self.steps = config, engine, train, steps
        self.losses, self.norms = OutlierDetector(), OutlierDetector()
        self.updates = 0  # made so far: AdamW's bias correction counts these, not the skipped ones

    def step(self, number: int) -> Step:
        """Take step `number`, counted from 0."""
        c = self.config
        start = time.perf_counter()
        lr = learning_rate(
            c.schedule, number, lr=c.lr, warmup=c.warmup, steps=self.steps, final=c.final_lr
        )
        loss = self._accumulate(number)
        norm = self.engine.gradient_norm()
        skipped = self._objection(loss, norm)
        if skipped is None:
            self.updates += 1
            self._update(lr)
        self.engine.device.synchronize()
        return Step(number, loss, norm, lr, 1e3 * (time.perf_counter() - start), skipped)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, as JSON."""
        windows = {"losses": self.losses.state(), "norms": self.norms.state()}
        return {"updates": self.updates, **windows}

    def restore(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        self.losses.restore(state["losses"])
        self.norms.restore(state["norms"])

    def _accumulate(self, number: int) -> float:
        """Forward and backward over all micro-batches; returns their mean loss."""
        engine, micro_steps = self.engine, self.config.accumulation
        rows = self.config.batch * self.config.sequence
        engine.write("dloss", np.array([1 / (rows * micro_steps)], np.float32))
        engine.zero_gradients()
        loss = 0.0
        for micro_step in range(micro_steps):
            write_batch(engine, self.train, again=self.config.overfit)
            if "rng" in engine.arrays:
                seed = self.config.seed
                words = [seed & 0xFFFFFFFF, seed >> 32, number, micro_step]
                engine.write("rng", np.array(words, np.uint32))
            engine.forward()
            engine.backward()
            loss += mean_loss(engine)
        return loss / micro_steps

    def _objection(self, loss: float, norm: float) -> str | None:
        """Why this update had better not be made; None if nothing is wrong with it."""
        if not (math.isfinite(loss) and math.isfinite(norm)):
            return NOT_FINITE
        loss_z, norm_z = self.losses.update(loss), self.norms.update(norm)
        if 0 < self.config.loss_outlier < loss_z:
            return f"the loss is {loss_z:.2f} sigmas up"
        if 0 < self.config.grad_outlier < norm_z:
            return f"the gradient norm is {norm_z:.2f} sigmas up"
        return None

    def _update(self, lr: float) -> None:
        c = self.config
        self.engine.write(
            "hyper",
            adamw.hyper(
                step=self.updates,
                lr=lr,
                beta1=c.beta1,
                beta2=c.beta2,
                eps=c.eps,
                weight_decay=c.weight_decay,
                clip=c.grad_clip,
            ),
        )
        self.engine.update()


def write_batch(engine: Engine, loader: TokenLoader, *, again: bool = False) -> None:
    """Hand the engine the next batch; with `again` always the first one."""
    if again:
        loader.reset()
    tokens, targets = loader.next_batch()
    engine.write("tokens", tokens)
    engine.write("targets", targets)


def mean_loss(engine: Engine) -> float:
    """The mean of the losses of the last pass, summed in float64."""
    return float(engine.read("losses").mean(dtype=np.float64))


def validate(
    engine: Engine, loader: TokenLoader, batches: int, stop: Callable[[], bool]
) -> float | None:
    """The mean loss over the first `batches` batches, or over all if there are fewer or it is -1.

    None if `stop` says so between two batches.

    llm.c goes round and counts batches twice where there are fewer; here each counts once.
    """
    loader.reset()
    count = loader.batches if batches < 0 else min(batches, loader.batches)
    total = 0.0
    for _ in range(count):
        if stop():
            return None
        write_batch(engine, loader)
        engine.evaluate()
        total += mean_loss(engine)
    return total / count
