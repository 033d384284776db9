"""The comparison with PyTorch, which is made on a GPU, here with the reference on a CPU."""

import pytest

pytest.importorskip("torch")

from tests import gpu_vs_torch


def test_both_start_from_the_same_weights_and_stay_together(capsys):
    arguments = "steps -e d6 --device cpu -b 1 -t 16 -x 2 --rungs reference --dtypes fp32"
    assert gpu_vs_torch.main(arguments.split()) == 0, capsys.readouterr().out
