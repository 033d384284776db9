"""What a run tells: on the screen, in its two logs, and at its end as a picture.

A `Report` is told by the loop what has happened; of several ranks, all but the first tell a
`Silent` one. A `Display` prints for every command: a progress bar on a terminal, plain lines
elsewhere.
"""

import contextlib
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ladder.core.common.files import write_json
from ladder.core.measure.roofline import measured_roof
from trainer.engine import rung_choice
from trainer.engine.generation import NoChoice
from trainer.engine.kernels import Kernels
from trainer.engine.memory import by_kind
from trainer.engine.scoring import NoAnswer, Score
from trainer.engine.steps import StepOutcome, stops
from trainer.files import kept_model
from trainer.files.logs import RunLog
from trainer.files.resume import how_to_go_on
from trainer.files.trackers import Trackers
from trainer.model.fusion import makes
from trainer.model.program import build
from trainer.open import Run
from trainer.plots.course import plot
from trainer.ranks.group import Ranks, roster

WIDTH_OF_A_LOG = 120  # columns where the output is no terminal: 80 would fold the tables


def open_console() -> Console:
    """Standard output, as wide as the terminal or as a log is."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH_OF_A_LOG)


# C0 and C1 control characters and DEL, among them ESC, which begins a terminal's commands.
_CONTROL = {
    code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}


def printable(text: str) -> str:
    """`text` with \ufffd for every control character except newline and tab.

    A model may sample any bytes, and those that a terminal takes for commands would move its
    cursor, set its title or colours, or send it input. Files keep the text as it was sampled.
    """
    return text.translate(_CONTROL)


class Display:
    """Prints for a command; what is printed while `bar` is started comes above it."""

    def __init__(self, console: Console, steps: int, done: int = 0) -> None:
        self.console = console
        self.steps = steps
        self.bar = Progress(
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("train", total=steps, completed=done, numbers="")

    def step(self, step: StepOutcome, speed: Mapping[str, float]) -> None:
        """Show a step of training; `speed`: empty where it was not measured."""
        loss = f"loss {step.loss:.4f}"
        if speed:
            loss += f"  {speed['ms']:,.0f} ms/step  {speed['tokens_per_second']:,.0f} tok/s"
        self.bar.update(self.task, completed=step.number + 1, numbers=loss)
        if not self.console.is_terminal:
            measured = "not timed"
            if speed:
                measured = f"{speed['ms']:.2f} ms | {speed['tokens_per_second']:.0f} tok/s | "
                measured += f"{100 * speed['roof_share']:.1f}% of roof"
            self.say(
                f"step {step.number + 1:4d}/{self.steps} | loss {step.loss:.6f} | "
                f"norm {step.norm:.4f} | lr {step.lr:.2e} | {measured}"
            )

    def busy(self, what: str) -> None:
        """Show on the bar what takes a while between two steps."""
        self.bar.update(self.task, numbers=what)

    def say(self, text: str) -> None:
        """A line of plain text; nothing in it is taken for markup or folded."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def facts(self, rows: list[tuple[str, str]]) -> None:
        """The facts that a run prints first, one per line."""
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            self.say(f"{name:{width}}  {value}")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A table after an empty line; a column whose name ends in > is aligned to the right. The
        last column is folded where there is too little room."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            side: Literal["left", "right"] = "right" if column.endswith(">") else "left"
            last = column is columns[-1]
            table.add_column(column.rstrip(">"), justify=side, no_wrap=not last, overflow="fold")
        for row in rows:
            table.add_row(*(escape(cell) for cell in row))
        self.console.print()
        self.console.print(table, highlight=False)


@dataclass(frozen=True)
class Outcome:
    """How a run went: it ended before `step`, and its last checkpoint is that of step `saved`."""

    directory: Path
    step: int
    saved: int | None
    val_losses: list[tuple[int, float]]  # (step, loss)
    status: int  # for the shell: not 0 where the run was interrupted


class Silent(contextlib.nullcontext[None]):
    """The report of every rank but the first: it has the methods of a `Report`, and none of them
    does anything."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *what: None


class Report:
    """What a run prints, logs in its folder and draws there.

    It is entered when the run begins. What is None was interrupted, and is not told.
    """

    def __init__(self, run: Run, console: Console) -> None:
        self.run, self.display = run, Display(console, run.config.steps, run.saved or 0)
        self.times: list[float] = []  # ms of the steps that count in the median
        self.logged = False  # is there a loss in the logs?
        self.flops = run.shape.flops_per_token(run.config.sequence) * run.config.total_tokens

    def __enter__(self) -> None:
        run = self.run
        run.group.working("the measurement of the roof")
        tf32 = any(rung.tf32 for rung in run.kernels.rungs.values())
        # Of all devices together, by that of rank 0.
        self.roof = run.group.size * measured_roof(run.device, run.config.real, tf32)
        run.group.working("the beginning of the run's files")
        announce(run, self.roof, self.display)
        record = {"flags": run.typed, **run.settings, "weights": run.source, "notes": run.notes}
        to, resumed = run.config.report_to, run.saved is not None
        self.trackers = Trackers(to, run.directory, record, resumed, self.say)
        write_json(run.directory / "config.json", record)
        write_json(run.directory / "rungs.json", rung_choice.as_json(run.kernels.choices))
        self.log = RunLog(run.directory, run.saved, self.trackers.log)
        self.display.bar.start()

    def __exit__(self, *exception: object) -> None:
        self.display.bar.stop()
        self.trackers.close()

    def say(self, text: str) -> None:
        self.display.say(text)

    def step(self, step: StepOutcome) -> None:
        speed = self._speed(step)
        skipped = {} if step.skipped is None else {"skipped": step.skipped}
        self.log.train(step.number, step.loss, step.lr, step.norm, **speed, **skipped)
        self.logged = True
        if stops(step, self.run.config):  # with an error, which says it all
            return
        self.display.step(step, speed)
        if step.skipped is not None:
            self.say(f"step {step.number + 1}: update skipped, {step.skipped}")

    def _speed(self, step: StepOutcome) -> dict[str, float]:
        """How fast a step was, as far as that is known, also as a share of the measured roof."""
        if step.ms is None:
            return {}
        if step.warmed_up:
            self.times.append(step.ms)
        return {
            "ms": step.ms,
            "tokens_per_second": 1e3 * self.run.config.total_tokens / step.ms,
            "roof_share": self.flops / (step.ms / 1e3) / self.roof,
        }

    def validation(self, step: int, loss: float | None) -> None:
        if loss is not None:
            self.log.validation(step, loss)
            self.logged = True
            self.say(f"val loss {loss:.6f} (step {step})")

    def train_split(self, step: int, loss: float | None) -> None:
        if loss is not None:
            self.log.event(step, train_split_loss=loss)
            self.say(f"loss on the training text {loss:.6f} (step {step})")

    def scoring(self, done: int) -> None:
        """So many of HellaSwag's examples are done."""
        self.display.busy(f"HellaSwag {done:,}/{len(self.run.examples):,}")

    def score(self, step: int, score: Score | None) -> None:
        if score is not None:
            accuracy = score.right_normalized / score.examples
            self.log.evaluation(step, accuracy)
            counts = f"{score.right_normalized}/{score.examples}"
            self.say(f"HellaSwag {counts} = {accuracy:.4f} (step {step})")

    def sample(self, step: int, text: str | None) -> None:
        if text is not None:
            self.log.event(step, sample=text)
            self.say(f"--- sample at step {step} ---\n{printable(text)}\n---")

    def checkpoint(self, step: int, path: Path | None) -> None:
        self.log.event(step, checkpoint=str(path))
        self.say(f"checkpoint {path}")

    def kept(self, path: Path | None) -> None:
        text = f"text from it: python -m trainer sample -e {self.run.directory}"
        self.say(f"model {path}; {text}; also: chat, eval loss")

    def condition(self, step: int) -> None:
        """Clock and power of the GPU, for --log-gpu."""
        name, said = self.run.device.name, self.run.device.condition()
        self.say(f"{name} at step {step}: {said or 'its clock and power are not known'}")
        if said is not None:
            self.log.event(step - 1, condition=said)

    def end(self, outcome: Outcome) -> None:
        config, directory = self.run.config, outcome.directory
        if config.plot and self.logged:
            self.say(f"plot {plot(directory)}")
        if outcome.saved == config.steps:  # llm.c's scripts look for this file
            (directory / f"DONE_{config.steps:08d}").touch()
        if self.times:
            # The first step is slower on a CPU as well: caches are cold, and threads start.
            median = statistics.median(self.times[1:] or self.times)
            speed = 1e3 * config.total_tokens / median
            self.say(f"median step {median:.1f} ms, {speed:,.0f} tokens/s")
        val_losses = [loss for _, loss in outcome.val_losses]
        if outcome.status:
            left = how_to_go_on(directory, config.checkpoint_every)
            self.say(f"interrupted after {outcome.step} steps; {left}")
        elif len(val_losses) > 1:
            self.say(f"validation loss {val_losses[0]:.4f} -> {val_losses[-1]:.4f}")


@contextlib.contextmanager
def saying_why_not(report: Report | Silent, what: str) -> Iterator[None]:
    """Where the model's numbers are not finite, say so, instead of what would be told of them. The
    next step decides whether the run stops."""
    try:
        yield
    except (NoAnswer, NoChoice) as error:
        report.say(f"no {what}: {error}")


def announce(run: Run, roof: float, display: Display) -> None:
    """Print model, data, device, kernels, and notes on what is used instead of a default."""
    c, group = run.config, run.group
    parameters = sum(math.prod(shape) for shape in run.shape.parameter_shapes().values())
    memory = run.engine.memory_by_kind().total()
    model = f"{c.model}: {run.shape.summary}, {run.shape.vocab} tokens, "
    model += f"{parameters / 1e6:.1f}M parameters"
    data = f"{c.dataset}: {run.train.tokens:,} tokens to train on, {run.val.tokens:,} to validate"
    if (few := run.val.B) < c.batch:
        unused = run.val.tokens - 1 - run.val.batches * few * c.sequence
        data += f": too few for B={c.batch}, so B={few}, and {unused:,} are not used"
    steps = f"{c.steps} of {c.total_tokens:,} tokens, B={c.batch} T={c.sequence}"
    if c.accumulation > 1:
        steps += f", accumulated over {c.accumulation} micro-batches"
    if isinstance(group, Ranks):
        steps += f" on each of {c.ranks} ranks"
    flat = c.schedule == "constant" or (c.schedule == "cosine" and c.final_lr == 1)
    rate = f"{c.lr:g}, " + ("constant" if flat else f"{c.schedule} to {c.final_lr:g} of it")
    rate += f", warm-up {c.warmup} steps" if c.warmup else ""
    # A fusion that was asked for may find none of its ops in this model.
    fused = [name for name in run.engine.program.fusions if makes(name) & run.engine.rungs.keys()]
    saved = "no checkpoints: -n 100 writes one every 100 steps and at the end"
    if c.checkpoint_every:
        saved = f"a checkpoint every {c.checkpoint_every} steps and at the end"
    if run.keeps_model:
        saved += f"; {kept_model.FOLDER}, {kept_model.size(run.shape) / 1e6:,.0f} MB, at the end"
        if kept_model.find(run.directory):
            saved += f" (the one there becomes {kept_model.PREVIOUS})"
    ranks = []
    if isinstance(group, Ranks) and run.peers is not None:
        shared = "each updates its share of the weights (-z 1)"
        how = shared if c.zero else "each updates all weights (-z 0)"
        ranks = [("ranks", f"{c.ranks}: {roster(group.members)}; {how}; by {run.peers.name}")]
    display.facts(
        [
            ("model", model),
            ("weights", run.source),
            ("data", data),
            ("steps", steps),
            ("rate", rate),
            ("device", f"{run.device.name}, {c.dtype}, {memory / 2**30:.2f} GiB of buffers"),
            ("roof", f"{roof / 1e9:,.0f} GFLOP/s in matrix products"),
            *ranks,
            ("fused", ", ".join(fused) or "no ops; --fuse names some"),
            ("output", f"{run.directory}, {saved}"),
        ]
    )
    display.table(("memory", "MiB>"), _memory_rows(run))
    display.table(("op", "rung>", "idea", "why"), _rung_rows(run.kernels))
    display.say("")
    if run.saved is not None:
        display.say(f"resumed at step {run.saved}")
    elif c.resume:
        display.say(f"{run.directory} holds no checkpoint yet: starting from step 0")
    for note in run.notes:
        display.say(f"note: {note}")


def _memory_rows(run: Run) -> list[tuple[str, str]]:
    """The memory allocated, by kind, and the memory that --recompute saves."""
    engine, c = run.engine, run.config
    table = [*engine.memory_by_kind().items()]
    if run.sharding.cuts:  # the rest of them is on the other ranks
        share = f", 1/{c.ranks} of all"
        of_share = ("moment", "master")
        table = [(what + share * (what in of_share), size) for what, size in table]
    rows = [*table, ("together", sum(size for _, size in table))]
    if c.recompute:
        options = {**c.program_options, "recompute": 0}
        kept = build(run.shape, c.batch, c.sequence, sharding=run.sharding, **options)
        spared = by_kind(kept, engine.real).total() - by_kind(engine.program, engine.real).total()
        rows.append((f"spared by -r {c.recompute}", spared))
    return [(what, f"{size / 2**20:,.1f}") for what, size in rows]


def _rung_rows(kernels: Kernels) -> list[tuple[str, str, str, str]]:
    """Every op with its rung and the reason; one row if all are on the reference."""
    choices = kernels.choices
    if all(choice.rung.is_reference for choice in choices.values()):
        return [(f"all {len(choices)}", "0", "the NumPy reference", "")]
    return [
        (op, "own" if c.rung.is_own_file else c.rung.id, c.rung.idea, c.reason)
        for op, c in choices.items()
    ]
