"""`python -m trainer sweep -l 1e-4,3e-4,6e-4 [FLAGS]`: a run for every value of a flag.

Flags are those of training. One with commas in its value has several values, and there is a run
for every combination. Each run is a process of its own, whose folder is named by its values; where
there are several GPUs, each has a run at a time. The same command goes on where it was interrupted:
runs that are finished are not run again, and others go on from their checkpoints, if they have any
(-n).
"""

import dataclasses
import itertools
import math
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.core.common.errors import LadderError
from ladder.core.common.files import atomic_write, read_json, write_json
from ladder.core.common.install import ROOT
from ladder.core.device.open import gpus
from trainer.commands.parser import build_parser, parse
from trainer.files import logs
from trainer.files.logs import History
from trainer.flags import Flags
from trainer.plots.course import draw, table_of
from trainer.report import Display, open_console

WHOLE = ("prompt", "fuse", "output", "report_to")  # fields whose values may hold commas
RECORD = "sweep.json"  # in a run's folder: what was typed for it
OUTPUT = "output.txt"  # what a run prints
INTERVAL = 0.1  # seconds between two looks at the runs


@dataclass(frozen=True)
class Trial:
    """One run of a sweep.

    values  of the flags that have several, by field of Flags
    words   its command line, without output and device
    """

    values: Mapping[str, str]
    words: Sequence[str]

    @property
    def name(self) -> str:
        """The name of its folder: "lr=1e-4,batch=8"."""
        text = ",".join(f"{field}={value}" for field, value in self.values.items())
        return re.sub(r"[^\w.=,+-]", "-", text)


def main(argv: Sequence[str]) -> int:
    if list(argv) in (["-h"], ["--help"]):
        build_parser("python -m trainer sweep [FLAGS OF TRAINING]", str(__doc__), ()).print_help()
        return 0
    trials, flags = read_trials(argv)
    folder = Path(flags.output or "runs/sweep")
    waiting = [trial for trial in trials if not _is_finished(folder / trial.name)]
    for trial in trials:
        _keep_record(folder / trial.name, parse(trial.words))
    display = Display(open_console(), 0)
    display.say(
        f"{len(trials)} runs in {folder}, {len(trials) - len(waiting)} of them finished before"
    )
    failed = run_all(waiting, _devices(flags), folder, display.say)
    histories = {
        trial.name: history for trial in trials if (history := _history(folder / trial.name))
    }
    write_results(folder, trials, histories, display)
    return int(bool(failed))


def read_trials(argv: Sequence[str]) -> tuple[list[Trial], Flags]:
    """The runs that a command line asks for, and the flags of the first of them.

    Raises LadderError where no flag has several values, or a value is wrong.
    """
    options = {name: f for f in dataclasses.fields(Flags) for name in f.metadata["names"]}
    choices: list[list[tuple[str, str, list[str]]]] = []  # of each flag: field, value, words
    words = deque(argv)
    while words:
        word = words.popleft()
        name, equals, value = word.partition("=")
        field = options.get(name)
        if field is None:
            choices.append([("", "", [word])])
            continue
        if not equals and words and words[0] not in options:
            value, equals = words.popleft(), " "
        typed = [value] if field.name in WHOLE or not equals else _values(field.name, value)
        joined = [[name, v] if equals == " " else [f"{name}{equals}{v}"] for v in typed]
        several = field.name if len(typed) > 1 else ""
        choices.append([(several, v, parts) for v, parts in zip(typed, joined, strict=True)])
    trials = []
    for chosen in itertools.product(*choices):
        values = {field: value for field, value, _ in chosen if field}
        trials.append(Trial(values, [part for *_, parts in chosen for part in parts]))
    if not trials[0].values:
        raise LadderError(
            "no flag has several values; put commas between them, as in -l 1e-4,3e-4,6e-4 "
            "(in -o, --prompt, --fuse and --report-to a comma is part of the one value)"
        )
    flags = [parse(trial.words) for trial in trials]  # a wrong one is reported before any run
    names = [trial.name for trial in trials]
    for name in names:
        if names.count(name) > 1:
            raise LadderError(f"two runs of the sweep would be {name}; name each value once")
    if flags[0].processes is not None or flags[0].process_rank is not None:
        raise LadderError("-pn and -pr: a sweep starts its runs itself; for ranks choose --ranks")
    return trials, flags[0]


def _values(field: str, text: str) -> list[str]:
    """The values that a text names; of --rung, the rungs of an op."""
    if field != "rung":
        return text.split(",")
    op, equals, rungs = text.partition("=")
    return [f"{op}{equals}{rung}" for rung in rungs.split(",")]


def run_all(
    trials: Sequence[Trial],
    devices: Sequence[Sequence[str]],
    folder: Path,
    say: Callable[[str], None],
) -> list[str]:
    """Run each trial, as many at a time as there are devices; returns the names of those that
    failed.

    devices  words for the command line of the runs that share a place

    At Ctrl-C or SIGTERM every run under way finishes its step, and writes its checkpoint if it has
    any.
    """
    waiting, free = deque(enumerate(trials, 1)), deque(devices)
    running: dict[str, tuple[subprocess.Popen[bytes], Sequence[str], float]] = {}
    failed = []
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while waiting or running:
            while waiting and free:
                number, trial = waiting.popleft()
                device, place = free.popleft(), folder / trial.name
                where = f" on {device[-1]}" if device else ""
                say(f"run {number}/{len(trials)}: {trial.name}{where}, output in {place / OUTPUT}")
                running[trial.name] = _start(trial, device, place), device, time.monotonic()
            for name, (process, device, start) in list(running.items()):
                if (status := process.poll()) is None:
                    continue
                del running[name]
                free.append(device)
                seconds = time.monotonic() - start
                if status == 0:
                    say(f"finished after {seconds:,.0f} s: {name}")
                else:
                    failed.append(name)
                    last = _last_line(folder / name / OUTPUT)
                    say(f"failed with status {status}: {name}: {last}")
            time.sleep(INTERVAL if running else 0)
    except BaseException:
        for process, *_ in running.values():
            process.terminate()
        for process, *_ in running.values():
            process.wait()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    return failed


def _start(trial: Trial, device: Sequence[str], place: Path) -> subprocess.Popen[bytes]:
    """One run. In a session of its own, it gets no Ctrl-C from the terminal but ours."""
    words = [*trial.words, "--no-model", *device, f"--output={place}", "--resume=1"]
    with (place / OUTPUT).open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", f"{ROOT}trainer", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _devices(flags: Flags) -> list[list[str]]:
    """The words that send each of several runs at a time to a GPU of its own; one empty list where
    runs go one by one: on the CPU, on a device that was named, and where each takes several GPUs.
    """
    if flags.device is not None or (flags.ranks or 1) > 1 or len(names := gpus()) < 2:
        return [[]]
    return [["--device", name] for name in names]


def _is_finished(place: Path) -> bool:
    """Whether a run has validated after its last step."""
    history = _history(place)
    try:
        steps = read_json(place / "config.json")["steps"]
    except (OSError, LadderError, KeyError, TypeError):
        return False
    return history is not None and bool(history.val) and history.val[-1][0] == steps


def _history(place: Path) -> History | None:
    """The course of a run; None where it has not begun."""
    if not (place / "log.jsonl").exists():
        return None
    history = logs.read_history(place / "log.jsonl")
    return history if history.train or history.val else None


def _keep_record(place: Path, flags: Flags) -> None:
    """Write down what a run was asked for. Raises LadderError where its folder holds another."""
    record = {name: value for name, value in flags.typed.items() if name != "output"}
    path = place / RECORD
    if not path.exists():
        write_json(path, record)
        return
    before = read_json(path)
    for name in sorted({*record, *before}):
        if record.get(name) != before.get(name):
            was, is_ = (str(flags.get(name, "not given")) for flags in (before, record))
            raise LadderError(
                f"{place} is of a sweep whose --{name.replace('_', '-')} was {was}, and is {is_} "
                "now; choose another -o"
            )


def write_results(
    folder: Path, trials: Sequence[Trial], histories: Mapping[str, History], display: Display
) -> None:
    """Print the table, the best run first, and with several seeds the one over them; write both as
    `sweep.md`. Draw `sweep.png`, the loss against the values, and `curves.png`, the course of all
    runs."""
    fields = list(trials[0].values)
    runs = [
        (trial.values.values(), histories[trial.name])
        for trial in sorted(trials, key=lambda trial: _best(histories.get(trial.name)))
        if trial.name in histories
    ]
    if not runs:
        return
    tables = [table_of(fields, runs)]
    if "seed" in fields:
        choice = [field for field in fields if field != "seed"]
        columns = ["step>", *choice, "seeds>", "mean validation>", "deviation>", "off the first>"]
        tables.append((columns, over_seeds(trials, histories)))
    lines: list[str] = []
    for columns, rows in tables:
        display.table(columns, rows)
        lines += [""] if lines else []
        lines += [f"| {' | '.join(column.rstrip('>') for column in columns)} |"]
        lines += [f"| {'|'.join('--:' if name.endswith('>') else '---' for name in columns)} |"]
        lines += [f"| {' | '.join(row)} |" for row in rows]
    with atomic_write(folder / "sweep.md") as file:
        file.write("".join(f"{line}\n" for line in lines).encode())
    from trainer.plots.runs import draw_sweep
    from trainer.plots.style import save

    points: dict[str, list[tuple[str, float]]] = {}
    for trial in trials:
        if (loss := _best(histories.get(trial.name))) < float("inf"):
            first, *others = trial.values.items()
            line = ", ".join(f"{field} {value}" for field, value in others)
            points.setdefault(line, []).append((first[1], loss))
    save(draw_sweep(points, fields[0]), folder / "sweep.png")
    draw(dict(histories), folder / "curves.png")
    display.say("\n".join(str(folder / name) for name in ("sweep.md", "sweep.png", "curves.png")))


def over_seeds(trials: Sequence[Trial], histories: Mapping[str, History]) -> list[tuple[str, ...]]:
    """Rows for each validation and each choice of the values but the seed: over the seeds, the mean
    and the standard deviation of the loss; how far the mean is off that of the first choice, in
    deviations of both, pooled."""
    losses: dict[int, dict[tuple[str, ...], list[float]]] = {}  # of all seeds, by step and choice
    for trial in trials:
        choice = tuple(value for field, value in trial.values.items() if field != "seed")
        if history := histories.get(trial.name):
            for step, loss in history.val:
                losses.setdefault(step, {}).setdefault(choice, []).append(loss)
    rows = []
    for step, of_choices in sorted(losses.items()):
        known = {choice: seeds for choice, seeds in of_choices.items() if len(seeds) > 1}
        for choice, seeds in known.items():
            first = next(iter(known.values()))
            mean, deviation = statistics.fmean(seeds), statistics.stdev(seeds)
            pooled = math.hypot(deviation, statistics.stdev(first)) / math.sqrt(2)
            off = f"{(mean - statistics.fmean(first)) / pooled:+.2f}" if pooled else "-"
            numbers = str(len(seeds)), f"{mean:.4f}", f"{deviation:.4f}", off
            rows.append((f"{step:,}", *choice, *numbers))
    return rows


def _best(history: History | None) -> float:
    """The least validation loss; infinite where there is none."""
    return min((loss for _, loss in history.val), default=float("inf")) if history else float("inf")


def _last_line(path: Path) -> str:
    lines: list[Any] = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "it printed nothing")
