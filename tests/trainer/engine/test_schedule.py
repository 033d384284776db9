"""Learning rates as llm.c's schedulers.h gives them, and the detector of outliers."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from trainer.engine.steps import WINDOW, OutlierDetector, rate_of
from trainer.flags import SCHEDULES

RUN = {"lr": 2.0, "warmup": 10, "steps": 110, "final_lr": 0.1}


def learning_rate(name, step, **run):
    return rate_of(SimpleNamespace(schedule=name, **run), step)


@pytest.mark.parametrize("name", ["cosine", "linear", "wsd"])
def test_warm_up_rises_to_the_full_rate(name):
    rates = [learning_rate(name, step, **RUN) for step in range(11)]
    np.testing.assert_allclose(rates[:10], 2.0 * np.arange(1, 11) / 10)
    assert rates[10] == 2.0


@pytest.mark.parametrize(
    ("name", "step", "expected"),
    [
        ("cosine", 60, 2.0 * (0.1 + 0.9 * 0.5)),
        ("cosine", 35, 2.0 * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4)))),
        ("cosine", 110, 0.2),
        ("linear", 60, 2.0 * (0.1 + 0.9 * 0.5)),
        ("linear", 85, 2.0 * (0.1 + 0.9 * 0.25)),
        ("linear", 110, 0.2),
        ("wsd", 87, 2.0),  # the last fifth decays, from int(0.8 * 110) = 88 on
        ("wsd", 99, 2.0 * (0.1 + 0.9 * (1 - math.sqrt(0.5)))),
        ("wsd", 110, 0.2),
        ("constant", 0, 2.0),  # without warm-up, as in llm.c
        ("constant", 110, 2.0),
    ],
)
def test_values_at_chosen_steps(name, step, expected):
    assert learning_rate(name, step, **RUN) == pytest.approx(expected)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("warmup", "steps"), [(0, 1), (5, 5), (9, 5), (0, 40)])
def test_every_schedule_stays_between_0_and_the_full_rate(name, warmup, steps):
    rates = [
        learning_rate(name, step, lr=1.0, warmup=warmup, steps=steps, final_lr=0.0)
        for step in range(steps + 1)
    ]
    assert all(0.0 <= rate <= 1.0 for rate in rates)


def test_a_z_score_needs_a_full_window_and_then_is_exact():
    values = np.random.default_rng(0).normal(size=WINDOW + 3)
    detector = OutlierDetector()
    scores = [detector.update(float(value)) for value in values]
    assert all(math.isnan(score) for score in scores[:WINDOW])
    window = values[-WINDOW:]
    assert scores[-1] == pytest.approx((window[-1] - window.mean()) / window.std())


def test_equal_measurements_are_no_outliers():
    detector = OutlierDetector()
    assert [detector.update(1.5) for _ in range(WINDOW + 1)][-1] == 0.0


def test_a_detector_continues_from_its_state():
    values = np.random.default_rng(1).normal(size=WINDOW + 40)
    whole, first = OutlierDetector(), OutlierDetector()
    scores = [whole.update(float(value)) for value in values]
    for value in values[:100]:
        first.update(float(value))
    second = OutlierDetector(first.window)
    np.testing.assert_array_equal([second.update(float(v)) for v in values[100:]], scores[100:])
