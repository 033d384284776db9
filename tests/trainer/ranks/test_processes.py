"""Ranks as processes of their own, as a user starts them."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.trainer.tiny import parameters, settings

ROOT = Path(__file__).parents[3]


def command(tmp_path, *words, **changes):
    """The command line of a long run that saves a checkpoint at step 3."""
    typed = settings(
        tmp_path,
        **{"steps": 100_000, "checkpoint_every": 3, "keep": 1, "total_tokens": 64, **changes},
    )
    del typed["plot"], typed["keep_model"]  # the flags are --no-plot and --no-model
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in typed.items()]
    return [sys.executable, "-m", "trainer", *flags, "--no-plot", "--no-model", *words]


def start(tmp_path, *words, environment=None, **changes):
    return subprocess.Popen(
        command(tmp_path, *words, **changes),
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def read_until(process, text):
    """What it prints up to a line that holds `text`."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return "".join(lines)
    raise AssertionError("".join(lines))


def children(process):
    return [int(word) for word in task(process).read_text().split()]


def task(process):
    return Path(f"/proc/{process.pid}/task/{process.pid}/children")


def is_alive(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def wait_until_gone(pids, seconds=10.0):
    end = time.monotonic() + seconds
    while any(map(is_alive, pids)):
        assert time.monotonic() < end, "a process stays behind"
        time.sleep(0.02)


VICTIMS = [1, pytest.param(0, marks=pytest.mark.sweep)]


@pytest.mark.slow
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_rank_that_is_killed_ends_all_within_seconds(tmp_path, victim):
    process = start(tmp_path, "--ranks=2")
    read_until(process, "step_00000003")
    ranks = children(process)
    assert len(ranks) == 2
    os.kill(ranks[victim], signal.SIGKILL)
    rest, _ = process.communicate(timeout=20)
    assert process.returncode != 0
    lost = rf"error: rank {victim} of 2 \(process {ranks[victim]} on .*\) "
    assert re.search(rf"{lost}.* step \d+ in .*/run .*-y 1", rest)
    assert re.search(f"rank {victim} .*SIGKILL", rest)
    wait_until_gone(ranks)


@pytest.mark.slow
def test_a_wrong_flag_ends_all_ranks_with_status_2(tmp_path):
    """recipes/train.sh does not try again then."""
    process = start(tmp_path, "--ranks=2", model=str(tmp_path / "nowhere"))
    rest, _ = process.communicate(timeout=60)
    assert "/nowhere: " in rest
    assert process.returncode == 2


@pytest.mark.sweep
def test_ranks_end_with_their_supervisor(tmp_path):
    process = start(tmp_path, "--ranks=2")
    read_until(process, "step_00000003")
    ranks = children(process)
    process.kill()
    wait_until_gone(ranks)
    process.communicate(timeout=20)


@pytest.mark.sweep
def test_ctrl_c_ends_all_after_the_same_step_and_they_go_on_from_there(tmp_path):
    process = start(tmp_path, "--ranks=2", checkpoint_every=50_000)
    read_until(process, "step    3")
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    step = int(re.search(r" (\d+) steps; .* step \1 in ", rest)[1])
    again = start(tmp_path, "--ranks=2", "--resume", steps=step + 2)
    text, _ = again.communicate(timeout=60)
    assert f"step {step}\n" in text
    assert again.returncode == 0
    assert parameters(tmp_path / "run", step + 2)


@pytest.mark.sweep
def test_processes_of_a_launcher_meet_and_one_that_hangs_ends_all(tmp_path):
    """Two processes with torchrun's variables; today's launchers set no more than these."""
    (tmp_path / "data").mkdir()
    ranks = [
        start(
            tmp_path,
            "--rank-timeout=2",
            environment={"RANK": str(rank), "WORLD_SIZE": "2"},
        )
        for rank in range(2)
    ]
    read_until(ranks[0], "step_00000003")
    ranks[1].send_signal(signal.SIGSTOP)
    rest, _ = ranks[0].communicate(timeout=30)
    assert ranks[0].returncode == 1
    assert re.search("rank 1 of 2 .* 2 seconds", rest)
    ranks[1].send_signal(signal.SIGCONT)
    quiet, _ = ranks[1].communicate(timeout=30)
    assert ranks[1].returncode != 0
    assert "step " not in quiet, "only rank 0 prints"
