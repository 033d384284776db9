"""Which rung an op gets, and which choices are refused."""

import json

import numpy as np
import pytest

from ladder.contract import Target, find
from ladder.device import Cpu
from ladder.errors import LadderError
from trainer import rungs
from trainer.config import TrainConfig, resolve

OPS = ("layernorm.forward", "gelu.forward")
FLOAT32 = np.dtype(np.float32)


class Pretended(Cpu):
    """A device that says of itself what a choice depends on."""

    def __init__(self, kind, arch):
        self.kind, self.arch = kind, arch

    def target(self, real):
        return Target(self.arch, 32, 132, 232448, real)


EMULATED, GPU = Pretended("emulated", "emulated"), Pretended("cuda", "sm_90a")


def choose(device, **settings):
    config = resolve(TrainConfig(**settings), device.kind, 1024)
    return rungs.choose(OPS, config, device, FLOAT32)


def lowest(op):
    return min((rung.number for rung in find(op).rungs if rung.number > 0), default=0)


def test_the_cpu_runs_the_reference():
    assert {op: choice.rung.number for op, choice in choose(Cpu()).items()} == dict.fromkeys(OPS, 0)


def test_naive_is_the_lowest_kernel_or_else_the_reference():
    choices = choose(EMULATED, rungs="naive")
    assert {op: choice.rung.number for op, choice in choices.items()} == {
        op: lowest(op) for op in OPS
    }


def test_one_rung_is_swapped_by_number_or_by_file(tmp_path):
    source = find("layernorm.forward").rung(1).path
    mine = tmp_path / "mine.cu"
    mine.write_text(source.read_text())
    by_number = choose(EMULATED, rung=("layernorm.forward=2",))["layernorm.forward"]
    by_file = choose(EMULATED, rung=(f"layernorm.forward={mine}",))["layernorm.forward"]
    assert (by_number.rung.number, by_number.reason) == (2, "named by --rung")
    assert by_file.rung.path == mine


def test_what_a_run_has_chosen_can_be_chosen_again(tmp_path):
    mine = tmp_path / "mine.cu"
    mine.write_text(find("layernorm.forward").rung(1).path.read_text())
    chosen = choose(EMULATED, rung=(f"layernorm.forward={mine}",))
    saved = tmp_path / "rungs.json"
    saved.write_text(json.dumps(rungs.as_json(chosen)))
    again = choose(EMULATED, rungs=str(saved))
    assert rungs.as_json(again) == rungs.as_json(chosen)
    assert again["layernorm.forward"].rung.path == mine


@pytest.mark.parametrize(
    ("device", "settings", "says"),
    [
        (Cpu(), {"rung": ("gelu.foward=1",)}, "did you mean gelu.forward"),
        (Cpu(), {"rung": ("softmax.forward=0",)}, "this model does not use softmax.forward"),
        (Cpu(), {"rung": ("layernorm.forward=1",)}, "add --device emulated"),
        (Cpu(), {"rung": ("layernorm.forward=99",)}, "has no rung 99; it has 0, 1"),
        (Cpu(), {"rung": ("layernorm.forward=fast",)}, "a rung's number, or the path of a .cu"),
        (EMULATED, {"rung": ("layernorm.forward=no.cu",)}, "cannot read the kernel file no.cu"),
        (Cpu(), {"rungs": "fastest"}, "neither one of reference, naive, best, library nor a file"),
        (EMULATED, {"rungs": "best"}, "--rungs best measures on a GPU"),
        (GPU, {"rungs": "naive", "rung": ("layernorm.forward=0",)}, "rung"),
        (GPU, {"rungs": "reference"}, "rung 0 is NumPy; on --device cuda"),
    ],
)
def test_choices_that_cannot_run_are_refused(device, settings, says):
    with pytest.raises(LadderError, match=says):
        choose(device, **settings)


@pytest.mark.parametrize("text", ["[1]", '{"gelu.forward": [1]}', "{", '{"gelu.foward": 1}'])
def test_a_file_of_rungs_must_make_sense(tmp_path, text):
    path = tmp_path / "rungs.json"
    path.write_text(text)
    with pytest.raises(LadderError) as refused:
        choose(Cpu(), rungs=str(path))
    assert "\n" not in str(refused.value)
