"""What several tests of the emulator use."""

import pytest

from ladder.core.emulator.emulated import Emulated


@pytest.fixture(scope="module")
def devices():
    """The fast mode with late and with early copies, and the counting mode."""
    device = Emulated(time_limit=10)
    return {
        "late": device,
        "early": device.variant(early=True),
        "counting": device.variant(counting=True),
        "counting early": device.variant(counting=True, early=True, seed=3),
    }
