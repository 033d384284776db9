"""`python -m trainer sweep`: which runs there are, which are run again, what is printed of them."""

import json
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from ladder.core.common.errors import LadderError
from tests.trainer.tiny import save_model
from trainer.commands import sweep
from trainer.commands.parser import parse
from trainer.commands.sweep import main, read_trials
from trainer.files import logs
from trainer.files.logs import RunLog


@pytest.fixture
def started(monkeypatch):
    """The names of the runs that were started; each leaves the files of a run, and fails where its
    sequence is too long."""
    names = []

    def start(trial, device, place):
        names.append(trial.name)
        config = parse(trial.words)
        if (config.sequence or 0) > 32:
            (place / sweep.OUTPUT).write_text("started\nerror: -t is too long\n\n")
            return SimpleNamespace(poll=lambda: 2)
        (place / "config.json").write_text('{"steps": 2}')
        log = RunLog(place)
        log.train(0, 5.0, config.lr, 1.0, ms=10.0)
        log.train(1, 4.0, config.lr, 1.0, ms=12.0)
        log.validation(2, 4.0 - config.lr)
        return SimpleNamespace(poll=lambda: 0)

    monkeypatch.setattr(sweep, "_start", start)
    monkeypatch.setattr(sweep, "draw", lambda runs, path: path.write_text(" ".join(runs)))
    return names


def names(line):
    return [trial.name for trial in read_trials(line.split())[0]]


def test_there_is_a_run_for_every_combination():
    assert names("-l 1e-4,3e-4 -b 4 -u 0,10") == [
        "lr=1e-4,warmup=0",
        "lr=1e-4,warmup=10",
        "lr=3e-4,warmup=0",
        "lr=3e-4,warmup=10",
    ]
    trials, _ = read_trials(["-b", "4", "--lr=1e-4,3e-4", "-a", "-w", "0,1"])
    assert trials[3].words == ["-b", "4", "--lr=3e-4", "-a", "-w", "1"]
    assert names("--rung gelu.forward=1,2") == ["rung=gelu.forward=1", "rung=gelu.forward=2"]
    assert len(names("--rung matmul.forward@C:768,OC:2304=1,2")) == 2
    assert names("-e runs/one,gpt2 --prompt a,b") == ["model=runs-one", "model=gpt2"]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("-l 1e-4", "-l 1e-4,3e-4"),
        ("-l 1e-4,x", "--lr/-l: .*'x'"),
        ("-l 1e-4,", "--lr/-l: .*''"),
        ("-l 1e-4,1e-4", " lr=1e-4"),
        ("-l 1e-4,2e-4 --bacth 4", "--bacth.*--batch"),
        ("-l 1e-4,2e-4 -pn 2", "-pn .*--ranks"),
        ("-l 1e-4,2e-4 -pr 0", "-pr: .*--ranks"),
        ("--fuse residual_layernorm,matmul_gelu", "-l 1e-4,3e-4.*--fuse"),
    ],
)
def test_a_wrong_sweep_is_refused_before_any_run(line, names):
    with pytest.raises(LadderError, match=names):
        read_trials(line.split())


@pytest.mark.slow
def test_runs_that_are_finished_are_not_run_again(tmp_path, started, capsys):
    line = ["-l", "1e-3,3e-2", f"-o={tmp_path}"]
    assert main(line) == 0
    assert started == ["lr=1e-3", "lr=3e-2"]
    head, sides, *lines = (tmp_path / "sweep.md").read_text().splitlines()
    assert head.startswith("| lr | steps | ") and sides.startswith("| ---|--:|--:|")
    rows = [line.strip("| ").split(" | ") for line in lines]
    assert [row[0] for row in rows] == ["3e-2", "1e-3"], "the best run is first"
    assert rows[0][1:] == ["2", "4.0000", "3.9700", "2", "12.00"]
    assert (tmp_path / "sweep.png").stat().st_size > 5000
    assert (tmp_path / "curves.png").read_text() == "lr=1e-3 lr=3e-2"
    RunLog(tmp_path / "lr=1e-3").validation(1, 4.5)  # as if it had not come to its end
    assert main(line) == 0
    assert started == ["lr=1e-3", "lr=3e-2", "lr=1e-3"]
    said = capsys.readouterr().out
    assert "3.9700" in said and "curves.png" in said
    with pytest.raises(LadderError, match=r"--batch .*4"):
        main([*line, "-b", "4"])


@pytest.mark.slow
def test_several_seeds_are_compared_by_mean_and_deviation(tmp_path, started, monkeypatch, capsys):
    losses = {"1e-3": (4.0, 4.2, 4.4), "3e-2": (4.1, 4.3, 4.5)}
    before = sweep._start

    def start(trial, device, place):
        process = before(trial, device, place)
        number = int(trial.values["seed"]) - 1
        RunLog(place).validation(2, losses[trial.values["lr"]][number])
        return process

    monkeypatch.setattr(sweep, "_start", start)
    assert main(["-l", "1e-3,3e-2", "--seed", "1,2,3", f"-o={tmp_path}"]) == 0
    *_, table = (tmp_path / "sweep.md").read_text().split("\n\n")
    head, _, *rows = table.splitlines()
    assert head.startswith("| step | lr | seeds | ")
    assert rows == [
        "| 2 | 1e-3 | 3 | 4.2000 | 0.2000 | +0.00 |",
        "| 2 | 3e-2 | 3 | 4.3000 | 0.2000 | +0.50 |",
    ]
    assert "+0.50" in capsys.readouterr().out


def test_a_run_has_a_folder_whether_or_not_there_was_one(tmp_path, started, monkeypatch):
    monkeypatch.setattr(sweep, "write_results", lambda *what: None)
    folder = tmp_path / "some" / "where"
    (folder / "lr=1e-3").mkdir(parents=True)  # as one that was made by hand, or cut off
    for place in (folder, tmp_path / "an" / "other"):
        assert main(["-l", "1e-3,3e-2", "-b", "4", f"-o={place}"]) == 0
        assert [path.name for path in sorted(place.iterdir())] == ["lr=1e-3", "lr=3e-2"]
    assert json.loads((folder / "lr=3e-2" / sweep.RECORD).read_text()) == {"lr": 3e-2, "batch": 4}
    started.clear()
    moved = folder.rename(tmp_path / "moved")
    assert main(["-l", "1e-3,3e-2", "-b", "4", f"-o={moved}"]) == 0
    assert started == [], "a folder may be moved: where it was is no part of its record"


def test_a_run_that_fails_is_named_and_the_others_go_on(tmp_path, started, capsys):
    assert main(["-t", "64,16", "-l", "1e-3", f"-o={tmp_path}"]) == 1
    said = capsys.readouterr().out
    assert "sequence=64: error: -t is too long" in said
    rows = (tmp_path / "sweep.md").read_text().splitlines()[2:]
    assert [row.split()[1] for row in rows] == ["16"]


def test_each_of_several_gpus_gets_a_run_at_a_time(monkeypatch):
    _, flags = read_trials(["-l", "1e-4,2e-4"])
    monkeypatch.setattr(sweep, "gpus", lambda: ["cuda:0", "cuda:1"])
    assert sweep._devices(flags) == [["--device", "cuda:0"], ["--device", "cuda:1"]]
    assert sweep._devices(parse(["--ranks", "2"])) == [[]]
    assert sweep._devices(parse(["--device", "cpu"])) == [[]]
    monkeypatch.setattr(sweep, "gpus", lambda: ["cuda:0"])
    assert sweep._devices(flags) == [[]]


def test_an_interrupted_sweep_ends_its_runs(tmp_path, monkeypatch):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(sweep, "_start", lambda *what: child)
    trials, _ = read_trials(["-l", "1e-4,2e-4"])
    main_thread = threading.main_thread().ident

    def interrupt():
        time.sleep(0.2)
        signal.pthread_kill(main_thread, signal.SIGTERM)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        sweep.run_all(trials, [[]], tmp_path, lambda line: None)
    assert child.poll() == -signal.SIGTERM


@pytest.mark.sweep  # two processes, each of which imports everything
def test_a_sweep_runs_processes_of_its_own(tmp_path):
    model, folder = save_model(tmp_path / "model"), tmp_path / "sweep"
    line = f"-e {model} --dataset play --data-dir {tmp_path / 'data'} --device cpu -b 2 -t 16 -x 2"
    assert main([*line.split(), *f"-m 2 -s 0 --no-plot -o {folder} -l 1e-3,1e-2".split()]) == 0
    for lr in ("1e-3", "1e-2"):
        place = folder / f"lr={lr}"
        assert json.loads((place / "config.json").read_text())["lr"] == float(lr)
        assert logs.read_history(place / "log.jsonl").val[-1][0] == 2
        assert (place / sweep.OUTPUT).read_text()
