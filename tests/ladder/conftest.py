"""The tests run on the machine's GPU where there is one, and on the emulated CPU elsewhere."""

import pytest

from ladder.device.open import default_device, open_device


@pytest.fixture(scope="session")
def device_name() -> str:
    return default_device()


@pytest.fixture(scope="session")
def device(device_name):
    return open_device(device_name)
