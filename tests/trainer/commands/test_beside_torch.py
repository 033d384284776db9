"""`python -m trainer torch`: PyTorch takes the steps that we take."""

import re

import pytest

from tests.trainer.tiny import save_model
from trainer.commands import torch_gpt2
from trainer.commands.beside_torch import main

installed = pytest.mark.skipif(torch_gpt2.torch is None, reason="PyTorch is not installed")


def words(tmp_path, line=""):
    model = tmp_path / "model"
    if not model.exists():
        save_model(model)
    common = f"-e {model} --dataset play --data-dir {tmp_path / 'data'} --device cpu -b 2 -t 16"
    return f"{common} -x 8 -l 1e-2 --modes eager {line}".split()


def tables(text):
    """The numbers of the steps' lines, and of the lines of the second table."""
    lines = text.splitlines()
    steps = [line.split() for line in lines if re.match(r" *[0-9]+  ", line)]
    return steps, [line for line in lines if line.startswith(("ours, ", "PyTorch, eager  "))]


@installed
@pytest.mark.torch
@pytest.mark.parametrize(
    ("flags", "within"),
    [
        ("-d 64 -c 0.1 --grad-clip 0.5 -u 2 -q 0.1", 1e-5),
        ("-a --beta1 0.8 --eps 1e-6 --seed 5 --no-shuffle", 1e-5),
        ("--dtype bf16", 3e-2),
    ],
)
def test_pytorch_takes_the_same_steps(tmp_path, capsys, flags, within):
    assert main(words(tmp_path, flags)) == 0
    steps, rows = tables(capsys.readouterr().out)
    assert [row[0] for row in steps] == [str(step) for step in range(1, 9)]
    assert float(steps[-1][1]) < float(steps[0][1]) - 0.5
    for _, ours, theirs in steps:
        assert float(ours) == pytest.approx(float(theirs), abs=within)
    assert len(rows) == 2
    for row in rows:
        assert float(re.split("  +", row)[1].replace(",", "")) > 0, "milliseconds of a step"


@installed
@pytest.mark.torch
def test_a_mode_that_pytorch_cannot_run_is_left_out_with_the_reason(tmp_path, capsys, monkeypatch):
    def fail(work):
        raise RuntimeError("no compiler\nbecause of this and that")

    monkeypatch.setattr(torch_gpt2.torch, "compile", fail)
    assert main([*words(tmp_path), "--modes", "eager,compiled"]) == 1
    printed = capsys.readouterr().out
    assert "compiled: no compiler\n" in printed
    assert len(tables(printed)[1]) == 2
