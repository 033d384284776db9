"""The two logs, and what becomes of them when a run is resumed."""

import pytest

from ladder.core.common.errors import LadderError
from trainer.files import logs
from trainer.files.logs import RunLog


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
    with pytest.raises(LadderError, match=r"/file/main\.log: Not a directory$"):
        RunLog(tmp_path / "file")


def test_a_damaged_log_does_not_prevent_resuming(tmp_path):
    RunLog(tmp_path).validation(0, 4.5)
    for name in ("main.log", "log.jsonl"):
        with (tmp_path / name).open("ab") as file:
            file.write(b"s:\xc2\xb2 tel:1\ns:\xff\n\xff\n{}\n" + b"[" * 10**5 + b"\n")
    RunLog(tmp_path, resume_at=1).validation(1, 4.0)
    assert (tmp_path / "main.log").read_text() == "s:0 tel:4.5000\ns:1 tel:4.0000\n"
    assert [entry["step"] for entry in logs.read(tmp_path / "log.jsonl")] == [0, 1]


def test_the_log_of_llmc_is_read_and_its_repeated_steps_count_once(tmp_path):
    """As llm.c writes it: restarted after step 1, with a step that was not finite."""
    (tmp_path / "main.log").write_text(
        "s:0 tel:11.0059\ns:0 eval:0.2489\ns:0 trl:10.9900 lr:0.000001 norm:15.30\n"
        "s:1 trl:10.9000 lr:0.000002 norm:9.50\ns:2 trl:10.8000 lr:0.000003 norm:9.00\n"
        "s:1 trl:10.8500 lr:0.000002 norm:9.40\ns:2 trl:-nan lr:0.000003 norm:inf\n"
        "s:x trl:1.0\ns:3\nnonsense\n"
    )
    history = logs.read_history(logs.find_log(tmp_path))
    assert history.train == [(0, 10.99), (1, 10.85), (2, 10.8)]
    assert history.val == [(0, 11.0059)]
    assert history.evaluation == [(0, 0.2489)]
    assert history.lr == [(0, 1e-6), (1, 2e-6), (2, 3e-6)]
    assert history.norm == [(0, 15.3), (1, 9.4), (2, 9.0)]


def test_both_logs_of_a_run_tell_the_same(tmp_path):
    write(RunLog(tmp_path), range(3))
    exact, text = (logs.read_history(tmp_path / name) for name in ("log.jsonl", "main.log"))
    assert logs.find_log(tmp_path).name == "log.jsonl"
    assert (exact.train, exact.val, exact.norm) == (text.train, text.val, text.norm)
    assert exact.ms == [(0, 3.0), (1, 3.0), (2, 3.0)]
    assert text.ms == []
