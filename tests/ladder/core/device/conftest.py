"""What the tests of both compilers share."""

import pytest

from ladder.core.common import cache
from ladder.core.contract import rung_file


@pytest.fixture
def rung_of(tmp_path, monkeypatch):
    """Rungs of `square_forward` from source text, and an empty cache."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))

    def make(source):
        path = tmp_path / "1_a square.cu"
        path.write_text(source)
        return rung_file.parse(path, "square_forward")

    return make
