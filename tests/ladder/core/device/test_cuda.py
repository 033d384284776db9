"""The CUDA device: clear refusals everywhere; on a machine with a GPU, the device itself."""

import re
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.contract import rung_file
from ladder.core.contract.launch_plan import Launch
from ladder.core.contract.op import DTYPES
from ladder.core.device.cuda import gpu, installation
from ladder.core.device.open import open_device

# ---- without a GPU ----


def test_without_a_driver_the_emulated_device_is_named(monkeypatch):
    monkeypatch.setattr(gpu, "driver_version", lambda: None)
    with pytest.raises(LadderError, match=r"NVIDIA .*libcuda.*--device emulated"):
        open_device("cuda")


@pytest.mark.parametrize(("driver", "extra"), [(12040, "cuda12"), (13010, "cuda13")])
def test_without_cupy_the_extra_for_the_driver_is_named(driver, extra, monkeypatch):
    monkeypatch.setattr(gpu, "driver_version", lambda: driver)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(LadderError, match=rf"CuPy .*\[{extra}\]"):
        open_device("cuda")


def test_the_report_says_what_is_wrong_with_a_driver(monkeypatch, tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho Version mismatch; exit 18\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for driver, names in ((12040, "Version mismatch"), (11040, "CUDA 12.0 ")):
        monkeypatch.setattr(gpu, "driver_version", lambda version=driver: version)
        assert names in installation.driver().remedy


# ---- with a GPU ----

SOURCE = """\
// scale forward, rung 1: one thread per element
// Define: FACTOR = 3
// Launch: scale_forward<<<1, 64>>>
#include "portable.cuh"

struct Pair { float a, b; };

extern "C" __global__ void scale_forward(real* out, const real* inp, int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = to_real((inp ? to_float(inp[i]) : 1.0f) * FACTOR);
}
extern "C" __global__ void shared(float* out, Pair pair) {
    extern __shared__ float tile[];
    tile[20000] = pair.a - pair.b;
    out[0] = tile[20000];
}
// Clocks for `rounds` loads of 16 bytes per lane from shared memory, by each of 32 warps. A load
// needs the one before it, whose value is 0.
extern "C" __global__ void reads(int* clocks, const int* place, int rounds) {
    __shared__ uint4 a[64];
    if (threadIdx.x < 64) a[threadIdx.x] = make_uint4(0, 0, 0, 0);
    unsigned at = place[threadIdx.x % 32];
    __syncthreads();
    long long start = clock64();
#pragma unroll 8
    for (int i = 0; i < rounds; i++) {
        uint4 v = a[at];
        at += v.x + v.y + v.z + v.w;
    }
    __syncthreads();
    if (threadIdx.x == 0) clocks[0] = (int)(clock64() - start);
    if (at > 63) clocks[0] = 0;
}
extern "C" __global__ void fault(float* out) {
    out[1ull << 40] = 1.0f;
}
"""


@pytest.fixture(scope="module")
def device():
    try:
        return open_device("cuda")
    except LadderError as error:
        pytest.skip(str(error))


@pytest.fixture
def kernels(device, tmp_path):
    path = tmp_path / "1_scale.cu"
    path.write_text(SOURCE)
    rung = rung_file.parse(path, "scale_forward")
    return lambda real: device.compile(rung, {"FACTOR": 3}, DTYPES[real])


def test_large_dynamic_shared_memory_and_structures_by_value(device, kernels):
    out = device.empty((1,), np.float32)
    pair = np.array([(5.0, 3.0)], [("a", "f4"), ("b", "f4")]).view("V8")[0]
    launch = Launch("shared", (1, 1, 1), (1, 1, 1), 96 << 10)
    if launch.shared > device.shared_bytes:
        pytest.skip(f"{device.name} has {device.shared_bytes} bytes of shared memory a block")
    kernels("float32")["shared"](launch, (out, pair))
    assert device.download(out)[0] == 2.0


LANES = np.arange(32)


@pytest.mark.parametrize(
    ("places", "wavefronts"),
    [(LANES, 4), (LANES // 2, 2), (LANES & 1 | LANES // 4 * 2, 2), (0 * LANES, 2)],
    ids=["neighbours", "lane ^ 1", "lane ^ 2", "all the same"],
)
def test_a_wavefront_is_a_clock_and_pairs_of_lanes_share_one(device, kernels, places, wavefronts):
    """The rule by which the emulator counts (ladder/core/emulator/runtime/counts.cpp)."""
    clocks, place, rounds = device.empty((1,), np.int32), device.empty((32,), np.int32), 4096
    device.upload(place, places.astype(np.int32))
    kernel = kernels("float32")["reads"]
    for _ in range(2):  # the first time, instructions come from far away
        kernel(Launch("", (1, 1, 1), (1024, 1, 1)), (clocks, place, np.int32(rounds)))
    assert device.download(clocks)[0] / (32 * rounds) == pytest.approx(wavefronts, rel=0.2)


def test_more_shared_memory_than_the_gpu_has_is_refused(device, kernels):
    out = device.empty((1,), np.float32)
    with pytest.raises(LadderError, match=f"shared .* {1 << 20} bytes"):
        kernels("float32")["shared"](Launch("", (1, 1, 1), (1, 1, 1), 1 << 20), (out, out))


def test_block_that_is_too_large_is_refused_and_the_device_lives_on(device, kernels):
    out = device.empty((4,), np.float32)
    kernel = kernels("float32")["scale_forward"]
    with pytest.raises(LadderError, match=r"scale_forward .* block \(2048, 1, 1\)"):
        kernel(Launch("", (1, 1, 1), (2048, 1, 1)), (out, None, np.int32(4)))
    kernel(Launch("", (1, 1, 1), (64, 1, 1)), (out, None, np.int32(4)))
    assert device.download(out)[0] == 3.0


def test_uploads_and_zeros_are_in_order_with_kernels(device, kernels):
    kernel = kernels("float32")["scale_forward"]
    n = 1 << 24
    x = device.empty((n,), np.float32)
    for value in (1.0, 2.0):
        device.upload(x, np.full(n, value))
        kernel(Launch("", (n // 64, 1, 1), (64, 1, 1)), (x, x, np.int32(n)))
        assert (device.download(x) == value * 3).all()
        kernel(Launch("", (n // 64, 1, 1), (64, 1, 1)), (x, x, np.int32(n)))
        device.zero(x)
        assert (device.download(x) == 0).all()


def test_graph_replays_what_was_recorded(device, kernels):
    kernel = kernels("float32")["scale_forward"]
    x = device.empty((4,), np.float32)
    launch = Launch("", (1, 1, 1), (64, 1, 1))
    replay = device.capture(lambda: kernel(launch, (x, x, np.int32(4))))
    device.upload(x, np.ones(4))
    replay()
    replay()
    np.testing.assert_array_equal(device.download(x), np.full(4, 9.0))


def test_failure_while_recording_leaves_the_stream_usable(device):
    with pytest.raises(KeyError):
        device.capture(lambda: {}["missing"])
    x = device.empty((4,), np.float32)
    device.zero(x)
    np.testing.assert_array_equal(device.download(x), np.zeros(4))


def test_uploads_in_flight_keep_their_memory(device):
    arrays = [device.empty((100_000,), ml_dtypes.bfloat16) for _ in range(50)]
    for value, array in enumerate(arrays):
        device.upload(array, np.full(100_000, value))
    for value, array in enumerate(arrays):
        assert (device.download(array).astype(np.float32) == value).all()


def test_fetched_copies_are_of_the_moment_and_keep_their_memory(device):
    array = device.empty((100_000,), np.float32)
    copies = []
    for value in range(50):
        device.upload(array, np.full(100_000, value))
        copies.append(device.fetch(array))
        device.fetch(array)  # dropped while it is under way
    for value, copy in enumerate(copies):
        assert (copy() == value).all()


def test_zeroing_waits_for_the_work_before_it_and_the_work_after_waits_for_it(device, kernels):
    large, out = (device.empty((1 << 26,), np.float32) for _ in range(2))
    for value in range(1, 20):
        device.upload(large, np.full(1 << 26, value, np.float32))
        with device.stream:
            out[...] = large  # takes far longer than the host to submit what follows
        device.zero(large)
        with device.stream:
            total = out.sum() + large.sum()
        assert float(device.download(total)) == value * float(1 << 26)


def test_out_of_memory_names_needed_and_free(device):
    with pytest.raises(LadderError, match="33,554,432 MiB"):
        device.empty((1 << 45,), np.uint8)


def test_fault_names_the_kernel_in_a_process_of_its_own(device, tmp_path):
    """The process is lost to CUDA afterwards, so this one must be another."""
    (tmp_path / "1_scale.cu").write_text(SOURCE)
    script = (
        "import sys, numpy as np; from pathlib import Path\n"
        "from ladder.core.contract import rung_file\n"
        "from ladder.core.device.open import open_device\n"
        "from ladder.core.common.errors import LadderError\n"
        "from ladder.core.contract.launch_plan import Launch\n"
        f"rung = rung_file.parse(Path({str(tmp_path / '1_scale.cu')!r}), 'scale_forward')\n"
        "device = open_device('cuda')\n"
        "kernels = device.compile(rung, {'FACTOR': 1}, np.dtype('float32'))\n"
        "kernels['fault'](Launch('', (1, 1, 1), (1, 1, 1)), (device.empty((4,), np.float32),))\n"
        "try: device.synchronize()\n"
        "except LadderError as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert re.search(r"DeviceFault .* fault \(.*restart", done.stdout), done.stdout + done.stderr
