"""The address of the repository, which links to files and folders lead to."""

import importlib.util
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.site

FOLDER = Path(__file__).resolve().parents[2] / "doc" / "site"


def load(name):
    """A module of doc/site; skips where Sphinx, which it imports, is missing."""
    pytest.importorskip("sphinx", reason="no Sphinx: make sitetest")
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "remote, address",
    [
        ("https://github.com/owner/name.git", "https://github.com/owner/name"),
        ("git@github.com:owner/name.git", "https://github.com/owner/name"),
        ("ssh://git@host.example/group/owner/name", "https://host.example/group/owner/name"),
        ("/srv/git/name.git", ""),
        ("", ""),
    ],
)
def test_the_address_comes_from_the_remote(monkeypatch, remote, address):
    repository = load("repository")
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    answer = subprocess.CompletedProcess([], 0, stdout=remote + "\n")
    monkeypatch.setattr(repository.subprocess, "run", lambda *_, **__: answer)
    assert repository.address() == address


def test_docstrings_become_rst():
    text = (
        "Does `x` well.\n\nname   what it\n       means\n`n`    a count\n\n    example(1)\n    two"
    )
    assert load("docstrings").as_rst(text) == (
        "Does ``x`` well.\n\n``name``\n   what it\n   means\n``n``\n   a count\n\n"
        ".. code-block:: python\n\n    example(1)\n    two"
    )
