"""The pictures of notebook 11 show the numbers that they are given."""

import math

from tests.trainer.plots.test_drawings import texts
from trainer.plots import climb_pictures


def test_a_prediction_stands_beside_what_was_measured():
    figure = climb_pictures.savings([("one", 1.5, 1.0), ("other", 20.0, 40.0)], "title")
    assert {"+50 %", "-50 %", "one", "other"} <= texts(figure)


def test_sectors_are_shares_of_the_step_and_multiples_of_the_least():
    figure = climb_pictures.sectors([("one", 3000, 1000), ("other", 1000, 1000)], "title")
    shown = texts(figure)
    assert {
        "3,000: 75.0 % of the step, 3.0 x least",
        "1,000: 25.0 % of the step, 1.0 x least",
    } <= shown
    assert "sectors of 32 bytes: 4,000 in the whole step" in shown


def test_a_wrong_gradient_is_above_the_limit_and_nan_is_wrong():
    apart = {"right": 1e-7, "wrong": 0.5, "broken": math.nan}
    figure = climb_pictures.gradients(apart, 1e-3, "title")
    lines, _ = figure.axes[0].collections
    heights = [path.vertices[-1][1] for path in lines.get_paths()]
    assert heights == [1e-7, 0.5, 10]
    assert {"right", "wrong", "broken", "more than rounding"} <= texts(figure)
