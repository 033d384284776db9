"""The two logs of a run: llm.c's `main.log`, and `log.jsonl` for programs.

    s:0 tel:4.5123                                   validation loss
    s:20 eval:0.2945                                 normalized accuracy on HellaSwag
    s:0 trl:4.3677 lr:0.000100 norm:6.21             a step of training

`log.jsonl` holds the same and more, one JSON object a line, at full precision. Both are read, and
so is the `main.log` of llm.c itself (llmc/logger.h).
"""

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.core.common.errors import LadderError
from ladder.core.common.files import atomic_write, read_bytes
from trainer.files.weights import known_runs, settings_of

MOST_BYTES = 1 << 30  # of a log: some millions of steps
LOGS = ("log.jsonl", "main.log")  # of a run's folder; llm.c writes the second
EMULATED = ("emulated", "isa:")  # how devices begin whose times say nothing of a kernel's

# What is read of a log: the key in log.jsonl, and the word in main.log.
NUMBERS = {
    "train_loss": "trl",
    "val_loss": "tel",
    "eval": "eval",
    "lr": "lr",
    "norm": "norm",
    "ms": None,
    "tokens_per_second": None,
    "train_split_loss": None,
}
KEYS = {word: key for key, word in NUMBERS.items() if word is not None}

Curve = list[tuple[int, float]]  # (step, value), by step


@dataclass(frozen=True)
class History:
    """The course of a run, each value after so many steps.

    The training loss of a step is measured before its update, as is a validation at that step.

    train, val  losses in nats per token
    train_split the loss on the training text, measured as val is, where --eval-train asked for it
    evaluation  accuracy on HellaSwag, 0 to 1
    norm        length of the gradient before clipping
    ms, speed   time of a step in milliseconds, and tokens per second; llm.c's log has neither, and
                of an emulated run they are left out
    samples     sampled texts
    """

    train: Curve
    val: Curve
    train_split: Curve
    evaluation: Curve
    lr: Curve
    norm: Curve
    ms: Curve
    speed: Curve
    samples: dict[int, str]


class RunLog:
    """Appends to both logs in `directory`; a line is on disk as soon as it is written."""

    def __init__(
        self,
        directory: Path,
        resume_at: int | None = None,
        also: Callable[[Mapping[str, Any]], None] = lambda entry: None,
    ) -> None:
        """Start both logs afresh, or go on at step `resume_at`: what an interrupted run has logged
        from there on is dropped, since these steps run again. `also` gets each entry, too."""
        self.also = also
        self.text = directory / "main.log"
        self.json = directory / "log.jsonl"
        for path in (self.text, self.json):
            lines = [] if resume_at is None else _lines_before(path, resume_at)
            with atomic_write(path) as file:
                file.write("".join(lines).encode())

    def validation(self, step: int, loss: float) -> None:
        self._write(f"s:{step} tel:{loss:.4f}", {"step": step, "val_loss": loss})

    def evaluation(self, step: int, accuracy: float) -> None:
        self._write(f"s:{step} eval:{accuracy:.4f}", {"step": step, "eval": accuracy})

    def train(self, step: int, loss: float, lr: float, norm: float, **more: Any) -> None:
        """`more`: whatever else is known of the step, such as ms and tokens_per_second."""
        self._write(
            f"s:{step} trl:{loss:.4f} lr:{lr:.6f} norm:{norm:.2f}",
            {"step": step, "train_loss": loss, "lr": lr, "norm": norm, **more},
        )

    def event(self, step: int, **facts: Any) -> None:
        """Log what llm.c's log has no line for: a sample, a checkpoint, a skipped update."""
        self._write(None, {"step": step, **facts})

    def _write(self, line: str | None, entry: dict[str, Any]) -> None:
        for name, value in entry.items():
            if isinstance(value, float) and not math.isfinite(value):
                entry[name] = None  # JSON knows neither NaN nor infinity
        try:
            if line is not None:
                with self.text.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
            with self.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise LadderError(f"cannot write the log {self.json}: {error.strerror}") from None
        self.also(entry)


def read(path: Path) -> list[dict[str, Any]]:
    """The entries of a `log.jsonl`; a line that a crash has damaged is left out."""
    return [entry for _, entry in _parse(path)]


def find_log(run: Path) -> Path:
    """The log of a run, which is named by its folder or by the log itself. Raises LadderError."""
    if not run.is_dir():
        return run
    for name in LOGS:
        if (run / name).exists():
            return run / name
    holds = f"{run} holds no {' or '.join(LOGS)}"
    raise LadderError(f"{holds}; name the folder of a run{known_runs(run)}")


def read_history(path: Path) -> History:
    """The course of a run from its `log.jsonl`, or from a `main.log`, also one of llm.c.

    Where a step is logged twice, the later line counts: a run of llm.c that was resumed repeats
    steps. Raises LadderError where there is no such file.
    """
    if not os.path.exists(path):
        raise LadderError(f"{path} does not exist; name the folder of a run{known_runs(path)}")
    entries = read(path) if path.suffix == ".jsonl" else _read_text(path)
    emulated = settings_of(path.parent).get("device", "").startswith(EMULATED)

    def curve(name: str) -> Curve:
        return sorted({e["step"]: e[name] for e in entries if e.get(name) is not None}.items())

    samples = {e["step"]: e["sample"] for e in entries if "sample" in e}
    return History(
        train=curve("train_loss"),
        val=curve("val_loss"),
        train_split=curve("train_split_loss"),
        evaluation=curve("eval"),
        lr=curve("lr"),
        norm=curve("norm"),
        ms=[] if emulated else curve("ms"),
        speed=[] if emulated else curve("tokens_per_second"),
        samples=samples,
    )


def _read_text(path: Path) -> list[dict[str, Any]]:
    """The lines of a main.log as entries; a line that makes no sense is left out."""
    entries = []
    for line in _lines(path):
        words = dict(re.findall(r"([a-z]+):([^\s:]{1,64})", line))
        try:
            step = int(words.pop("s"))
            numbers = {KEYS[word]: float(text) for word, text in words.items() if word in KEYS}
        except (KeyError, ValueError):
            continue
        finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
        if _makes_sense(entry := {"step": step, **finite}):
            entries.append(entry)
    return entries


def _lines_before(path: Path, step: int) -> list[str]:
    """The lines of steps before `step`. The trained step of `step - 1` is the last one kept."""
    if not os.path.exists(path):
        return []
    if path.suffix == ".jsonl":
        return [line for line, entry in _parse(path) if entry["step"] < step]
    return [
        line
        for line in _lines(path)
        if (number := re.match(r"s:([0-9]{1,18}) .*\n", line)) and int(number[1]) < step
    ]


def _parse(path: Path) -> list[tuple[str, dict[str, Any]]]:
    parsed = []
    for line in _lines(path):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and _makes_sense(entry):
            parsed.append((line, entry))
    return parsed


def _makes_sense(entry: dict[str, Any]) -> bool:
    """Whether what is read of an entry is of its type, and a finite number."""
    step, sample = entry.get("step"), entry.get("sample", "")
    numbers = [entry[name] for name in NUMBERS if entry.get(name) is not None]
    return (
        (type(step) is int and 0 <= step < 2**63)
        and all(type(number) is float and math.isfinite(number) for number in numbers)
        and isinstance(sample, str)
    )


def _lines(path: Path) -> list[str]:
    """The lines of a log that a crash may have damaged."""
    text = read_bytes(path, MOST_BYTES).decode("utf-8", "replace")
    return text.splitlines(keepends=True)
