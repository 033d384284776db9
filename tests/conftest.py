"""Settings for every test: fuzzing draws the same examples in every run, and has no stop-watch."""

import gc
import os

import pytest
from hypothesis import settings

from ladder.core.show.progress import VARIABLE

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True, scope="session")
def no_progress_of_the_reader(tmp_path_factory):
    """An exercise that a test solves is not solved by whoever runs the tests. And no test survives
    a power cut: their files need not reach the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(tmp_path_factory.mktemp("progress")))
        patch.setattr(os, "fsync", lambda file: None)
        yield


def pytest_configure(config: pytest.Config) -> None:
    """The processes of pytest-xdist share the cores: each gets its share for NumPy's products."""
    processes = config.getoption("numprocesses", None)
    if isinstance(processes, int) and processes > 1:  # they inherit what is set here
        share = max(1, (os.cpu_count() or 1) // processes)
        for library in ("OPENBLAS", "OMP", "MKL"):
            os.environ.setdefault(f"{library}_NUM_THREADS", str(share))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every", type=int, default=1, metavar="N", help="run every Nth costly test")


@pytest.hookimpl(trylast=True)  # of what `-m` leaves
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    costly = [item for item in items if item.get_closest_marker("costly")]
    left_out = {*costly} - {*costly[:: config.getoption("every")]}
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=[*left_out])


def pytest_collection() -> None:
    """What is collected stays to the end: to search it for garbage took a fifth of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()  # nor do the searches during the tests go through it
    gc.enable()
