"""The two logs, and what becomes of them when a run is resumed."""

import pytest

from ladder.common.errors import LadderError
from trainer.run import logs
from trainer.run.logs import RunLog
from trainer.run.plot import plot


def write(log, steps):
    for step in steps:
        log.validation(step, 5.0 - step)
        log.train(step, 4.0 - step, 1e-4, 2.5, ms=3.0)


def test_a_new_run_starts_new_logs(tmp_path):
    write(RunLog(tmp_path), range(3))
    write(RunLog(tmp_path), range(1))
    assert (tmp_path / "main.log").read_text() == (
        "s:0 tel:5.0000\ns:0 trl:4.0000 lr:0.000100 norm:2.50\n"
    )
    assert len(logs.read(tmp_path / "log.jsonl")) == 2


def test_a_resumed_run_drops_what_runs_again_and_lines_cut_short(tmp_path):
    write(RunLog(tmp_path), range(5))
    for name in ("main.log", "log.jsonl"):
        with (tmp_path / name).open("a") as file:
            file.write('{"step": 1')  # as a crash leaves it
    write(RunLog(tmp_path, resume_at=3), range(3, 5))
    straight = tmp_path / "straight"
    straight.mkdir()
    write(RunLog(straight), range(5))
    for name in ("main.log", "log.jsonl"):
        assert (tmp_path / name).read_text() == (straight / name).read_text()


def test_numbers_that_json_does_not_know_become_null(tmp_path):
    RunLog(tmp_path).train(0, float("nan"), 1e-4, float("inf"))
    assert logs.read(tmp_path / "log.jsonl") == [
        {"step": 0, "train_loss": None, "lr": 1e-4, "norm": None}
    ]


def test_a_log_that_cannot_be_written_is_an_error_of_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LadderError, match=r"^cannot write .*file/main\.log: Not a directory$"):
        RunLog(tmp_path / "file")


def test_a_damaged_log_does_not_prevent_resuming(tmp_path):
    RunLog(tmp_path).validation(0, 4.5)
    for name in ("main.log", "log.jsonl"):
        with (tmp_path / name).open("ab") as file:
            file.write(b"s:\xc2\xb2 tel:1\ns:\xff\n\xff\n{}\n" + b"[" * 10**5 + b"\n")
    RunLog(tmp_path, resume_at=1).validation(1, 4.0)
    assert (tmp_path / "main.log").read_text() == "s:0 tel:4.5000\ns:1 tel:4.0000\n"
    assert [entry["step"] for entry in logs.read(tmp_path / "log.jsonl")] == [0, 1]


def test_a_plot_needs_losses(tmp_path):
    with pytest.raises(LadderError, match="name the folder of a run"):
        plot(tmp_path)
    log = RunLog(tmp_path)
    with pytest.raises(LadderError, match="holds no losses yet"):
        plot(tmp_path)
    log.validation(0, 5.0)
    assert plot(tmp_path).stat().st_size > 5000
