"""The exercises of notebook 14 are graded by their lesson."""

import math

import numpy as np
import pytest

from ladder.core.show import progress
from trainer.notebook import reading_runs


def means(values, window):
    half = window // 2
    return [np.mean(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]


@pytest.mark.parametrize(
    ("check", "answer", "advice"),
    [
        ("check_smooth", means, "✓"),
        ("check_smooth", lambda v, w: v, "✗ window 3, step 0"),
        ("check_smooth", lambda v, w: np.convolve(v, np.ones(w) / w, "same"), "✗ window 3, step 0"),
        ("check_smooth", lambda v, w: np.convolve(v, np.ones(w) / w, "valid"), "✗ window 3: 18"),
        ("check_steps", lambda deviation, gap: 2 * (2 * deviation / gap) ** 2, "✓"),
        ("check_steps", lambda deviation, gap: (2 * deviation / gap) ** 2, "✗ deviation 0.06"),
        ("check_steps", lambda deviation, gap: 10**6, "✗ deviation 0.06"),
        ("check_smooth", lambda v, w: None, "✗ smooth returns None; return an array"),
        ("check_smooth", lambda v, w: [v[0], [v[1]]], "✗ smooth returns ["),
        ("check_steps", lambda deviation, gap: -deviation / gap, "✗ steps_needed returns -3.0"),
        ("check_bits", lambda loss, tokens, size: loss * tokens / size / math.log(2), "✓"),
        ("check_bits", lambda loss, tokens, size: loss / math.log(2), "✗ 5.545 nats per token"),
        ("check_bits", lambda loss, tokens, size: loss * tokens / size, "✗ 0.693 nats per token"),
    ],
)
def test_an_answer_is_accepted_or_refused_with_the_reason(check, answer, advice, capsys):
    getattr(reading_runs, check)(answer)
    assert capsys.readouterr().out.startswith(advice)


@pytest.mark.parametrize(
    ("check", "name"),
    [
        ("check_smooth", "smooth"),
        ("check_steps", "steps_needed"),
        ("check_bits", "bits_per_byte"),
    ],
)
def test_the_notebook_goes_on_with_the_solution_in_the_fold(
    check, name, capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path))
    getattr(reading_runs, check)(reading_runs.solution(name))
    assert capsys.readouterr().out.startswith("✓")
    assert check not in progress.solved()  # the reader has not written it


def test_an_exercise_counts_when_the_reader_solves_it(monkeypatch, tmp_path):
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path))
    reading_runs.check_smooth(means)
    assert progress.solved() == {"check_smooth"}
