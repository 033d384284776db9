"""The display of a run: a progress bar on a terminal, one plain line per step elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from trainer.engine.steps import Step

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


@dataclass(frozen=True)
class Speed:
    """How fast a step was; `mfu`: its model FLOPs utilisation, 0 to 1."""

    ms: float
    tokens_per_second: float
    mfu: float


class Display:
    """A context manager that shows the bar; everything else is printed above the bar."""

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

    def __enter__(self) -> Display:
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()

    def step(self, step: Step, speed: Speed | None) -> None:
        """Show a step of training; `speed`: None where it was not measured."""
        loss = f"loss {step.loss:.4f}"
        if speed is not None:
            loss += f"  {speed.ms:,.0f} ms/step  {speed.tokens_per_second:,.0f} tok/s"
        self.bar.update(self.task, completed=step.number + 1, numbers=loss)
        if not self.console.is_terminal:
            measured = "not timed"
            if speed is not None:
                measured = f"{speed.ms:.2f} ms | {speed.tokens_per_second:.0f} tok/s | "
                measured += f"{100 * speed.mfu:.1f}% MFU"
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
