"""`python -m trainer torch`: the same data, weights and settings here and in PyTorch, side by side.

Both train for `-x` steps, with the flags that they have in training. One table has the loss of each
step, another one the time of a step, tokens per second and memory.
"""

import dataclasses
import gc
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.common.install import install
from trainer.commands import torch_gpt2
from trainer.commands.parser import build_parser
from trainer.commands.torch_gpt2 import MODES, WARM_UP, Mode, TorchTraining
from trainer.engine.steps import rate_of
from trainer.flags import Flags, TrainConfig
from trainer.model.gpt2 import GPT2Config
from trainer.open import Run, open_run
from trainer.report import Display, open_console
from trainer.train import take_step

FLAGS = (
    *("model", "dataset", "tokenizer", "train_data", "val_data", "data_dir"),
    *("shuffle", "llmc_order", "random_offsets"),
    *("batch", "sequence", "total_tokens", "steps", "overfit"),
    *("lr", "warmup", "final_lr", "schedule", "weight_decay", "beta1", "beta2", "eps", "grad_clip"),
    *("device", "dtype", "master_weights", "stochastic_rounding", "rungs", "rung", "fuse"),
    *("gelu_fusion", "recompute", "deterministic", "tf32", "seed"),
)
NAMES = {"eager": "PyTorch, eager", "compiled": "compiled", "graph": "CUDA graph"}
SHOWN = 10  # steps whose losses are printed at the start, and as many at the end


@dataclass(frozen=True)
class Course:
    """How a run went: its losses, the milliseconds of its steps after the warm-up, bytes of memory
    (None: not known)."""

    losses: list[float]
    ms: list[float]
    size: int | None


def main(argv: Sequence[str]) -> int:
    parser = build_parser(
        "python -m trainer torch",
        "Train here and in PyTorch from the same weights on the same data, and print losses and "
        "times side by side.",
        FLAGS,
        helps={"steps": "steps to train; default 20"},
    )
    parser.add_argument(
        "--modes",
        default=None,
        metavar=",".join(MODES),
        help="how PyTorch runs: eagerly, by torch.compile, that with CUDA graphs; default all, on "
        "the CPU eager,compiled",
    )
    parser.set_defaults(steps=20)
    words = vars(parser.parse_args(argv))
    asked = words.pop("modes")
    flags = Flags(**words)
    if torch_gpt2.torch is None:
        raise LadderError(f"PyTorch is not installed; {install('torch')} adds it")
    if flags.value("steps") < WARM_UP + 2:
        raise LadderError(f"-x must be {WARM_UP + 2} or more: the first {WARM_UP} warm up")
    with tempfile.TemporaryDirectory() as nowhere:  # no checkpoint is read, and nothing is written
        run = open_run(dataclasses.replace(flags, output=nowhere, sample_every=0))
    modes = _modes(asked, run)
    display = Display(open_console(), 0)
    for note in run.notes:
        display.say(f"note: {note}")
    courses = dict(compare(run, modes, display.say))
    report(courses, run.config, display)
    return int(len(courses) <= len(modes))


def compare(
    run: Run, modes: Sequence[Mode], say: Callable[[str], None]
) -> Iterator[tuple[str, Course]]:
    """Ours and then PyTorch in each mode, by name. A mode that PyTorch cannot run is left out, and
    `say` is told why."""
    config, shape = run.config, run.shape
    assert isinstance(shape, GPT2Config)
    engine = run.engine
    names = engine.program.config.parameters()
    weights = {name: np.asarray(engine.read(name), np.float32) for name in names}
    start = run.train.state()
    yield f"ours, --rungs {run.kernels.settings.rungs}", _ours(run)
    del engine, run.engine, run.steps  # PyTorch needs the memory
    gc.collect()
    run.device.free_unused()
    for mode in modes:
        run.train.restore(start)
        try:
            training = TorchTraining(shape, weights, config, mode, run.kernels.settings.tf32)
            yield NAMES[mode], _torch(run, training)
        except RuntimeError as error:  # the base of PyTorch's own: memory, compiler, capture
            say(f"{NAMES[mode]}: {str(error).strip().splitlines()[0]}")


def _ours(run: Run) -> Course:
    taken = [take_step(run.steps, run.train, number) for number in range(run.config.steps)]
    steps = [step for step in (*taken, run.steps.finish()) if step is not None]
    for step in steps:
        if step.skipped is not None:
            raise LadderError(f"step {step.number + 1} was skipped: {step.skipped}; choose fp32")
    warmed_up = [step.ms for step in steps if step.ms is not None and step.warmed_up]
    size = run.engine.memory_by_kind().total()
    return Course([step.loss for step in steps], warmed_up[1:] or warmed_up, size)


def _torch(run: Run, training: TorchTraining) -> Course:
    config, loader = run.config, run.train
    losses = []
    for number in range(config.steps):
        if config.overfit:
            loader.reset()
        batches = [loader.next_batch() for _ in range(config.accumulation)]
        losses.append(training.step(batches, rate_of(config, number)))
    return Course([float(loss) for loss in losses], training.milliseconds(), training.peak_bytes())


def report(courses: dict[str, Course], config: TrainConfig, display: Display) -> None:
    rows = [
        (f"{step + 1:,}", *(f"{course.losses[step]:.6f}" for course in courses.values()))
        for step in range(config.steps)
        if step < SHOWN or step >= config.steps - SHOWN
    ]
    display.table(("step>", *(f"{name}>" for name in courses)), rows)
    ours = next(iter(courses.values()))
    table = []
    for name, course in courses.items():
        ms = statistics.median(course.ms)
        apart = max(abs(a - b) for a, b in zip(course.losses, ours.losses, strict=True))
        table.append(
            (
                name,
                f"{ms:,.2f}",
                f"{1e3 * config.total_tokens / ms:,.0f}",
                "-" if course.size is None else f"{course.size / 2**30:.1f}",
                "-" if course is ours else f"{apart:.1e}",
            )
        )
    columns = ("", "ms/step>", "tokens/s>", "GiB>", "losses within>")
    display.table(columns, table)


def _modes(asked: str | None, run: Run) -> list[Mode]:
    """The modes to run. Raises LadderError for a wrong one, and for what PyTorch is not asked."""
    if type(run.shape) is not GPT2Config or run.shape.has_dropout:
        raise LadderError("-e: the comparison is of GPT-2 without dropout; choose such as d6, gpt2")
    if run.config.dtype == "fp16":
        raise LadderError("--dtype fp16: the comparison has no loss scale; choose bf16 or fp32")
    if not (run.device.is_gpu or run.device.runs_reference):
        raise LadderError("--device emulated: nothing to compare the times of; choose cpu or cuda")
    default = MODES if run.device.is_gpu else MODES[:2]
    if asked is None:
        return list(default)
    chosen = [mode for mode in MODES if mode in asked.split(",")]
    if len(chosen) != len(asked.split(",")) or not set(chosen) <= set(default):
        raise LadderError(
            f"--modes {asked}: choose among {', '.join(default)}, with commas between them"
        )
    return chosen
