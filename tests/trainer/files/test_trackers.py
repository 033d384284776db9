"""What trackers are told of a run. Stand-ins have the interface of the real libraries."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ladder.core.common.errors import LadderError
from tests.trainer.parallel_run import run_ranks
from tests.trainer.tiny import run, settings
from trainer.files import logs
from trainer.flags import Flags


class Library:
    __spec__ = SimpleNamespace(origin="here")
    fails_at = None

    def __init__(self):
        self.began, self.told, self.scalars = [], [], []

    def init(self, **what):
        self.began.append(what)

    def log(self, numbers, step):
        if step == self.fails_at:
            raise OSError("no network")
        self.told.append({"step": step, **numbers})

    def finish(self):
        self.told.append("finish")

    def Writer(self, folder):  # TensorBoard's; its file must be of the last run alone
        Path(folder, "events.out.tfevents.1").touch(exist_ok=False)
        done = {"flush": lambda: None, "close": lambda: None}
        return SimpleNamespace(add_scalar=lambda *scalar: self.scalars.append(scalar), **done)


@pytest.fixture
def library(monkeypatch):
    library = Library()
    for name in ("wandb", "tensorboard", "tensorboard.summary"):
        monkeypatch.setitem(sys.modules, name, library)
    return library


def test_trackers_are_told_the_numbers_of_the_log_and_a_new_run_begins_anew(tmp_path, library):
    run(tmp_path, steps=1, report_to="tensorboard")
    library.scalars.clear()
    run(tmp_path, steps=2, report_to="tensorboard,wandb")
    log = [
        {name: value for name, value in entry.items() if not isinstance(value, str)}
        for entry in logs.read(tmp_path / "run" / "log.jsonl")
    ]
    assert library.told == [*log, "finish"]
    assert library.began[0]["name"] == "run" and library.began[0]["config"]["steps"] == 2
    assert library.scalars == [
        (name, entry[name], entry["step"]) for entry in log for name in entry if name != "step"
    ]


def test_a_tracker_that_fails_leaves_the_run_its_logs(tmp_path, library):
    library.fails_at = 1
    outcome, screen = run(tmp_path, steps=3, report_to="wandb")
    assert re.search("wandb .*: no network\n", screen)
    assert outcome.val_losses[-1][0] == 3 and {entry["step"] for entry in library.told} == {0}


def test_of_several_ranks_the_first_reports(tmp_path, library):
    run_ranks(2, Flags(**settings(tmp_path, steps=2, ranks=2, report_to="wandb")))
    assert len(library.began) == 1 and library.told[-1] == "finish"


def test_a_tracker_that_is_not_installed_is_named_before_anything_begins(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(LadderError, match=r"^--report-to trackio: .*\[trackio\]"):
        run(tmp_path, report_to="trackio")
    assert not (tmp_path / "run").exists()
    with pytest.raises(LadderError, match=r"^--report-to mlflow: .* trackio, tensorboard"):
        Flags(report_to="wandb,mlflow")
