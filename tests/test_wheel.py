"""The wheel: what a user has who installs the project and never clones it."""

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from ladder.core.common import cache

ROOT = Path(__file__).parents[1]
pytestmark = [pytest.mark.slow, pytest.mark.emulator, pytest.mark.xdist_group("wheel")]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the installed wheel, and another project's package `trainer`."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    site = folder / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    (site / "trainer").mkdir()
    (site / "trainer" / "__init__.py").write_text("raise ImportError('of another project')\n")
    return site


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Python of an empty environment."""
    folder = tmp_path_factory.mktemp("env")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin/python"


@pytest.fixture(scope="module")
def packages(installed, tmp_path_factory):
    """A folder with what the wheel asks for without an extra, and what that asks for."""
    (wheel,) = installed.glob("kernel_ladder-*.dist-info")
    asked = [line for line in PathDistribution(wheel).requires if "extra ==" not in line]
    assert [line.partition(">")[0] for line in asked] == ["ml-dtypes", "numpy", "rich"]
    folder, there = tmp_path_factory.mktemp("packages"), Path(sysconfig.get_path("purelib"))
    for name in ("ml_dtypes", "numpy", "numpy.libs", "rich", "markdown_it", "mdurl", "pygments"):
        (folder / name).symlink_to(there / name)
    return folder


@pytest.fixture
def run(python, installed, packages, tmp_path):
    """Runs Python in a folder outside of the checkout, whose compiled emulator it shares."""

    def run(*words, packages=packages, status=0):
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{installed}{os.pathsep}{packages}",
            "HOME": str(tmp_path),
            cache.VARIABLE: str(cache.directory()),
        }
        result = subprocess.run(
            [python, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert result.returncode == status, result.stderr
        return result.stderr if status else result.stdout

    return run


def test_only_one_root_is_installed(installed):
    roots = {path.name for path in installed.iterdir() if path.suffix != ".dist-info"}
    assert roots == {"kernel_ladder", "trainer", "bin"}  # trainer is the other project's
    other = (installed / "trainer" / "__init__.py").read_text()
    assert other == "raise ImportError('of another project')\n"


def test_it_has_every_rung(run):
    program = "from kernel_ladder import ladders\nfor op, it in ladders().items():"
    listed = run("-c", f"{program}\n  for rung in it.rungs: print(op, rung.id)").splitlines()
    from kernel_ladder import ladders

    assert listed == [f"{op} {rung.id}" for op, it in ladders().items() for rung in it.rungs]


@pytest.mark.costly
def test_a_rung_and_a_strangers_file_are_shown_checked_and_traced(run, tmp_path):
    def ladder(*words, status=0):
        return run("-m", "kernel_ladder.ladder", *words, status=status)

    assert "'notebooks'" in ladder("notebooks", status=2)  # it has none
    shutil.copy(ROOT / "ladder/start/add/1_chunk_per_thread.cu", tmp_path / "mine.cu")
    assert "real" in ladder("show", "start.add", "1")
    assert "passed" in ladder("check", "start.add", "1")
    assert "sectors" in ladder("trace", "start.add", "mine.cu")
    contract = "def add(a: 'real N', b: 'real N') -> {'c': 'real N'}: return a + b"
    (tmp_path / "ref.py").write_text(contract)
    assert "passed" in ladder("check", "mine.cu", "--reference", "ref.py")


@pytest.mark.costly
def test_it_trains(run):
    words = "-e char --dataset play --tokenizer bytes -b 1 -t 32 -x 2 -v 1 -m 1 -s 0 --no-plot"
    words = ["-m", "kernel_ladder.trainer", *words.split(), "--device", "cpu"]
    error = run(*words, status=2)  # an install for kernels alone
    assert "'kernel-ladder[train]'" in error and error.count("\n") == 1
    error = run("-c", "from kernel_ladder import torch", status=1)
    assert "'kernel-ladder[torch]'" in error
    assert "val loss" in run(*words, packages=sysconfig.get_path("purelib"))
