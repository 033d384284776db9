"""An emulated GPU beside PyTorch's: it sees tensors by their addresses, as a GPU does."""

import contextlib
import ctypes
import math

import numpy as np

from ladder.core.emulator.emulated import Emulated


class ByAddress(Emulated):
    """`borrowed`: how many arrays it was given."""

    is_gpu = True
    stream = 7
    borrowed = 0

    def on(self, stream):
        assert stream == self.stream
        return contextlib.nullcontext()

    def borrow(self, address, shape, dtype):
        self.borrowed += 1
        memory = (ctypes.c_uint8 * (math.prod(shape) * dtype.itemsize)).from_address(address)
        return np.frombuffer(memory, dtype).reshape(shape)
