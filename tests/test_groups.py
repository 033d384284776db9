"""Tests of one group run in one process, so that what they share is made once."""

import pytest

pytest_plugins = ["pytester"]

SUITE = """
import os
import pytest

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("i", range(8))
def test_which(i):
    with open("processes.txt", "a") as file:
        print(os.getpid(), file=file)
"""


@pytest.mark.slow
def test_tests_of_a_group_run_in_one_process(pytester, monkeypatch):
    pytester.makepyfile(SUITE)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # other plugins take seconds to load
    result = pytester.runpytest_subprocess("-pxdist", "-n2", "--dist=loadgroup")
    result.assert_outcomes(passed=8)
    assert len(set((pytester.path / "processes.txt").read_text().split())) == 1
