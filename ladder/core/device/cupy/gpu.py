"""A GPU through CuPy: memory, streams, events, graphs and launches, which CUDA and HIP share.

CuPy has the same functions for both vendors' runtimes, under CUDA's names; it compiles nothing
here. This module imports without CuPy and without a GPU, so that the error for what is missing is
one line.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ladder.core.common.errors import DeviceFault, LadderError
from ladder.core.contract.device import Device
from ladder.core.contract.launch_plan import Launch
from ladder.core.contract.peers import by_value
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.target import Target
from ladder.core.device.cupy import nccl, p2p

# Above this size the bus limits a copy, and pinned memory is not returned to the system.
MOST_PINNED_BYTES = 16 << 20

# Errors after which no call of this process succeeds any more: the driver has given up its context
# (illegal address, timeout, assertion, misaligned or illegal instruction, ...). HIP's numbers are
# CUDA's. https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html
_FATAL = {700, 702, 709, 710, 714, 715, 716, 717, 718, 719}

_NULL = np.uintp(0)

# Of a stream for urgent work: its blocks get the next SMs that are free. The runtime takes the
# nearest priority that there is.
HIGHEST_PRIORITY = -100


class CupyGpu(Device):
    """One GPU, with a stream on which everything runs in order, and two for what goes on `beside`
    it.

    `device`, `stream` and `cupy` are CuPy's, for what calls a library instead of a kernel. `stream`
    is the one that work is submitted to at the moment. A subclass opens the GPU, compiles, and sets
    what is annotated here.
    """

    is_gpu = True
    runs_reference = False
    asynchronous = True

    cupy: Any
    kernel: type[CupyKernel]
    compiler: Any  # the module
    arch: str  # "sm_90a", "gfx942"
    warp: int
    multiprocessors: int
    shared_bytes: int  # most shared memory of one block
    serialize: str  # the setting in the environment that makes every launch wait for its end

    def _use(self, index: int, why_none: Callable[[Exception], str], tool: str) -> None:
        """Open GPU `index`. Raises LadderError where that is not possible.

        why_none  what an error in counting the GPUs means
        tool      the vendor's command that lists what uses a GPU
        """
        try:
            count = self.cupy.cuda.runtime.getDeviceCount()
        except self._errors as error:
            raise LadderError(why_none(error)) from None
        if not 0 <= index < count:
            known = ", ".join(f"{self.kind}:{i}" for i in range(count)) or "none"
            raise LadderError(f"there is no GPU {self.kind}:{index}; this machine has {known}")
        try:
            self._open(index)
        except self._errors as error:
            raise LadderError(
                f"{self.kind}:{index} cannot be used: {said(error)}; {tool} shows what else uses it"
            ) from None

    def _open(self, index: int) -> None:
        raise NotImplementedError

    def _attach(self, index: int) -> None:
        """Begin to use GPU `index` of the runtime: make it current, and make the stream."""
        self.device = self.cupy.cuda.Device(index)
        self._loaded: dict[Path, dict[str, CupyKernel]] = {}  # a model's layers share their kernels
        self.recording = False  # whether launches become part of a graph
        self._submitted: dict[str, None] = {}  # kernels since the last synchronize, in order
        self._copies: list[tuple[Any, Any]] = []  # (event, pinned memory) of those under way
        self.device.use()
        self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self._side = self.cupy.cuda.Stream(non_blocking=True)
        self._urgent = self.cupy.cuda.Stream(non_blocking=True, priority=HIGHEST_PRIORITY)
        self._external = functools.cache(lambda handle: self.cupy.cuda.ExternalStream(handle))
        self._lent = threading.RLock()

    @contextlib.contextmanager
    def on(self, stream: int) -> Iterator[None]:
        """Submit to another library's stream, given by its handle, instead of this device's own.
        One thread at a time does, since PyTorch differentiates in threads of its own."""
        with self._lent:
            before = self.stream, self.recording
            self.stream, self.recording = self._external(stream), False
            try:
                yield
            finally:
                self.stream, self.recording = before

    def borrow(self, address: int, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """An array in the memory of another library, which must keep it as long as it is used."""
        cuda, size = self.cupy.cuda, int(np.prod(shape)) * dtype.itemsize
        memory = cuda.UnownedMemory(address, size, None, self.device.id)
        return self.cupy.ndarray(shape, dtype, cuda.MemoryPointer(memory, 0))

    def target(self, real: np.dtype) -> Target:
        return Target(self.arch, self.warp, self.multiprocessors, self.shared_bytes, np.dtype(real))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """Raises LadderError, with what is free, where the GPU's memory does not suffice."""
        try:
            with self._current(), self.stream:
                return self.cupy.empty(shape, dtype)
        except self.cupy.cuda.memory.OutOfMemoryError:
            needed = int(np.prod(shape)) * np.dtype(dtype).itemsize
            free, total = self.memory()
            raise LadderError(
                f"{self.name} is out of memory: {mib(needed)} more are needed, {mib(free)} of "
                f"{mib(total)} are free; take a smaller batch, or end what else uses the GPU"
            ) from None

    def upload(self, array: Any, host: np.ndarray) -> None:
        """Small arrays go through pinned memory, and the host does not wait for the copy."""
        source = np.ascontiguousarray(host, dtype=array.dtype).reshape(array.shape)
        with self._current(), self.stream:
            if not 0 < source.nbytes <= MOST_PINNED_BYTES:
                array.set(source, self.stream)
                return
            staged, pinned = self._pinned(array)
            staged[...] = source
            array.set(staged, self.stream)
            self._copies.append((self.stream.record(), pinned))

    def zero(self, array: Any) -> None:
        # Not array.fill(0), which goes to CuPy's current stream, and that one is not ours.
        with self._current():
            array.data.memset_async(0, array.nbytes, self.stream)

    def copy(self, target: Any, source: Any) -> None:
        with self._current():
            target.data.copy_from_device_async(source.data, source.nbytes, self.stream)

    def download(self, array: Any) -> np.ndarray:
        self.synchronize()
        with self._current():
            copy: np.ndarray = array.get(stream=self.stream)
            return copy

    def fetch(self, array: Any) -> Callable[[], np.ndarray]:
        with self._current(), self.stream:
            host, pinned = self._pinned(array)
            array.get(stream=self.stream, out=host, blocking=False)
            done = self.stream.record()
            self._copies.append((done, pinned))

        def wait() -> np.ndarray:
            with self._current():
                done.synchronize()
            return host

        return wait

    def _pinned(self, like: Any) -> tuple[np.ndarray, Any]:
        """A host array in pinned memory, and that memory.

        It must not be handed out again while a copy is under way, so it is kept until then.
        """
        self._copies = [copy for copy in self._copies if not copy[0].done]
        pinned = self.cupy.cuda.alloc_pinned_memory(like.nbytes)
        return np.frombuffer(pinned, like.dtype, like.size).reshape(like.shape), pinned

    def compile(
        self, rung: Rung, defines: Mapping[str, int], real: np.dtype
    ) -> dict[str, CupyKernel]:
        module = self.compile_ahead(rung, defines, real)
        if module not in self._loaded:
            doing = f"loading {rung.path}, compiled, from {module.parent}, which can be deleted"
            with self._current(doing):
                raw = self.cupy.RawModule(path=str(module))
                self._loaded[module] = {
                    name: self.kernel(self, raw.get_function(name), rung.file)
                    for name in self.compiler.resources(module)
                }
        return self._loaded[module]

    @property
    def processes(self) -> CupyGpu:
        return self

    def new_group(self) -> bytes:
        """The name of a new group of processes, which one makes and all hand to `join_group`."""
        return nccl.unique_id()

    def join_group(self, name: bytes, rank: int, size: int) -> nccl.Communicator:
        """Join a group as rank `rank` of `size`, each on a device of its own, through NCCL. Waits
        until all have. Raises LadderError where that is not possible."""
        return nccl.Communicator(self, name, rank, size)

    def join_p2p(
        self, exchange: p2p.Exchange, rank: int, size: int, beside: bool
    ) -> p2p.PeerToPeer:
        """The same for the processes of one machine: see `p2p.join`."""
        return p2p.join(self, exchange, rank, size, beside)

    def allocation(self, array: Any) -> int:
        """Where the allocation begins of which an array is a part."""
        raise NotImplementedError

    @abstractmethod
    def compile_ahead(self, rung: Rung, defines: Mapping[str, int], real: np.dtype) -> Path: ...

    def synchronize(self) -> None:
        with self._current():
            self.stream.synchronize()
        self._submitted.clear()

    def free_unused(self) -> None:
        self.cupy.get_default_memory_pool().free_all_blocks()

    def fork(self, work: Callable[[], None], urgent: bool = False, behind: Any = None) -> Any:
        """While a graph is recorded, this makes a second stream of it, up to `join`."""
        main, side = self.stream, self._urgent if urgent else self._side
        try:
            with self._current():
                side.wait_event(self._passed(main))
                if behind is not None:
                    side.wait_event(behind)
                self.stream = side
                work()
                return self._passed(side)
        finally:
            self.stream = main

    def join(self, end: Any) -> None:
        with self._current():
            self.stream.wait_event(end)

    def _passed(self, stream: Any) -> Any:
        """An event that happens when the stream has done what it was given so far."""
        return stream.record(self.cupy.cuda.Event(disable_timing=True))

    def mark(self) -> Any:
        with self._current():
            event = self.cupy.cuda.Event()
            event.record(self.stream)
            return event

    def seconds(self, start: Any, end: Any) -> float:
        with self._current():
            end.synchronize()
            milliseconds: float = self.cupy.cuda.get_elapsed_time(start, end)
            return milliseconds / 1e3

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Replaying a graph takes about a quarter of the host's time that its launches take."""
        self.synchronize()
        with self._current("recording a graph"), self.stream:
            self.stream.begin_capture()
            self.recording = True
            try:
                work()
            except BaseException:
                with contextlib.suppress(*self._errors):
                    self.stream.end_capture()
                raise
            finally:
                self.recording = False
            graph = self.stream.end_capture()
        kernels = dict(self._submitted)
        self._submitted.clear()  # recorded, not run

        def replay() -> None:
            self._submitted.update(kernels)
            with self._current():
                graph.launch(self.stream)

        return replay

    def memory(self) -> tuple[int, int]:
        """Bytes that can still be allocated, and bytes that the GPU has."""
        with self.device:
            free, total = self.cupy.cuda.runtime.memGetInfo()
            return free + self.cupy.get_default_memory_pool().free_bytes(), total

    @contextlib.contextmanager
    def _current(self, doing: str = "") -> Iterator[None]:
        """Make this GPU the one that CuPy works on, and raise the runtime's errors as ours."""
        try:
            with self.device:
                yield
        except self._errors as error:
            raise self._failure(error, doing) from None

    @functools.cached_property
    def _errors(self) -> tuple[type[Exception], ...]:
        cuda = self.cupy.cuda
        return cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError

    def _failure(self, error: Any, doing: str = "") -> LadderError:
        """What the runtime says, and which kernels may be at fault: an error surfaces late.

        error  one of `_errors`
        """
        what = said(error)
        if error.status not in _FATAL:
            return LadderError(f"{self.name}: {what}" + (f", {doing}" if doing else ""))
        kernels = list(self._submitted) or ["an earlier kernel"]
        message = f"{self.name}: {what}, in {' or '.join(kernels[-3:])}"
        if len(kernels) > 3:
            message += f" or one of {len(kernels) - 3} kernels before"
        if len(kernels) > 1:
            message += f" ({self.serialize} in the environment tells which)"
        return DeviceFault(
            f"{message}; this process can no longer use the GPU; restart the program"
        )


class CupyKernel:
    """A kernel of a module. `args`: CuPy arrays, None, NumPy scalars; structures: `numpy.void`."""

    def __init__(self, device: CupyGpu, raw: Any, path: Path) -> None:
        self.raw = raw
        self.device = device
        self.label = f"{raw.name} ({path})"
        self._function = raw.kernel  # looked up for the device that is current

    def __call__(self, launch: Launch, args: tuple[Any, ...]) -> None:
        device = self.device
        device._submitted[self.label] = None
        try:
            device.device.use()
            self.prepare(launch)
            # CuPy's own None is not a null pointer but no argument at all.
            values = [_NULL if arg is None else by_value(arg) for arg in args]
            self.launch(launch, values)
        except device._errors as error:
            raise device._failure(
                error,
                f"launching {self.label} with grid {launch.grid}, block {launch.block} and "
                f"{launch.shared} bytes of dynamic shared memory",
            ) from None

    def launch(self, launch: Launch, values: list[Any]) -> None:
        """Submit it to the device's stream. `values`: NumPy scalars and CuPy arrays."""
        self._function(launch.grid, launch.block, values, launch.shared, self.device.stream)

    def prepare(self, launch: Launch) -> None:
        """What the runtime wants to be asked before a launch. Raises LadderError where the launch
        is not possible."""


def said(error: Exception) -> str:
    """What the runtime says of an error, without its symbolic name."""
    return str(error).split(": ", 1)[-1]


def count_gpus(import_cupy: Callable[[], Any]) -> int:
    """How many GPUs CuPy sees; 0 where it cannot tell, for which opening one gives the reason."""
    try:
        number: int = import_cupy().cuda.runtime.getDeviceCount()
    except (LadderError, RuntimeError):  # CuPy's errors of the runtime are RuntimeErrors
        return 0
    return number


def why_no_import(error: ImportError) -> str:
    """What is the matter with CuPy, of an error of `import cupy`."""
    if error.name == "cupy":
        return "is not installed"
    # CuPy wraps what is wrong, such as a library that is missing, in a page of advice.
    first = str(error.__cause__ or error).strip().partition("\n")[0]
    return f"does not import ({first})"


def mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
