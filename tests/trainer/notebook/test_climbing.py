"""What notebook 11 calls: predictions, counts and gradients are right; guesses are refused."""

import re

import nbformat
import pytest

from ladder.core.contract.ladder import find
from ladder.core.show import progress, trace
from ladder.core.show.pages import ROOT
from trainer.data.download import VARIABLE
from trainer.model.gpt2 import GPT2Config
from trainer.model.program import build
from trainer.notebook import climbing, planted
from trainer.notebook import helpers as gpt
from trainer.notebook.climbing import differences, goes_wrong

SHAPE = GPT2Config(context=8, layers=2, heads=2, channels=8)
CELLS = nbformat.read(ROOT / "notebooks/11_climb.ipynb", as_version=4).cells


@pytest.fixture
def solved(tmp_path, monkeypatch):
    """Which exercises this test has solved."""
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path / "state"))
    return progress.solved


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts small runs on the play, in which the emulator runs some ops."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))

    def start_one(**settings):
        where = {"dataset": "play", "tokenizer": "bytes", "device": "emulated"}
        return gpt.start(SHAPE, B=2, T=8, **where, **settings)

    return start_one


# ---- a climb, predicted -------------------------------------------------------------------------


def test_the_measured_climb_is_predicted_within_a_quarter_where_it_saves_most():
    large = [row for row in climbing.savings(climbing.measured_climb()) if row.measured > 1]
    assert len(large) >= 5
    assert all(0.75 < row.predicted / row.measured < 1.25 for row in large)


# ---- what to climb next -------------------------------------------------------------------------


def by_gain(profile):
    row = max(profile["ops"], key=lambda row: row["ms"] - row["floor_ms"])
    return row["op"], profile["step_ms"] / (profile["step_ms"] - row["ms"] + row["floor_ms"])


def test_the_op_with_the_most_to_gain_is_accepted(capsys):
    climbing.check_next_climb(by_gain, gpt.measured_profiles())
    said = capsys.readouterr().out
    assert said.startswith("✓ ")
    assert said.count("times as fast") == len(gpt.measured_profiles())


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        (lambda p: (max(p["ops"], key=lambda r: r["ms"])["op"], 1.1), "would save"),
        (lambda p: (by_gain(p)[0], 2 * by_gain(p)[1]), "is no factor of"),
        (lambda p: (by_gain(p)[0], None), "return the op's name, row['op'], and the factor"),
        (lambda p: ("layernorm", 1.0), "'layernorm' is none of its ops; these are: op 0, op 1"),
        (lambda p: None, "next_climb returns None; return the op's name"),
    ],
)
def test_another_op_or_factor_is_refused(answer, advice, capsys):
    climbing.check_next_climb(answer, gpt.measured_profiles())
    assert (said := capsys.readouterr().out).startswith("✗ ") and advice in said


# ---- which op is slow ---------------------------------------------------------------------------


@pytest.mark.emulator
def test_the_sectors_of_a_step_are_those_of_its_calls():
    program = build(SHAPE.with_vocab(100), 2, 8)
    calls = [call for call in program.training_step if call.op == "layernorm.forward"]
    seen = trace.trace(
        find("layernorm.forward"), find("layernorm.forward").rung(1), dims=calls[0].dims
    )
    (row,) = climbing.count_step(calls, {"layernorm.forward": find("layernorm.forward").rung(1)})
    assert (row.op, row.calls) == ("layernorm.forward", 5)
    assert row.sectors == 5 * sum(line.sectors for line in seen.lines)
    # a row in and one out, weight and bias, mean and rstd; a sector holds 8 floats
    assert row.least == 5 * (2 * 16 * 8 + 2 * 8 + 2 * 16) // 8


@pytest.fixture
def counted(start, monkeypatch):
    """A run whose gelu.backward takes 1,000 sectors, and 100 on rung 2; every other op takes 50."""

    def count(step, rungs):
        def sectors(op):
            return {"gelu.backward": 100 if rungs[op].number == "2" else 1000}.get(op, 50)

        return [climbing.OpCount(op, 1, sectors(op), 50) for op in rungs]

    monkeypatch.setattr(climbing, "count_step", count)
    return start(rungs="reference")


def test_a_swap_that_makes_the_step_light_is_accepted(counted, capsys):
    climbing.check_swap(counted, {"gelu.backward": 2}, at_most=1000)
    said = capsys.readouterr().out
    assert said.startswith("✓ gelu.backward, rung 2: 1,800 -> 900 sectors\n  it had 55.6% of the")
    assert "which is now 2.000 times as light\n" in said


@pytest.mark.parametrize(
    ("swap", "advice"),
    [
        ({"gelu.forward": 2}, "1,800 -> 1,800 sectors; the limit is 1,000"),
        ({"gelu.backward": 2, "gelu.forward": 2}, "swap one op, as in {"),
        ("gelu.backward", "swap one op, as in {\"adamw.update\": 2}; this is 'gelu.backward'"),
        ({"relu.forward": 1}, "no call of the step is a relu.forward; its ops: "),
    ],
)
def test_a_swap_that_does_not_is_refused(swap, advice, counted, capsys):
    climbing.check_swap(counted, swap, at_most=1000)
    assert (said := capsys.readouterr().out).startswith("✗ ") and advice in said


# ---- which op is wrong --------------------------------------------------------------------------


@pytest.mark.emulator
def test_a_gradient_that_is_overwritten_is_the_only_wrong_one(start, capsys):
    run = start(rungs="reference", kernels={"residual.backward": 1, **planted.odd()})
    apart = differences(run, ["embedding.backward", "residual.backward"])
    assert [name for name, difference in apart.items() if difference > 1e-3] == ["wte"]
    assert list(apart)[:2] == ["lnfw", "lnfb"] and len(apart) == 2 * 12 + 4
    assert goes_wrong(run, ["embedding.backward"])
    assert not goes_wrong(run, ["residual.backward"])
    climbing.check_culprit(run, "embedding.backward")
    assert capsys.readouterr().out.startswith("✓ embedding.backward: ")
    climbing.check_culprit(run, "residual.backward")
    assert "1 of 28 gradients are still wrong" in capsys.readouterr().out
    climbing.check_culprit(run, "matmul.forward")
    assert "'matmul.forward' is not on a kernel; these are" in capsys.readouterr().out


@pytest.mark.emulator
def test_gradients_are_wrong_from_the_wrong_op_on(start, capsys):
    run = start(rungs="reference", kernels=planted.wrong())
    apart = differences(run, ["attention.backward"])
    wrong = {name: not difference < 1e-3 for name, difference in apart.items()}
    first = list(wrong).index("h1.qkvb")
    assert not any(list(wrong.values())[:first]) and wrong["h1.qkvb"]


def one_by_one(ops, goes_wrong):
    return next(op for op in ops if goes_wrong([op]))


def forever(ops, goes_wrong):
    while True:
        goes_wrong(ops)


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        (one_by_one, "'op 3' of 8 takes 4 steps, where 3 are enough"),
        (lambda ops, goes_wrong: ops[0], "'op 1' is wrong, but it returns 'op 0'"),
        (lambda ops, goes_wrong: [ops[0]], "it returns ['op 0']; return one op, such as ops[0]"),
        (forever, "still searching after 9 steps"),
    ],
)
def test_a_search_that_is_slow_or_wrong_is_refused(answer, advice, capsys):
    climbing.check_bisect(answer)
    assert (said := capsys.readouterr().out).startswith("✗ ") and advice in said


# ---- the notebook -------------------------------------------------------------------------------


def python_solution(name):
    (solution,) = (
        match.group(1)
        for cell in CELLS
        for match in re.finditer(r"```python\n(.*?)```", cell.source, re.DOTALL)
        if f"def {name}(" in match.group(1)
    )
    names = {}
    exec(solution, names)
    return names[name]


def test_the_solutions_behind_the_folds_pass(capsys, solved):
    climbing.check_next_climb(python_solution("next_climb"), gpt.measured_profiles())
    climbing.check_bisect(python_solution("culprit"))
    said = capsys.readouterr().out
    assert said.startswith("✓") and "✓ finds each of 17 ops in at most 5 steps" in said
    assert solved() == {"check_next_climb", "check_bisect"}
