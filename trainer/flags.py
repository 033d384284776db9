"""The flags of `python -m trainer`: what was typed, and the settings that follow from it.

    flags = parse(argv)                              what was typed (trainer/commands/parser.py)
    config = resolve_run(flags, choice, ...)          what holds: nothing is undecided

Names and meanings follow llm.c, whose short flags are accepted as aliases. `resolve_run`,
`resolve_step` and `resolve_sample` put the defaults in, and what can only be known once the device
is open and the model's files were found. A field that may be None says what that means. The
settings of a run's kernels are in trainer/engine/kernel_settings.py.
"""

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np

from ladder.core.common import confine
from ladder.core.common.errors import LadderError
from ladder.core.contract.op import DTYPES, SHORT

Schedule = Literal["cosine", "linear", "constant", "wsd"]
Fusion = Literal[
    "residual_layernorm",
    "dropout_residual_layernorm",
    "matmul_gelu",
    "matmul_gelu_backward",
    "matmul_bias_backward",
    "matmul_residual",
    "matmul_relu",
    "matmul_relu_backward",
    "matmul_crossentropy",
]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)  # how each runs: trainer/engine/steps.py
FUSIONS: tuple[Fusion, ...] = get_args(Fusion)  # what each fuses: trainer/model/fusion.py
DATASETS = (
    *("tinyshakespeare", "tinystories", "fineweb", "fineweb-100B", "fineweb-edu"),
    *("fineweb-edu-100B", "play"),
)
TOKENIZERS = ("gpt2", "bytes", "chars")
TRACKERS = ("trackio", "tensorboard", "wandb")
RUNG_SETS = ("reference", "naive", "best", "library")


class ByDevice(NamedTuple):
    """A default that depends on the device.

    Without a GPU a run is the CPU quick start of llm.c (train_gpt2.c): 40 short steps, some
    minutes. With one it is its fine-tuning run: one epoch over tinyshakespeare, 74 steps.
    """

    cpu: Any  # the emulator's too: name kernels by --rung, or all by --rungs naive
    gpu: Any


DEFAULT_DTYPE = ByDevice("fp32", "bf16")
GROUPS = {  # of flags, in --help: the first field of each
    "model": "what is trained, and on what",
    "batch": "size of a step, and how many",
    "lr": "optimizer",
    "val_every": "looking at it",
    "output": "output",
    "device": "device and kernels",
    "ranks": "several processes",
}


def flag(names: str, help: str, default: Any = None, **limits: Any) -> Any:
    """A field of `Flags`: its flags ("--batch -b"), and what --help says.

    default  what holds where it is not typed; None where that follows from other settings
    limits   what a value is held to: numbers to `least`, `above`, `most`, `below`, strings to
             `choices`
    """
    metadata = {"names": names.split(), "help": help, "default": default, **limits}
    return field(default=None, metadata=metadata)


# ---- what can be typed ----


@dataclass(frozen=True)
class Flags:
    """What was typed; None: it was not.

    Raises LadderError on construction where a value is out of range, or two contradict each other.
    """

    model: str | None = flag(
        "--model -e",
        "gpt2 | gpt2-medium | gpt2-large | gpt2-xl (pretrained), d6 ... d84 | char | "
        "char-lecture | char-small (random weights; the last takes 2.5 minutes of a CPU with "
        "-x 2000 -l 2e-3 -v 500 -s 0), or a file or folder: .bin, .safetensors, a checkpoint",
        "gpt2",
    )
    dataset: str | None = flag(
        "--dataset",
        f"text to prepare and train on: {' | '.join(DATASETS)}, your own text or Parquet files",
        "tinyshakespeare",
    )
    tokenizer: str | None = flag(
        "--tokenizer",
        "how text becomes tokens (chars for char, char-lecture, char-small)",
        choices=TOKENIZERS,
    )
    train_data: str | None = flag(
        "--train-data -i", "token files to train on, a .bin pattern; instead of --dataset"
    )
    val_data: str | None = flag(
        "--val-data -j",
        "token files, or a text, to validate on; default: as -i, with val instead of train",
    )
    data_dir: str | None = flag(
        "--data-dir", "where data is stored; default $KERNEL_LADDER_DATA, else ./data"
    )
    shuffle: bool | None = flag("--no-shuffle", "take the training data in order", True)
    llmc_order: bool | None = flag(
        "--llmc-order", "shuffle exactly as llm.c does, whatever --seed says", False
    )
    random_offsets: bool | None = flag(
        "--random-offsets", "begin each row of a batch at a random position of the text", False
    )

    batch: int | None = flag("--batch -b", "rows of a micro-batch, B", 4, least=1, most=65536)
    sequence: int | None = flag(
        "--sequence -t", "tokens of a row, T", ByDevice(64, 1024), least=1, most=1 << 20
    )
    total_tokens: int | None = flag(
        "--total-tokens -d",
        "tokens of an optimizer step; a multiple of B*T, which is the default",
        least=1,
        most=1 << 31,
    )
    steps: int | None = flag(
        "--steps -x", "optimizer steps to run; -1: one epoch", ByDevice(40, -1), least=-1
    )
    overfit: bool | None = flag(
        "--overfit -a", "train only on the first validation batch; the loss should go to 0", False
    )

    lr: float | None = flag("--lr -l", "highest learning rate", 1e-4, above=0.0, most=1e3)
    warmup: int | None = flag(
        "--warmup -u", "steps over which the learning rate rises from 0", 0, least=0
    )
    final_lr: float | None = flag(
        "--final-lr -q", "last learning rate, as a fraction of --lr", 1.0, least=0.0, most=1.0
    )
    schedule: str | None = flag(
        "--schedule -k", "schedule of the learning rate", "cosine", choices=SCHEDULES
    )
    weight_decay: float | None = flag(
        "--weight-decay -c", "AdamW's weight decay, of matrices only", 0.0, least=0.0, most=100.0
    )
    beta1: float | None = flag(
        "--beta1", "AdamW's decay of the first moment", 0.9, least=0.0, below=1.0
    )
    beta2: float | None = flag(
        "--beta2", "AdamW's decay of the second moment", ByDevice(0.999, 0.95), least=0.0, below=1.0
    )
    eps: float | None = flag("--eps", "AdamW's epsilon", 1e-08, above=0.0, most=1.0)
    grad_clip: float | None = flag(
        "--grad-clip",
        "clip the gradient to this norm; 0: no clipping",
        ByDevice(0.0, 1.0),
        least=0.0,
    )
    loss_outlier: float | None = flag(
        "--loss-outlier -sl",
        "skip updates whose loss has a z-score above this; 0: off",
        0.0,
        least=0,
    )
    grad_outlier: float | None = flag(
        "--grad-outlier -sg", "the same for the gradient norm; 0: off", 0.0, least=0
    )
    nonfinite: str | None = flag(
        "--nonfinite",
        "if loss or gradient is not finite: stop the run, or skip the update",
        "stop",
        choices=("stop", "skip"),
    )

    val_every: int | None = flag(
        "--val-every -v",
        "steps between validations; 0: at the start and the end",
        ByDevice(10, 20),
        least=0,
    )
    val_batches: int | None = flag(
        "--val-batches -m",
        "batches of a validation; -1: the whole split",
        ByDevice(5, 20),
        least=-1,
    )
    eval_train: bool | None = flag(
        "--eval-train",
        "at each validation, measure the loss on as many batches of the training text",
        False,
    )
    hellaswag: bool | None = flag(
        "--hellaswag -h", "evaluate on HellaSwag at each validation after step 0", False
    )
    sample_every: int | None = flag(
        "--sample-every -s", "steps between text samples; 0: none", ByDevice(40, 20), least=0
    )
    sample_tokens: int | None = flag(
        "--sample-tokens -g", "tokens of a text sample", 64, least=1, most=1 << 20
    )
    prompt: str | None = flag("--prompt", "what a sample begins with", "")
    temperature: float | None = flag(
        "--temperature", "of sampling; 0: always the likeliest token", 1.0, least=0.0, most=100.0
    )
    top_k: int | None = flag("--top-k", "sample among the k likeliest; 0: among all", 0, least=0)

    output: str | None = flag("--output -o", "folder of the run; default runs/MODEL-DATASET")
    checkpoint_every: int | None = flag(
        "--checkpoint-every -n",
        "steps between checkpoints, also one at the end; 0: none",
        0,
        least=0,
    )
    keep: int | None = flag("--keep -nk", "checkpoints to keep; 0: all", 0, least=0)
    major_every: int | None = flag(
        "--major-every -nm", "checkpoints at multiples of this are always kept", 0, least=0
    )
    resume: bool | None = flag(
        "--resume -y", "continue from the newest checkpoint in --output, bit for bit", False
    )
    log_gpu: int | None = flag(
        "--log-gpu -lg",
        "steps between lines on the GPU's clock, power and temperature; 0 or -1: none",
        0,
        least=-1,
    )
    report_to: str | None = flag(
        "--report-to", f"tell the log to {', '.join(TRACKERS)}, or to several: a,b", ""
    )
    plot: bool | None = flag("--no-plot", "draw no loss.png at the end", True)
    keep_model: bool | None = flag("--no-model", "keep no model at the end", True)

    device: str | None = flag(
        "--device",
        "cpu, emulated (kernels on the CPU), cuda or cuda:N, hip (AMD); a GPU where there is one",
    )
    dtype: str | None = flag(
        "--dtype",
        "type of weights and activations; fp16 on a GPU too old for bf16",
        DEFAULT_DTYPE,
        choices=tuple(SHORT),
    )
    master_weights: bool | None = flag(
        "--master-weights -w", "keep float32 weights beside 16-bit ones; 0 is refused in fp16", True
    )
    stochastic_rounding: bool | None = flag(
        "--stochastic-rounding",
        "round 16-bit weights up or down at random, right on average; default 0, but 1 with -w 0",
    )
    rungs: str | None = flag(
        "--rungs",
        "reference (NumPy) | naive (the lowest kernels) | best (the fastest, by measurement) | "
        "library (the same, the vendor's among them), or a rungs.json that a run has left",
        ByDevice("reference", "best"),
    )
    rung: Mapping[str, str] | None = flag(
        "--rung",
        "OP=N, OP=NAME or OP=FILE.cu, OP@C:768,OC:2304=N for calls of a shape; overrides --rungs; "
        "may be repeated",
    )
    unconfined: bool | None = flag("--unconfined", confine.FLAG, False)
    fuse: str | None = flag(
        "--fuse",
        "several ops in one: auto (on a GPU, where that is measured to be faster) | none | all | "
        f"some of {', '.join(FUSIONS)}",
        "auto",
    )
    gelu_fusion: int | None = flag(
        "--gelu-fusion -ge",
        "overrides --fuse: 1 with matmul_gelu, 2 with matmul_gelu_backward too, 0 with neither",
        least=0,
        most=2,
    )
    recompute: int | None = flag(
        "--recompute -r",
        "to save memory, compute again in the backward pass: 1 gelu, 2 layernorm too",
        0,
        least=0,
        most=2,
    )
    deterministic: bool | None = flag(
        "--deterministic", "choose only rungs that give the same bits every time", False
    )
    tf32: bool | None = flag(
        "--tf32 -f",
        "in fp32, tensor cores may multiply factors rounded to TF32, 10 bits of fraction",
        False,
    )
    debug_nan: bool | None = flag(
        "--debug-nan", "check every output; stop at the first that is not finite", False
    )
    debug_sync: bool | None = flag(
        "--debug-sync", "wait after every op, so that a fault names its op", False
    )
    ranks: int | None = flag(
        "--ranks --gpus",
        "processes of this machine that train together, each on a GPU of its own",
        1,
        least=1,
        most=1024,
    )
    zero: int | None = flag(
        "--zero -z",
        "ZeRO stage: 1: each rank updates, and keeps the optimizer's state of, its share of the "
        "weights; 0: every rank of all",
        1,
        least=0,
        most=1,
    )
    overlap: bool | None = flag(
        "--overlap",
        "exchange gradients while the backward pass goes on, and weights during the update, not "
        "behind them",
        True,
    )
    exchange: str | None = flag(
        "--exchange",
        "what moves gradients and weights between GPUs: nccl; p2p, our kernels, which read and "
        "write the memory of all GPUs of one machine; auto: p2p where it is possible, else nccl",
        "auto",
        choices=("auto", "nccl", "p2p"),
    )
    rank_timeout: float | None = flag(
        "--rank-timeout",
        "seconds without a sign of life after which a rank counts as lost; at the start, ranks "
        "wait ten times as long for each other",
        20.0,
        above=0.0,
        most=1e6,
    )
    hang_timeout: float | None = flag(
        "--hang-timeout",
        "seconds that one part of the work, such as a micro-batch, the choice of one op's rung or "
        "one tensor of a checkpoint, may take before a rank counts as hanging",
        600.0,
        above=0.0,
        most=1e6,
    )
    processes: int | None = flag(
        "--processes -pn", "for ranks started one by one: how many there are", least=1
    )
    process_rank: int | None = flag("--process-rank -pr", "and which of them this is", least=0)
    gpus_per_node: int | None = flag(
        "--gpus-per-node -pg", "and how many GPUs a machine has", least=1
    )
    meeting: str | None = flag(
        "--meeting -pi -pm",
        "how ranks find each other: by a file in a folder (fs, and mpi, where mpirun says which "
        "rank each is), or by an address",
        "fs",
        choices=("fs", "mpi", "tcp"),
    )
    meeting_folder: str | None = flag(
        "--meeting-folder -pf -pp", "fs: a folder that all ranks see; default --output"
    )
    server: str | None = flag("--server -ps", "tcp: the address of the machine of rank 0")

    seed: int | None = flag(
        "--seed", "of weights, shuffling, dropout, samples", 1337, least=0, most=2**63 - 1
    )

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            _check(getattr(self, f.name), f)
        if self.llmc_order and self.shuffle is False:
            raise LadderError("--llmc-order is a shuffled order; leave out it or --no-shuffle")
        if self.random_offsets and (self.llmc_order or self.shuffle is False):
            other = "--llmc-order" if self.llmc_order else "--no-shuffle"
            raise LadderError(f"--random-offsets and {other} are two orders; leave out one of them")
        if self.eval_train and self.overfit:
            raise LadderError(
                "--eval-train: --overfit trains on validation text; leave out one of them"
            )
        if self.schedule == "constant" and self.warmup:
            raise LadderError(
                "-u: the constant schedule has no warm-up, as in llm.c; "
                "for one that stays level after it choose -k linear -q 1"
            )
        if self.steps == 0:
            raise LadderError("-x 0 trains nothing; choose -x 1 or more, or -x -1 for one epoch")
        if self.val_batches == 0:
            raise LadderError(
                "-m 0 leaves no validation; choose -m 1 or more, or -m -1 for all of it"
            )
        for name in filter(None, (self.report_to or "").split(",")):
            if name not in TRACKERS:
                raise LadderError(f"--report-to {name}: choose among {', '.join(TRACKERS)}")
        for name in (self.fuse or "auto").split(","):
            if name not in FUSIONS and self.fuse not in (None, "auto", "none", "all"):
                raise LadderError(
                    f"--fuse {self.fuse}: choose auto, none or all, or fusions with commas between "
                    f"them, of which there are {', '.join(FUSIONS)}"
                )

    @property
    def typed(self) -> dict[str, Any]:
        """What was typed, by field, as the files of a run keep it."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def uses_dataset(self) -> bool:
        """Whether the text of --dataset is trained on, and not the token files that -i names, or
        those beside the ones of -j."""
        return self.train_data is None and (self.val_data is None or self.dataset is not None)

    def value(self, name: str, gpu: bool = False) -> Any:
        """What was typed, or else the default; None where that follows from other settings.

        gpu  whether the device is one, which some defaults depend on
        """
        (f,) = (f for f in dataclasses.fields(self) if f.name == name)
        typed, default = getattr(self, name), f.metadata["default"]
        if isinstance(default, ByDevice):
            default = default.gpu if gpu else default.cpu
        return default if typed is None else typed


LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "least": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "most": ("at most", operator.le),
    "below": ("below", operator.lt),
}


def _check(value: Any, f: dataclasses.Field[Any]) -> None:
    """Hold one value to the limits of its flag."""
    limits, name = f.metadata, "/".join(f.metadata["names"])
    if value is None or isinstance(value, Mapping):
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise LadderError(f"{name} must be finite, not {value}")
    if value == "" and limits["default"] != "":
        raise LadderError(f"{name} must not be empty; give it a value or leave it out")
    if "choices" in limits and value not in limits["choices"]:
        raise LadderError(f"{name} must be one of {', '.join(limits['choices'])}, not {value!r}")
    for word, (meaning, holds) in LIMITS.items():
        if word in limits and not holds(value, limits[word]):
            raise LadderError(f"{name} must be {meaning} {limits[word]}, not {value}")


# ---- what holds ----


@dataclass(frozen=True)
class DeviceChoice:
    """Where a command computes: the device as `--device` names it ("cuda:1"), whether that is a
    GPU, and the type ("fp32", "fp16", "bf16")."""

    device: str
    gpu: bool
    dtype: str

    @property
    def real(self) -> np.dtype:
        return DTYPES[SHORT[self.dtype]]


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """Which model is computed, and how. Which kernels compute it: `KernelSettings`."""

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
        return DTYPES[SHORT[self.dtype]]

    @property
    def program_options(self) -> dict[str, Any]:
        """What of the settings `trainer.model.program.build` takes."""
        names = ("recompute", "master_weights", "stochastic_rounding")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class StepConfig(ComputeConfig):
    """Training steps: B = `batch` rows of T = `sequence` tokens, `steps` times."""

    batch: int
    sequence: int
    steps: int
    overlap: bool
    exchange: str


@dataclass(frozen=True, kw_only=True)
class SampleConfig(ComputeConfig):
    """Text samples."""

    prompt: str
    sample_tokens: int
    temperature: float
    top_k: int


@dataclass(frozen=True, kw_only=True)
class TrainConfig(StepConfig, SampleConfig):
    """A training run.

    tokenizer             its name
    data_dir              where its files, and those of the text, lie or are put
    dataset               its name; of files given by -i, their pattern
    train_data, val_data  patterns of its token files
    total_tokens          of an optimizer step, over all ranks
    """

    tokenizer: str
    data_dir: str
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
    report_to: str
    plot: bool
    keep_model: bool

    @property
    def accumulation(self) -> int:
        """Micro-batches of an optimizer step on each rank."""
        return self.total_tokens // (self.batch * self.sequence * self.ranks)


Config = TypeVar("Config", bound=ComputeConfig)


def resolve_step(flags: Flags, choice: DeviceChoice, context: int) -> StepConfig:
    """The settings of a measurement of training steps. Raises LadderError as `resolve_run`."""
    values = _common(flags, choice)
    if values["steps"] < 1:
        raise LadderError("-x must be 1 or more: the number of steps to time")
    return _config(StepConfig, values, sequence=resolve_sequence(flags, choice, context))


def resolve_sample(flags: Flags, choice: DeviceChoice) -> SampleConfig:
    """The settings of a command that takes a sample. Raises LadderError as `resolve_run`."""
    return _config(SampleConfig, _common(flags, choice))


def resolve_run(
    flags: Flags,
    choice: DeviceChoice,
    *,
    context: int,
    tokens: int,
    ranks: int = 1,
    **names: str,
) -> TrainConfig:
    """The settings of a training run.

    context  the longest sequence that the model takes
    tokens   of the training data, which an epoch sees once
    ranks    how many processes there are
    names    what is known once the files are: `dataset`, `train_data`, `val_data`,
             `tokenizer`, `data_dir`, `output`

    Raises LadderError where settings do not go together.
    """
    values, sequence = _common(flags, choice), resolve_sequence(flags, choice, context)
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
        **names,
    )


def _config(kind: type[Config], values: Mapping[str, Any], **known: Any) -> Config:
    values = {**values, **known}
    return kind(**{f.name: values[f.name] for f in dataclasses.fields(kind)})


def _common(flags: Flags, choice: DeviceChoice) -> dict[str, Any]:
    """The value of every flag, those resolved that all commands share."""
    return {
        **{f.name: flags.value(f.name, choice.gpu) for f in dataclasses.fields(flags)},
        "device": choice.device,
        "dtype": choice.dtype,
        "stochastic_rounding": _stochastic_rounding(flags, choice.dtype),
    }


def resolve_sequence(flags: Flags, choice: DeviceChoice, context: int) -> int:
    """T: the default is cut to the model's context, and what was typed must fit."""
    if flags.sequence is None:
        return min(int(flags.value("sequence", choice.gpu)), context)
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
