"""Runs that version 0.1 (commit 5d708bfa) left behind go on: from_5d708bfa has two of them.

Each trained a tiny model for six steps, with a checkpoint after three: one on the CPU by the
reference, one on the emulator with four rungs named.
"""

import json
import shutil
from pathlib import Path

import pytest

from ladder.core.common.errors import LadderError
from tests.trainer import tiny
from trainer.files import checkpoint

RUNS = Path(__file__).parent / "from_5d708bfa"
SETTINGS = {"model": "model", "output": "run", "data_dir": "data", "sequence": 8}
NAMED = {"layernorm.forward": "3", "matmul.forward": "2", "adamw.update": "2"}


@pytest.fixture
def go_on(tmp_path, monkeypatch):
    """A function that resumes a copy of such a run, and returns its train losses by step."""
    monkeypatch.chdir(tmp_path)

    def resume(kind, **changes):
        shutil.copytree(RUNS / kind, "run", dirs_exist_ok=True)
        tiny.run(tmp_path, **SETTINGS, resume=True, checkpoint_every=6, **changes)
        return losses(Path("run"))

    return resume


def losses(run):
    lines = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return {line["step"]: line["train_loss"] for line in lines if "train_loss" in line}


def test_a_checkpoint_resumes_with_its_weights_and_moments(go_on):
    before = losses(RUNS / "reference")
    after = go_on("reference")
    assert after.keys() == before.keys() == set(range(6))
    assert after == pytest.approx(before, rel=1e-6)  # a processor's own order of additions
    tensors, _ = checkpoint.load("run", 6)
    assert {"wte", "wte.m", "wte.v"} <= set(tensors)


@pytest.mark.emulator
def test_where_the_code_of_rungs_has_changed_one_line_names_them_and_the_flag(go_on):
    with pytest.raises(LadderError) as refused:
        go_on("emulated", device="emulated")
    line = str(refused.value)
    assert "\n" not in line and "--rungs" in line
    assert all(f"{op} rung {rung}" in line for op, rung in NAMED.items())
    after = go_on("emulated", device="emulated", rungs="run/rungs.json")
    assert after == pytest.approx(losses(RUNS / "emulated"), rel=1e-5)
    assert json.loads(Path("run/rungs.json").read_text()).items() >= NAMED.items()
