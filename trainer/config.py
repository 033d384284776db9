"""The settings of a command, resolved: every one has its value.

    flags = parse(argv)                              what was typed
    config = resolve_run(flags, place, ...)          what holds

`resolve_run`, `resolve_step` and `resolve_sample` put the defaults in, and what can only be known
once the device is open and the model's files were found. A field that may be None says what that
means.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract import dtypes
from trainer.flags import DTYPES, Flags, Schedule


@dataclass(frozen=True)
class Place:
    """Where a command computes: the device as `--device` names it ("cuda:1"), whether that is a
    GPU, and the type ("fp32", "fp16", "bf16")."""

    device: str
    gpu: bool
    dtype: str

    @property
    def real(self) -> np.dtype:
        """The real type that is computed in."""
        return _real(self.dtype)


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """Which model is computed, and how. Which kernels compute it: kernel_settings.py."""

    model: str
    seed: int
    device: str
    dtype: str
    recompute: int
    master_weights: bool
    stochastic_rounding: bool
    debug_nan: bool
    debug_sync: bool

    @property
    def real(self) -> np.dtype:
        """The real type of the run."""
        return _real(self.dtype)

    @property
    def program_options(self) -> dict[str, Any]:
        """What of the settings `trainer.model.program.build` takes."""
        names = ("recompute", "master_weights", "stochastic_rounding")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class StepConfig(ComputeConfig):
    """Training steps: B = `batch` rows of T = `sequence` tokens, `steps` times.

    overlap   several ranks exchange gradients while the backward pass goes on
    exchange  by what their GPUs exchange: "nccl", "p2p" or "auto"
    """

    batch: int
    sequence: int
    steps: int
    overlap: bool
    exchange: str


@dataclass(frozen=True, kw_only=True)
class SampleConfig(ComputeConfig):
    """Text samples. `tokenizer`: its name; `data_dir`: where its files lie or are put."""

    tokenizer: str
    data_dir: str
    prompt: str
    sample_tokens: int
    temperature: float
    top_k: int


@dataclass(frozen=True, kw_only=True)
class TrainConfig(StepConfig, SampleConfig):
    """A training run.

    dataset               its name; of files given by -i, their pattern
    train_data, val_data  patterns of its token files
    output                the run's folder
    total_tokens          of an optimizer step, over all ranks
    ranks                 processes that train together
    zero                  1: each updates its share of the weights; 0: each updates all (ZeRO)
    """

    dataset: str
    train_data: str
    val_data: str
    shuffle: bool
    llmc_order: bool
    random_offsets: bool
    total_tokens: int
    ranks: int
    zero: int
    overfit: bool
    lr: float
    warmup: int
    final_lr: float
    schedule: Schedule
    weight_decay: float
    beta1: float
    beta2: float
    eps: float
    grad_clip: float
    loss_outlier: float
    grad_outlier: float
    nonfinite: str
    val_every: int
    val_batches: int
    eval_train: bool
    hellaswag: bool
    sample_every: int
    output: str
    checkpoint_every: int
    keep: int
    major_every: int
    resume: bool
    log_gpu: int
    plot: bool

    @property
    def accumulation(self) -> int:
        """Micro-batches of an optimizer step on each rank."""
        return self.total_tokens // (self.batch * self.sequence * self.ranks)


def _real(dtype: str) -> np.dtype:
    real: np.dtype = dtypes.DTYPES[DTYPES[dtype]]
    return real


Config = TypeVar("Config", bound=ComputeConfig)


def resolve_step(flags: Flags, place: Place, context: int) -> StepConfig:
    """The settings of a measurement of training steps. Raises LadderError as `resolve_run`."""
    values = _common(flags, place)
    if values["steps"] < 1:
        raise LadderError("-x must be 1 or more: the number of steps to time")
    return _config(StepConfig, values, sequence=_sequence(flags, place, context))


def resolve_sample(flags: Flags, place: Place, tokenizer: str, data_dir: str) -> SampleConfig:
    """The settings of a command that takes a sample. Raises LadderError as `resolve_run`."""
    return _config(SampleConfig, _common(flags, place), tokenizer=tokenizer, data_dir=data_dir)


def resolve_run(
    flags: Flags,
    place: Place,
    *,
    context: int,
    dataset: str,
    train_data: str,
    val_data: str,
    tokens: int,
    tokenizer: str,
    data_dir: str,
    output: str,
    ranks: int = 1,
) -> TrainConfig:
    """The settings of a training run.

    context  the longest sequence that the model takes
    tokens   of the training data, which an epoch sees once
    ranks    how many processes there are

    Raises LadderError where settings do not go together.
    """
    values, sequence = _common(flags, place), _sequence(flags, place, context)
    step = values["batch"] * sequence * ranks
    total = flags.total_tokens or step
    if total % step:
        near = max(1, round(total / step)) * step
        what, product = "B*T", f"{values['batch']}*{sequence}"
        if ranks > 1:
            what, product = "B*T*ranks", f"{product}*{ranks}"
        raise LadderError(
            f"-d {total} is no multiple of {what} = {product} = {step}; choose e.g. -d {near}"
        )
    steps = values["steps"]
    return _config(
        TrainConfig,
        values,
        sequence=sequence,
        total_tokens=total,
        ranks=ranks,
        zero=resolve_zero(flags, ranks),
        steps=max(1, tokens // total) if steps == -1 else steps,
        dataset=dataset,
        train_data=train_data,
        val_data=val_data,
        tokenizer=tokenizer,
        data_dir=data_dir,
        output=output,
    )


def _config(kind: type[Config], values: Mapping[str, Any], **found: Any) -> Config:
    values = {**values, **found}
    return kind(**{f.name: values[f.name] for f in dataclasses.fields(kind)})


def _common(flags: Flags, place: Place) -> dict[str, Any]:
    """The value of every flag, those resolved that all commands share."""
    return {
        **{f.name: flags.value(f.name, place.gpu) for f in dataclasses.fields(flags)},
        "device": place.device,
        "dtype": place.dtype,
        "stochastic_rounding": _stochastic_rounding(flags, place.dtype),
    }


def _sequence(flags: Flags, place: Place, context: int) -> int:
    """T: the default is cut to the model's context, and what was typed must fit."""
    if flags.sequence is None:
        return min(int(flags.value("sequence", place.gpu)), context)
    if flags.sequence > context:
        raise LadderError(
            f"-t {flags.sequence} is beyond the model's context; choose -t {context} or less"
        )
    return flags.sequence


def resolve_zero(flags: Flags, ranks: int) -> int:
    """The ZeRO stage; alone, a process has nothing to share."""
    return int(flags.value("zero")) if ranks > 1 else 0


def _stochastic_rounding(flags: Flags, dtype: str) -> bool:
    """Whether 16-bit weights are rounded at random, and whether they may be all there is."""
    masters = flags.master_weights is not False
    if dtype == "fp32":
        if flags.stochastic_rounding:
            raise LadderError(
                "--stochastic-rounding: an fp32 run rounds no weights; drop it, or choose "
                "--dtype bf16 or fp16"
            )
    elif not masters:
        if dtype == "fp16":
            raise LadderError(
                "-w 0: a weight that overflows in fp16 is lost unless its float32 master is kept; "
                "drop it, or choose --dtype bf16, whose range is float32's"
            )
        if flags.stochastic_rounding is False:
            raise LadderError(
                "-w 0 --stochastic-rounding 0: rounded to nearest, bf16 weights that are their own "
                "masters stay where they are at most updates; drop one of the two"
            )
        return True
    return bool(flags.stochastic_rounding)
