"""A checkpoint is there whole or not at all, and what is read is what was written."""

import os
import random
import resource
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from ladder.core.common.errors import LadderError
from tests.trainer.damage import damaged
from trainer.files import checkpoint, tensor_file
from trainer.files.checkpoint import latest, load, save

ROOT = Path(__file__).parents[3]


def tensors(seed: int, size: int = 50) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    dtypes = ("float64", "float32", "int64", "int32", "uint32", ml_dtypes.bfloat16, "float16")
    arrays = {np.dtype(t).name: (100 * rng.random((3, size))).astype(t) for t in dtypes}
    return {**arrays, "scalar": np.float32(seed), "empty": np.zeros((0, 4), np.float32)}


def readers(arrays: dict[str, np.ndarray]):
    return {name: lambda array=array: array for name, array in arrays.items()}


def steps(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def files(directory: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def assert_holds(directory: Path, step: int, arrays: dict[str, np.ndarray]) -> dict:
    loaded, state = load(directory, step)
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape
        assert loaded[name].tobytes() == array.tobytes()
    return state


def test_every_dtype_and_the_state_come_back_bit_for_bit(tmp_path):
    arrays = tensors(1)
    arrays["float32"][0, :3] = np.nan, -0.0, np.inf
    state = {"rng": 2**127 + 1, "loss": 0.1 + 0.2, "data": {"shards": [1, 2]}, "by number": {3: 4}}
    save(tmp_path, 7, readers(arrays), state)
    assert latest(tmp_path) == 7
    assert assert_holds(tmp_path, 7, arrays) == {**state, "by number": {"3": 4}}


def test_the_tensor_file_is_plain_safetensors(tmp_path):
    arrays = tensors(2)
    path = save(tmp_path, 1, readers(arrays), {})
    loaded = load_file(path / "tensors.safetensors")
    assert {n: a.tobytes() for n, a in loaded.items()} == {
        n: a.tobytes() for n, a in arrays.items()
    }
    assert loaded["float32"].shape == arrays["float32"].shape


def test_a_transposed_view_is_written_in_its_own_order(tmp_path):
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    save(tmp_path, 1, {"a": lambda: array}, {})
    np.testing.assert_array_equal(load(tmp_path, 1)[0]["a"], array)


def test_one_tensor_at_a_time_is_in_memory(tmp_path):
    count, size = 8, 1 << 20  # 4 MiB each
    made = {f"t{i}": lambda i=i: np.full(size, i, np.float32) for i in range(count)}
    tracemalloc.start()
    try:
        save(tmp_path, 1, made, {})
        saving = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        loaded, _ = load(tmp_path, 1)
        assert sum(float(array[0]) for array in loaded.values()) == sum(range(count))
        loading = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert saving < 1.5 * 4 * size
    assert loading < 2.5 * 4 * size  # one that is being read, one not yet let go


def test_a_folder_without_checkpoints_has_none(tmp_path):
    (tmp_path / "step_00000003.partial").mkdir()
    (tmp_path / "step_three").mkdir()
    assert latest(tmp_path) is None
    assert latest(tmp_path / "nowhere") is None
    with pytest.raises(LadderError, match="step 3;"):
        load(tmp_path, 3)


@pytest.mark.parametrize(
    ("keep", "major_every", "left"),
    [
        (0, 0, [10, 20, 30, 40, 50, 60]),
        (1, 0, [60]),
        (2, 0, [50, 60]),
        (1, 20, [20, 40, 60]),
        (2, 30, [30, 50, 60]),
        (9, 0, [10, 20, 30, 40, 50, 60]),
    ],
)
def test_the_last_ones_and_the_major_ones_stay(tmp_path, keep, major_every, left):
    for step in range(10, 70, 10):
        save(tmp_path, step, {}, {}, keep=keep, major_every=major_every)
    assert steps(tmp_path) == [f"step_{step:08d}" for step in left]


def test_checkpoints_of_later_steps_are_left_alone(tmp_path):
    save(tmp_path, 40, {}, {})
    save(tmp_path, 10, {}, {}, keep=1)
    save(tmp_path, 20, {}, {}, keep=1)
    assert steps(tmp_path) == ["step_00000020", "step_00000040"]


def test_a_step_saved_again_counts_and_the_former_goes(tmp_path):
    for seed in range(3):
        save(tmp_path, 5, readers(tensors(seed)), {"seed": seed}, keep=1)
        assert assert_holds(tmp_path, 5, tensors(seed)) == {"seed": seed}
        assert len(steps(tmp_path)) == 1


def test_what_a_killed_save_left_is_cleared_by_the_next(tmp_path):
    (tmp_path / "step_00000003.partial").mkdir()
    (tmp_path / "step_00000003.partial" / "tensors.safetensors").write_bytes(b"half")
    (tmp_path / "step_00000004.partial").write_text("a file")
    (tmp_path / "step_00000005.partial").symlink_to("nowhere")
    save(tmp_path, 4, {}, {})
    assert steps(tmp_path) == ["step_00000004"]


def test_a_real_limit_on_the_file_size_is_met_the_same_way(tmp_path):
    """The kernel's own refusal, in the middle of a tensor, instead of a simulated one."""
    save(tmp_path, 1, readers(tensors(1)), {})
    before = files(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(LadderError, match=r" step 2 .*File too large; .* step 1$"):
            save(tmp_path, 2, {"a": lambda: np.zeros(1 << 20, np.float32)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files(tmp_path) == before


def test_ctrl_c_in_the_middle_leaves_nothing(tmp_path):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 1, {**readers(tensors(1)), "last": interrupted}, {})
    assert steps(tmp_path) == []


def test_a_state_that_is_not_json_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(TypeError):
        save(tmp_path / "run", 1, {}, {"rng": np.random.default_rng()})
    assert not (tmp_path / "run").exists()


SAVE_FOR_EVER = """
import sys
import numpy as np
from trainer.files.checkpoint import save
step = int(sys.argv[2])
while True:
    step += 1
    made = {f"t{i}": lambda i=i: np.full(60_000, step + i, np.int32) for i in range(6)}
    save(sys.argv[1], step, made, {"step": step}, keep=2, major_every=7)
    if step % 3 == 0:
        save(sys.argv[1], step, made, {"step": step}, keep=2, major_every=7)
    print(step, flush=True)
"""


@pytest.mark.slow
def test_kill_9_at_any_moment_leaves_the_last_good_one(tmp_path):
    done = 0
    for delay in random.Random(0).sample(range(0, 60), 6):  # milliseconds after the first save
        child = subprocess.Popen(
            [sys.executable, "-c", SAVE_FOR_EVER, tmp_path, str(done)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        first = child.stdout.readline()
        time.sleep(delay / 1000)
        child.send_signal(signal.SIGKILL)
        rest = child.communicate()[0]
        done = int((first + rest).split()[-1])
        newest = latest(tmp_path)
        assert newest in (done, done + 1)  # the one after may just have been finished
        for step in {newest, done}:
            loaded, state = load(tmp_path, step)
            assert state == {"step": step}
            assert [int(loaded[f"t{i}"].min()) for i in range(6)] == [step + i for i in range(6)]
        done = newest


def test_damage_is_named(tmp_path):
    path = save(tmp_path, 1, readers(tensors(1)), {})
    file = path / "tensors.safetensors"
    good = file.read_bytes()

    file.write_bytes(good[:-1])
    with pytest.raises(LadderError, match=rf"tensors\.safetensors .* {path} "):
        load(tmp_path, 1)

    file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    loaded, _ = load(tmp_path, 1)
    with pytest.raises(LadderError, match=r"tensors\.safetensors .* scalar "):
        [*loaded.values()]


def test_a_checkpoint_under_a_wrong_step_is_refused(tmp_path):
    save(tmp_path, 1, {}, {}).rename(tmp_path / "step_00000002")
    with pytest.raises(LadderError, match=r"/step_00000002/.* step 1\)"):
        load(tmp_path, 2)


@pytest.mark.parametrize("manifest", [b"[" * 200_000, b"1" + b"0" * 10_000, b"[]"], ids=len)
def test_a_hostile_manifest_is_one_plain_error(tmp_path, manifest):
    path = save(tmp_path, 1, {}, {})
    (path / "checkpoint.json").write_bytes(manifest)
    with pytest.raises(LadderError, match=r"checkpoint.json"):
        load(tmp_path, 1)


@pytest.mark.parametrize("length", [0, 1, 2**20, 2**40, 2**63, 2**64 - 1])
def test_an_unchecked_header_length_allocates_nothing(tmp_path, length):
    path = tmp_path / "a.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b"{}" + bytes(100))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(LadderError, match=str(path)):
        tensor_file.TensorFile(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


def test_a_file_that_is_cut_short_while_it_is_open_is_one_line(tmp_path):
    path = save(tmp_path, 1, readers(tensors(1)), {}) / "tensors.safetensors"
    tensors_of = tensor_file.TensorFile(path)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(LadderError, match=str(path)):
        [*tensors_of.values()]


@pytest.mark.slow
@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_fuzz_damaged_checkpoints_load_as_they_were_or_not_at_all(tmp_path, data):
    arrays = tensors(3, size=4)
    state = {"position": [1, 2.5, None], "text": "end"}
    run = tmp_path / "run"
    if not run.exists():
        save(run, 1, readers(arrays), state)
    path = (
        run
        / "step_00000001"
        / data.draw(st.sampled_from([checkpoint.TENSORS, checkpoint.MANIFEST]))
    )
    good = path.read_bytes()
    try:
        path.write_bytes(data.draw(damaged(good)))
        assert assert_holds(run, 1, arrays) == state
    except LadderError:
        pass
    finally:
        path.write_bytes(good)


@pytest.mark.parametrize("dtype", ["complex64", ">f4", "U3"])
def test_a_dtype_that_the_format_does_not_know_is_refused(tmp_path, dtype):
    with pytest.raises(ValueError, match=f"^a: .*{dtype}"):
        save(tmp_path, 1, {"a": lambda: np.zeros(2, dtype)}, {})
    assert steps(tmp_path) == []
