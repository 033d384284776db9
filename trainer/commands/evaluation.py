"""How good a model is: `python -m trainer eval hellaswag -e runs/gpt2-tinyshakespeare`, its answers
on a multiple-choice benchmark; `eval loss`, its mean loss on a text.

What counts as right: trainer/engine/scoring.py.
"""

import dataclasses
import glob
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from ladder.core.common.errors import LadderError
from trainer.commands.parser import TRAINED, build_parser
from trainer.data.benchmarks import BENCHMARKS, prepare_benchmark
from trainer.data.datasets import token_files
from trainer.data.download import data_directory
from trainer.data.multiple_choice import Example, read_examples
from trainer.data.token_files import TokenLoader, is_text, spelled_out
from trainer.engine.engine import Engine
from trainer.engine.passes import fetch_loss, write_rows
from trainer.engine.scoring import Score, evaluate, in_groups, note_on_length
from trainer.files import weights
from trainer.flags import Flags, resolve_sequence
from trainer.model.program import Program
from trainer.open import Machine, builder, of_newest_run, open_machine
from trainer.report import Display, open_console

LOSS, SPLITS = "loss", ("train", "val")
SECONDS = 10  # between lines on the progress


def main(argv: Sequence[str]) -> int:
    name, limit, on, flags = parse(argv)
    flags = of_newest_run(flags)
    data_dir = data_directory(flags.data_dir)
    machine = open_machine(flags)
    model, tokenizer = weights.open_with_tokenizer(flags)
    source = flags.value("model")
    weights.refuse_random(source, model)
    B = flags.batch or (64 if machine.choice.gpu else 4)
    if name == LOSS:
        run, context = weights.settings_of(Path(source)), model.shape.context
        pattern = run.get(f"{on}_data") if on in SPLITS else token_files(on, data_dir, tokenizer)
        if pattern is None or (on in SPLITS and not glob.glob(pattern)):
            raise LadderError(f"-e {source}: no run whose text is here; name a text by --on FILE")
        T = flags.sequence or run.get("sequence") or min(1024, context)
        T = resolve_sequence(dataclasses.replace(flags, sequence=T), machine.choice, context)
        text = on if is_text(on) else ""
        loader = TokenLoader(pattern, 1, T, vocab=tokenizer.vocab, shuffle=False, text=text)
        its = run.get("batch", 0) * run.get("val_batches", 0)
        its = its if on == "val" and run.get("sequence") == T else 0
        return print_loss(machine, model, loader, B, limit, its)
    path, vocab = Path(name), tokenizer.vocab
    if name in BENCHMARKS:
        path, every = prepare_benchmark(name, tokenizer.name, data_dir, vocab=vocab)
    else:
        every = read_examples(path, vocab=vocab)
    examples = every[:limit]
    groups = in_groups(examples, B, model.shape.context, machine.device)
    T, *shorter = groups

    forward_only = {length: builder(model.shape, length, training=False) for length in groups}
    kernels = machine.choose(forward_only[T], B)
    fused = kernels.program.fusions

    def shorter_one(rows: int) -> Program | None:
        return forward_only[shorter[0]](rows, fused) if shorter else None

    pieces, takes = model.pieces, ("-b",)
    engine = machine.engine(kernels, forward_only[T], pieces, beside=shorter_one, takes=takes)

    def engine_of(length: int) -> Engine:
        if length == T:
            return engine
        program, real = forward_only[length](B, fused), machine.choice.real
        return Engine(program, machine.device, real, kernels.rungs, weights_of=engine)

    screen = Display(open_console(), 0)
    dtype, lengths = machine.choice.dtype, f"{min(groups)} to {T}" if shorter else f"{T}"
    screen.say(f"{name}: {len(examples):,} of {len(every):,} examples, B={B} T={lengths}, {dtype}")
    screen.say(f"weights: {model.source}")
    for note in note_on_length(examples, T):
        screen.say(f"note: {note}")
    score = _evaluate_groups(groups, engine_of, screen.console)
    for what, right in (("accuracy", score.right), ("normalized", score.right_normalized)):
        screen.say(f"{what:10}  {describe(right, score.examples)}")
    return 0


def print_loss(
    machine: Machine, model: weights.Model, loader: TokenLoader, B: int, limit: int | None, its: int
) -> int:
    """Print the mean loss on the rows that a loader of one row reads, B at a time, and how many of
    them are the run's own validation's, `its`, if fewer."""
    rows, T = min(limit or loader.batches, loader.batches), loader.T
    B = min(B, rows)
    forward_only = builder(model.shape, T, training=False)
    engine = machine.engine(machine.choose(forward_only, B), forward_only, model.pieces)
    screen = Display(open_console(), 0)
    text = f"{loader.tokens:,} tokens, {rows:,} rows of T={T}, B={B}, {machine.choice.dtype}"
    screen.say(f"text: {text}\nweights: {model.source}")
    if 0 < its < rows:
        screen.say(f"note: the run's own validation took the first {its:,} rows: --limit {its}")
    total, said = 0.0, time.monotonic()
    with _progress(screen.console) as bar:
        for first in bar.track(range(0, rows, B)):
            if not screen.console.is_terminal and time.monotonic() - said > SECONDS:
                said = time.monotonic()
                screen.say(f"{first:,} of {rows:,} rows")
            batch = [loader.next_batch() for _ in range(min(B, rows - first))]
            write_rows(engine, *map(np.concatenate, zip(*batch, strict=True)))
            engine.evaluate()
            total += fetch_loss(engine, len(batch))() * len(batch)
    screen.say(f"loss: {total / rows:.6f} nats per token")
    return 0


def _progress(console: Console) -> Progress:
    return Progress(
        BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip


def _evaluate_groups(
    groups: Mapping[int, Sequence[Example]], engine_of: Callable[[int], Engine], console: Console
) -> Score:
    """The score on examples by T, with a progress bar. `engine_of` makes the engine of a T."""
    score = Score(0, 0, 0)
    with _progress(console) as bar:
        task = bar.add_task("", total=sum(map(len, groups.values())))

        def show(done: int) -> None:
            bar.update(task, completed=score.examples + done)

        for T, examples in groups.items():
            engine = engine_of(T)
            of_these = evaluate(engine, examples, show=show)
            assert of_these is not None  # nothing stops it
            score = Score(*map(sum, zip(score, of_these, strict=True)))
            engine.close()
            del engine  # its memory is free when the next one is made
    return score


def describe(right: int, examples: int) -> str:
    """A share with its standard error, sqrt(p (1 - p) / n): 0.2955 ± 0.0046 (2,967 of 10,042)."""
    share = right / examples
    error = math.sqrt(share * (1 - share) / examples)
    return f"{share:.4f} ± {error:.4f} ({right:,} of {examples:,})"


def parse(argv: Sequence[str]) -> tuple[str, int | None, str, Flags]:
    """What is measured: a benchmark, a file of one, or LOSS; on how many of its examples or rows;
    the text of --on; and those flags of training that matter."""
    names = (
        *("model", "batch", "sequence", "tokenizer", "data_dir", "seed", "device", "dtype"),
        *("rungs", "rung", "fuse", "gelu_fusion"),
    )
    description = (
        "The accuracy of a trained model on a multiple-choice benchmark, or its loss on a text."
    )
    helps = {
        **TRAINED,
        "batch": "rows of a batch, four for an example of a benchmark; default 4, on a GPU 64",
        "sequence": f"of {LOSS}: tokens of a row, T; default: as the run, else up to 1024",
    }
    parser = build_parser("python -m trainer eval", description, names, helps=helps)
    known = " | ".join((LOSS, *BENCHMARKS))
    parser.add_argument("name", metavar="NAME", help=f"{known}, or a .bin file of llm.c's format")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N examples, or rows")
    parser.add_argument(
        "--on",
        metavar="FILE",
        help=f"of {LOSS}: a text, token files (a .bin pattern), or {' | '.join(SPLITS)} of the "
        "run's own text; default val",
    )
    words = vars(parser.parse_args(argv))
    name, limit, on = (words.pop(word) for word in ("name", "limit", "on"))
    if limit is not None and limit < 1:
        raise LadderError(f"--limit must be at least 1, not {limit}")
    if name != LOSS and (on is not None or words["sequence"] is not None):
        raise LadderError(f"--on and -t are for eval {LOSS}, not for {name}")
    if on not in (None, *SPLITS) and not (Path(on).exists() or glob.glob(spelled_out(on, "val"))):
        raise LadderError(
            f"--on {on}: no such file; name a text, token files or {' | '.join(SPLITS)}"
        )
    if name not in (LOSS, *BENCHMARKS) and not Path(name).exists():
        raise LadderError(f"{name}: no such file, and none of {', '.join((LOSS, *BENCHMARKS))}")
    return name, limit, on or "val", Flags(**words)
