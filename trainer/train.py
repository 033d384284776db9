"""The training loop: validate, sample, save, step; again and again, as in nanoGPT and llm.c.

    train(Flags(model="d6", steps=10))      what `python -m trainer -e d6 -x 10` runs

open.py makes ready what the loop uses, and report.py tells what it finds. On a GPU the outcome of
a step is known one step late, so that the GPU never waits for the host (trainer/engine/steps.py).
"""

import numpy as np
from rich.console import Console

from trainer.data.token_files import Loader
from trainer.engine.generation import sample
from trainer.engine.passes import fetch_loss, validate, write_batch, write_rng
from trainer.engine.scoring import evaluate
from trainer.engine.steps import StepOutcome, Steps, refuse_not_finite
from trainer.flags import Flags
from trainer.open import Run, run_in_folder
from trainer.ranks.group import ALONE, Group, Interrupt
from trainer.report import Outcome, Report, Silent, open_console, saying_why_not


def train(flags: Flags, console: Console | None = None, group: Group = ALONE) -> Outcome:
    """Run the whole training. Raises LadderError for whatever a user can fix.

    Of a group of processes each calls this; rank 0 prints, logs, samples and saves.

    The first Ctrl-C (or SIGTERM) lets the step under way finish, writes a checkpoint if checkpoints
    are on, and ends with status 130 (143); a second one ends at once.
    """
    with run_in_folder(flags, group) as run, Interrupt(group) as interrupt:
        report = Report(run, console or open_console()) if group.leads else Silent()
        return loop(run, report, interrupt)


def loop(run: Run, report: Report | Silent, interrupt: Interrupt) -> Outcome:
    """All steps of a run, to its last or to an interruption.

    A step's validation, sample and checkpoint come before its training, so that the first and the
    last validation frame the run, and a checkpoint of step N holds what N steps have made.
    """
    config, engine, group, steps = run.config, run.engine, run.group, run.steps
    batches, stop = config.val_batches, interrupt.anywhere
    val_losses: list[tuple[int, float]] = []
    first, saved = run.saved or 0, run.saved
    # Overflows are looked for where it matters, in the loss and the gradient.
    with np.errstate(all="ignore"), report:
        for step in range(first, config.steps + 1):
            last = step == config.steps
            validates = last or step == 0 or due(step, config.val_every)
            samples = due(step, config.sample_every, last)
            if validates or samples:
                tell(report, run, steps.finish())

            if validates:
                loss = validate(engine, run.val, batches, stop, group)
                report.validation(step, loss)
                if loss is not None:
                    val_losses.append((step, loss))
            if validates and run.train_split is not None:
                loss = validate(engine, run.train_split, batches, stop, group)
                report.train_split(step, loss)
            if validates and run.examples and (last or step > 0):  # takes long: not at step 0
                with saying_why_not(report, f"accuracy on HellaSwag at step {step}"):
                    score = evaluate(engine, run.examples, stop, group, report.scoring)
                    report.score(step, score)
            if samples and run.predictor and run.tokenizer:  # which rank 0 has
                with saying_why_not(report, f"sample at step {step}"):
                    text = sample(run.predictor, run.tokenizer, config, interrupt.here, group)
                    report.sample(step, text)

            last = last or interrupt.anywhere()
            saves = due(step, config.checkpoint_every, last)
            if saves or last:
                tell(report, run, steps.finish())
            if saves and step != saved:
                report.checkpoint(step, run.save(step))
                saved = step
            if last:
                break

            tell(report, run, take_step(steps, run.train, step))
            if due(step + 1, config.log_gpu):
                report.condition(step + 1)
    if run.keeps_model and (step > first or not interrupt.anywhere()):
        report.kept(run.keep_model())
    group.progress("the end of the run")
    outcome = Outcome(run.directory, step, saved, val_losses, interrupt.status())
    report.end(outcome)
    return outcome


def take_step(steps: Steps, train: Loader, number: int) -> StepOutcome | None:
    """Optimizer step `number`, counted from 0: zero; forward, backward per micro-batch; update.

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
        # Rounding at random uses the words written last, which must be the same on all ranks.
        write_rng(engine, config.seed, number, config.accumulation * group.size - 1)
    engine.compute_norm()
    skipped = steps.decide(step)
    if skipped is None:  # nothing speaks against the update
        engine.update()
    return steps.end(step, skipped)


def due(step: int, every: int, last: bool = False) -> bool:
    """Whether what happens every so many steps, and at the last, happens at `step`; 0 is never."""
    return every > 0 and (last or (step > 0 and step % every == 0))


def tell(report: Report | Silent, run: Run, step: StepOutcome | None) -> None:
    """Report a step, if there is one whose outcome is known; stop where --nonfinite says so."""
    if step is not None:
        report.step(step)
        refuse_not_finite(step, run.config)
