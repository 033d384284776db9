"""The device and the type of a run that names none."""

import re

import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find
from ladder.core.contract.target import Target
from ladder.core.device.open import Cpu
from trainer import open as choice
from trainer.flags import DeviceChoice
from trainer.model.program import build
from trainer.model.registry import SIZES


class Gpu(Cpu):
    """A GPU of a given architecture, as far as choosing goes."""

    kind = "cuda"
    is_gpu = runs_kernels = True
    runs_reference = False

    def __init__(self, arch):
        self.arch = arch
        self.name = f"GPU of {arch}"
        self.bfloat16 = arch != "sm_75"

    def target(self, real):
        return Target(self.arch, 32, 40, 64 << 10, np.dtype(real))


@pytest.fixture
def with_gpu(monkeypatch):
    def pretend(arch):
        monkeypatch.setattr(choice, "default_gpu", lambda: "cuda")
        monkeypatch.setattr(
            choice, "open_device", lambda name: Cpu() if name == "cpu" else Gpu(arch)
        )

    return pretend


@pytest.mark.parametrize("name", ["gpt2", "char"])
def test_a_t4_has_a_kernel_for_every_call_of_a_step_in_fp16(name):
    program = build(SIZES[name].config.with_vocab(50257), B=4, T=64)
    for call in {(call.op, tuple(call.dims.items())): call for call in program.calls}.values():
        ladder = find(call.op)
        real = "float16" if "float16" in ladder.op.reals else "float32"  # the norm's gradients
        target = Gpu("sm_75").target(real)
        kernels = [rung for rung in ladder.rungs if rung.path and rung.claims(target)]
        assert any(rung.plan(call.dims, target).refusal is None for rung in kernels), call.op


def test_without_a_driver_it_is_the_cpu(monkeypatch):
    monkeypatch.setattr(choice, "default_gpu", lambda: None)
    _, place, notes = choice.open_for(None, None)
    assert (place, notes) == (DeviceChoice("cpu", False, "fp32"), [])


def test_a_gpu_that_cannot_be_opened_is_reported(monkeypatch):
    def refuse(name):
        if name == "cpu":
            return Cpu()
        raise LadderError("CuPy is not installed: pip install it")

    monkeypatch.setattr(choice, "default_gpu", lambda: "cuda")
    monkeypatch.setattr(choice, "open_device", refuse)
    device, _, (note,) = choice.open_for(None, None)
    assert device.kind == "cpu"
    assert note.startswith("CuPy is not installed: pip install it")
    with pytest.raises(LadderError, match="CuPy"):
        choice.open_for("cuda", None)


@pytest.mark.parametrize(("arch", "dtype"), [("sm_90a", "bf16"), ("sm_80", "bf16")])
def test_the_default_on_a_gpu_is_bfloat16(with_gpu, arch, dtype):
    with_gpu(arch)
    _, place, notes = choice.open_for(None, None)
    assert (place, notes) == (DeviceChoice("cuda", True, dtype), [])
    assert choice.open_for(None, "fp32")[1].dtype == "fp32"


def test_a_gpu_too_old_for_bfloat16_computes_in_float16_and_says_so(with_gpu):
    with_gpu("sm_75")
    _, place, (note,) = choice.open_for("cuda", None)
    assert place.dtype == "fp16"
    assert re.search("sm_75 .*bf16.* fp16", note)
    with pytest.raises(LadderError, match=r"sm_75 .*bf16.*--dtype fp16 or fp32"):
        choice.open_for("cuda", "bf16")


@pytest.mark.parametrize(
    ("typed", "visible", "opened"),
    [
        (None, "", "cuda:3"),
        ("cuda", "4,5,6,7", "cuda:3"),
        (None, "5", "cuda:0"),  # the launcher shows each rank its own GPU
        ("cpu", "", "cpu"),
    ],
)
def test_each_rank_has_a_gpu_of_its_own(with_gpu, monkeypatch, typed, visible, opened):
    with_gpu("sm_90a")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    _, place, _ = choice.open_for(typed, None, local_rank=3)
    assert place.device == opened


def test_a_rank_cannot_be_told_a_gpu_by_number():
    with pytest.raises(LadderError, match=r"--device cuda:1: .*--device cuda, .*CUDA_VISIBLE_"):
        choice.open_for("cuda:1", None, local_rank=0)
