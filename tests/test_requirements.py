"""What `make` installs: every package of pyproject.toml, by version and hash, and the project."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# those that make installs
EXTRAS = ("test", "notebooks", "compile", "data", "amd", "site", "sitetest")
EXTRAS += ("cuda12", "cuda13", "rocm")


def locked(name):
    """The requirements of a file, each with the number of its hashes."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [
        (Requirement(line.split(" --hash=")[0]), line.count("--hash=sha256:")) for line in lines
    ]


@pytest.mark.parametrize("name", ["core", *EXTRAS])
def test_every_package_has_one_version_and_hashes(name):
    packages = locked(name)
    assert packages
    for requirement, hashes in packages:
        assert re.fullmatch(r"==[\w.]+", str(requirement.specifier)), requirement
        assert hashes > 0, requirement
    assert "://" not in (ROOT / "requirements" / f"{name}.txt").read_text()


@pytest.mark.parametrize("extra", ["", "train", "completion", *EXTRAS])
def test_what_the_project_asks_for_is_there_in_a_version_that_fits(extra):
    asked = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    files = {"core", "test", *({extra} & set(EXTRAS))}
    there = [requirement for name in files for requirement, _ in locked(name)]
    for requirement in map(Requirement, asked):
        name = canonicalize_name(requirement.name)
        if name == PROJECT["name"]:  # with other extras
            continue
        versions = [str(r.specifier)[2:] for r in there if canonicalize_name(r.name) == name]
        assert versions, f"{requirement}: run make lock"
        assert all(map(requirement.specifier.contains, versions)), f"{requirement}: run make lock"


def test_an_extra_that_a_message_or_page_names_is_there():
    files = [ROOT / "README.md", *(ROOT / "doc").rglob("*.md")]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    named = set(re.findall(r"'\.\[([a-z0-9]+)\]'", text))
    for path in (*(ROOT / "ladder").rglob("*.py"), *(ROOT / "trainer").rglob("*.py")):
        named |= set(re.findall(r"\binstall\(['\"]([a-z0-9]+)['\"]\)", path.read_text("utf-8")))
    for asked in PROJECT["optional-dependencies"].values():
        named |= {e for r in map(Requirement, asked) if r.name == PROJECT["name"] for e in r.extras}
    assert {"compile", "emulator", "amd"} <= named <= set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize(
    ("smi", "names"),
    [
        ("echo '| CUDA Version: 13.0 |'", "cuda13"),
        ("echo '| CUDA Version: 12.4 |'", "cuda12"),
        ("echo '| CUDA Version: 11.4 |'", "none .* CUDA 11 "),
        ("echo 'Version mismatch'; exit 18", "none .*: Version mismatch"),
    ],
)
def test_make_chooses_by_the_driver_and_says_why_it_cannot(tmp_path, smi, names):
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{smi}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    dry = subprocess.check_output(["make", "-n", "setup"], cwd=ROOT, env=path, text=True)
    assert re.search(rf"\(accelerator: {names}", dry)
