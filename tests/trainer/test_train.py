"""The training loop, on a model of two small layers and the embedded play."""

import json
import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ladder.core.common import install
from ladder.core.common.errors import LadderError
from ladder.core.common.files import alone_in
from ladder.core.contract.ladder import find
from ladder.core.contract.op import DTYPES, SHORT
from ladder.core.device.open import Cpu, open_device
from ladder.core.emulator.emulated import Emulated
from tests.trainer.tiny import (
    SHAPE,
    add_size,
    assert_same,
    highest_rungs,
    losses,
    needs_compiler,
    parameters,
    run,
    save_model,
    settings,
)
from trainer import train as training
from trainer.commands.parser import parse
from trainer.commands.sample import open_generator
from trainer.data.token_files import write_tokens
from trainer.engine import memory, steps
from trainer.engine.engine import Engine
from trainer.engine.generation import encode_prompt
from trainer.files import checkpoint, logs
from trainer.files.resume import how_to_go_on
from trainer.flags import Flags
from trainer.model.fusion import FUSIONS
from trainer.model.program import build
from trainer.open import open_run
from trainer.train import train

SIZE = dict(context=32, vocab=257, padded_vocab=384, layers=1, heads=2, channels=16)


def test_the_loss_falls_and_validation_frames_the_run(tmp_path):
    outcome, screen = run(tmp_path, steps=40, batch=4)
    assert [step for step, _ in outcome.val_losses] == [0, 40]
    before, after = (loss for _, loss in outcome.val_losses)
    assert abs(before - np.log(257)) < 0.2
    assert after < before - 1.5
    assert outcome.status == 0
    assert f"{before:.4f} -> {after:.4f}" in screen


@pytest.mark.slow
def test_one_batch_can_be_memorized(tmp_path):
    run(tmp_path, steps=150, overfit=True, lr=2e-2, sequence=8)
    course = losses(tmp_path / "run")
    assert course[0] > 5
    assert course[-1] < 0.05


def test_accumulated_micro_batches_are_the_larger_batch(tmp_path):
    run(tmp_path, batch=4, shuffle=False, checkpoint_every=6, output=str(tmp_path / "whole"))
    changes = {"batch": 2, "total_tokens": 64, "shuffle": False, "checkpoint_every": 6}
    run(tmp_path, **changes, output=str(tmp_path / "parts"))
    np.testing.assert_allclose(losses(tmp_path / "whole"), losses(tmp_path / "parts"), rtol=1e-5)
    whole, parts = parameters(tmp_path / "whole", 6), parameters(tmp_path / "parts", 6)
    np.testing.assert_allclose(whole["wpe"], parts["wpe"], atol=2e-3)


@pytest.mark.slow
def test_a_resumed_run_continues_bit_for_bit(tmp_path):
    model = save_model(tmp_path / "dropping", dropout=0.2)
    common = {
        "model": model,
        "total_tokens": 64,
        "warmup": 3,
        "final_lr": 0.1,
        "weight_decay": 0.1,
        "steps": 8,
        "checkpoint_every": 4,
        "val_every": 2,
    }
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    run(tmp_path, **common, output=str(straight))
    # The second run dies in step 5, after the checkpoint of step 4.
    original = training.take_step

    def die(steps, loader, number):
        if number == 5:
            raise RuntimeError("power cut")
        return original(steps, loader, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "take_step", die)
        with pytest.raises(RuntimeError):
            run(tmp_path, **common, output=str(resumed))
    outcome, _ = run(tmp_path, **common, output=str(resumed), resume=True)
    assert [step for step, _ in outcome.val_losses] == [4, 6, 8]

    assert_same(parameters(straight, 8), parameters(resumed, 8))
    assert checkpoint.load(straight, 8)[1]["train"] == checkpoint.load(resumed, 8)[1]["train"]
    assert (straight / "main.log").read_text() == (resumed / "main.log").read_text()
    assert losses(straight) == losses(resumed)


def test_before_the_first_checkpoint_its_step_is_said(tmp_path):
    assert "step 50 (-n)" in how_to_go_on(tmp_path, 50)


def own_set(folder):
    """A set of one's own: two files to train on, one to validate on."""
    for name in ("train_0", "train_1", "val_0"):
        write_tokens(folder / f"mine_{name}.bin", np.arange(1600) % 251)
    return {"train_data": str(folder / "mine_train_*.bin"), "output": str(folder / "run")}


def test_token_files_of_one_split_name_those_of_the_other(tmp_path):
    words = own_set(tmp_path)
    _, screen = run(tmp_path, steps=1, **words)
    assert re.search("3,200 .* 1,600 ", screen)
    write_tokens(tmp_path / "old_train.bin", np.arange(900) % 251)
    write_tokens(tmp_path / "old_val.bin", np.arange(800) % 251)
    prefix = {"train_data": str(tmp_path / "old"), "output": str(tmp_path / "old_run")}
    assert re.search(" 900 .* 800 ", run(tmp_path, steps=1, **prefix)[1])
    validation = {"train_data": None, "val_data": str(tmp_path / "mine_val_*.bin")}
    run(tmp_path, **{**words, **validation, "steps": 1, "output": str(tmp_path / "o")})
    assert losses(tmp_path / "run") == losses(tmp_path / "o")
    (tmp_path / "mine_val_0.bin").unlink()
    with pytest.raises(LadderError, match=r"^-i .*/mine_train_.* -j "):
        run(tmp_path, **{**words, "output": str(tmp_path / "p")})
    with pytest.raises(LadderError, match=r"/not_there_train.* --dataset"):
        run(tmp_path, **{**words, "train_data": str(tmp_path / "not_there_train*.bin")})


def test_a_text_shorter_than_a_batch_is_validated_by_fewer_rows(tmp_path):
    words = own_set(tmp_path)
    write_tokens(tmp_path / "mine_val_0.bin", np.arange(100))
    outcome, screen = run(tmp_path, **words, batch=8, steps=1)
    assert re.search(" 100 .*B=8, .*B=6, .* 3 ", screen)
    fits, screen = run(tmp_path, **words, batch=6, steps=1)
    assert screen.count("B=6") == 1
    assert outcome.val_losses[0][1] == pytest.approx(fits.val_losses[0][1], rel=1e-6)
    write_tokens(tmp_path / "mine_val_0.bin", np.arange(16))
    with pytest.raises(LadderError, match=r"/mine_val_0.bin .*16 .*17 .*-t"):
        run(tmp_path, **words)
    (text := tmp_path / "short.txt").write_text("The bell, the tower. " * 5)
    with pytest.raises(LadderError, match=r"/short.txt: .* 11 .* 17 .*-t"):
        run(tmp_path, dataset=str(text), batch=1)


def test_a_run_is_validated_on_a_text_of_ones_own_and_trains_as_without_it(tmp_path):
    (text := tmp_path / "mine.txt").write_text("The bell, the tower. " * 9)
    outcome, screen = run(tmp_path, dataset="play", val_data=str(text))
    assert re.search("40,410 .* 190 ", screen)
    assert losses(outcome.directory) == losses(run(tmp_path, output=f"{tmp_path}/o")[0].directory)
    for words in ({"val_data": str(text)}, {"train_data": str(text)}):
        with pytest.raises(LadderError, match=r"/mine.txt .*--dataset"):
            run(tmp_path, **{"dataset": None, **words})


@pytest.mark.parametrize(
    "order", ["llmc_order", pytest.param("random_offsets", marks=pytest.mark.slow)]
)
def test_a_run_in_an_order_is_resumed_in_it(tmp_path, order):
    words = {**own_set(tmp_path), order: True, "checkpoint_every": 3}
    run(tmp_path, **{**words, "output": str(tmp_path / "straight")})
    assert losses(tmp_path / "straight") != losses(run(tmp_path, **own_set(tmp_path))[0].directory)
    run(tmp_path, **{**words, "output": str(tmp_path / "two"), "steps": 3})
    run(tmp_path, **{**words, "output": str(tmp_path / "two"), "resume": True})
    assert losses(tmp_path / "two") == losses(tmp_path / "straight")


def test_a_run_on_a_text_of_ones_own_is_sampled_in_its_characters(tmp_path, monkeypatch):
    (tmp_path / "book.txt").write_text("Sing, goddess, the anger of Ἀχιλλεύς. " * 20)
    add_size(monkeypatch, "d6", **SIZE)
    words = {"model": "d6", "dataset": str(tmp_path / "book.txt"), "tokenizer": "chars"}
    run(tmp_path, **words, steps=1, checkpoint_every=1)
    run(tmp_path, **words, steps=2, resume=True)
    flags = Flags(
        model=str(tmp_path / "run"), device="cpu", data_dir=str(tmp_path / "data"), prompt="Ἀ"
    )
    config, tokenizer, generator = open_generator(flags)
    ids = encode_prompt(tokenizer, config.prompt)
    drawn = list(generator.generate([ids], 3, [np.random.default_rng(0)]))
    assert max(drawn) < [tokenizer.vocab] and len(drawn) == 3
    assert tokenizer.vocab == len(set("Sing, goddess, the anger of Ἀχιλλεύς. "))


@pytest.mark.slow
def test_the_loss_on_the_training_text_is_measured_as_on_the_validation_text(tmp_path):
    model = save_model(tmp_path / "dropping", dropout=0.2)
    words = {**own_set(tmp_path), "model": model, "val_every": 3}
    apart, _ = run(tmp_path, **words, val_data=str(tmp_path / "mine_train_0.bin"))
    outcome, screen = run(tmp_path, **{**words, "output": str(tmp_path / "both")}, eval_train=True)
    history = logs.read_history(outcome.directory / "log.jsonl")
    assert [step for step, _ in history.train_split] == [0, 3, 6]
    assert history.train_split == apart.val_losses
    assert losses(outcome.directory) == losses(apart.directory), "training goes on as without it"
    assert f"{history.train_split[-1][1]:.6f} (step 6)" in screen


def test_resume_without_a_checkpoint_starts_from_step_0_and_says_so(tmp_path):
    _, screen = run(tmp_path, steps=1, resume=True)
    assert re.search("(?m)/run .*step 0$", screen)


def test_a_resume_of_a_run_without_checkpoints_leaves_its_model_as_it_is(tmp_path):
    run(tmp_path, steps=1, keep_model=True)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    with pytest.raises(LadderError, match=r"^-y 1: .*/run .*-n.* -e .*/run .*-o"):
        run(tmp_path, steps=2, resume=True, keep_model=True)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}


def test_what_is_set_otherwise_than_in_the_run_before_is_said(tmp_path):
    first, _ = run(tmp_path, steps=1, checkpoint_every=1)
    later = {"model": str(first.directory), "output": str(tmp_path / "later"), "steps": 1}
    assert "--lr" not in run(tmp_path, **later)[1]
    assert re.search("--lr 0.5, .* 0.01", run(tmp_path, **later, lr=0.5)[1])
    _, screen = run(tmp_path, steps=2, resume=True, lr=0.5)
    assert re.search("--steps 2, .* 1; --lr 0.5, .* 0.01", screen)


def test_a_rung_that_training_never_calls_is_said_to_be_none_of_it(tmp_path):
    words = {"model": save_model(tmp_path / "dropping", dropout=0.2), "steps": 1}
    _, screen = run(tmp_path, **words, rung={"attention.forward": "0", "gelu.forward": "0"})
    (said,) = [line for line in screen.splitlines() if "attention.forward=0" in line]
    assert "attention_dropout.forward" in said
    _, screen = run(tmp_path, **words, rung={"attention_dropout.forward": "0"})
    assert "attention_dropout.forward=0" not in screen


def test_a_run_does_not_overwrite_the_checkpoints_of_another(tmp_path):
    run(tmp_path, steps=2, checkpoint_every=2)
    with pytest.raises(LadderError, match=r"/run .*step 2; .*-y 1, .*-o"):
        run(tmp_path, steps=2)
    assert checkpoint.latest(tmp_path / "run") == 2


def test_a_run_neither_reads_nor_writes_where_another_one_writes(tmp_path, monkeypatch):
    flags = Flags(**settings(tmp_path, checkpoint_every=1))
    with alone_in(tmp_path / "run"), monkeypatch.context() as patched:
        patched.setattr("trainer.open.open_run", lambda *_: pytest.fail("it was read"))
        with pytest.raises(LadderError, match=rf"\(process {os.getpid()}\) .*/run; .*-o"):
            train(flags)
    assert train(flags).status == 0


def test_a_run_that_cannot_start_leaves_no_folder_behind(tmp_path):
    missing = str(tmp_path / "missing.bin")
    with pytest.raises(LadderError, match=r"^-e .*/missing.bin: .*gpt2"):
        train(Flags(**settings(tmp_path, model=missing, output=str(tmp_path / "new" / "run"))))
    assert not (tmp_path / "new").exists()


def test_a_checkpoint_without_the_state_of_a_run_is_not_resumed(tmp_path):
    save_model(tmp_path / "run")  # whole, but a model only
    with pytest.raises(LadderError, match=r"/run .* config; .*-e .*/run .*-o"):
        run(tmp_path, resume=True)
    run(tmp_path, steps=1, output=str(tmp_path / "other"), checkpoint_every=1)
    tensors, state = checkpoint.load(tmp_path / "other", 1)
    for key in ("device", "kernels", "train", "stepper"):
        folder = tmp_path / key
        reads = {name: (lambda name=name: tensors[name]) for name in tensors}
        checkpoint.save(folder, 1, reads, {**state, key: 5})
        with pytest.raises(LadderError, match=f"/{key} .* {key}[.;].*-e .*-o"):
            run(tmp_path, resume=True, output=str(folder))


@pytest.mark.parametrize(
    ("key", "value", "names"),
    [
        ("updates", -1, "stepper.updates"),
        ("losses", ["x"], "stepper.losses"),
        ("scale", None, "stepper.scale.value"),
        ("scale", {"value": 0, "good_steps": 1}, "stepper.scale.value"),
        ("scale", {"value": 1.0, "good_steps": []}, "stepper.scale.good_steps"),
    ],
)
def test_a_checkpoint_whose_numbers_make_no_sense_is_not_resumed(tmp_path, key, value, names):
    run(tmp_path, steps=1, output=str(tmp_path / "sound"), checkpoint_every=1, dtype="fp16")
    tensors, state = checkpoint.load(tmp_path / "sound", 1)
    reads = {name: (lambda name=name: tensors[name]) for name in tensors}
    stepper = {**state["stepper"], key: value}
    checkpoint.save(tmp_path / "run", 1, reads, {**state, "stepper": stepper})
    with pytest.raises(LadderError, match=names):
        run(tmp_path, resume=True, steps=2, dtype="fp16")


def test_a_resumed_run_does_not_need_the_model_it_began_with(tmp_path):
    """Nor its tokenizer's name, which only the model's folder told."""
    run(tmp_path, steps=1, checkpoint_every=1)
    shutil.rmtree(tmp_path / "model")
    outcome, _ = run(tmp_path, model=str(tmp_path / "model"), steps=2, resume=True)
    assert outcome.status == 0


@pytest.mark.slow
def test_a_plot_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "run" / "loss.png").mkdir(parents=True)
    with pytest.raises(LadderError, match=r"/loss.png: Is a directory"):
        run(tmp_path, steps=1, plot=True)
    assert not list((tmp_path / "run").glob(".*")), "nothing is left of the attempt"


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"seed": 5}, "--seed .*1337 .*5 "),
        ({"total_tokens": 64}, "-b .*-t.* 32 .* 64 "),
        ({"batch": 1, "total_tokens": 32}, " B .*2 .*1 "),
        ({"dtype": "bf16"}, "--dtype .*fp32 .*bf16 "),
        ({"steps": 1}, "-x 1: .*step 2; .*-x 2 "),
    ],
)
def test_resuming_with_other_settings_is_refused(tmp_path, changes, names):
    run(tmp_path, steps=2, checkpoint_every=2)
    with pytest.raises(LadderError, match=names):
        run(tmp_path, **{"steps": 4, "checkpoint_every": 2, "resume": True, **changes})


def test_flags_of_llmc_that_only_print_are_answered(tmp_path, monkeypatch):
    told = iter(["1980 MHz", None])
    monkeypatch.setattr(Cpu, "condition", lambda cpu: next(told))
    _, screen = run(tmp_path, steps=5, log_gpu=2)
    assert re.search("(?m)^cpu .* 2: 1980 MHz$", screen) and re.search("(?m)^cpu .* 4: ", screen)
    entries = logs.read(tmp_path / "run" / "log.jsonl")
    assert [e["step"] for e in entries if e.get("condition") == "1980 MHz"] == [1]
    assert not list((tmp_path / "run").glob("DONE_*")), "checkpoints are off"


def test_only_the_last_checkpoints_and_the_major_ones_stay(tmp_path):
    run(tmp_path, steps=6, checkpoint_every=1, keep=2, major_every=3)
    steps = sorted(path.name for path in (tmp_path / "run").glob("step_*"))
    assert steps == ["step_00000003", "step_00000005", "step_00000006"]
    assert (tmp_path / "run" / "DONE_00000006").exists(), "llm.c's scripts look for it"


def interrupt_at(patch, number):
    """Have the process send itself a Ctrl-C while it takes a step."""
    original = training.take_step

    def step(steps, loader, current):
        if current == number:
            os.kill(os.getpid(), signal.SIGINT)
        return original(steps, loader, current)

    patch.setattr(training, "take_step", step)


def test_ctrl_c_finishes_the_step_and_writes_a_checkpoint_to_go_on_from(tmp_path, monkeypatch):
    interrupt_at(monkeypatch, 2)
    before = signal.getsignal(signal.SIGINT)  # ignored, where the tests run in the background
    outcome, screen = run(tmp_path, checkpoint_every=100)
    assert (outcome.status, outcome.step, outcome.saved) == (130, 3, 3)
    assert checkpoint.latest(tmp_path / "run") == 3
    assert len(losses(tmp_path / "run")) == 3
    assert re.search("(?m) step 3 in .*/run .*-y 1$", screen)
    assert signal.getsignal(signal.SIGINT) is before
    monkeypatch.undo()
    run(tmp_path, checkpoint_every=100, resume=True)
    run(tmp_path, checkpoint_every=100, output=str(tmp_path / "straight"))
    assert losses(tmp_path / "run") == losses(tmp_path / "straight")


def test_ctrl_c_without_checkpoints_keeps_the_model_if_it_was_trained(tmp_path, monkeypatch):
    interrupt_at(monkeypatch, 2)
    outcome, screen = run(tmp_path, keep_model=True)
    assert (outcome.status, outcome.step, outcome.saved) == (130, 3, None)
    assert checkpoint.latest(tmp_path / "run") is None
    assert "(-n)" in screen
    kept = (tmp_path / "run" / "model").stat()

    def interrupted(*_, **__):
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(training, "validate", interrupted)
    assert run(tmp_path, keep_model=True)[0].step == 0
    assert os.path.samestat((tmp_path / "run" / "model").stat(), kept)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    model = save_model(tmp_path / "huge", factor=1e20)
    with pytest.raises(LadderError, match=r"step 1: .*nan.* -l.*--nonfinite skip.*--debug-nan"):
        run(tmp_path, model=model)
    text = (tmp_path / "run" / "log.jsonl").read_text()
    assert [json.loads(line)["step"] for line in text.splitlines()] == [0, 0]
    assert "NaN" not in text


def change_loss(monkeypatch, number, change):
    """The loss of step `number`, counted from 0, is another one."""
    original = steps.mean_loss

    def mean_loss(group, what, losses):
        loss = original(group, what, losses)
        return change(loss) if what == f"the loss of step {number}" else loss

    monkeypatch.setattr(steps, "mean_loss", mean_loss)


def skipped(directory):
    """The steps whose updates were skipped, and why."""
    log = logs.read(directory / "log.jsonl")
    return [(entry["step"], entry["skipped"]) for entry in log if "skipped" in entry]


def test_steps_that_are_not_finite_can_be_skipped_without_a_trace(tmp_path, monkeypatch):
    change_loss(monkeypatch, 1, lambda loss: float("nan"))
    run(tmp_path, steps=3, nonfinite="skip", checkpoint_every=1)
    assert skipped(tmp_path / "run") == [(1, steps.NOT_FINITE)]
    assert_same(parameters(tmp_path / "run", 1), parameters(tmp_path / "run", 2))
    assert checkpoint.load(tmp_path / "run", 3)[1]["stepper"]["updates"] == 2


@pytest.mark.slow
def test_an_outlying_loss_makes_no_update(tmp_path, monkeypatch):
    change_loss(monkeypatch, 140, lambda loss: loss + 100)
    run(tmp_path, steps=142, loss_outlier=5.0, batch=1, sequence=8)
    ((step, why),) = skipped(tmp_path / "run")
    assert step == 140 and why != steps.NOT_FINITE


def test_a_batch_beyond_the_memory_is_refused_with_the_largest_that_fits(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "available_on_host", lambda: 4 << 20)
    with pytest.raises(LadderError, match=r"-b 200 -t 16 .*-b ") as refused:
        run(tmp_path, batch=200)
    largest = int(re.findall(r"-b (\d+)", str(refused.value))[1])
    shape, real = SHAPE, np.dtype(np.float32)
    fits, does_not = (
        memory.by_kind(build(shape, B, 16), real).total() for B in (largest, largest + 1)
    )
    assert fits <= 4 << 20 < does_not


def test_a_limit_of_the_process_counts_as_its_memory(monkeypatch):
    limit = 64 << 40
    monkeypatch.setattr(memory.resource, "getrlimit", lambda what: (limit, limit))
    assert memory.available_on_host() < 64 << 40
    limit = 1 << 20  # less than it has already
    assert memory.available_on_host() == 0


def test_a_run_takes_nothing_that_macos_lacks(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(
        Path, "exists", lambda path: path.parts[1:2] != ("proc",) and os.path.exists(path)
    )
    monkeypatch.setattr(memory.resource, "getrlimit", lambda what: (1 << 40, 1 << 40))
    run(tmp_path, keep_model=True)
    assert open_generator(Flags(model=str(tmp_path / "run"), device="cpu"))
    assert install.cores() == os.cpu_count()


def test_memory_that_runs_out_all_the_same_is_one_line():
    with pytest.raises(LadderError, match=f" {1 << 37:,} MiB .*ulimit -v"):
        Cpu().empty((1 << 55,), np.dtype(np.float32))


@pytest.mark.emulator
def test_the_memory_that_is_computed_is_what_the_engine_allocates():
    class Counting(Emulated):
        taken = 0

        def empty(self, shape, dtype):
            array = super().empty(shape, dtype)
            self.taken += array.nbytes
            return array

    device, program, real = Counting(), build(SHAPE, 2, 16), DTYPES["bfloat16"]
    rungs = {call.op: find(call.op).rung(1) for call in program.calls}
    engine = Engine(program, device, real, rungs)
    computed = memory.by_kind(program, real, device, rungs)
    assert computed[memory.SCRATCH] > 0
    assert computed.total() == device.taken
    assert engine.memory_by_kind() == computed
    sampling = build(SHAPE, 1, 16, training=False)
    device.taken = 0
    Engine(sampling, device, real, rungs, weights_of=engine)
    assert memory.by_kind(sampling, real, device, rungs, program).total() == device.taken


def test_scratch_memory_of_rungs_counts_once_they_are_chosen(tmp_path, monkeypatch):
    real, device = np.dtype(np.float32), Emulated()
    program = build(SHAPE, 4, 16)
    rungs = {call.op: find(call.op).rung(1) for call in program.calls}
    scratch = memory.by_kind(program, real, device, rungs)[memory.SCRATCH]
    assert scratch > 1000
    free = memory.by_kind(program, real).total() + scratch // 2
    monkeypatch.setattr(memory, "available_on_host", lambda: free)

    def refuse(rungs=None):
        memory.refuse_what_does_not_fit(program, device, real, lambda B: build(SHAPE, B, 16), rungs)

    refuse()
    with pytest.raises(LadderError, match=r"-b 4 -t 16 .*-b 3 "):
        refuse(rungs)


def test_the_memory_for_text_samples_counts(tmp_path, monkeypatch):
    without = Flags(**settings(tmp_path))
    sampling = replace(without, sample_every=1, sample_tokens=8)
    setup = open_run(sampling)
    free = memory.by_kind(setup.kernels.program, setup.config.real).total()
    monkeypatch.setattr(memory, "available_on_host", lambda: free)
    open_run(replace(without, sample_every=0))
    with pytest.raises(LadderError, match=r"-b 2 -t 16 .*-b 1 "):
        open_run(sampling)


def test_the_logs_are_llmcs_lines_and_json_ones(tmp_path):
    run(tmp_path, steps=2, val_every=1)
    entries = logs.read(tmp_path / "run" / "log.jsonl")
    text = (tmp_path / "run" / "main.log").read_text().splitlines()
    assert [line.split()[0] for line in text] == ["s:0", "s:0", "s:1", "s:1", "s:2"]
    assert text[0] == f"s:0 tel:{entries[0]['val_loss']:.4f}"
    train = entries[1]
    assert text[1] == f"s:0 trl:{train['train_loss']:.4f} lr:0.010000 norm:{train['norm']:.2f}"
    assert train["ms"] > 0
    assert 0 < train["roof_share"] < 1


@pytest.mark.slow
def test_samples_and_the_plot_appear(tmp_path):
    _, screen = run(tmp_path, steps=2, sample_every=1, sample_tokens=5, prompt="ROMEO", plot=True)
    samples = [e["sample"] for e in logs.read(tmp_path / "run" / "log.jsonl") if "sample" in e]
    assert len(samples) == 2
    assert all(sample.startswith("ROMEO") and len(sample) > 5 for sample in samples)
    assert re.search(" 2 .*\nROMEO", screen)
    png = (tmp_path / "run" / "loss.png").read_bytes()
    assert png.startswith(b"\x89PNG") and len(png) > 5000


@pytest.mark.slow
def test_sampling_does_not_change_the_training(tmp_path):
    run(tmp_path, output=str(tmp_path / "with"), sample_every=1, val_every=1)
    run(tmp_path, output=str(tmp_path / "without"))
    assert losses(tmp_path / "with") == losses(tmp_path / "without")


def test_without_a_network_the_run_says_what_it_uses_instead(tmp_path, monkeypatch):
    """All of it: no text, no vocabulary, no weights."""
    from trainer.data import download
    from trainer.files import huggingface

    def no_file(source, data_dir):
        raise download.DownloadError("cannot download input.txt (no connection)")

    def no_weights(source, data_dir):
        raise download.DownloadError("cannot reach the Hub")

    monkeypatch.setattr(download, "fetch", no_file)
    monkeypatch.setattr(huggingface, "find_pretrained", no_weights)
    # GPT-2 is too large for a test: a small stand-in takes its name.
    add_size(monkeypatch, "gpt2", layers=2, channels=16, heads=2)
    monkeypatch.chdir(tmp_path)
    outcome, screen = run(tmp_path, model="gpt2", dataset=None, output=None, steps=1)
    notes = [line for line in screen.splitlines() if line.startswith("note: ")]
    assert len(notes) == 2
    assert re.search("play .*tinyshakespeare", notes[0]) and "gpt2" in notes[1]
    assert outcome.status == 0
    assert outcome.directory == Path("runs/gpt2-play")  # of the text that it was trained on
    assert [path.name for path in Path("runs").iterdir()] == ["gpt2-play"]
    record = json.loads((outcome.directory / "config.json").read_text())
    assert record["dataset"] == "play" and record["notes"] == [n[len("note: ") :] for n in notes]


def rungs_of(directory):
    return json.loads((directory / "rungs.json").read_text())


@pytest.mark.emulator
@needs_compiler
@pytest.mark.parametrize(
    ("rungs", "swapped"),
    [
        ("reference", {"layernorm.forward": "3", "layernorm.backward": "1", "gelu.forward": "1"}),
        ("naive", {"matmul.forward": "2", "crossentropy.fused": "3", "adamw.update": "2"}),
    ],
)
def test_real_kernels_on_the_emulator_train_as_the_reference_does(tmp_path, rungs, swapped):
    """Dropout included; a batch of two micro-batches."""
    common = {"model": save_model(tmp_path / "dropping", dropout=0.2), "total_tokens": 64}
    run(tmp_path, steps=2, **common, output=str(tmp_path / "reference"))
    kernels = {"device": "emulated", "rungs": rungs, "rung": swapped}
    run(tmp_path, steps=2, val_batches=1, **common, **kernels, output=str(tmp_path / "kernels"))
    assert swapped.items() <= rungs_of(tmp_path / "kernels").items()
    reference, kernels = losses(tmp_path / "reference"), losses(tmp_path / "kernels")
    np.testing.assert_allclose(kernels, reference, rtol=1e-5)


def assert_near_the_reference(tmp_path, dtype, **kernels):
    run(tmp_path, steps=2, output=str(tmp_path / "exact"))
    kernels = {"device": "emulated", "dtype": dtype, "output": str(tmp_path / "coarse"), **kernels}
    run(tmp_path, steps=2, val_batches=1, **kernels)
    exact, coarse = losses(tmp_path / "exact"), losses(tmp_path / "coarse")
    np.testing.assert_allclose(coarse, exact, rtol=1e-5 if dtype == "fp32" else 5e-3)


@pytest.mark.costly
@pytest.mark.emulator
@needs_compiler
def test_kernels_train_in_float16_too(tmp_path):
    assert_near_the_reference(tmp_path, "fp16", rungs="naive")


@pytest.mark.costly
@pytest.mark.emulator
@needs_compiler
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_highest_rungs_train_too(tmp_path, dtype):
    """Those of a GPU that has wgmma, TMA and clusters, fused ops among them."""
    program = build(SHAPE, B=2, T=16, fusions=tuple(FUSIONS))
    target = open_device("emulated").target(DTYPES[SHORT[dtype]])
    highest = highest_rungs(program.calls, target)
    assert_near_the_reference(tmp_path, dtype, fuse="all", rung=highest)
    there = {"bf16": {"matmul.forward": "16bit-18", "matmul_gelu.forward": "16bit-11"}}
    there["fp32"] = {"matmul.forward": "float32-7", "attention.backward": "float32-7"}
    assert there[dtype].items() <= highest.items()


@pytest.mark.emulator
@needs_compiler
def test_a_resumed_run_keeps_its_rungs_and_its_loss_scale(tmp_path):
    common = {"dtype": "fp16", "device": "emulated", "checkpoint_every": 1}
    swapped = {"gelu.forward": "1", "layernorm.forward": "3", "matmul.forward@C:64": "2"}
    run(tmp_path, steps=1, rung=swapped, **common)
    before = rungs_of(tmp_path / "run")
    assert {"layernorm.forward": "3", "matmul.forward@C:64,OC:16": "2"}.items() <= before.items()
    run(tmp_path, steps=2, resume=True, **common)
    assert rungs_of(tmp_path / "run") == before
    run(tmp_path, steps=2, rung=swapped, **common, output=str(tmp_path / "straight"))
    assert losses(tmp_path / "run") == losses(tmp_path / "straight")
    state = checkpoint.load(tmp_path / "run", 2)[1]
    assert state["stepper"]["scale"] == {"value": 65536.0, "good_steps": 2}


def test_a_folder_below_a_file_is_refused_before_the_model_is_opened(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(LadderError, match=r"^-o .*/file/run: .*/file "):
        run(tmp_path, model="no such model", output=str(tmp_path / "file" / "run"))


def test_the_folder_holds_what_was_run(tmp_path):
    run(tmp_path, steps=1)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    chosen = rungs_of(tmp_path / "run")
    assert (config["batch"], config["lr"], config["steps"]) == (2, 1e-2, 1)
    assert set(chosen.values()) == {"0"}
    assert "layernorm.forward" in chosen
    again = ["--config", str(tmp_path / "run" / "config.json"), "-b", "4"]
    assert parse(again) == Flags(**settings(tmp_path, steps=1, batch=4))
