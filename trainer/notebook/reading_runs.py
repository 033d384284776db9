"""What notebook 14 calls: runs drawn over each other, a sweep of small ones, and its exercises."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from IPython.display import Markdown, display

from ladder.core.common.errors import LadderError
from ladder.core.measure import results
from ladder.core.show.execute import FOLDER
from ladder.core.show.notebook import draw, solutions
from ladder.core.show.tables import markdown
from trainer.files.logs import History, read_history
from trainer.model.gpt2 import GPT2Config
from trainer.notebook.exercises import say_progress
from trainer.notebook.small_run import Run, start
from trainer.plots import runs as plots
from trainer.plots.course import MARKS

LOGS = results.SHIPPED / "logs"
SHAPE = GPT2Config(context=32, vocab=65, padded_vocab=128, layers=1, heads=2, channels=32)
STEPS = 200
LAST = 50  # steps whose mean loss stands for the end of a run


def measured(name: str) -> History:
    """The course of a run whose log is in doc/results/logs."""
    return read_history(LOGS / f"{name}.jsonl")


def small(lr: float, **settings: Any) -> Run:
    """A run of a model that trains in seconds: one layer of 32 channels, on letters."""
    fixed = {"warmup": 0, "schedule": "constant", "grad_clip": 0.0, "steps": STEPS}
    run = start(SHAPE, B=8, T=32, lr=lr, **{**fixed, **settings})
    run.train(STEPS)
    return run


def at_the_end(run: Run) -> float:
    """The mean loss of the last steps. No batch comes twice in so few steps, so it is a loss on
    text that the model has not seen."""
    return float(np.mean(run.losses[-LAST:]))


def show(title: str, runs: Mapping[str, History | Run], window: int = 1) -> None:
    """Runs over each other: losses, learning rate, norm."""
    draw(plots.draw_runs({name: _curves(run) for name, run in runs.items()}, title, window))


def show_sweep(runs: Mapping[str, Run]) -> None:
    """The loss at the end against the learning rate, which names each run."""
    points = [(name, at_the_end(run)) for name, run in runs.items()]
    figure = plots.draw_sweep({"": points}, "learning rate", "loss at the end")
    draw(figure, "the loss at the end against the learning rate")


def marks() -> None:
    """A table of what OpenAI's models reach."""
    titles = ("", "GPT-2, loss", "GPT-2, HellaSwag", "GPT-3, HellaSwag")
    rows = ((size, *(f"{value:.3f}" for value in mark)) for size, mark in MARKS.items())
    display(Markdown(markdown(titles, rows)))


# ---- the exercises ------------------------------------------------------------------------------


def solution(name: str) -> Callable[..., Any]:
    """The function `name` from a fold "Solution" of the notebook.

    The notebook goes on with it, without showing it below the exercise. Raises LadderError where no
    fold defines it.
    """
    for text in solutions(FOLDER / "14_runs.ipynb", "python"):
        names: dict[str, Any] = {"np": np}
        exec(text, names)
        if (function := names.get(name)) is not None:
            function.given = True  # by the notebook: it does not count as solved
            return function  # type: ignore[no-any-return]
    raise LadderError(f"no exercise of notebook 14 has a solution named {name!r}")


def check_smooth(smooth: Callable[[np.ndarray, int], Any]) -> None:
    """Whether `smooth` is a moving average, also at the ends."""
    values = np.random.default_rng(0).normal(4.0, 0.1, 20)
    for window in (1, 3, 7):
        answer = smooth(values, window)
        try:
            means = np.asarray(answer, dtype=float)
        except (TypeError, ValueError):
            means = np.empty(())
        if answer is None or means.ndim != 1:
            print(f"✗ smooth returns {answer!r}; return an array with a mean for each step")
            return
        if means.shape != values.shape:
            print(f"✗ window {window}: {means.size} values for {values.size} steps")
            return
        half = window // 2
        for step in range(values.size):
            there = values[max(0, step - half) : step + half + 1]
            if not math.isclose(means[step], there.mean(), rel_tol=1e-9):
                print(
                    f"✗ window {window}, step {step}: {means[step]:.3f}; the mean of the "
                    f"{there.size} values there is {there.mean():.3f}"
                )
                return
    print("✓ a mean of the values that there are, at each of 20 steps")
    _count("check_smooth", smooth)


def check_steps(steps_needed: Callable[[float, float], float]) -> None:
    """Whether `steps_needed` is enough for a gap of twice its standard error, and no more."""
    for deviation, gap in ((0.06, 0.02), (0.1, 0.01), (0.05, 0.05)):
        right = math.ceil(2 * (2 * deviation / gap) ** 2)
        answer = steps_needed(deviation, gap)
        if not _is_number(answer) or answer <= 0:
            print(f"✗ steps_needed returns {answer!r}; return how many steps, a number above 0")
            return
        steps = math.ceil(answer)
        if steps != right:
            error = deviation * math.sqrt(2 / steps)
            print(
                f"✗ deviation {deviation}, gap {gap}: after {steps:,} steps the difference of the "
                f"two means has a standard error of {error:.4f}, which should be {gap / 2:g}"
            )
            return
    print("✓ the gap is twice the standard error of the difference")
    _count("check_steps", steps_needed)


def check_bits(bits_per_byte: Callable[[float, int, int], float]) -> None:
    """Whether `bits_per_byte` turns nats per token into bits per byte."""
    for loss, tokens, size in ((math.log(2), 100, 100), (math.log(256), 100, 400), (3.0, 7, 11)):
        bits, right = bits_per_byte(loss, tokens, size), loss / math.log(2) * tokens / size
        if not _is_number(bits):
            print(f"✗ bits_per_byte returns {bits!r}; return one number, the bits per byte")
            return
        if not math.isclose(bits, right, rel_tol=1e-9):
            print(
                f"✗ {loss:.3f} nats per token, {tokens} tokens of {size} bytes: {bits:.3f}, not "
                f"{right:.3f}"
            )
            return
    print("✓ bits per byte")
    _count("check_bits", bits_per_byte)


def _is_number(answer: Any) -> bool:
    return isinstance(answer, (int, float)) and math.isfinite(answer)


def _count(exercise: str, answer: Callable[..., Any]) -> None:
    """Keep that an exercise is solved, unless the notebook gave the answer."""
    if not getattr(answer, "given", False):
        say_progress(exercise)


def _curves(run: History | Run) -> dict[str, Sequence[tuple[int, float]]]:
    if isinstance(run, Run):
        numbers = {plots.TRAINING: run.losses, plots.RATE: run.rates, plots.NORM: run.norms}
        return {name: list(enumerate(values)) for name, values in numbers.items()}
    return {
        plots.TRAINING: run.train,
        plots.VALIDATION: run.val,
        plots.RATE: run.lr,
        plots.NORM: run.norm,
    }
