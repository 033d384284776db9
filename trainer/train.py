"""The training loop: validate, sample, save, step; again and again, as in nanoGPT and llm.c.

    train(Flags(model="d6", steps=10))      what `python -m trainer -e d6 -x 10` runs

`open_run` makes ready what the loop uses, and a report says what it finds. On a GPU the outcome of
a step is known one step late, so that the GPU never waits for the host (trainer/engine/steps.py).
"""

import contextlib
import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from ladder.core.common.files import alone_in
from trainer.data.token_files import Loader
from trainer.data.training_data import with_available_text
from trainer.engine.generation import NoChoice, sample
from trainer.engine.passes import fetch_loss, validate, write_batch, write_rng
from trainer.engine.scoring import NoAnswer, evaluate
from trainer.engine.steps import StepOutcome, Steps, refuse_not_finite
from trainer.files import trackers
from trainer.files.resume import check_directory, how_to_go_on, run_directory
from trainer.flags import Flags
from trainer.open import Run, open_run
from trainer.ranks.group import ALONE, Group, Interrupt
from trainer.report import Report, Silent, explaining_faults, open_console


@dataclass(frozen=True)
class Outcome:
    """How a run went. `val_losses`: (step, loss) of each validation; `status`: for the shell."""

    directory: Path
    val_losses: list[tuple[int, float]]
    status: int


def train(flags: Flags, console: Console | None = None, group: Group = ALONE) -> Outcome:
    """Run the whole training. Raises LadderError for whatever a user can fix.

    Of a group of processes each calls this; rank 0 prints, logs, samples and saves.

    The first Ctrl-C (or SIGTERM) lets the step under way finish, writes a checkpoint if checkpoints
    are on, and ends with status 130 (143); a second one ends at once.
    """
    if group.leads:
        check_directory(run_directory(flags))
        trackers.require(flags.value("report_to"))
    with group.machine_by_machine("the text"):
        flags, notes = with_available_text(flags)
    # Before anything there is read: another run may delete checkpoints.
    only_run = alone_in(run_directory(flags)) if group.leads else contextlib.nullcontext()
    with only_run:
        run = open_run(flags, group)
        run.notes[:0] = notes
        report = Report(run, console or open_console()) if group.leads else Silent()
        # Overflows are looked for where it matters, in the loss and the gradient.
        with np.errstate(all="ignore"), Interrupt(group) as interrupt:
            outcome = loop(run, report, interrupt)
        run.close()
    return outcome


def loop(run: Run, report: Report | Silent, interrupt: Interrupt) -> Outcome:
    """All steps of a run, to its last or to an interruption.

    A step's validation, sample and checkpoint come before its training, so that the first and the
    last validation frame the run, and a checkpoint of step N holds what N steps have made.
    """
    config, engine, group = run.config, run.engine, run.group
    steps = Steps(config, engine, group)
    saved: int | None = None
    if run.state is not None:
        steps.restore(run.state["stepper"])
        saved = run.step
    val_losses: list[tuple[int, float]] = []
    batches, stop = config.val_batches, interrupt.anywhere
    mean_loss = functools.partial(validate, engine, batches=batches, stop=stop, group=group)
    group.advise(lambda: how_to_go_on(run.directory, config.checkpoint_every))
    group.progress("the beginning of the run's files")
    with report, explaining_faults(run):
        for step in range(run.step, config.steps + 1):
            last = step == config.steps
            validates = last or step == 0 or _due(step, config.val_every)
            scores = bool(run.examples) and (last or _due(step, config.val_every))
            samples = config.sample_every > 0 and (last or _due(step, config.sample_every))

            if validates or scores or samples:
                _tell(report, run, steps.finish())
            if validates:
                if (loss := mean_loss(run.val)) is not None:
                    val_losses.append((step, loss))
                    report.validation(step, loss)
                if run.train_split is not None:
                    report.train_split(step, mean_loss(run.train_split))
            if scores:
                try:
                    score = evaluate(engine, run.examples, stop, group, report.scoring)
                    report.score(step, score)
                except NoAnswer as error:  # the next step decides whether the run stops
                    report.say(f"HellaSwag not evaluated at step {step}: {error}")
            if samples and run.predictor is not None and run.tokenizer is not None:
                try:
                    text = sample(run.predictor, run.tokenizer, config, interrupt.here, group)
                    report.sample(step, text)
                except NoChoice as error:  # the next step decides whether the run stops
                    report.say(f"no sample at step {step}: {error}")

            last = last or interrupt.anywhere()
            saves = config.checkpoint_every > 0 and (last or _due(step, config.checkpoint_every))
            if last or saves:
                _tell(report, run, steps.finish())
            if saves and step != saved:
                report.checkpoint(step, run.save(step, steps.state()))
                saved = step
            if last:
                break

            _tell(report, run, take_step(steps, run.train, step))
            if _due(step + 1, config.log_gpu):
                report.condition(step + 1)
    if run.keeps_model and (step > run.step or not interrupt.anywhere()):
        report.kept(run.keep_model())
    group.progress("the end of the run")
    report.end(step, saved, interrupt.anywhere())
    return Outcome(run.directory, val_losses, interrupt.status)


def take_step(steps: Steps, train: Loader, number: int) -> StepOutcome | None:
    """One optimizer step: zero, forward, backward per micro-batch, update.

    number  counted from 0

    Returns the last step whose outcome is known: this one or, where steps overlap, the one before,
    which is None after the first.
    """
    config, engine, group = steps.config, steps.engine, steps.group
    step = steps.begin(number)
    engine.zero_gradients()
    for micro_step in range(config.accumulation):
        group.progress(f"micro-batch {micro_step + 1} of step {number + 1}")
        write_batch(engine, train, again=config.overfit)
        write_rng(engine, config.seed, number, micro_step * group.size + group.rank)
        engine.forward()
        engine.backward(more=micro_step + 1 < config.accumulation)
        step.losses.append(fetch_loss(engine))
    if group.size > 1 and config.stochastic_rounding:
        # Rounding at random draws from the last words, which must be the same on all ranks.
        write_rng(engine, config.seed, number, config.accumulation * group.size - 1)
    engine.compute_norm()
    skipped = steps.decide(step)
    if skipped is None:  # nothing speaks against the update
        engine.update()
    return steps.end(step, skipped)


def _due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps, or never, happens at `step`."""
    return every > 0 and step > 0 and step % every == 0


def _tell(report: Report | Silent, run: Run, step: StepOutcome | None) -> None:
    """Report a step, if there is one whose outcome is known; stop where --nonfinite says so."""
    if step is not None:
        report.step(step)
        refuse_not_finite(step, run.config)
