"""NCCL through CuPy: what GPUs of several processes do together, on the stream of each.

CuPy for ROCm has AMD's RCCL under the same names, with the same numbers of types and operations.
No AMD GPU has run it.

https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/collectives.html
"""

import atexit
import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ladder.core.common.errors import LadderError
from ladder.core.common.install import install
from ladder.core.contract.peers import Rows
from ladder.core.device.cupy.protocol import Gpu

# ncclDataType_t of nccl.h
_TYPES = {"float16": 6, "float32": 7, "bfloat16": 9}

INSTALL = f"{install('cuda13')} (or [cuda12], as for CuPy) brings it; on AMD, ROCm's RCCL"


def unique_id() -> bytes:
    """What all processes of a new group must know: 128 bytes, with the address of this process,
    which must join the group, too. Raises LadderError where NCCL does not load."""
    name: bytes = _call("making a group", _library().get_unique_id)
    return name


class Communicator:
    """This process's part of a group. See `ladder.core.contract.device.Communicator`."""

    name = "NCCL"

    def __init__(self, gpu: Gpu, name: bytes, rank: int, size: int) -> None:
        self._library, self._gpu, self._rank, self._size = _library(), gpu, rank, size
        with gpu.device:
            self._group = _call(
                f"joining a group of {size} GPUs",
                functools.partial(self._library.NcclCommunicator, size, name, rank),
            )

    def all_reduce(self, *arrays: Any) -> None:
        float32, total = self._library.NCCL_FLOAT32, self._library.NCCL_SUM
        with self._together():
            for array in arrays:
                start = array.data.ptr
                self._submit(self._group.allReduce, start, start, array.size, float32, total)

    def reduce_scatter(self, *arrays: Any) -> None:
        float32, total = self._library.NCCL_FLOAT32, self._library.NCCL_SUM
        with self._together():
            for array in arrays:
                start, count = array.data.ptr, array.size // self._size
                own = start + self._rank * count * array.itemsize  # NCCL works in place from there
                self._submit(self._group.reduceScatter, start, own, count, float32, total)

    def all_gather(self, *arrays: Any) -> None:
        """Bytes are copied as they are, so that any type will do."""
        with self._together():
            for array in arrays:
                start, count = array.data.ptr, array.nbytes // self._size
                own = start + self._rank * count
                self._submit(self._group.allGather, own, start, count, self._library.NCCL_UINT8)

    def close(self) -> None:
        self._gpu.synchronize()
        with self._gpu.device:
            _call("leaving the group", self._group.destroy)

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """NCCL makes one kernel of what the block submits, where it can."""
        _call("beginning an exchange", self._library.groupStart)
        try:
            yield
        finally:
            with self._gpu.device:
                _call("submitting an exchange", self._library.groupEnd)

    def _submit(self, function: Callable[..., Any], *args: int) -> None:
        with self._gpu.device:
            _call(function.__name__, functools.partial(function, *args, self._gpu.stream.ptr))


class GroupSum:
    """All-reduce over GPUs of one process, on the stream of each: every row of out (R, N) becomes
    the sum over the rows of inp (R, N)."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._library, self._gpus = _library(), gpus
        ids = [gpu.device.id for gpu in gpus]
        create = functools.partial(self._library.NcclCommunicator.initAll, ids)
        self._members = _call(f"making a group of {len(ids)} GPUs", create)
        atexit.register(self._leave)

    def __call__(self, out: Rows, inp: Rows) -> None:
        if len(out.rows) != len(self._members):
            raise LadderError(
                f"NCCL has one rank on each GPU: {len(self._members)} here, not {len(out.rows)}"
            )
        _call("an all-reduce", functools.partial(self._submit, out, inp))

    def _submit(self, out: Rows, inp: Rows) -> None:
        """One thread makes the calls of all ranks as a group: each call waits for the others."""
        self._library.groupStart()
        for member, gpu, source, target in zip(
            self._members, self._gpus, inp.rows, out.rows, strict=True
        ):
            member.allReduce(
                source.data.ptr,
                target.data.ptr,
                source.size,
                _TYPES[source.dtype.name],
                self._library.NCCL_SUM,
                gpu.stream.ptr,
            )
        self._library.groupEnd()

    def _leave(self) -> None:
        for gpu in self._gpus:
            gpu.synchronize()
        for member in self._members:
            member.destroy()


def version() -> str:
    """Such as "2.28.9". Raises LadderError where NCCL does not load."""
    number = _call("telling its version", _library().get_version)  # 22809
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _library() -> Any:
    try:
        from cupy.cuda import nccl
    except ImportError as error:
        raise LadderError(f"NCCL does not load ({error}); {INSTALL}") from None
    if not nccl.available:
        raise LadderError(f"NCCL was not found, and several GPUs need it; {INSTALL}")
    return nccl


def _call(doing: str, function: Callable[[], Any]) -> Any:
    """The result of a function of NCCL; LadderError where it fails."""
    try:
        return function()
    except _library().NcclError as error:
        raise LadderError(
            f"NCCL failed in {doing}: {error}; with NCCL_DEBUG=WARN in the environment it says why"
        ) from None
