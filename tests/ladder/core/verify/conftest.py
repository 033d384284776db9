from pathlib import Path

import pytest


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Writes files into the working directory; they are called as there."""
    monkeypatch.chdir(tmp_path)

    def write(name, text):
        Path(name).write_text(text)
        return Path(name)

    return write
