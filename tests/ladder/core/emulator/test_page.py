"""doc/emulator.md: its example does what the page says."""

import re
import subprocess
import sys

import pytest

from ladder.core.show.pages import ROOT


@pytest.mark.emulator
def test_the_example_of_the_page_prints_what_the_page_shows():
    page = (ROOT / "doc" / "emulator.md").read_text(encoding="utf-8")
    example, printed = re.search(r"```python\n(.+?)```.+?```\n(.+?)```", page, re.DOTALL).groups()
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stderr, done.stdout) == ("", printed)
