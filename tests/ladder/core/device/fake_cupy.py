"""CuPy, made up: it has the functions that ladder/core/amd/hip/gpu.py and its sibling for CUDA
call, refuses arguments that CuPy, HIP or CUDA would not take, and runs kernels on the emulator.

A stream does nothing until something waits for it, as a GPU may be late. Whoever reads too soon
sees what was there before.
"""

from __future__ import annotations

import numpy as np

from ladder.core.contract.device import aligned_empty
from ladder.core.contract.launch_plan import Launch

PROPERTIES = {
    "name": b"AMD Instinct MI300X",
    "gcnArchName": b"gfx942:sramecc+:xnack-",
    "warpSize": 64,
    "multiProcessorCount": 304,
    "sharedMemPerBlock": 65536,
    "sharedMemPerBlockOptin": 65536,  # of CUDA alone
    "l2CacheSize": 4 << 20,
    "clockRate": 2_100_000,
    "totalGlobalMem": 192 << 30,
}


class RuntimeError_(RuntimeError):
    """hipError_t as CuPy raises it: "name: what it means"."""

    def __init__(self, status, text):
        self.status = status
        super().__init__(f"hipError: {text}")


class Array:
    """cupy.ndarray, with its memory on this machine."""

    def __init__(self, cupy, host):
        self._cupy, self._host = cupy, host
        self.shape, self.dtype, self.size = host.shape, host.dtype, host.size
        self.nbytes, self.itemsize, self.flags = host.nbytes, host.itemsize, host.flags
        self.data, self.ptr = self, host.ctypes.data  # its MemoryPointer, too

    def __getitem__(self, part):
        return Array(self._cupy, self._host[part])

    def view(self, dtype):
        return Array(self._cupy, self._host.view(dtype))

    def reshape(self, shape):
        return Array(self._cupy, self._host.reshape(shape))

    def set(self, host, stream):
        assert host.shape == self.shape and host.dtype == self.dtype
        assert host.flags.c_contiguous
        stream.submit("copy to the GPU", lambda: np.copyto(self._host, host))

    def get(self, stream, out=None, blocking=True):
        out = np.empty(self.shape, self.dtype) if out is None else out
        stream.submit("copy to the host", lambda: np.copyto(out, self._host))
        if blocking:
            stream.synchronize()
        return out

    def memset_async(self, value, size, stream):
        assert (value, size) == (0, self.nbytes)
        stream.submit("memset", lambda: self._host.view(np.uint8).fill(0) if size else None)

    def copy_from_device_async(self, source, size, stream):
        assert size == self.nbytes == source.nbytes
        stream.submit("copy", lambda: np.copyto(self._host, source._host))


class Stream:
    def __init__(self, cupy, non_blocking, priority=0):
        assert non_blocking, "the default stream would wait for this one"
        self.ptr = id(self)
        self._cupy, self._waiting, self._recorded = cupy, [], None

    def __enter__(self):
        self._cupy.check_current()

    def __exit__(self, *_):
        pass

    def submit(self, what, work):
        self._cupy.check_current()
        self._cupy.calls.append(what)
        (self._waiting if self._recorded is None else self._recorded).append(work)

    def synchronize(self):
        assert self._recorded is None, "waiting ends a recording"
        self._cupy.calls.append("synchronize")
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            work()
        if self._cupy.sticky is not None:
            raise self._cupy.sticky

    def record(self, event=None):
        event = event or Event(self._cupy)
        event.record(self)
        return event

    def wait_event(self, event):
        self.submit("wait", event.synchronize)

    def begin_capture(self):
        self._cupy.calls.append("begin capture")
        if not self._cupy.has_graphs:
            raise RuntimeError_(801, "operation not supported")
        self._recorded = []

    def end_capture(self):
        recorded, self._recorded = self._recorded, None
        if recorded is None:
            raise RuntimeError_(901, "operation not permitted")
        return Graph(recorded)


class Graph:
    def __init__(self, recorded):
        self._recorded = recorded

    def launch(self, stream):
        stream.submit("graph", lambda: [work() for work in self._recorded])


class Event:
    def __init__(self, cupy):
        self._cupy, self.done, self._stream = cupy, False, None

    def record(self, stream):
        self._stream = stream
        stream.submit("event", self._pass)

    def _pass(self):
        self.done, self.at = True, self._cupy.tick()

    def synchronize(self):
        if not self.done:
            self._stream.synchronize()


class Device:
    compute_capability = "90"

    def __init__(self, cupy, index):
        self._cupy, self.id = cupy, index

    def use(self):
        self._cupy.current = self.id

    def __enter__(self):
        self.use()

    def __exit__(self, *_):
        pass


class Function:
    """cupy.cuda.Function: what a RawKernel launches."""

    def __init__(self, cupy, kernel, name):
        self._cupy, self._kernel, self._name = cupy, kernel, name

    def __call__(self, grid, block, args, shared_mem=0, stream=None):
        assert isinstance(grid, tuple) and isinstance(block, tuple)
        assert all(type(size) is int and size >= 1 for size in (*grid, *block)), (grid, block)
        assert np.prod(block) <= 1024, "a block has 1024 threads at most"
        assert all(blocks * threads < 1 << 32 for blocks, threads in zip(grid, block, strict=True))
        if shared_mem > PROPERTIES["sharedMemPerBlock"]:
            raise RuntimeError_(1, "invalid argument")
        for arg in args:
            # CuPy passes a Python int as 64 bits and None as no argument at all.
            assert isinstance(arg, (Array, np.generic)), f"{arg!r} is no argument of a kernel"
        values = tuple(
            arg._host if isinstance(arg, Array) else None if isinstance(arg, np.uintp) else arg
            for arg in args
        )
        launch = Launch(self._name, grid, block, shared_mem)
        stream.submit(f"launch {self._name}", lambda: self._kernel(launch, values))


class RawKernel:
    shared_size_bytes, _most = 0, 48 << 10

    def __init__(self, cupy, kernel, name):
        self.name, self.kernel = name, Function(cupy, kernel, name)

    @property
    def max_dynamic_shared_size_bytes(self):
        assert not self.kernel._cupy.is_hip, "HIP has no cuFuncSetAttribute"
        return self._most

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size):
        self.kernel._cupy.calls.append(f"allow {size}")
        self._most = size


class FakeCupy:
    """The module `cupy`. `modules`: for the path of each code object, its kernels by name."""

    __version__ = "14.2.0"

    def __init__(self, modules, properties=None, gpus=1, has_graphs=True):
        self.modules, self.properties = modules, {**PROPERTIES, **(properties or {})}
        self.gpus, self.has_graphs = gpus, has_graphs
        self.calls, self.current, self.sticky, self._now = [], None, None, 0.0
        self.cuda = self  # cupy.cuda, cupy.cuda.runtime and so on: all in one
        self.runtime = self.driver = self.memory = self
        self.CUDARuntimeError = self.CUDADriverError = RuntimeError_
        self.OutOfMemoryError = MemoryError
        self.is_hip = True

    def check_current(self):
        assert self.current is not None, "no device is current"

    def tick(self):
        self._now += 1.0
        return self._now

    # cupy.cuda.runtime

    def getDeviceCount(self):
        if not self.gpus:
            raise RuntimeError_(100, "no ROCm-capable device is detected")
        return self.gpus

    def getDeviceProperties(self, index):
        assert 0 <= index < self.gpus
        return self.properties

    def runtimeGetVersion(self):
        return 70051831

    def driverGetVersion(self):
        return 13000

    def memGetInfo(self):
        return 100 << 30, 192 << 30

    # cupy.cuda

    def Device(self, index):
        return Device(self, index)

    def Stream(self, non_blocking, priority=0):
        self.check_current()
        return Stream(self, non_blocking, priority)

    def Event(self, disable_timing=False):
        return Event(self)

    def get_elapsed_time(self, start, end):
        assert start.done and end.done, "events must have passed"
        return (end.at - start.at) * 1e3

    def alloc_pinned_memory(self, size):
        return bytearray(-(-size // 512) * 512)  # CuPy rounds up

    # cupy

    def empty(self, shape, dtype):
        self.check_current()
        if np.prod(shape) > 1 << 33:
            raise MemoryError
        return Array(self, aligned_empty(shape, np.dtype(dtype)))

    def get_default_memory_pool(self):
        return self

    def free_bytes(self):
        return 1 << 20

    def RawModule(self, path):
        self.check_current()
        self.calls.append(f"load {path}")
        kernels = self.modules[path]
        made = {name: RawKernel(self, kernel, name) for name, kernel in kernels.items()}
        return type("RawModule", (), {"get_function": staticmethod(made.__getitem__)})
