"""Every setting of a training run, in one dataclass; the command line is built from it (flags.py).

Names and meanings follow llm.c, whose short flags are accepted as aliases. A setting left at None
takes the value that `DEFAULTS` holds for the device of the run.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ladder.common.errors import LadderError

# What a run does when nothing else is asked for.
# Without a GPU it is the CPU quick start of llm.c (train_gpt2.c): 40 short steps, some minutes.
# With one it is its fine-tuning run: one epoch over tinyshakespeare, 74 steps.
DEFAULTS: dict[str, dict[str, Any]] = {
    "cpu": {
        "batch": 4,
        "sequence": 64,
        "steps": 40,
        "lr": 1e-4,
        "beta2": 0.999,
        "grad_clip": 0.0,
        "val_every": 10,
        "val_batches": 5,
        "sample_every": 40,
        "dtype": "fp32",
        "rungs": "reference",
    },
    "cuda": {
        "batch": 4,
        "sequence": 1024,
        "steps": -1,
        "lr": 1e-4,
        "beta2": 0.95,
        "grad_clip": 1.0,
        "val_every": 20,
        "val_batches": 20,
        "sample_every": 20,
        "dtype": "bf16",
        "rungs": "best",
    },
}
DEFAULTS["emulated"] = DEFAULTS["cpu"]  # name the kernels by --rung, or all by --rungs naive

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
DATASETS = ("tinyshakespeare", "tinystories", "fineweb", "play")
TOKENIZERS = ("gpt2", "bytes", "chars")
Schedule = Literal["cosine", "linear", "constant", "wsd"]
Fusion = Literal["residual_layernorm", "matmul_gelu"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)  # how each runs: trainer/run/schedule.py
FUSIONS: tuple[Fusion, ...] = get_args(Fusion)  # what each fuses: trainer/model/fusion.py
RUNG_SETS = ("reference", "naive", "best", "library")


def setting(default: Any, flags: str, help: str, **checks: Any) -> Any:
    """A field with its flags ("--batch -b") and what its value is held to: numbers to `least`,
    `above`, `most`, `below`, strings to `choices`."""
    return field(default=default, metadata={"flags": flags.split(), "help": help, **checks})


@dataclass(frozen=True)
class TrainConfig:
    """One training run. Raises LadderError on construction where a value is out of range."""

    # What is trained, and on what
    model: str = setting(
        "gpt2",
        "--model -e",
        "gpt2 | gpt2-medium | gpt2-large | gpt2-xl (pretrained), d6 ... d84 | char (random "
        "weights), or a file or folder: .bin, .safetensors, a checkpoint",
    )
    dataset: str = setting(
        "tinyshakespeare", "--dataset", "text to prepare and train on", choices=DATASETS
    )
    tokenizer: str | None = setting(
        None, "--tokenizer", "how text becomes tokens (chars for model char)", choices=TOKENIZERS
    )
    train_data: str | None = setting(
        None, "--train-data -i", "token files to train on, a .bin pattern; instead of --dataset"
    )
    val_data: str | None = setting(
        None, "--val-data -j", "token files to validate on, a .bin pattern"
    )
    data_dir: str | None = setting(
        None, "--data-dir", "where data lies or is put; else $KERNEL_LADDER_DATA, else ./data"
    )
    shuffle: bool = setting(True, "--no-shuffle", "take the training data in order")

    # Size of a step, and how many
    batch: int | None = setting(None, "--batch -b", "rows of a micro-batch, B", least=1, most=65536)
    sequence: int | None = setting(
        None, "--sequence -t", "tokens of a row, T", least=1, most=1 << 20
    )
    total_tokens: int | None = setting(
        None,
        "--total-tokens -d",
        "tokens of an optimizer step; a multiple of B*T, which is the default",
        least=1,
        most=1 << 31,
    )
    steps: int | None = setting(
        None, "--steps -x", "optimizer steps to run; -1: one epoch", least=-1
    )
    overfit: bool = setting(
        False, "--overfit -a", "train on the first validation batch alone, to see the loss vanish"
    )

    # Optimizer
    lr: float | None = setting(None, "--lr -l", "learning rate, the highest", above=0.0, most=1e3)
    warmup: int = setting(0, "--warmup -u", "steps over which the rate rises from 0", least=0)
    final_lr: float = setting(
        1.0, "--final-lr -q", "the rate at the end, as a fraction of --lr", least=0.0, most=1.0
    )
    schedule: str = setting(
        "cosine", "--schedule -k", "course of the learning rate", choices=SCHEDULES
    )
    weight_decay: float = setting(
        0.0, "--weight-decay -c", "AdamW's decay, of matrices only", least=0.0, most=100.0
    )
    beta1: float = setting(0.9, "--beta1", "AdamW's memory of the mean", least=0.0, below=1.0)
    beta2: float | None = setting(
        None, "--beta2", "AdamW's memory of the square", least=0.0, below=1.0
    )
    eps: float = setting(1e-8, "--eps", "AdamW's epsilon", above=0.0, most=1.0)
    grad_clip: float | None = setting(
        None, "--grad-clip", "largest length of the gradient; 0: no clipping", least=0.0
    )
    loss_outlier: float = setting(
        0.0, "--loss-outlier -sl", "skip updates whose loss is this many sigmas up; 0: off", least=0
    )
    grad_outlier: float = setting(
        0.0, "--grad-outlier -sg", "the same for the gradient's length; 0: off", least=0
    )
    nonfinite: str = setting(
        "stop",
        "--nonfinite",
        "a loss or gradient that is not finite: stop the run, or skip the update",
        choices=("stop", "skip"),
    )

    # Looking at it
    val_every: int | None = setting(
        None, "--val-every -v", "steps between validations; 0: at the start and the end", least=0
    )
    val_batches: int | None = setting(
        None, "--val-batches -m", "batches of a validation; -1: the whole split", least=-1
    )
    sample_every: int | None = setting(
        None, "--sample-every -s", "steps between text samples; 0: none", least=0
    )
    sample_tokens: int = setting(
        64, "--sample-tokens -g", "tokens of a text sample", least=1, most=1 << 20
    )
    prompt: str = setting("", "--prompt", "what a sample begins with")
    temperature: float = setting(
        1.0, "--temperature", "of sampling; 0: always the likeliest", least=0.0, most=100.0
    )
    top_k: int = setting(0, "--top-k", "sample among the k likeliest; 0: among all", least=0)

    # Output
    output: str | None = setting(
        None, "--output -o", "folder of the run; default runs/MODEL-DATASET"
    )
    checkpoint_every: int = setting(
        0,
        "--checkpoint-every -n",
        "steps between checkpoints, one more at the end; 0: none",
        least=0,
    )
    keep: int = setting(0, "--keep -nk", "checkpoints to keep; 0: all", least=0)
    major_every: int = setting(
        0, "--major-every -nm", "checkpoints at multiples of this are always kept", least=0
    )
    resume: bool = setting(
        False, "--resume -y", "go on from the newest checkpoint in --output, bit for bit"
    )
    plot: bool = setting(True, "--no-plot", "draw no loss.png at the end")

    # Machine
    device: str | None = setting(
        None,
        "--device",
        "cpu, emulated (kernels on the CPU), cuda or cuda:N; cuda where there is one",
    )
    dtype: str | None = setting(
        None,
        "--dtype",
        "type of weights and activations; fp16 on a GPU too old for bf16",
        choices=tuple(DTYPES),
    )
    master_weights: bool = setting(
        True, "--master-weights -w", "keep float32 weights beside 16-bit ones; 0 is refused in fp16"
    )
    stochastic_rounding: bool | None = setting(
        None,
        "--stochastic-rounding",
        "round 16-bit weights up or down at random, right on average; default 0, but 1 with -w 0",
    )
    rungs: str | None = setting(
        None,
        "--rungs",
        "reference (NumPy) | naive (the lowest kernels) | best (the fastest, by measurement) | "
        "library (the same, the vendor's among them), or a rungs.json that a run has left",
    )
    rung: tuple[str, ...] = setting(
        (), "--rung", "OP=N or OP=FILE.cu, over --rungs; may be given several times"
    )
    fuse: str = setting(
        "auto",
        "--fuse",
        "several ops in one: auto (on a GPU, where that is measured to be faster) | none | all | "
        f"some of {', '.join(FUSIONS)}",
    )
    gelu_fusion: int | None = setting(
        None, "--gelu-fusion -ge", "over --fuse: 0 without matmul_gelu, 1 with it", least=0
    )
    recompute: int = setting(
        0,
        "--recompute -r",
        "to save memory, compute again in the backward pass: 1 gelu, 2 layernorm too",
        least=0,
        most=2,
    )
    deterministic: bool = setting(
        False, "--deterministic", "choose only rungs that give the same bits every time"
    )
    debug_nan: bool = setting(
        False, "--debug-nan", "look at all that is computed; stop at what is not finite"
    )
    debug_sync: bool = setting(
        False, "--debug-sync", "wait after every op, so that a fault names the one that it is in"
    )
    seed: int = setting(
        1337, "--seed", "of weights, shuffling, dropout, samples", least=0, most=2**63 - 1
    )

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            _check(getattr(self, f.name), f)
        if (self.train_data is None) != (self.val_data is None):
            given, missing = ("-i", "-j") if self.val_data is None else ("-j", "-i")
            raise LadderError(
                f"{given} names token files; {missing} must name the matching ones as well"
            )
        if self.schedule == "constant" and self.warmup:
            raise LadderError(
                "-u: the constant schedule has no warm-up, as in llm.c; "
                "for one that stays level after it choose -k linear -q 1"
            )
        for name in self.fuse.split(","):
            if name not in FUSIONS and self.fuse not in ("auto", "none", "all"):
                raise LadderError(
                    f"--fuse {self.fuse}: choose auto, none or all, or fusions with commas between "
                    f"them, of which there are {', '.join(FUSIONS)}"
                )
        if self.gelu_fusion not in (None, 0, 1):
            raise LadderError(
                f"-ge {self.gelu_fusion}: only the forward pass of gelu can be fused; choose -ge 1"
            )
        named: dict[str, str] = {}
        for entry in self.rung:
            op, _, choice = entry.partition("=")
            if not op or not choice:
                raise LadderError(
                    f"--rung {entry}: write OP=N or OP=FILE.cu, such as gelu.forward=1"
                )
            if named.setdefault(op, choice) != choice:
                raise LadderError(f"--rung {op}={named[op]} and --rung {entry}: choose one of them")

    @property
    def program_options(self) -> dict[str, Any]:
        """What of the settings `reference.gpt2.build` takes. After `resolve`."""
        names = ("recompute", "master_weights", "stochastic_rounding")
        return {name: getattr(self, name) for name in names}

    @property
    def accumulation(self) -> int:
        """Micro-batches of an optimizer step. After `resolve`."""
        return self.total_tokens // (self.batch * self.sequence)


def resolve(config: TrainConfig, device_kind: str, context: int) -> TrainConfig:
    """Fill in what was left open, for a device ("cpu", "emulated", "cuda") and a model's context.

    Raises LadderError where settings do not go together.
    """
    values = {k: v for k, v in DEFAULTS[device_kind].items() if getattr(config, k) is None}
    if "sequence" in values:
        values["sequence"] = min(values["sequence"], context)
    config = dataclasses.replace(config, **values)
    if config.sequence > context:
        raise LadderError(
            f"-t {config.sequence} is beyond the model's context; choose -t {context} or less"
        )
    tokens = config.batch * config.sequence
    if config.total_tokens is None:
        config = dataclasses.replace(config, total_tokens=tokens)
    if config.total_tokens % tokens:
        near = max(1, round(config.total_tokens / tokens)) * tokens
        raise LadderError(
            f"-d {config.total_tokens} is no multiple of B*T = {config.batch}*{config.sequence} = "
            f"{tokens}; choose e.g. -d {near}"
        )
    if config.steps == 0:
        raise LadderError("-x 0 trains nothing; choose -x 1 or more, or -x -1 for one epoch")
    if config.val_batches == 0:
        raise LadderError("-m 0 leaves no validation; choose -m 1 or more, or -m -1 for all of it")
    return _resolve_rounding(config)


def _resolve_rounding(config: TrainConfig) -> TrainConfig:
    """Whether 16-bit weights are rounded at random, and whether they may be all there is."""
    if config.dtype == "fp32":
        if config.stochastic_rounding:
            raise LadderError(
                "--stochastic-rounding: an fp32 run rounds no weights; drop it, or choose "
                "--dtype bf16 or fp16"
            )
    elif not config.master_weights:
        if config.dtype == "fp16":
            raise LadderError(
                "-w 0: a weight that overflows in fp16 is lost unless its float32 master is kept; "
                "drop it, or choose --dtype bf16, whose range is float32's"
            )
        if config.stochastic_rounding is False:
            raise LadderError(
                "-w 0 --stochastic-rounding 0: rounded to nearest, bf16 weights that are their own "
                "masters stay where they are at most updates; drop one of the two"
            )
        return dataclasses.replace(config, stochastic_rounding=True)
    return dataclasses.replace(config, stochastic_rounding=bool(config.stochastic_rounding))


def _check(value: Any, f: dataclasses.Field) -> None:
    """Hold one value to the limits of its setting."""
    checks, flag = f.metadata, "/".join(f.metadata["flags"])
    if value is None or isinstance(value, tuple):
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise LadderError(f"{flag} must be finite, not {value}")
    if value == "" and f.default != "":
        raise LadderError(f"{flag} must not be empty; give it a value or leave it out")
    if "choices" in checks and value not in checks["choices"]:
        raise LadderError(f"{flag} must be one of {', '.join(checks['choices'])}, not {value!r}")
    for word, fails in (
        ("least", lambda limit: value < limit),
        ("above", lambda limit: value <= limit),
        ("most", lambda limit: value > limit),
        ("below", lambda limit: value >= limit),
    ):
        if word in checks and fails(checks[word]):
            wording = {"least": "at least", "above": "above", "most": "at most", "below": "below"}
            raise LadderError(f"{flag} must be {wording[word]} {checks[word]}, not {value}")
