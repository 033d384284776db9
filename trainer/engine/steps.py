"""One optimizer step and one validation, which the loop in training.py repeats.

A GPU works asynchronously. Nothing here waits for it inside a step: batches are copied while it
computes, and the loss of a step is read after the next step has been submitted. So the GPU is never
idle between steps, and the outcome of a step is known one step late.

The device's own clock measures a step: from the end of the previous step to its own end, or from
its own start if the device did something else in between.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference import adamw
from trainer.config import TrainConfig
from trainer.data.datasets import TokenLoader
from trainer.data.random_offsets import Loader
from trainer.engine.engine import Engine
from trainer.engine.loss_scale import LossScale
from trainer.engine.schedule import OutlierDetector, rate_of
from trainer.ranks.group import ALONE, Group

NOT_FINITE = "loss or gradient is not finite"


@dataclass(frozen=True)
class Step:
    """What is known of one optimizer step.

    loss     mean over the step's tokens before the update, in nats per token
    norm     length of the gradient before clipping
    ms       time from the step before to this one, data included; None where it is not known
    settled  it took as long as later ones do: the first ones also set libraries up and record
             graphs
    skipped  why the update was left out; None if it was made
    """

    number: int
    loss: float
    norm: float
    lr: float
    ms: float | None
    settled: bool
    skipped: str | None = None


@dataclass(frozen=True)
class Moment:
    """A mark of the device, and whether the engine was settled then."""

    mark: Any
    settled: bool


@dataclass(frozen=True)
class Submitted:
    """A step that the device is working on. `loss` and `norm` wait for it.

    start  None where the step's time cannot be known
    """

    number: int
    lr: float
    loss: Callable[[], float]
    norm: Callable[[], float]
    start: Moment | None
    end: Moment


class Stepper:
    """Takes optimizer steps: accumulates gradients, watches for outliers, clips, updates.

    All ranks of a group see the same loss and norm, so they decide the same about an update.
    """

    def __init__(
        self, config: TrainConfig, engine: Engine, train: Loader, group: Group = ALONE
    ) -> None:
        self.config, self.engine, self.train, self.group = config, engine, train, group
        self.losses, self.norms = OutlierDetector(), OutlierDetector()
        self.scale = LossScale() if config.dtype == "fp16" else None
        self.updates = 0  # made so far: AdamW's bias correction counts these, not the skipped ones
        # If the host decides whether the update is made, it must wait for loss and norm. With
        # --nonfinite stop it need not: weights that such an update spoils are never used.
        skips = config.nonfinite == "skip" or config.loss_outlier > 0 or config.grad_outlier > 0
        decides = skips or self.scale is not None
        self.overlaps = not engine.waits and not decides
        self._under_way: Submitted | None = None
        self._end_before: Moment | None = None  # of the step before; None after a break

    def step(self, number: int) -> Step | None:
        """Take step `number`, counted from 0.

        Returns the last step whose outcome is known: this one or, where steps overlap, the one
        before, which is None after the first.
        """
        engine = self.engine
        start = self._start()
        lr = rate_of(self.config, number)
        inv_scale = 1.0 if self.scale is None else 1 / self.scale.value
        if self.overlaps:  # written with the first batch: no copy comes between two passes
            self._write_hyper(lr)
        losses = self._accumulate(number)
        engine.compute_norm()
        if self.overlaps:
            engine.update()
        losses.append(fetch_loss(engine))
        read_norm = engine.fetch("norm")
        end = self._end_before = self._now()

        def loss() -> float:
            self.group.progress(f"the end of step {number + 1}")
            found = [micro_loss() for micro_loss in losses]
            return mean_loss(self.group, f"the loss of step {number}", found)

        step = Submitted(number, lr, loss, lambda: float(read_norm()[0]) * inv_scale, start, end)
        if self.overlaps:
            before, self._under_way = self._under_way, step
            return None if before is None else self._end(before, None)
        skipped = self._objection(step.loss(), step.norm())
        if skipped is None:
            self._write_hyper(lr, inv_scale)
            engine.update()
        if engine.waits:
            step = dataclasses.replace(step, end=self._now())
        return self._end(step, skipped)

    def finish(self) -> Step | None:
        """Wait for the step that is under way, if one is, and return its outcome.

        To be called before the device does anything else than the next step.
        """
        self._end_before = None
        step, self._under_way = self._under_way, None
        return None if step is None else self._end(step, None)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, as JSON; no step may be under way."""
        assert self._under_way is None
        windows = {"losses": self.losses.state(), "norms": self.norms.state()}
        scale = {} if self.scale is None else {"scale": self.scale.state()}
        return {"updates": self.updates, **windows, **scale}

    def restore(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        self.losses.restore(state["losses"])
        self.norms.restore(state["norms"])
        if self.scale is not None:
            self.scale.restore(state["scale"])

    def _accumulate(self, number: int) -> list[Callable[[], float]]:
        """Forward and backward over all micro-batches. The results wait for the losses of all but
        the last, which are still to be fetched."""
        engine, config, group = self.engine, self.config, self.group
        scale = 1.0 if self.scale is None else self.scale.value
        engine.write("dloss", np.array([scale / config.total_tokens], np.float32))
        engine.zero_gradients()
        losses: list[Callable[[], float]] = []
        for micro_step in range(config.accumulation):
            if micro_step > 0:  # before `forward` overwrites them
                losses.append(fetch_loss(engine))
            group.progress(f"micro-batch {micro_step + 1} of step {number + 1}")
            write_batch(engine, self.train, again=config.overfit)
            self._write_rng(number, micro_step * group.size + group.rank)
            engine.forward()
            engine.backward(more=micro_step + 1 < config.accumulation)
        # Rounding at random draws from the last words, which must be the same on all ranks.
        if group.size > 1 and config.stochastic_rounding:
            self._write_rng(number, config.accumulation * group.size - 1)
        return losses

    def _write_rng(self, step: int, micro_step: int) -> None:
        """Where the random words of a micro-batch start, which is counted over all ranks."""
        if "rng" in self.engine.arrays:
            seed = self.config.seed
            words = [seed & 0xFFFFFFFF, seed >> 32, step, micro_step]
            self.engine.write("rng", np.array(words, np.uint32))

    def _end(self, step: Submitted, skipped: str | None) -> Step:
        """The outcome of a step, once the device is done with it."""
        loss, norm = step.loss(), step.norm()
        if self.overlaps:
            skipped = self._objection(loss, norm)
        ms, settled = None, False
        if step.start is not None:
            ms = 1e3 * self.engine.device.seconds(step.start.mark, step.end.mark)
            settled = step.start.settled
        return Step(step.number, loss, norm, step.lr, ms, settled, skipped)

    def _now(self) -> Moment:
        return Moment(self.engine.device.mark(), self.engine.settled)

    def _start(self) -> Moment | None:
        """When the next step starts: at the end of the step before, if that came directly before.

        None where it did not, and the host decides on updates: such a step ends before its update,
        which is counted in the step behind it.
        """
        if self.engine.waits or (self._end_before is None and self.overlaps):
            return self._now()
        return self._end_before

    def _objection(self, loss: float, norm: float) -> str | None:
        """Why this update is skipped; None if it is made."""
        if self.scale is not None and math.isfinite(loss):
            overflow = not math.isfinite(norm)
            self.scale.update(overflow)
            if overflow and self.scale.value >= 1:
                return f"the gradient overflowed, the loss scale is now {self.scale.value:g}"
        if not (math.isfinite(loss) and math.isfinite(norm)):
            return NOT_FINITE
        loss_z, norm_z = self.losses.update(loss), self.norms.update(norm)
        if 0 < self.config.loss_outlier < loss_z:
            return f"the loss is {loss_z:.2f} sigmas above average"
        if 0 < self.config.grad_outlier < norm_z:
            return f"the gradient norm is {norm_z:.2f} sigmas above average"
        return None

    def _write_hyper(self, lr: float, inv_scale: float = 1.0) -> None:
        """Write what the next update needs, and count that update."""
        c = self.config
        self.updates += 1
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
                inv_scale=inv_scale,
            ),
        )


def write_batch(engine: Engine, loader: Loader, *, again: bool = False) -> None:
    """Hand the engine the next batch; with `again` always the first one."""
    if again:
        loader.reset()
    tokens, targets = loader.next_batch()
    engine.write("tokens", tokens)
    engine.write("targets", targets)


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
