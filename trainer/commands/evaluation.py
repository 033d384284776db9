"""Multiple-choice benchmarks: `python -m trainer eval hellaswag -e runs/gpt2-tinyshakespeare`.

What counts as right: trainer/engine/scoring.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from ladder.core.common.errors import LadderError
from trainer.commands.parser import build_parser
from trainer.data.benchmarks import BENCHMARKS, prepare_benchmark
from trainer.data.datasets import data_directory
from trainer.data.multiple_choice import Example, read_examples
from trainer.engine.engine import Engine
from trainer.engine.scoring import Score, evaluate, in_groups, note_on_length
from trainer.files import weights
from trainer.flags import Flags
from trainer.model.program import Program, build
from trainer.open import of_newest_run, open_machine, open_weights
from trainer.report import open_console


def main(argv: Sequence[str]) -> int:
    name, limit, flags = parse(argv)
    flags = of_newest_run(flags)
    data_dir, model_name = data_directory(flags.data_dir), flags.value("model")
    machine = open_machine(flags)
    model, tokenizer = open_weights(flags)
    weights.refuse_random(model_name, model)
    path, vocab = Path(name), tokenizer.vocab
    if name in BENCHMARKS:
        path, every = prepare_benchmark(name, tokenizer.name, data_dir, vocab=vocab)
    else:
        every = read_examples(path, vocab=vocab)
    examples = every[:limit]
    B = flags.batch or (64 if machine.choice.gpu else 4)
    groups = in_groups(examples, B, model.shape.context, machine.device)
    T, *shorter = groups

    def forward_only(rows: int, fused: Collection[str], length: int = T) -> Program:
        return build(model.shape, rows, length, training=False, fusions=fused)

    def shorter_one(rows: int) -> Program | None:
        return forward_only(rows, fused, shorter[0]) if shorter else None

    kernels = machine.choose(forward_only, B)
    fused = kernels.program.fusions
    engine = machine.engine(kernels, forward_only, model.pieces, beside=shorter_one, takes=("-b",))

    def engine_of(length: int) -> Engine:
        if length == T:
            return engine
        program, real = forward_only(B, fused, length), machine.choice.real
        return Engine(program, machine.device, real, kernels.rungs, weights_of=engine)

    console = open_console()
    dtype, lengths = machine.choice.dtype, f"{min(groups)} to {T}" if shorter else f"{T}"
    for line in (
        f"{name}: {len(examples):,} of {len(every):,} examples, B={B} T={lengths}, {dtype}",
        f"weights: {model.source}",
        *(f"note: {note}" for note in note_on_length(examples, T)),
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    score = _evaluate_groups(groups, engine_of, console)
    for what, right in (("accuracy", score.right), ("normalized", score.right_normalized)):
        console.print(f"{what:10}  {describe(right, score.examples)}", highlight=False)
    return 0


def _evaluate_groups(
    groups: Mapping[int, Sequence[Example]], engine_of: Callable[[int], Engine], console: Console
) -> Score:
    """The score on examples by T, with a progress bar. `engine_of` makes the engine of a T."""
    score = Score(0, 0, 0)
    with Progress(
        BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    ) as bar:  # fmt: skip
        task = bar.add_task("", total=sum(map(len, groups.values())))

        def show(done: int) -> None:
            bar.update(task, completed=score.examples + done)

        for T, examples in groups.items():
            engine = engine_of(T)
            found = evaluate(engine, examples, show=show)
            assert found is not None  # nothing stops it
            score += found
            engine.close()
            del engine  # its memory is free when the next one is made
    return score


def describe(right: int, examples: int) -> str:
    """A share with its standard error, sqrt(p (1 - p) / n): 0.2955 ± 0.0046 (2,967 of 10,042)."""
    share = right / examples
    error = math.sqrt(share * (1 - share) / examples)
    return f"{share:.4f} ± {error:.4f} ({right:,} of {examples:,})"


def parse(argv: Sequence[str]) -> tuple[str, int | None, Flags]:
    """The benchmark or file, how many of its examples, and those flags of training that matter."""
    names = (
        *("model", "batch", "tokenizer", "data_dir", "seed", "device", "dtype"),
        *("rungs", "rung", "fuse", "gelu_fusion"),
    )
    description = "The accuracy of a trained model on a multiple-choice benchmark."
    helps = {"batch": "rows of a batch, four for an example; default 4, on a GPU 64"}
    parser = build_parser("python -m trainer eval", description, names, helps=helps)
    known = " | ".join(BENCHMARKS)
    parser.add_argument("name", metavar="NAME", help=f"{known}, or a .bin file of llm.c's format")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N examples")
    words = vars(parser.parse_args(argv))
    name, limit = words.pop("name"), words.pop("limit")
    if limit is not None and limit < 1:
        raise LadderError(f"--limit must be at least 1, not {limit}")
    if name not in BENCHMARKS and not Path(name).exists():
        raise LadderError(f"{name}: no such file, and none of {', '.join(BENCHMARKS)}")
    return name, limit, Flags(**words)
