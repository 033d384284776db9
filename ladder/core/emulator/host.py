"""Host code on the emulator: calls a function that launches kernels, and runs what it launches.

include/host_code.h asks for what it needs: memory, launches, and an end where something is wrong.
"""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.launch_plan import Launch, LaunchLines
from ladder.core.contract.target import Target
from ladder.core.emulator import kernel
from ladder.core.emulator.source import DeclaredKernel
from ladder.core.emulator.structures import CParameter

WORDS = ctypes.POINTER(ctypes.c_size_t)
ASK = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_char_p, ctypes.c_int, WORDS)  # emulator::Python
KINDS = {"float32": 0, "float16": 1, "bfloat16": 2, "int32": 3, "int64": 4}  # torch::ScalarType
MOST_AXES = 16  # of a torch::Tensor, which is MOST_AXES + 4 words
TARGET = Target("emulated", 32, 1, 48 << 10, np.dtype(np.float32))


class HostCode:
    """The host function of a library, to be called as a kernel is; `seen`: settings and record."""

    def __init__(self, library: Path, path: Path, declared: Any, *seen: Any) -> None:
        kernel.load_runtime()
        self._path, self._seen = path, (kernel.Locator(library, path), *seen)
        self._declared = {one.name: one for one in declared}
        self._call, self._ask = ctypes.CDLL(str(library)).emulator_host, ASK(self._answer)
        self._made: list[np.ndarray] = []  # what it allocates, and may keep from call to call
        self._freed: list[np.ndarray] = []  # of these; no other memory may get their addresses

    def __call__(self, launch: Launch, args: tuple[Any, ...]) -> None:
        """Call it. Behind its own `args` are all arrays of the contract, of which it may return the
        last ones, and what allocates memory. Raises LadderError and KernelError, as kernels do."""
        *given, arrays, self._allocate = args
        self._given = [arg for arg in given if isinstance(arg, np.ndarray)]
        self._error: BaseException | None = None
        self._returned: list[list[int]] = []
        values = [np.array(_words(arg)) for arg in given]
        self._call(self._ask, (ctypes.c_void_p * len(values))(*(v.ctypes.data for v in values)))
        if self._error is not None:
            raise self._error
        results = list(arrays.items())[len(arrays) - len(self._returned) :]
        for words, (name, array) in zip(self._returned, results, strict=True):
            if words[1:] != _words(array)[1:]:
                must, has = f"{name} must be {array.dtype} {array.shape}", words[1:][: words[-3]]
                raise LadderError(f"{self._path}: {must}; it returns another type, or {has}")
            ctypes.memmove(array.ctypes.data, words[0], array.nbytes)

    def _answer(self, what: bytes, line: int, numbers: Any) -> int:
        try:
            if what == b"cudaMalloc":
                dtype = np.dtype(np.uint8 if numbers[0] % 4 else np.uint32)
                self._made.append(self._allocate((numbers[0] // dtype.itemsize,), dtype))
                return int(self._made[-1].ctypes.data)
            if what == b"cudaFree":
                places = [array.ctypes.data for array in self._made]
                if numbers[0] not in places:
                    raise LadderError("cudaFree of what is freed already, or not from cudaMalloc")
                self._freed.append(self._made.pop(places.index(numbers[0])))
            elif what == b"cudaMemcpy":
                to, source, kind = numbers[:3]
                for place, of_host in ((to, (0, 2)), (source, (0, 1))):  # kinds: host_code.h
                    within = (0 <= place - a.ctypes.data < a.nbytes for a in self._made)
                    if kind in of_host and any(within):
                        raise LadderError("cudaMemcpy: memory of cudaMalloc is called the host's")
            elif what == b"return":
                self._returned.append(numbers[: MOST_AXES + 4])
            elif numbers:
                self._launch(what.decode(), *numbers[:12])
            else:
                raise LadderError(what.decode(errors="replace"))
            return 1
        except BaseException as error:  # it must not pass through C++
            own = isinstance(error, LadderError) and not isinstance(error, kernel.KernelError)
            self._error = LadderError(f"{self._path}:{line}: {error}") if own else error
            return 0

    def _launch(self, name: str, *numbers: int) -> None:
        *sizes, shared, bound, call, arguments, parameters, count = numbers
        text = f"{name}<<<{(*sizes[:3],)}, {(*sizes[3:],)}, {shared}>>>"
        plan = LaunchLines.parse({"launch": (text,)}).plan({}, TARGET)
        if shared > TARGET.shared_bytes:
            raise LadderError(f"{text}: more shared memory than without cudaFuncSetAttribute")
        taken = list((CParameter * count).from_address(parameters))
        values = map(self._argument, taken, (ctypes.c_size_t * count).from_address(arguments))
        declared = self._declared.get(name, DeclaredKernel(name, ()))
        seen = (*self._seen, 1, bound)
        run = kernel.EmulatedKernel(declared, ctypes.c_void_p(call), taken, *seen)
        run(plan.launches[0], (*values,))

    def _argument(self, parameter: CParameter, at: int) -> Any:
        """An argument of a launch as kernels take it: of a pointer, the whole buffer, and where."""
        if parameter.kind != b"p":
            dtype = f"{parameter.kind.decode().replace('s', 'V')}{parameter.bytes}"
            return np.frombuffer(ctypes.string_at(at, parameter.bytes), dtype)[0]
        address = ctypes.c_size_t.from_address(at).value
        for array in (*self._given, *self._made):
            if 0 <= (offset := address - array.ctypes.data) <= array.nbytes:
                return array, offset
        if address:
            raise LadderError("the kernel is passed a pointer to freed memory or none of the GPU's")
        return None


def _words(arg: Any) -> list[Any]:
    """An argument of the host function: a tensor, which begins with a pointer, or a number."""
    if not isinstance(arg, np.ndarray):
        return [float(arg) if isinstance(arg, np.floating) else int(arg)]
    axes = (*arg.shape, *[0] * (MOST_AXES - arg.ndim))
    return [arg.ctypes.data, *axes, arg.ndim, KINDS.get(arg.dtype.name, 5), 1]
