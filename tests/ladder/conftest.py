"""The tests run on the machine's GPU where there is one, and on the emulated CPU elsewhere."""

import pytest

from ladder.core.device.open import default_device, open_device


def pytest_itemcollected(item: pytest.Item) -> None:
    """A test with the fixture `device` uses the GPU, or compiles for the emulator."""
    fixtures = getattr(item, "fixturenames", ())
    if "device" in fixtures or "device_name" in fixtures:
        item.add_marker(pytest.mark.gpu)
    if "device_name" in fixtures:
        item.add_marker(pytest.mark.emulator)


@pytest.fixture(scope="session")
def device_name() -> str:
    return default_device()


@pytest.fixture(scope="session")
def device(device_name):
    return open_device(device_name)
