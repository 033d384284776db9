"""A GPU that cannot be used ends every command in one line with the remedy, whatever is wrong."""

import re
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


# name: (driver, what `import cupy` runs, what is named in this order)
CASES = {
    "driver too old": (
        12040,
        fake(TOO_OLD),
        ("CUDA 12.4", "CUDA 13.0", "driver", pip("uninstall cupy-cuda13x"), install("cuda12")),
    ),
    "driver older than any wheel": (11080, fake(TOO_OLD), ("CUDA 11.8", "CUDA 13.0", "driver")),
    "driver older than any wheel, and no CuPy": (
        11040,
        MISSING_LIBRARY,
        ("CUDA 11.4", "CUDA 12.0", "driver"),
    ),
    "no libcudart": (
        13000,
        MISSING_LIBRARY,
        ("CuPy", "(libcudart.so.13: cannot open shared object file: ", install("cuda13")),
    ),
    "no GPU": (13000, fake(NO_GPU), ("(no CUDA-capable device is detected)", "nvidia-smi")),
    "GPU in use": (
        13000,
        fake(busy=IN_USE),
        ("cuda:0", "device is busy or unavailable", "nvidia-smi"),
    ),
    "GPU too old": (13000, fake(), ("Tesla P100", "6.0", "7.5", "--device emulated")),
}


@pytest.fixture(params=CASES)
def told(request, tmp_path, monkeypatch):
    """What must be said, as a pattern; CuPy and driver are as bad as the case wants them."""
    driver, code, names = CASES[request.param]
    (tmp_path / "packages" / "cupy").mkdir(parents=True)
    (tmp_path / "packages" / "cupy" / "__init__.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.setattr(gpu, "driver_version", lambda: driver)
    yield ".*".join(map(re.escape, names))
    sys.modules.pop("cupy", None)


def run(module, words, capsys):
    """Status and what is on the two streams, as from the shell."""
    status = trainer.__main__.run(module.main, words)
    return status, *capsys.readouterr()


def test_training_on_the_gpu(told, tmp_path, capsys):
    words = ["--device", "cuda", "-o", str(tmp_path / "run")]
    status, _, err = run(trainer.__main__, words, capsys)
    assert status == 2 and re.fullmatch(f"error: .*{told}.*\n", err)


@pytest.mark.slow
@pytest.mark.parametrize("told", ["driver too old"], indirect=True)
def test_training_on_what_there_is_goes_on_with_a_note(told, tmp_path, capsys):
    wanted = settings(tmp_path, steps=1)
    words = ["-e", wanted["model"], "--dataset", "play", "--data-dir", str(tmp_path / "data")]
    words += ["-o", str(tmp_path / "run"), "-x", "1", "-t", "16", "-v", "0", "-m", "1", "-s", "0"]
    status, out, err = run(trainer.__main__, words, capsys)
    assert (status, err) == (0, "")
    assert re.search(f"note: .*{told}.*: .*CPU", " ".join(out.split()))


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
    assert status == 2 and re.fullmatch(f"ladder: .*{told}.*\n", capsys.readouterr().err)


def test_the_doctor(told):
    (gpu,) = (finding for finding in device_findings() if finding.what == "GPU")
    assert re.fullmatch(f".*{told}.*", f"{gpu.state}: {gpu.remedy}")
