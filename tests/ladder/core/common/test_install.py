"""Messages name the pip of the Python that lacks a package, not whichever `pip` is on the PATH."""

import sys

from ladder.core.common.install import install, pip


def test_the_command_is_typed_from_the_folder_that_has_the_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    assert pip("install torch") == ".venv/bin/python -m pip install torch"
    assert install("compile") == ".venv/bin/python -m pip install -e '.[compile]'"


def test_a_python_elsewhere_is_named_in_full(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", "/opt/python/bin/python3")
    assert pip("install torch") == "/opt/python/bin/python3 -m pip install torch"


def test_a_folder_that_is_deleted_is_no_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", "/opt/python/bin/python3")
    tmp_path.rmdir()
    assert pip("install torch") == "/opt/python/bin/python3 -m pip install torch"
