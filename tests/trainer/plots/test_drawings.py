"""A drawing shows the numbers that it is given."""

import numpy as np
import pytest
from matplotlib.text import Text

from trainer.plots import losses, number_formats, runs, style, sweep, training_step
from trainer.plots.training_step import StepTime

PROFILE = {
    "B": 4,
    "T": 8,
    "step_ms": 2.0,
    "gaps_ms": 0.5,
    "tokens_per_second": 16000.0,
    "ops": [
        {"op": "gelu.forward", "rung": "3", "ms": 1.0, "floor_ms": 0.5},
        {"op": "matmul.forward", "rung": "cublas", "ms": 0.5, "floor_ms": 0.4},
    ],
}


def texts(figure):
    """Whatever is written in a figure."""
    figure.draw_without_rendering()  # which gives the ticks their labels
    return {text.get_text().strip() for text in figure.findobj(Text)}


def test_step_times_are_ours_and_others_by_type_and_batch():
    rows = [
        StepTime(4, "bf16", "ours", 8.357),
        StepTime(4, "bf16", "PyTorch", 11.3),
        StepTime(64, "fp32", "ours", 1151.1),
    ]
    figure = training_step.times(rows, "title")
    assert {"8.36 ms", "11.30 ms", "1151.10 ms", "B=4, bf16"} <= texts(figure)
    assert [len(axes.patches) for axes in figure.axes] == [2, 1]


def test_a_profile_names_each_rung_and_its_share_of_the_step():
    figure = training_step.profile(PROFILE, "title")
    shown = texts(figure)
    assert {"1.000 ms, 50.0 % of the step", "0.500 ms, 25.0 % of the step"} <= shown
    assert {"gelu.forward  3", "matmul.forward  cublas"} <= shown


def test_profiles_are_compared_by_nanoseconds_for_each_token():
    figure = training_step.profiles({"one": PROFILE, "two": PROFILE}, "title")
    assert {"16,000 tokens/s", "between ops", "gelu.forward"} <= texts(figure)
    assert figure.axes[0].patches[0].get_width() == pytest.approx(1e6 / 32)


def test_memory_is_stacked_by_kind_and_added_up():
    rows = {"fp32": {"parameter": 2**30, "gradient": 2**31}, "bf16": {"parameter": 2**29}}
    shown = texts(training_step.memory(rows, "title"))
    assert {"3.00 GiB", "0.50 GiB", "2.00", "parameter"} <= shown


def test_work_tells_products_from_the_rest():
    product = {"N": 1024, "C": 1024, "OC": 1024}
    calls = [("gelu.forward", {"N": 1 << 20}), ("matmul.forward", product)]
    figure = training_step.flops_and_bytes(calls, np.dtype(np.float32), "title")
    assert {"gelu.forward", "matmul.forward"} <= texts(figure)
    flops, moved = (axes.get_xlabel() for axes in figure.axes)
    assert flops == "GFLOP: 2.2 in total, 99.6 % of it blue"
    assert moved == "least bytes, in GB: 0.0 in total, 60 % of it blue"


def test_losses_of_a_finetune_are_drawn_with_the_reference_and_chance():
    train, val = [(0, 11.0), (1, 9.5)], [(0, 11.02), (2, 8.75)]
    shown = texts(losses.finetune(train, val, train[:1], 50257, "title"))
    assert {"11.02", "8.75", "ln 50,257 = 10.82"} <= shown
    assert "the NumPy reference on a CPU, 1 steps" in shown


def test_the_least_validation_loss_is_marked():
    shown = texts(losses.validation([(0, 4.2), (1250, 1.4768), (1500, 1.5)], ("peer", 1.47), "t"))
    assert {"1.4768 at step 1,250", "peer: 1.47"} <= shown


def test_two_runs_are_compared_step_by_step():
    figure = losses.compare([4.0, 2.0], [4.0, 2.0 + 2e-6], ("one", "other"))
    apart = figure.axes[1].lines[0].get_ydata()
    assert apart == pytest.approx([1e-10, 1e-6], rel=1e-3)


def test_number_formats_have_their_ranges():
    gradients = np.array([1e-9, 1e-3, 0.0])
    figure = number_formats.formats(gradients, 2.0**16, ("a logit", 5e-9), "title")
    assert {"24 bits of precision", "8 bits of precision", "11 bits of precision"} <= texts(figure)
    assert {"a logit", "the same, times 65,536"} <= texts(figure)


def test_a_weight_drifts_by_format():
    paths = {name: np.arange(3.0) for name in ("exact", "bfloat16", "at random", "master")}
    assert set(paths) <= texts(number_formats.drift(paths, "title"))


@pytest.mark.slow
def test_runs_are_drawn_over_each_other_in_the_panels_that_they_have():
    one = {runs.TRAINING: [(0, 5.0), (1, 4.0)], runs.VALIDATION: [(0, 5.0), (2, 4.0)]}
    marks = {runs.VALIDATION: {"GPT-2 124M": 3.424958}}
    figure = runs.draw_runs({"one": one, "other": one, "empty": {}}, "title", 1, marks)
    assert {"GPT-2 124M: 3.425", "one", "other"} <= texts(figure)
    assert "empty" not in texts(figure)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "training loss",
        "validation loss",
    ]
    assert [len(axes.lines) for axes in figure.axes] == [2, 3]


def test_a_run_whose_name_looks_like_a_formula_is_named_as_it_is():
    run = {runs.NORM: [(0, 5.0), (1, 4.0)]}
    assert "lr$_{$" in texts(runs.draw_runs({"lr$_{$": run}, "lr$_{$"))
    assert {"_1", "lr$_{$"} <= texts(runs.draw_runs({"_1": run, "lr$_{$": run}, ""))


def test_panels_of_losses_share_limits_that_hold_all_curves_and_marks():
    run = {"training loss": [(0, 5.5), (1, 4.9)], "validation loss": [(0, 5.6), (1, 4.4)]}
    drawn = runs.draw_runs({"one": run}, "", marks={"validation loss": {"GPT-2": 3.4}})
    limits = [axes.get_ylim() for axes in drawn.axes]
    assert limits[0] == limits[1]
    assert limits[0][0] < 3.4 and limits[0][1] > 5.6


def test_the_loss_on_the_training_text_is_dashed_beside_the_validation_loss():
    curve = [(0, 5.0), (2, 4.0)]
    curves = {runs.VALIDATION: curve, runs.TRAIN_SPLIT: [(0, 5.0), (2, 3.0)]}
    (axes,) = runs.draw_runs({"one": curves}, "title").axes
    assert [line.get_linestyle() for line in axes.lines] == ["-", "--"]
    assert axes.lines[1].get_ydata().tolist() == [5.0, 3.0]
    assert axes.get_title(loc="right") == "dashed: loss on the training text"


def test_a_moving_average_is_of_the_values_that_there_are():
    np.testing.assert_allclose(runs.moving_average([1.0, 2.0, 6.0], 3), [1.5, 3.0, 4.0])
    np.testing.assert_allclose(runs.moving_average([1.0, 2.0, 6.0], 9), [1.5, 3.0, 4.0])


def test_a_sweep_marks_its_least_loss_and_spreads_values_by_their_size():
    lines = {"batch 4": [("1e-4", 4.5), ("3e-3", 4.125)], "batch 8": [("1e-4", 4.25)]}
    figure = sweep.draw_sweep(lines, "lr")
    assert {"4.1250 at 3e-3", "batch 4", "batch 8", "1e-4", "lr"} <= texts(figure)
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    words = sweep.draw_sweep({"": [("cosine", 4.5), ("wsd", 4.25)]}, "schedule").axes[0]
    assert list(words.lines[0].get_xdata()) == [0, 1]


def test_a_value_of_a_sweep_that_looks_like_a_formula_is_shown_as_it_is(tmp_path):
    lines = {"-o a$_{$": [("b$_{$", 4.5), ("c", 4.25)], "-o d": [("b$_{$", 4.125)]}
    figure = sweep.draw_sweep(lines, "-i")
    style.save(figure, tmp_path / "sweep.png")  # all texts are laid out
    assert {"-o a$_{$", "b$_{$", "4.1250 at b$_{$"} <= texts(figure)


def test_an_svg_is_for_light_and_dark_pages_and_a_png_is_as_drawn(tmp_path):
    figure = losses.compare([4.0, 2.0], [4.0, 2.0], ("one", "other"))
    for name in ("losses.svg", "losses.png"):
        style.save(figure, tmp_path / name)
    assert "prefers-color-scheme:dark" in (tmp_path / "losses.svg").read_text()
    assert (tmp_path / "losses.png").read_bytes().startswith(b"\x89PNG")
