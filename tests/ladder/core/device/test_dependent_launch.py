"""What CUDA's driver is handed for a launch that may start early; no GPU is needed."""

import ctypes
from types import SimpleNamespace

import numpy as np

from ladder.core.contract.launch_plan import Launch
from ladder.core.device.cuda import dependent_launch


def test_the_driver_gets_geometry_arguments_and_the_attribute(monkeypatch):
    seen = {}

    def launch_kernel(config, function, pointers, extra):
        config = config._obj
        attribute = config.attributes[0]
        seen["geometry"] = [*config.grid], [*config.block], config.shared, config.stream
        seen["attributes"] = config.count, attribute.id, attribute.value[0]
        seen["function"] = function.value
        seen["values"] = (
            ctypes.cast(pointers[0], ctypes.POINTER(ctypes.c_uint64))[0],
            ctypes.cast(pointers[1], ctypes.POINTER(ctypes.c_int32))[0],
            ctypes.cast(pointers[2], ctypes.POINTER(ctypes.c_float))[0],
        )
        return 7

    driver = SimpleNamespace(cuLaunchKernelEx=launch_kernel)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    array = SimpleNamespace(data=SimpleNamespace(ptr=2**40))
    values = [array, np.int32(-3), np.float32(0.5)]
    launch = Launch("k", (5, 2, 1), (64, 1, 1), 1024, ("weight",))
    assert dependent_launch.launch(2**33, launch, values, 2**34) == 7
    assert seen == {
        "geometry": ([5, 2, 1], [64, 1, 1], 1024, 2**34),
        "attributes": (1, 6, 1),
        "function": 2**33,
        "values": (2**40, -3, 0.5),
    }


def test_the_structures_have_the_sizes_of_the_drivers_header():
    sizes = [
        ctypes.sizeof(made) for made in (dependent_launch._Config, dependent_launch._Attribute)
    ]
    assert sizes == [56, 72]
