"""The comparison with PyTorch, which is made on a GPU, here with the reference on a CPU."""

import pytest

pytest.importorskip("torch")

from tests import gpu_vs_torch
from tests.trainer.tiny import add_size

pytestmark = pytest.mark.torch


FLAGS = ["steps", "-e", "d2", "-b", "2", "-t", "8", "-x", "3", "--device", "cpu"]
FLAGS += ["--rungs", "reference", "--dtypes"]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_same_steps_are_within_tolerance(dtype, monkeypatch):
    add_size(monkeypatch, "d2", layers=2, channels=32, heads=2)
    assert gpu_vs_torch.main([*FLAGS, dtype]) == 0


def test_other_steps_are_not(monkeypatch, capsys):
    add_size(monkeypatch, "d2", layers=2, channels=32, heads=2)
    hyper = gpu_vs_torch.adamw.hyper
    double = {"lr": 2 * gpu_vs_torch.LR}
    monkeypatch.setattr(gpu_vs_torch.adamw, "hyper", lambda **of: hyper(**{**of, **double}))
    assert gpu_vs_torch.main([*FLAGS, "fp32"]) == 1
    lines = capsys.readouterr().out.splitlines()
    steps = [line for line in lines if line[:4].strip().isdigit()]
    assert [line.endswith(("loss", "gradient")) for line in steps] == [False, True, True]
