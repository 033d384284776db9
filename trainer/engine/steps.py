"""What stays from one optimizer step to the next, while trainer/train.py takes them.

A GPU works asynchronously. Nothing waits for it inside a step: batches are copied while it
computes, and the loss of a step is read after the next step has been submitted. So the GPU is never
idle between steps, and the outcome of a step is known one step late.

The device's own clock measures a step: from the end of the previous step to its own end, or from
its own start if the device did something else in between.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from reference import adamw
from trainer.engine.engine import Engine
from trainer.engine.passes import mean_loss
from trainer.flags import TrainConfig
from trainer.ranks.group import ALONE, Group

START = 2.0**16
GROWTH_INTERVAL = 2000  # steps without overflow after which a larger scale is tried
WINDOW = 128  # measurements that a z-score is taken over, as in llm.c


@dataclass
class LossScale:
    """`value` is the scale of the next step."""

    value: float = START
    good_steps: int = 0  # since the scale has changed

    def update(self, overflow: bool) -> None:
        """Adjust the scale after a step. If its gradient overflowed, the update must be skipped."""
        if overflow:
            self.value /= 2
            self.good_steps = 0
            return
        self.good_steps += 1
        if self.good_steps == GROWTH_INTERVAL:
            self.value *= 2
            self.good_steps = 0


NOT_FINITE = "loss or gradient is not finite"


@dataclass(frozen=True)
class StepOutcome:
    """What is known of one optimizer step.

    loss     mean over the step's tokens before the update, in nats per token
    norm     length of the gradient before clipping
    ms       time from the step before to this one, data included; None where it is not known
    warmed_up  it took as long as later ones do: the first ones also set libraries up and record
             graphs
    skipped  why the update was left out; None if it was made
    """

    number: int
    loss: float
    norm: float
    lr: float
    ms: float | None
    warmed_up: bool
    skipped: str | None = None


Moment = tuple[Any, bool]  # a mark of the device, and whether the engine was warm then


@dataclass
class UnderWay:
    """A step that was begun, and that the device may still be working on.

    inv_scale   what the gradient is multiplied by, to undo the loss scale
    start, end  None where they are not known
    losses      of its micro-batches so far; each function waits for the device, as `norm` does
    loss_and_norm  both, once they have been waited for
    """

    number: int
    lr: float
    inv_scale: float
    start: Moment | None
    end: Moment | None = None
    losses: list[Callable[[], float]] = field(default_factory=list)
    norm: Callable[[], np.ndarray] | None = None
    loss_and_norm: tuple[float, float] | None = None


def stops(step: StepOutcome, config: TrainConfig) -> bool:
    """Whether a run stops because of a step whose loss or gradient is not finite."""
    return step.skipped == NOT_FINITE and config.nonfinite == "stop"


def refuse_not_finite(step: StepOutcome, config: TrainConfig) -> None:
    if stops(step, config):
        raise LadderError(
            f"step {step.number + 1}: loss {step.loss:g}, gradient norm {step.norm:g}, learning "
            f"rate {step.lr:g}: the run stops, and this step is discarded. Lower -l, warm up "
            "with -u, clip with --grad-clip 1, or skip such steps with --nonfinite skip; "
            "--debug-nan names the op where it began"
        )


class Steps:
    """The steps of a run: what one leaves to the next, and when their outcomes are known.

    It watches for outlying losses and norms, finds the loss scale of fp16, and counts the updates.
    All ranks of a group see the same loss and norm, so they decide the same about an update.

    overlaps  a step is submitted before the outcome of the one before is known
    updates   made so far: AdamW's bias correction counts these, not the skipped ones
    """

    def __init__(self, config: TrainConfig, engine: Engine, group: Group = ALONE) -> None:
        self.config, self.engine, self.group = config, engine, group
        self.losses, self.norms = OutlierDetector(), OutlierDetector()
        self.scale = LossScale() if config.dtype == "fp16" else None
        self.updates = 0
        # If the host decides whether the update is made, it must wait for loss and norm. With
        # --nonfinite stop it need not: weights that such an update spoils are never used.
        skips = config.nonfinite == "skip" or config.loss_outlier > 0 or config.grad_outlier > 0
        decides = skips or self.scale is not None
        self.overlaps = not engine.waits and not decides
        self._before: UnderWay | None = None
        self._end_before: Moment | None = None  # of the step before; None after a break

    def begin(self, number: int) -> UnderWay:
        """Begin step `number`, counted from 0: write what its passes need besides batches."""
        scale = 1.0 if self.scale is None else self.scale.value
        step = UnderWay(number, rate_of(self.config, number), 1 / scale, self._start())
        self.engine.write("dloss", np.array([scale / self.config.total_tokens], np.float32))
        if self.overlaps:  # written with the first batch: no copy comes between two passes
            self._write_hyper(step)
        return step

    def decide(self, step: UnderWay) -> str | None:
        """Why there must be no update, now that the gradients and their norm were submitted; None
        where it is to be made. Waits for loss and norm, unless steps overlap."""
        if self.overlaps:
            return None
        self._close(step)
        skipped = self._objection(*self._read(step))
        if skipped is None:
            self._write_hyper(step)
        return skipped

    def end(self, step: UnderWay, skipped: str | None) -> StepOutcome | None:
        """End a step whose update was submitted, unless skipped. Returns the last outcome that is
        known: this one or, where steps overlap, the one before; None where there is none."""
        if self.overlaps:
            self._close(step)
            before, self._before = self._before, step
            return None if before is None else self._outcome(before)
        if self.engine.waits:
            step.end = self._now()
        return self._outcome(step, skipped)

    def finish(self) -> StepOutcome | None:
        """Wait for the step that is under way, if one is, and return its outcome.

        To be called before the device does anything else than the next step.
        """
        self._end_before = None
        step, self._before = self._before, None
        return None if step is None else self._outcome(step)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, as JSON; no step may be under way."""
        assert self._before is None
        windows = {"losses": [*self.losses.window], "norms": [*self.norms.window]}
        scale = {} if self.scale is None else {"scale": asdict(self.scale)}
        return {"updates": self.updates, **windows, **scale}

    def restore(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        self.losses = OutlierDetector(state["losses"])
        self.norms = OutlierDetector(state["norms"])
        if self.scale is not None:
            self.scale = LossScale(state["scale"]["value"], state["scale"]["good_steps"])

    def _start(self) -> Moment | None:
        """When the next step starts: at the end of the step before, if that came directly before.

        None where it did not, and the host decides on updates: such a step ends before its update,
        which is counted in the step behind it.
        """
        if self.engine.waits or (self._end_before is None and self.overlaps):
            return self._now()
        return self._end_before

    def _close(self, step: UnderWay) -> None:
        step.norm = self.engine.fetch("norm")
        step.end = self._end_before = self._now()

    def _now(self) -> Moment:
        return self.engine.device.mark(), self.engine.warmed_up

    def _read(self, step: UnderWay) -> tuple[float, float]:
        if step.loss_and_norm is None:
            assert step.norm is not None
            self.group.progress(f"the end of step {step.number + 1}")
            losses = [loss() for loss in step.losses]
            loss = mean_loss(self.group, f"the loss of step {step.number}", losses)
            step.loss_and_norm = loss, float(step.norm()[0]) * step.inv_scale
        return step.loss_and_norm

    def _outcome(self, step: UnderWay, skipped: str | None = None) -> StepOutcome:
        """The outcome of a step, once the device is done with it."""
        loss, norm = self._read(step)
        if self.overlaps:
            skipped = self._objection(loss, norm)
        ms, warmed_up = None, False
        if step.start is not None and step.end is not None:
            (start, warmed_up), (end, _) = step.start, step.end
            ms = 1e3 * self.engine.device.seconds(start, end)
        return StepOutcome(step.number, loss, norm, step.lr, ms, warmed_up, skipped)

    def _objection(self, loss: float, norm: float) -> str | None:
        """Why an update is skipped; None if it is made."""
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

    def _write_hyper(self, step: UnderWay) -> None:
        """Write what the update of a step needs, and count that update."""
        c = self.config
        self.updates += 1
        self.engine.write(
            "hyper",
            adamw.hyper(
                step=self.updates,
                lr=step.lr,
                beta1=c.beta1,
                beta2=c.beta2,
                eps=c.eps,
                weight_decay=c.weight_decay,
                clip=c.grad_clip,
                inv_scale=step.inv_scale,
            ),
        )


def rate_of(config: TrainConfig, step: int) -> float:
    """The learning rate of a step of a run, counted from 0, as in llm.c (llmc/schedulers.h).

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
    """How many standard deviations a measurement lies above the mean of the last `WINDOW`, as in
    llm.c (llmc/outlier_detector.h)."""

    def __init__(self, window: Iterable[float] = ()) -> None:
        self.window = deque(window, maxlen=WINDOW)

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
