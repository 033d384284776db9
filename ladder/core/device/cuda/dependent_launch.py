"""Launches of kernels that start while the one before runs: CUDA's driver, without CuPy.

CuPy's launch has no attributes, and programmatic dependent launch is one.
https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EXEC.html
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from ladder.core.contract.launch_plan import Launch

_PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_...


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: an id, and a union of 64 bytes, of which this one uses an int."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("value", ctypes.c_int * 16),
    )


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


def launch(function: int, launch: Launch, values: Sequence[Any], stream: int) -> int:
    """Submit a kernel that may start before the one before it on the stream has ended.

    function, stream  handles of the driver
    values            the arguments: NumPy scalars, and CuPy arrays, of which it passes the address

    Returns the driver's status, 0 for success.
    """
    held = [np.asarray(_value(value)) for value in values]
    pointers = (ctypes.c_void_p * len(held))(*(array.ctypes.data for array in held))
    attribute = _Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION, 0, (ctypes.c_int * 16)(1))
    config = _Config(launch.grid, launch.block, launch.shared, stream, ctypes.pointer(attribute), 1)
    status: int = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx(
        ctypes.byref(config), ctypes.c_void_p(function), pointers, None
    )
    return status


def _value(argument: Any) -> Any:
    """What the kernel takes by value: of an array, its address."""
    data: Any = getattr(argument, "data", None)
    return np.uint64(data.ptr) if hasattr(data, "ptr") else argument
