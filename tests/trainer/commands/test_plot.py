"""`python -m trainer plot`: which runs it finds, what it prints, where the picture goes."""

import re

import pytest

from ladder.core.common.errors import LadderError
from trainer.commands import plot
from trainer.commands.plot import main
from trainer.files.logs import RunLog
from trainer.plots import course, runs, style


def make_run(folder, losses, ms=5.0):
    folder.mkdir(parents=True)
    log = RunLog(folder)
    for step, loss in enumerate(losses):
        slow = 9 if step == 0 else 1
        log.train(step, loss, 1e-4, 1.0, ms=slow * ms, tokens_per_second=1e6 / ms / slow)
    log.validation(0, 5.0)
    log.validation(len(losses), losses[-1])
    return folder


def test_a_plot_needs_losses(tmp_path):
    with pytest.raises(LadderError, match=r" log\.jsonl .*main\.log"):
        course.plot(tmp_path)
    with pytest.raises(LadderError, match="/missing"):
        main([str(tmp_path / "missing")])
    log = RunLog(tmp_path)
    with pytest.raises(LadderError, match=r"/log\.jsonl "):
        course.plot(tmp_path)
    log.validation(0, 5.0)
    assert course.plot(tmp_path).stat().st_size > 5000


def test_several_runs_are_drawn_into_one_picture_and_compared(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made = [make_run(tmp_path / name, losses) for name, losses in
            (("low", [4.5, 4.25]), ("high", [4.75, 4.5, 4.125]))]  # fmt: skip
    drawn = {}
    monkeypatch.setattr(plot, "draw", lambda runs, path, *how: drawn.update(runs) or path)
    main([*map(str, made), "--marks", "124M"])
    lines = capsys.readouterr().out.splitlines()
    assert list(drawn) == ["low", "high"]
    assert [line.split() for line in lines if line.startswith(("low", "high"))] == [
        ["low", "2", "4.2500", "4.2500", "2", "5.00", "200,000"],
        ["high", "3", "4.1250", "4.1250", "3", "5.00", "200,000"],
    ]
    assert lines[-1].endswith(" runs.png")
    for run in made:
        (run / "config.json").write_text('{"device": "emulated"}')
    main([*map(str, made)])
    assert not drawn["low"].ms and "ms/step" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_picture_that_plot_did_not_draw_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = [str(make_run(tmp_path / name, [4.5, 4.25])) for name in ("one", "two")]
    assert main(made) == main(made) == 0
    (tmp_path / "runs.png").write_bytes(b"a photo")
    with pytest.raises(LadderError, match=r"runs\.png .*-o"):
        main(made)


def test_two_rungs_that_learn_the_same_are_told_apart_by_width_difference_and_time(
    tmp_path, monkeypatch
):
    saved = []
    monkeypatch.setattr(style, "save", lambda figure, path: saved.append(figure))
    losses = [4.5, 4.25, 4.125]
    slow, fast = make_run(tmp_path / "slow", losses), make_run(tmp_path / "fast", losses, ms=2.5)
    main([str(slow), str(fast)])
    panels = {axes.get_title("left"): axes for axes in saved[0].axes}
    broad, thin = panels[runs.TRAINING].lines
    assert list(broad.get_ydata()) == list(thin.get_ydata()) == losses
    assert broad.get_linewidth() > 2 * thin.get_linewidth()
    assert list(panels[runs.DIFFERENCE].lines[0].get_ydata()) == [0, 0, 0]
    assert [max(line.get_ydata()) for line in panels[runs.TIME].lines] == [5.0, 2.5]
    legend = [text.get_text() for text in saved[0].legends[0].get_texts()]
    assert [re.findall(r"^\w+|[\d.,]*\d", text) for text in legend] == [
        ["slow", "4.1250", "5.00", "200,000"],
        ["fast", "4.1250", "2.50", "400,000"],
    ]


def test_runs_that_learn_the_same_are_said_to(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(plot, "draw", lambda runs, path, *how: path)
    losses = [4.5, 4.25]
    made = {name: make_run(tmp_path / name, losses) for name in ("one", "two")}
    other = make_run(tmp_path / "other", [4.5, 4.0])
    main([*map(str, made.values()), str(other)])
    assert "one, two:" in capsys.readouterr().out
    main([str(made["one"]), str(other)])
    assert "one, other" not in capsys.readouterr().out


def test_runs_of_the_same_name_are_told_apart_by_their_paths(tmp_path, monkeypatch):
    made = [make_run(tmp_path / parent / "run", [4.0]) for parent in ("one", "two")]
    drawn = {}
    monkeypatch.setattr(plot, "draw", lambda runs, path, *how: drawn.update(runs) or path)
    main([*map(str, made)])
    assert list(drawn) == ["one/run", "two/run"]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["-o", "picture.txt"], r"-o picture\.txt: .*\.png, \.svg"),
        (["--smooth", "0"], "--smooth 0: .* 1 "),
        (["--marks", "125M"], "--marks: .*'125M'"),
    ],
)
def test_a_wrong_flag_is_refused_with_the_remedy(tmp_path, words, names):
    with pytest.raises(LadderError, match=names):
        main([str(make_run(tmp_path / "run", [4.0])), *words])
