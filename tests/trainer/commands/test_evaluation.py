"""Multiple choice: the NumPy reference's answers row by row, whatever the batches and ranks."""

import contextlib
import dataclasses
import functools
import gc
import io
import re
import weakref

import numpy as np
import pytest

from ladder.core.common.command_line import run as run_command
from ladder.core.common.errors import LadderError
from ladder.core.device.open import Cpu
from ladder.core.emulator.emulated import Emulated
from reference import gpt2
from tests.trainer.cpu_engines import cpu_engine, write_weights
from tests.trainer.parallel_run import run_ranks, together
from tests.trainer.tiny import SHAPE, run, save_model, settings
from trainer import open as opening
from trainer import report
from trainer.commands import evaluation
from trainer.data import download
from trainer.data.benchmarks import prepare_benchmark
from trainer.data.download import DownloadError
from trainer.data.multiple_choice import Example, read_examples, write_examples
from trainer.engine import memory, scoring
from trainer.engine.engine import Engine
from trainer.engine.scoring import NoAnswer, Score, evaluate
from trainer.files import logs
from trainer.flags import Flags
from trainer.model.program import build, initial_parameters

T = 24


def make_examples(count, longest=12, seed=0):
    """Random examples; contexts and completions have 1 to `longest` tokens."""
    rng = np.random.default_rng(seed)

    def text():
        return rng.integers(0, 256, rng.integers(1, longest + 1)).tolist()

    return [Example(text(), [text() for _ in range(4)], int(rng.integers(4))) for _ in range(count)]


@functools.cache
def weights():
    """Large enough that the model has opinions."""
    return {name: array * np.float32(8) for name, array in initial_parameters(SHAPE, 3)}


def engine(B, T=T, dtype=np.float32):
    made = cpu_engine(SHAPE, B, T, np.dtype(dtype), training=False)
    write_weights(made, weights().items())
    return made


def losses_of(example):
    """(4, 2): sum and mean of each completion's losses, by the reference, one row at a time."""
    w = {name: array.astype(np.float64) for name, array in weights().items()}
    w["wte"] = w["wte"][: SHAPE.vocab]
    rows = []
    for completion in example.completions:
        ids = np.array([[*example.context, *completion]])
        *_, probs = gpt2.forward(w, ids[:, :-1], ids[:, 1:], SHAPE.heads)[2]
        n = len(completion)
        losses = -np.log(probs[np.arange(len(probs)), ids[0, 1:]])[-n:]
        rows.append((losses.sum(), losses.sum() / n))
    return np.array(rows)


def answers(examples):
    """(n, 2) what the reference answers, by sum and by mean."""
    return np.array([losses_of(example).argmin(axis=0) for example in examples])


def labelled(examples, labels):
    return [dataclasses.replace(e, label=int(x)) for e, x in zip(examples, labels, strict=True)]


def test_answers_are_those_of_the_reference_for_any_batch():
    examples = make_examples(12)
    by_sum, by_mean = answers(examples).T
    agree = int(np.count_nonzero(by_sum == by_mean))
    assert 2 < agree < 10  # so that the two can be told apart
    one, three, eight = (engine(B) for B in (1, 3, 8))
    assert evaluate(three, labelled(examples, by_sum)) == Score(12, 12, agree)
    assert evaluate(eight, labelled(examples, by_mean)) == Score(12, agree, 12)
    assert evaluate(one, labelled(examples, (by_sum + 1) % 4)).right == 0


def test_ranks_share_the_examples_and_all_know_the_score():
    examples = make_examples(9)
    alone = evaluate(engine(2), examples)
    shown = []

    def work(group):
        return evaluate(engine(2), examples, group=group, show=shown.append)

    assert together(3, work) == [alone] * 3
    assert max(shown) == 9


def test_an_example_that_is_too_long_begins_later():
    """T + 1 = 9 tokens of a row are seen: the last 3 are the completion, so 6 of the context."""
    contexts = [list(range(i, i + 20)) for i in range(6)]
    endings = [[[i, j, i + j] for j in range(40, 44)] for i in range(6)]
    long, cut = (
        [Example(c[start:], e, 0) for c, e in zip(contexts, endings, strict=True)]
        for start in (0, -6)
    )
    _, by_mean = answers(cut).T
    run = engine(4, T=8)
    assert evaluate(run, labelled(long, by_mean)) == Score(6, 6, 6)
    (note,) = scoring.note_on_length(long, 8)
    assert re.search("6 of 6 .* 8 ", note)
    assert scoring.note_on_length(cut, 8) == []
    assert len(scoring.note_on_length(cut, 7)) == 1


def test_of_a_completion_that_fills_a_row_every_token_but_the_first_counts():
    """T + 1 = 3 tokens of a row are seen, as many as each completion has, and no context."""
    examples = [
        Example([9], [[5 * i + j, j, i * j % 256] for j in range(40, 44)], 0) for i in range(1, 7)
    ]
    losses = [
        [losses_of(Example(text[:1], [text[1:]], 0))[0, 0] for text in example.completions]
        for example in examples
    ]
    assert evaluate(engine(4, T=2), labelled(examples, np.argmin(losses, axis=1))) == Score(6, 6, 6)


def test_it_stops_when_it_is_told_to():
    asked = []

    def stop():
        asked.append(1)
        return len(asked) == 3

    assert evaluate(engine(4), make_examples(9), stop) is None
    assert len(asked) == 3


def test_losses_that_are_not_finite_are_no_answer():
    run = engine(4)
    run.write("lnfw", np.full(SHAPE.channels, np.inf, np.float32))
    with np.errstate(all="ignore"), pytest.raises(NoAnswer):
        evaluate(run, make_examples(2))


def test_where_kernels_run_all_batches_have_one_length():
    examples = make_examples(11, longest=40)
    context, most = 1024, scoring.longest(examples)
    assert 64 < most < 80
    assert scoring.in_groups(examples, 4, context, Emulated()) == {128: examples}
    assert next(iter(scoring.in_groups(examples, 4, context, Cpu()))) == 80


# In training


@pytest.fixture
def hellaswag(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNEL_LADDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(report, "measured_roof", lambda device, real, tf32: 1e9)
    (tmp_path / "data" / "hellaswag").mkdir(parents=True)
    write_examples(tmp_path / "data" / "hellaswag" / "bytes_val.bin", make_examples(10, longest=7))


def lines(directory, kind):
    return [line for line in (directory / "main.log").read_text().splitlines() if kind in line]


def test_h_1_logs_llmcs_line_at_each_validation_after_the_first(tmp_path, hellaswag):
    outcome, screen = run(tmp_path, steps=3, val_every=2, hellaswag=True, checkpoint_every=3)
    evals = lines(outcome.directory, "eval:")
    assert [line.split()[0] for line in evals] == ["s:2", "s:3"]
    path = tmp_path / "data" / "hellaswag" / "bytes_val.bin"
    entries = logs.read(outcome.directory / "log.jsonl")
    last = [entry["eval"] for entry in entries if "eval" in entry][-1]
    assert f"s:3 eval:{last:.4f}" == evals[-1]
    assert f"{round(10 * last)}/10 = {last:.4f}" in screen
    # The command finds the same with the weights of the last step.
    words = [str(path), "-e", str(outcome.directory), "--device", "cpu"]
    from_command = evaluate_by_command([*words, "--data-dir", str(tmp_path / "data")])
    assert from_command["normalized"] == last


def evaluate_by_command(words):
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        assert evaluation.main(words) == 0
    shares = re.findall(r"^(accuracy|normalized) +([0-9.]+) ± [0-9.]+ ", told.getvalue(), re.M)
    return {name: float(share) for name, share in shares}


def test_ranks_log_what_one_process_logs(tmp_path, hellaswag):
    save_model(tmp_path / "model")
    logged = []
    for ranks in (1, 3):
        out = str(tmp_path / f"run{ranks}")
        words = settings(tmp_path, output=out, steps=1, total_tokens=96, hellaswag=True)
        outcomes, _ = run_ranks(ranks, Flags(**words))
        logged.append(lines(outcomes[0].directory, "eval:"))
    assert logged[0] == logged[1] and len(logged[0]) == 1


def test_without_the_benchmark_a_run_says_so_and_goes_on(tmp_path, hellaswag, monkeypatch):
    def offline(source, target):
        raise DownloadError(f"cannot download {source.path}")

    monkeypatch.setattr(download, "_download", offline)
    (tmp_path / "data" / "hellaswag" / "bytes_val.bin").unlink()
    outcome, screen = run(tmp_path, steps=1, hellaswag=True)
    assert "hellaswag/hellaswag_val.jsonl" in screen
    assert outcome.status == 0 and lines(outcome.directory, "eval:") == []


# The command


@pytest.mark.slow
def test_the_loss_of_a_model_is_that_of_its_runs_validation(tmp_path, capsys):
    outcome, _ = run(tmp_path, keep_model=True, val_batches=-1, batch=10, steps=2)
    words = ["loss", "-e", str(outcome.directory), "--device", "cpu", "-b", "40"]
    (text := tmp_path / "mine.txt").write_text("The bell, the tower. " * 9)

    def loss(*more):
        assert evaluation.main([*words, *more]) == 0
        told = capsys.readouterr().out
        return int(re.search(r"([\d,]+) rows", told)[1]), float(re.search(r"loss: (\S+)", told)[1])

    assert loss() == (280, pytest.approx(outcome.val_losses[-1][1], abs=1e-6))
    assert loss("--limit", "7")[0] == 7
    assert loss("--on", str(text), "-t", "8")[0] == 23
    assert loss("--on", "train", "--limit", "3")[1] != loss("--limit", "3")[1]
    model = str(outcome.directory / "model")
    with pytest.raises(LadderError, match=f"^-e {model}: .*--on FILE"):
        loss("-e", model)
    with pytest.raises(LadderError, match=r"^--on .*-t .*loss.*hellaswag"):
        evaluation.parse(["hellaswag", "-t", "64"])


def test_the_loss_says_how_far_it_is_and_which_rows_validated(tmp_path, capsys, monkeypatch):
    outcome, _ = run(tmp_path, keep_model=True, steps=1)  # validates on 2 batches of 2 rows
    monkeypatch.setattr(evaluation, "SECONDS", 0)
    words = ["loss", "-e", str(outcome.directory), "--device", "cpu", "-b", "100"]
    assert evaluation.main(words) == 0
    told = capsys.readouterr().out
    assert "--limit 4\n" in told and "\n200 of 280 " in told
    assert evaluation.main([*words, "--limit", "4"]) == 0
    loss = float(re.search(r"loss: (\S+)", told := capsys.readouterr().out)[1])
    assert loss == pytest.approx(outcome.val_losses[-1][1], abs=1e-6) and "--limit" not in told


def test_the_limit_takes_the_first_examples(tmp_path, hellaswag, capsys):
    words = ["hellaswag", "-e", save_model(tmp_path / "m"), "--device", "cpu", "--limit", "3"]
    assert evaluation.main([*words, "--data-dir", str(tmp_path / "data")]) == 0
    told = capsys.readouterr().out
    assert re.match("hellaswag: 3 of 10 .*B=4 T=16, fp32\n", told)
    assert re.search(r"^accuracy    [01]\.\d{4} ± 0\.\d{4} \(\d of 3\)$", told, re.M)
    assert evaluation.parse(["hellaswag", "--limit", "1"])[1] == 1


def test_the_command_answers_by_length_as_in_batches_of_one_length(tmp_path, hellaswag, capsys):
    examples = make_examples(40, longest=16, seed=4)
    path, model = tmp_path / "mixed.bin", save_model(tmp_path / "m", factor=8)
    write_examples(path, examples)
    one_length = cpu_engine(SHAPE, 4, 32, np.dtype(np.float32), training=False)
    write_weights(one_length, ((n, a * np.float32(8)) for n, a in initial_parameters(SHAPE, 1)))
    expected = evaluate(one_length, examples)
    assert evaluation.main([str(path), "-e", model, "--device", "cpu"]) == 0
    told = capsys.readouterr().out
    assert re.search("40 of 40 .*B=4 T=16 to 32, fp32", told)
    assert f"accuracy    {evaluation.describe(expected.right, 40)}" in told
    assert f"normalized  {evaluation.describe(expected.right_normalized, 40)}" in told


def test_the_engine_of_a_length_is_freed_before_the_next(tmp_path, hellaswag, monkeypatch):
    """Only the first one stays, which lends its weights; that is what the memory check counts."""
    made, alive = [], []

    class Watched(Engine):
        def __init__(self, *args, **options):
            alive.append([engine() is not None for engine in made])
            super().__init__(*args, **options)
            made.append(weakref.ref(self))

    for module in (opening, evaluation):
        monkeypatch.setattr(module, "Engine", Watched)
    monkeypatch.setattr(scoring, "GRAIN", 4)
    where = ["--device", "cpu", "--data-dir", str(tmp_path / "data")]
    gc.disable()
    try:
        assert evaluation.main(["hellaswag", "-e", save_model(tmp_path / "m"), *where]) == 0
    finally:
        gc.enable()
    assert alive == [[True, *[False] * (n - 1)][:n] for n in range(len(alive))]
    assert len(alive) > 2


def test_the_memory_of_two_lengths_counts_at_every_batch_size(tmp_path, hellaswag, monkeypatch):
    path, real = tmp_path / "two.bin", np.dtype(np.float32)
    write_examples(path, [Example([1] * n, [[2]] * 4, 0) for n in (30, 30, 30, 5)])
    long, short = (build(SHAPE, 8, T, training=False) for T in (32, 16))
    needed = memory.by_kind(long, real) + memory.by_kind(short, real, lender=long)
    monkeypatch.setattr(memory, "available_on_host", needed.total)
    words = [str(path), "-e", save_model(tmp_path / "m"), "--device", "cpu", "-b"]
    with pytest.raises(LadderError, match=r"-b 12 .*-b 8 "):
        evaluation.main([*words, "12"])
    assert evaluation.main([*words, "4"]) == 0


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["hellaswag", "--limit", "0"], "--limit .*0"),
        (["nothing.bin"], "nothing.bin: .*loss, hellaswag"),
        (["hellaswag", "-e", "d6"], "-e d6: .* by -e$"),
        (["loss", "--on", "nothing"], r"--on nothing: .*train \| val"),
    ],
)
def test_the_command_refuses_what_makes_no_sense_in_one_line(
    tmp_path, hellaswag, capsys, words, names
):
    common = ["-e", save_model(tmp_path / "m"), "--device", "cpu", "--tokenizer", "bytes"]
    where = ["--data-dir", str(tmp_path / "data")]
    name, *rest = words
    assert run_command(evaluation.main, [name, *common, *where, *rest]) == 2
    error = capsys.readouterr().err
    assert re.search(names, error) and error.count("\n") == 1


def test_the_examples_of_a_run_are_those_of_its_tokenizer(tmp_path):
    with pytest.raises(LadderError, match=r"^hellaswag .*tokenizer chars"):
        prepare_benchmark("hellaswag", "chars:a-text", tmp_path, vocab=65)
    write_examples(tmp_path / "x.bin", make_examples(1))
    with pytest.raises(LadderError, match=r"x\.bin: example 0 .* 65;"):
        read_examples(tmp_path / "x.bin", vocab=65)
