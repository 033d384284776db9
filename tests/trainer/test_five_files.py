"""How many files a reader opens to get from the training loop to the launch of a kernel."""

import sys
from pathlib import Path

import numpy as np

from ladder.core.contract.ladder import find
from ladder.core.emulator.emulated import Emulated
from tests.trainer.tiny import SHAPE, resolved, settings
from trainer.data.datasets import prepare
from trainer.data.token_files import TokenLoader
from trainer.engine.engine import Engine
from trainer.engine.steps import Steps
from trainer.model.program import build
from trainer.train import take_step

ROOT = Path(__file__).parents[2]
HOST = "ladder/core/contract/device.py"  # starts what goes beside other calls, as gpu.py on a GPU


class Watched(Emulated):
    """Its kernels compute nothing, and note the files of the functions that they are called by,
    from `take_step` on."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def compile(self, rung, constants, real):
        return self  # for kernels by name

    def __contains__(self, name):
        return True

    def __getitem__(self, name):
        return self.note

    def note(self, launch, args):
        frame = sys._getframe(1)
        files = [frame.f_code.co_filename]
        while frame.f_code is not take_step.__code__:
            frame = frame.f_back
            files.append(frame.f_code.co_filename)
        names = [Path(file).relative_to(ROOT).as_posix() for file in reversed(files)]
        self.seen.add(tuple(dict.fromkeys(names)))


def test_from_the_loop_to_a_kernel_a_reader_opens_five_files(tmp_path):
    device, config = Watched(), resolved("cpu", 32, **settings(tmp_path, model="d6"))
    program = build(SHAPE, 2, 16)
    rungs = {call.op: find(call.op).rung(1) for call in program.calls}
    engine = Engine(program, device, np.dtype(np.float32), rungs)
    train = TokenLoader(prepare("play", tmp_path, "bytes").train, 2, 16, vocab=257, shuffle=False)
    take_step(Steps(config, engine), train, 0)
    assert len(device.seen) == 2, "beside other calls, and in line with them"
    for called in device.seen:
        assert (called[0], called[-1]) == ("trainer/train.py", "ladder/core/contract/binding.py")
        assert len({*called} - {HOST}) <= 3, called  # beside open.py, and gpu.py of a device
