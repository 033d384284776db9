"""How many files a reader opens to get from the training loop to the launch of a kernel."""

import inspect
import itertools
import sys
from pathlib import Path

import numpy as np

from ladder.core.contract import binding
from ladder.core.contract.ladder import find
from ladder.core.device.cupy.gpu import CupyKernel
from ladder.core.emulator.emulated import Emulated
from tests.test_imports import GRAPH
from tests.trainer.tiny import SHAPE, resolved, settings
from trainer.data.datasets import prepare
from trainer.data.token_files import TokenLoader
from trainer.engine.engine import Engine
from trainer.engine.steps import Steps
from trainer.model.program import build
from trainer.train import take_step

ROOT = Path(__file__).parents[2]
# Its class is called as `kernel(launch, args)`, and its device starts what goes beside other calls.
GPU = "ladder/core/device/cupy/gpu.py"
HOST = "ladder/core/contract/device.py"  # starts it on the host's devices


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
        codes, frame = [], sys._getframe(1)
        while not codes or codes[-1] is not take_step.__code__:
            codes.append(frame.f_code)
            frame = frame.f_back
        files = [str(Path(code.co_filename).relative_to(ROOT)) for code in reversed(codes)]
        self.seen.add(tuple(dict.fromkeys(GPU if file == HOST else file for file in files)))


def way(start, end):
    """The fewest files by which imports lead from one file to another, both included."""
    ways, seen = [[start]], {start}
    while ways:
        path = ways.pop(0)
        if path[-1] == end:
            return path
        new = sorted(GRAPH[path[-1]] - seen)
        seen.update(new)
        ways += [[*path, file] for file in new]
    raise AssertionError(f"{start} does not lead to {end}")


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
        read = [file for file in called if file != GPU]
        opened = {file for pair in itertools.pairwise(read) for file in way(*pair)}
        assert len({*opened, GPU}) <= 5, sorted(opened)


def test_a_kernel_is_called_so():
    assert list(inspect.signature(CupyKernel.__call__).parameters) == ["self", "launch", "args"]
    assert Path(inspect.getfile(CupyKernel)).relative_to(ROOT) == Path(GPU)
    assert "kernel(launch, args)" in inspect.getsource(binding)
