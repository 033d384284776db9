"""What the notebook on GPT-2 calls: what it reads and computes is right, what it draws is drawn."""

import math
import re

import nbformat
import numpy as np
import pytest

from ladder.core.contract.ladder import find
from ladder.core.measure.roofline import Roof
from ladder.core.show.pages import ROOT
from trainer.data.download import VARIABLE
from trainer.model.gpt2 import GPT2Config
from trainer.model.program import build
from trainer.notebook import exercises
from trainer.notebook import helpers as gpt

SHAPE = GPT2Config(context=8, layers=2, heads=2, channels=8)
PROFILE = {"bandwidth_gbs": 2.0, "matrix_gflops": 3.0, "step_ms": 1e3}


@pytest.fixture
def shown(monkeypatch):
    """What is displayed: Markdown texts, and pictures as SVG texts."""
    seen = []
    monkeypatch.setattr("ladder.core.show.notebook._draw", seen.append)
    monkeypatch.setattr("trainer.notebook.helpers.display", lambda thing: seen.append(thing.data))
    return seen


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts small runs on the play."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))

    def start_one(**settings):
        return gpt.start(SHAPE, B=2, T=8, dataset="play", tokenizer="bytes", **settings)

    return start_one


def test_small_additions_are_lost_in_bfloat16_and_not_in_a_master_copy():
    paths = gpt.add_up(start=1.0, step=1e-4, count=200)
    exact, nearest, at_random, master = paths.values()
    assert set(nearest) == {1.0}
    assert abs(master[-1] - 1.02) < 1e-5 and exact[-1] == pytest.approx(1.02)
    assert set(np.diff(at_random)) <= {0.0, 2**-7} and at_random[-1] > 1


# ---- a small run --------------------------------------------------------------------------------


@pytest.mark.costly
@pytest.mark.slow
def test_a_run_learns_and_writes_the_same_text_each_time(start, shown):
    run = start(steps=20)
    losses = run.train(20)
    assert len(losses) == 20 and losses[-1] < losses[0]
    assert losses[0] == pytest.approx(math.log(257), rel=0.02)
    assert run.sample(12, prompt="A") == run.sample(12, prompt="A")
    again = start(steps=20)
    again.train(5)
    assert again.losses == losses[:5]
    gpt.losses("two runs", one=run, other=again)
    gpt.compare(run, again)
    gpt.formats(run, 2**16, "a logit", 1e-9)
    assert [image[:4] for image in shown] == ["<svg"] * 3


def test_the_losses_of_a_unigram_and_a_bigram_model(start):
    run = start()
    run.text = np.array([1, 2] * 50 + [1], np.uint16)
    assert list(run.counted().values()) == pytest.approx([math.log(2), 0], abs=1e-3)


@pytest.mark.emulator
def test_a_kernel_given_as_text_is_run_unchecked(start):
    source = find("residual.backward").rung(1).source
    wrong = source.replace("to_float(dinp[i]) + to_float(dout[i])", "0.0f")
    options = {"device": "emulated", "rungs": "reference"}
    right = start(**options)
    broken = start(**options, kernels={"residual.backward": wrong})
    assert right.train(1) == broken.train(1)
    assert right.train(1) != broken.train(1)


# ---- the exercises ------------------------------------------------------------------------------


def cell_of(exercise):
    notebook = nbformat.read(ROOT / "notebooks/10_gpt2.ipynb", as_version=4)
    (source,) = (cell.source for cell in notebook.cells if exercise in cell.source)
    return source


@pytest.mark.slow
def test_the_orders_that_the_fold_calls_right_are_right(capsys):
    text = cell_of("Exercise 1: the order of the backward pass")
    (order,) = re.findall(r"<summary>Solution</summary>\n\n```\n(.*?)\n```", text, re.DOTALL)
    lines = order.splitlines()
    late = [line for line in lines if re.match(r"fc matmul.backward_(weight|bias)", line)]
    for answer in (lines, [line for line in lines if line not in late] + late):
        exercises.check_order("\n".join(answer))
        assert capsys.readouterr().out.startswith("✓")


def test_a_weight_gradient_after_the_stream_has_changed_is_wrong():
    order = exercises.mlp_backward()
    weight = order.index("fcproj matmul.backward_weight")
    order.append(order.pop(weight))
    assert set(exercises.wrong_gradients(order)) == {"fcprojw"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "advice"),
    [
        (lambda order: order[1:], "'fcproj matmul.backward_bias' is missing; write each of the 9"),
        (lambda order: [*order, order[0]], "'fcproj matmul.backward_bias' is there 2 times"),
        (lambda order: ["fcproj matmul.bias", *order[1:]], "'fcproj matmul.bias' is none of the"),
        (
            lambda order: [order[3], *order[:3], *order[4:]],
            "gelu gelu.backward reads dfch_gelu, which no call has written yet",
        ),
        (lambda order: [*order[1:], order[0]], "overwritten one that a later call was to read"),
    ],
)
def test_what_is_amiss_in_an_order_is_named(change, advice, capsys):
    exercises.check_order("\n".join(change(exercises.mlp_backward())))
    said = capsys.readouterr().out
    assert said.startswith("✗") and advice in " ".join(said.split())


@pytest.mark.slow
def test_the_order_in_the_notebook_is_a_wrong_one_of_the_right_calls(capsys):
    given = re.search(r'r"""(.*?)"""', cell_of("check_order(MINE)"), re.DOTALL).group(1)
    assert sorted(given.strip().splitlines()) == sorted(exercises.mlp_backward())
    exercises.check_order(given)
    assert capsys.readouterr().out.startswith("✗ ")
    exercises.check_order("\n".join(exercises.mlp_backward()))
    assert capsys.readouterr().out.startswith("✓")


def test_the_floor_can_be_found_as_the_hints_say(capsys):
    cell = cell_of("gpt.check_floor(floor_ms").rpartition("gpt.check_floor")[0]
    gap = "# Your code: how long does this call take at least?"
    assert cell.count(gap) == 1
    text = cell_of("Exercise 2: how fast can a step be?")
    (solution,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (line,) = set(solution.splitlines()) - set(cell.splitlines())
    calls = build(SHAPE, 2, 8).training_step
    wrong = (
        *(
            "seconds += moved / bandwidth",
            "seconds += flops / rate",
            "seconds += max(moved, flops)",
        ),
        *("seconds += moved / bandwidth + flops / rate", "return None"),
        *(f"seconds {how}(moved / bandwidth, flops / rate)" for how in ("+= min", "= max")),
    )
    answers = {cell.replace(gap, answer): "✗" for answer in (gap, *wrong)}
    answers |= {cell.replace(gap, line.strip()): "✓", solution: "✓"}
    for code, mark in answers.items():
        names = {"find": find, "gpt": gpt}
        exec(code, names)
        exercises.check_floor(names["floor_ms"], calls, gpt.BF16, PROFILE)
        assert capsys.readouterr().out.startswith(mark)
    roof = Roof(2e9, 3e9)
    floor = sum(roof.floor(find(call.op).op, call.dims, gpt.BF16) for call in calls)
    exercises.check_floor(lambda *_: 1e3 * floor, calls, gpt.BF16, PROFILE)
    assert f"✓ {1e3 * floor:.2f} ms" in capsys.readouterr().out
