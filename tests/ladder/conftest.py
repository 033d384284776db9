"""The tests run on the machine's GPU where there is one, and on the emulated CPU elsewhere."""

import pytest

from ladder.cuda import driver_version
from ladder.device import open_device


@pytest.fixture(scope="session")
def device_name() -> str:
    return "cuda" if driver_version() else "emulated"


@pytest.fixture(scope="session")
def device(device_name):
    return open_device(device_name)
