"""The training loop: validate, sample, checkpoint, step; again and again, as in llm.c."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ladder.core.common.errors import DeviceFault, LadderError
from ladder.core.common.files import alone_in
from trainer.commands.evaluation import NoAnswer, evaluate
from trainer.commands.plot import plot
from trainer.commands.sample import decode_stream, encode_prompt, generate
from trainer.data.token_files import TokenLoader
from trainer.engine.generation import NoChoice
from trainer.engine.memory import by_kind
from trainer.engine.mfu import measured_roof
from trainer.engine.steps import NOT_FINITE, Step, Stepper, validate
from trainer.files import checkpoint
from trainer.files.logs import RunLog
from trainer.files.resume import check_directory
from trainer.flags import Flags
from trainer.model.fusion import makes
from trainer.model.program import build
from trainer.open import (
    Setup,
    run_directory,
    save_checkpoint,
    set_up,
    with_available_text,
    write_record,
)
from trainer.ranks.group import ALONE, Group, Ranks, roster
from trainer.ranks.interrupt import Interrupt, exit_status
from trainer.report import Display, Speed, open_console, printable


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
    with group.machine_by_machine("the text"):
        flags, notes = with_available_text(flags)
    if not group.leads:
        return _train(flags, notes, Console(quiet=True), group)
    directory = run_directory(flags)
    with alone_in(directory):  # before anything there is read: another run may delete checkpoints
        return _train(flags, notes, console or open_console(), group)


def _train(flags: Flags, notes: list[str], console: Console, group: Group) -> Outcome:
    setup = set_up(flags, group)
    setup.notes[:0] = notes
    # Overflows are looked for where it matters, in the loss and the gradient.
    with np.errstate(all="ignore"), Interrupt() as interrupt:
        outcome = Trainer(setup, console, interrupt).run()
    setup.close()
    return outcome


class Trainer:
    """One run, from its first step to its last or to an interruption."""

    def __init__(self, setup: Setup, console: Console, interrupt: Interrupt) -> None:
        self.setup, self.config, self.interrupt = setup, setup.config, interrupt
        self.group = setup.group
        self.display = Display(console, setup.config.steps, setup.step)
        self.stepper = Stepper(setup.config, setup.engine, setup.train, setup.group)
        if setup.state is not None:
            self.stepper.restore(setup.state["stepper"])
        self.flops = setup.shape.flops_per_token(self.config.sequence) * self.config.total_tokens
        self.roof = math.nan  # of all devices together, by that of rank 0, which shows it
        if self.group.leads:
            setup.group.working("the measurement of the roof")
            tf32 = any(rung.tf32 for rung in setup.kernels.rungs.values())
            roof = measured_roof(setup.device, setup.config.real, tf32)
            self.roof = self.group.size * roof
        self.times: list[float] = []  # ms of the steps that count in the median
        self.logged = False  # is there a loss in the logs?
        self.val_losses: list[tuple[int, float]] = []
        self.stopped_by = 0  # the signal

    def run(self) -> Outcome:
        """The loop. A step's validation, sample and checkpoint come before its training, so that
        the first and the last validation frame the run, and a checkpoint of step N holds what N
        steps have made."""
        self.group.advise(self._how_to_go_on)
        self.group.progress("the beginning of the run's files")
        self._announce()
        self.log: RunLog | None = None
        if self.group.leads:
            write_record(self.setup)
            self.log = RunLog(self.setup.directory, self.setup.step if self.setup.state else None)
        saved = self.setup.step if self.setup.state else None
        with self.display, self._fault_explained():
            for step in range(self.setup.step, self.config.steps + 1):
                last = step == self.config.steps
                self._validate(step, last)
                self._evaluate(step, last)
                self._sample(step, last)
                last = last or self._interrupted()
                if self._due(step, self.config.checkpoint_every, last) and step != saved:
                    self._save(step)
                    saved = step
                if last:
                    self._report(self.stepper.finish())
                    break
                self._report(self.stepper.step(step))
                if self._due(step + 1, self.config.log_gpu, last=False):
                    self._tell_condition(step + 1)
        return self._finish(step, saved)

    @contextlib.contextmanager
    def _fault_explained(self) -> Iterator[None]:
        """After a fault of the GPU, say which checkpoint is left and how to learn more."""
        try:
            yield
        except DeviceFault as error:
            kept = self._how_to_go_on()
            named = self.config.debug_sync or not self.setup.device.asynchronous
            more = "" if named else "; --debug-sync names the op at fault"
            apart = "\n" if "\n" in str(error) else "; "  # the emulator quotes the kernel's line
            raise DeviceFault(f"{error}{apart}{kept}{more}") from None

    def _how_to_go_on(self) -> str:
        """Which checkpoint is left after the run has broken off."""
        directory = self.setup.directory
        step = checkpoint.latest(directory)
        if step is None:
            return "there is no checkpoint, since they are off (-n)"
        return f"the checkpoint of step {step} in {directory} is intact; continue with -y 1"

    def _interrupted(self) -> bool:
        """Whether the user has interrupted any rank: all of them stop at the same step."""
        self.stopped_by = max(self.group.collect("the interrupt", self.interrupt.signal or 0))
        return self.stopped_by > 0

    @staticmethod
    def _due(step: int, every: int, last: bool) -> bool:
        """Whether something that happens every so many steps, and at the end, happens at `step`."""
        return every > 0 and ((step > 0 and step % every == 0) or last)

    def _validate(self, step: int, last: bool) -> None:
        if step > 0 and not last and not self._due(step, self.config.val_every, last):
            return
        self._report(self.stepper.finish())
        loss = self._loss_on(self.setup.val)
        if loss is not None:
            if self.log is not None:
                self.log.validation(step, loss)
            self.logged = True
            self.val_losses.append((step, loss))
            self.display.say(f"val loss {loss:.6f} (step {step})")
        if self.setup.train_split is None:
            return
        loss = self._loss_on(self.setup.train_split)
        if loss is not None:
            if self.log is not None:
                self.log.event(step, train_split_loss=loss)
            self.display.say(f"loss on the training text {loss:.6f} (step {step})")

    def _loss_on(self, loader: TokenLoader) -> float | None:
        """The mean loss over -m batches; None after an interruption."""
        setup, batches = self.setup, self.config.val_batches
        return validate(setup.engine, loader, batches, self._interrupted, self.group)

    def _evaluate(self, step: int, last: bool) -> None:
        """HellaSwag, where -h 1 asks for it, as often as llm.c does."""
        examples = self.setup.examples
        if not examples or not (last or self._due(step, self.config.val_every, last)):
            return
        self._report(self.stepper.finish())

        def show(done: int) -> None:
            self.display.busy(f"HellaSwag {done:,}/{len(examples):,}")

        try:
            score = evaluate(self.setup.engine, examples, self._interrupted, self.group, show)
        except NoAnswer as error:  # the next step decides whether the run stops
            self.display.say(f"HellaSwag not evaluated at step {step}: {error}")
            return
        if score is not None:
            accuracy = score.normalized_accuracy
            if self.log is not None:
                self.log.evaluation(step, accuracy)
            counts = f"{score.right_normalized}/{score.examples}"
            self.display.say(f"HellaSwag {counts} = {accuracy:.4f} (step {step})")

    def _sample(self, step: int, last: bool) -> None:
        setup, c = self.setup, self.config
        if setup.predictor is None or setup.tokenizer is None:
            return
        if not self._due(step, c.sample_every, last):
            return
        self._report(self.stepper.finish())
        self.group.working(f"the sample of step {step}")
        ids = generate(
            setup.predictor,
            encode_prompt(setup.tokenizer, c.prompt),
            c.sample_tokens,
            temperature=c.temperature,
            top_k=c.top_k,
            rng=np.random.default_rng(
                c.seed
            ),  # the same random numbers each time, so that samples compare
            stop=lambda: bool(self.interrupt),
        )
        try:
            text = c.prompt + "".join(decode_stream(setup.tokenizer, self._telling(ids, step)))
        except NoChoice as error:  # the next step decides whether the run stops
            self.display.say(f"no sample at step {step}: {error}")
            return
        if not self.interrupt and self.log is not None:
            self.log.event(step, sample=text)
            self.display.say(f"--- sample at step {step} ---\n{printable(text)}\n---")

    def _telling(self, ids: Iterable[int], step: int) -> Iterator[int]:
        """The tokens of a sample, each a sign of progress."""
        for number, token in enumerate(ids, 1):
            yield token
            self.group.working(f"the sample of step {step}, behind token {number}")

    def _save(self, step: int) -> None:
        self._report(self.stepper.finish())
        path = save_checkpoint(self.setup, step, {"stepper": self.stepper.state()})
        if self.log is not None:
            self.log.event(step, checkpoint=str(path))
        self.display.say(f"checkpoint {path}")

    def _tell_condition(self, step: int) -> None:
        name, said = self.setup.device.name, self.setup.device.condition()
        self.display.say(f"{name} at step {step}: {said or 'its clock and power are not known'}")
        if self.log is not None and said is not None:
            self.log.event(step - 1, condition=said)

    def _report(self, step: Step | None) -> None:
        """Log and show a step that is done."""
        if step is None:
            return
        speed = self._speed(step)
        more: dict[str, Any] = {} if speed is None else asdict(speed)
        if step.skipped is not None:
            more["skipped"] = step.skipped
        if self.log is not None:
            self.log.train(step.number, step.loss, step.lr, step.norm, **more)
        self.logged = True
        if step.skipped == NOT_FINITE and self.config.nonfinite == "stop":
            self._stop_not_finite(step)
        self.display.step(step, speed)
        if step.skipped is not None:
            self.display.say(f"step {step.number + 1}: update skipped, {step.skipped}")

    def _speed(self, step: Step) -> Speed | None:
        if step.ms is None:
            return None
        if step.settled:
            self.times.append(step.ms)
        tokens_per_second = 1e3 * self.config.total_tokens / step.ms
        return Speed(step.ms, tokens_per_second, self.flops / (step.ms / 1e3) / self.roof)

    def _stop_not_finite(self, step: Step) -> None:
        raise LadderError(
            f"step {step.number + 1}: loss {step.loss:g}, gradient norm {step.norm:g}, learning "
            f"rate {step.lr:g}: the run stops, and this step is discarded. Lower -l, warm up "
            "with -u, clip with --grad-clip 1, or skip such steps with --nonfinite skip; "
            "--debug-nan names the op where it began"
        )

    def _announce(self) -> None:
        """Print model, data, device, kernels, and notes on what is used instead of a default."""
        s, c = self.setup, self.config
        parameters = sum(math.prod(shape) for shape in s.shape.parameter_shapes().values())
        memory = sum(size for _, size in s.engine.memory_table())
        model = f"{c.model}: {s.shape.summary}, {s.shape.vocab} tokens, "
        model += f"{parameters / 1e6:.1f}M parameters"
        data = f"{c.dataset}: {s.train.tokens:,} tokens to train on, {s.val.tokens:,} to validate"
        steps = f"{c.steps} of {c.total_tokens:,} tokens, B={c.batch} T={c.sequence}"
        if c.accumulation > 1:
            steps += f", accumulated over {c.accumulation} micro-batches"
        if isinstance(self.group, Ranks):
            steps += f" on each of {c.ranks} ranks"
        flat = c.schedule == "constant" or (c.schedule == "cosine" and c.final_lr == 1)
        rate = f"{c.lr:g}, " + ("constant" if flat else f"{c.schedule} to {c.final_lr:g} of it")
        rate += f", warm-up {c.warmup} steps" if c.warmup else ""
        # A fusion that was asked for may find none of its ops in this model.
        fused = [name for name in s.engine.program.fusions if makes(name) & s.engine.rungs.keys()]
        roof = f"{self.roof / 1e9:,.0f} GFLOP/s in matrix products, which MFU is a share of"
        saved = "no checkpoints: -n 100 writes one every 100 steps and at the end"
        if c.checkpoint_every:
            saved = f"a checkpoint every {c.checkpoint_every} steps and at the end"
        ranks = []
        if isinstance(self.group, Ranks) and s.peers is not None:
            shared = "each updates its share of the weights (-z 1)"
            how = shared if c.zero else "each updates all weights (-z 0)"
            ranks = [
                ("ranks", f"{c.ranks}: {roster(self.group.members)}; {how}; by {s.peers.name}")
            ]
        self.display.facts(
            [
                ("model", model),
                ("weights", s.source),
                ("data", data),
                ("steps", steps),
                ("rate", rate),
                ("device", f"{s.device.name}, {c.dtype}, {memory / 2**30:.2f} GiB of buffers"),
                ("roof", roof),
                *ranks,
                ("fused", ", ".join(fused) or "no ops; --fuse names some"),
                ("output", f"{s.directory}, {saved}"),
            ]
        )
        self.display.table(("memory", "MiB>"), self._memory_rows())
        self.display.table(("op", "rung>", "idea", "why"), self._rung_rows())
        self.display.say("")
        if s.state is not None:
            self.display.say(f"resumed at step {s.step}")
        elif c.resume:
            self.display.say(f"{s.directory} holds no checkpoint yet: starting from step 0")
        for note in s.notes:
            self.display.say(f"note: {note}")

    def _memory_rows(self) -> list[tuple[str, str]]:
        """The memory allocated, by kind, and the memory that --recompute saves."""
        engine, c = self.setup.engine, self.config
        table = engine.memory_table()
        if self.setup.sharding.cuts:  # the rest of them is on the other ranks
            share = f", 1/{c.ranks} of all"
            of_share = ("moment", "master")
            table = [(what + share * (what in of_share), size) for what, size in table]
        rows = [*table, ("together", sum(size for _, size in table))]
        if c.recompute:
            options = {**c.program_options, "recompute": 0}
            shape, sharding = self.setup.shape, self.setup.sharding
            kept = build(shape, c.batch, c.sequence, sharding=sharding, **options)
            spared = (
                by_kind(kept, engine.real).total() - by_kind(engine.program, engine.real).total()
            )
            rows.append((f"spared by -r {c.recompute}", spared))
        return [(what, f"{size / 2**20:,.1f}") for what, size in rows]

    def _rung_rows(self) -> list[tuple[str, str, str, str]]:
        """Every op with its rung and the reason; one row if all are on the reference."""
        choices = self.setup.kernels.choices
        if all(choice.rung.is_reference for choice in choices.values()):
            return [(f"all {len(choices)}", "0", "the NumPy reference", "")]
        return [
            (op, "own" if c.rung.is_own_file else c.rung.id, c.rung.idea, c.reason)
            for op, c in choices.items()
        ]

    def _finish(self, step: int, saved: int | None) -> Outcome:
        self.group.progress("the end of the run")
        if self.config.plot and self.logged and self.group.leads:
            self.display.say(f"plot {plot(self.setup.directory)}")
        if saved == self.config.steps and self.group.leads:  # llm.c's scripts look for this file
            (self.setup.directory / f"DONE_{saved:08d}").touch()
        if self.times:
            # The first step is slower on a CPU as well: caches are cold, and threads start.
            median = statistics.median(self.times[1:] or self.times)
            speed = 1e3 * self.config.total_tokens / median
            self.display.say(f"median step {median:.1f} ms, {speed:,.0f} tokens/s")
        if self._interrupted():
            kept = "no checkpoint was written, since they are off (-n)"
            if saved is not None:
                kept = (
                    f"checkpoint of step {saved} written; "
                    f"continue with -y 1 -o {self.setup.directory}"
                )
            self.display.say(f"interrupted after {step} steps; {kept}")
        elif len(self.val_losses) > 1:
            (_, before), (_, after) = self.val_losses[0], self.val_losses[-1]
            self.display.say(f"validation loss {before:.4f} -> {after:.4f}")
        status = exit_status(self.stopped_by) if self.stopped_by else 0
        return Outcome(self.setup.directory, self.val_losses, status)
