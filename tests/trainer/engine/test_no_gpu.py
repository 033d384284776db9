"""A GPU that cannot be used ends every command in one line with the remedy, whatever is wrong."""

import sys

import pytest

import ladder.__main__
import trainer.__main__
from ladder.core.common.install import install, pip
from ladder.core.device.cuda import gpu
from ladder.core.device.open import device_findings
from tests.trainer.tiny import settings

# What CuPy does, as its users report it: `import cupy` raises a page of advice from the error of
# the library that is missing; with a driver that is too old it imports, and the first call raises.
MISSING_LIBRARY = """
try:
    raise ImportError("libcudart.so.13: cannot open shared object file: No such file or directory")
except ImportError as error:
    raise ImportError(f'''
================================================================
Failed to import CuPy.

If you installed CuPy via wheels, make sure that the package matches with the version of CUDA.

Original error:
  {type(error).__name__}: {error}
================================================================
''') from error
"""
CUPY = """
class CUDARuntimeError(RuntimeError):
    def __init__(self, status, name, text):
        self.status = status
        super().__init__(f"cudaError{name}: {text}")

class Module:
    def __init__(self, **members):
        self.__dict__.update(members)

def count():
    FIRST_CALL

def properties(index):
    return {"name": b"Tesla P100", "multiProcessorCount": 56, "sharedMemPerBlockOptin": 49152,
            "l2CacheSize": 4 << 20}

class Device:
    compute_capability = "60"
    def __init__(self, index):
        BUSY

runtime = Module(getDeviceCount=count, runtimeGetVersion=lambda: 13000,
                 getDeviceProperties=properties, CUDARuntimeError=CUDARuntimeError)
cuda = Module(runtime=runtime, driver=Module(CUDADriverError=CUDARuntimeError), Device=Device)
"""
TOO_OLD = 'raise CUDARuntimeError(35, "InsufficientDriver", "CUDA driver version is insufficient")'
NO_GPU = 'raise CUDARuntimeError(100, "NoDevice", "no CUDA-capable device is detected")'
IN_USE = 'raise CUDARuntimeError(46, "DevicesUnavailable", "device is busy or unavailable")'


def fake(first_call="return 1", busy="pass"):
    return CUPY.replace("FIRST_CALL", first_call).replace("BUSY", busy)


# name: (driver, what `import cupy` runs, what is said)
CASES = {
    "driver too old": (
        12040,
        fake(TOO_OLD),
        "the NVIDIA driver supports CUDA 12.4, but CuPy here is for CUDA 13.0: update the driver "
        f"or {pip('uninstall cupy-cuda13x')} and {install('cuda12')}",
    ),
    "driver older than any wheel": (
        11080,
        fake(TOO_OLD),
        "the NVIDIA driver supports CUDA 11.8, but CuPy here is for CUDA 13.0: update the driver",
    ),
    "driver older than any wheel, and no CuPy": (
        11040,
        MISSING_LIBRARY,
        "the NVIDIA driver supports CUDA 11.4, and CuPy needs one for CUDA 12.0 or newer: update "
        "the driver",
    ),
    "no libcudart": (
        13000,
        MISSING_LIBRARY,
        "CuPy does not import (libcudart.so.13: cannot open shared object file: No such file or "
        f"directory): {install('cuda13')}",
    ),
    "no GPU": (
        13000,
        fake(NO_GPU),
        "CUDA finds no GPU (no CUDA-capable device is detected); nvidia-smi should list one",
    ),
    "GPU in use": (
        13000,
        fake(busy=IN_USE),
        "cuda:0 cannot be used: device is busy or unavailable; nvidia-smi shows what else uses it",
    ),
    "GPU too old": (
        13000,
        fake(),
        "Tesla P100 has compute capability 6.0, and the kernels need 7.5 or more; --device "
        "emulated runs them on the CPU",
    ),
}


@pytest.fixture(params=CASES)
def told(request, tmp_path, monkeypatch):
    """What must be said; CuPy and driver are as bad as the case wants them."""
    driver, code, message = CASES[request.param]
    (tmp_path / "packages" / "cupy").mkdir(parents=True)
    (tmp_path / "packages" / "cupy" / "__init__.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.setattr(gpu, "driver_version", lambda: driver)
    yield message
    sys.modules.pop("cupy", None)


def run(module, words, capsys):
    """Status and what is on the two streams, as from the shell."""
    status = trainer.__main__.run(module.main, words)
    return status, *capsys.readouterr()


def test_training_on_the_gpu(told, tmp_path, capsys):
    words = ["--device", "cuda", "-o", str(tmp_path / "run")]
    status, _, err = run(trainer.__main__, words, capsys)
    assert (status, err) == (2, f"error: {told}\n")


@pytest.mark.slow
def test_training_on_what_there_is_goes_on_with_a_note(told, tmp_path, capsys):
    wanted = settings(tmp_path, steps=1)
    words = ["-e", wanted["model"], "--dataset", "play", "--data-dir", str(tmp_path / "data")]
    words += ["-o", str(tmp_path / "run"), "-x", "1", "-t", "16", "-v", "0", "-m", "1", "-s", "0"]
    status, out, err = run(trainer.__main__, words, capsys)
    assert (status, err) == (0, "")
    assert f"note: {told}: this run uses the CPU" in " ".join(out.split())


@pytest.mark.parametrize(
    "words",
    [
        ["check", "gelu.forward", "1", "--device", "cuda"],
        ["bench", "gelu.forward", "--device", "cuda"],
        ["pick", "gelu.forward", "--device", "cuda"],
    ],
    ids=lambda words: words[0],
)
def test_the_ladder_on_the_gpu(told, words, capsys):
    status = ladder.__main__.main(words)
    assert (status, capsys.readouterr().err) == (2, f"ladder: {told}\n")


def test_the_doctor(told):
    found = {finding.what: finding for finding in device_findings()}
    finding = found["GPU"]
    assert told in (f"{finding.state}; {finding.remedy}", f"{finding.state}: {finding.remedy}")
    assert "\n" not in told
