"""Training on a GPU: what it computes, that it can be resumed, that it is the same twice."""

from dataclasses import replace

import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find
from ladder.core.contract.op import DTYPES, SHORT
from ladder.core.device.open import Cpu, open_device
from reference import adamw
from tests.trainer.cpu_engines import distance, without_key_bias
from tests.trainer.tiny import (
    PARAMETERS,
    assert_same,
    highest_rungs,
    losses,
    parameters,
    resolved_kernels,
    run,
    save_model,
)
from trainer.engine import kernels
from trainer.engine.engine import Engine, find_not_finite
from trainer.files import checkpoint
from trainer.model.fusion import FUSIONS
from trainer.model.gpt2 import GPT2Config
from trainer.model.program import build, initial_parameters

pytestmark = pytest.mark.gpu

# Large enough for tiles, vectors and several blocks; T and vocabulary are no round numbers.
SHAPE = GPT2Config(
    context=96, vocab=515, padded_vocab=640, layers=2, heads=2, channels=128, dropout=0.1
)
B, T, STEPS = 3, 80, 10
# Tests of one dtype run in one process: it compiles and measures each rung once for all of them.
# Deterministic runs choose among other rungs, in a process of their own.
FP32, BF16, FP16, DETERMINISTIC = (
    pytest.mark.xdist_group(f"training in {d}") for d in ("fp32", "bf16", "fp16", "bf16 again")
)
IN_FP32, IN_BF16 = (pytest.param(d, marks=m) for d, m in (("fp32", FP32), ("bf16", BF16)))
HYPER = dict(lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip=1.0)


@pytest.fixture(scope="module")
def device():
    try:
        return open_device("cuda")
    except LadderError as error:
        pytest.skip(str(error))


def train_steps(engine, steps=STEPS):
    """Losses and gradient norms of `steps` steps on random tokens, and the last gradients."""
    rng = np.random.default_rng(1)
    losses, norms = [], []
    engine.write("dloss", np.array([1 / (B * T)]))
    for step in range(1, steps + 1):
        for name in ("tokens", "targets"):
            engine.write(name, rng.integers(0, SHAPE.vocab, (B, T)))
        engine.write("rng", np.array([7, 0, step, 0], np.uint32))
        engine.zero_gradients()
        engine.forward()
        engine.backward()
        losses.append(float(engine.read("losses").mean(dtype=np.float64)))
        norms.append(engine.gradient_norm())
        engine.write("hyper", adamw.hyper(step=step, **HYPER))
        engine.update()
    return np.array(losses), np.array(norms), engine


@pytest.fixture(scope="module")
def exact():
    """The same steps by the reference in float64."""
    program = build(SHAPE, B, T)
    chosen = {op: find(op).rung(0) for op in ops_of(program)}
    return train_steps(filled(Engine(program, Cpu(), np.dtype(np.float64), chosen)))


def filled(engine):
    for name, tensor in initial_parameters(SHAPE, seed=3):
        engine.write(name, tensor)
    return engine


def ops_of(program):
    return {call.op for call in program.calls}


def gpu_engine(device, dtype="fp32", watch=None, **settings):
    wanted = resolved_kernels("cuda", dtype=dtype, **settings)

    def build_fused(names):
        return build(SHAPE, B, T, fusions=names)

    chosen = kernels.choose(wanted, device, build_fused)
    return filled(Engine(chosen.program, device, wanted.choice.real, chosen.rungs, watch=watch))


MIXED = {
    "matmul.forward": "2",
    "layernorm.backward": "4",
    "attention.forward": "2",
    "gelu.backward": "1",
}


@FP32
@pytest.mark.parametrize(
    "settings",
    [
        {"rungs": "naive"},
        {"rungs": "naive", "fuse": "all"},
        {"rungs": "best"},
        {"rungs": "best", "fuse": "none"},
        {"rungs": "best", "fuse": "all"},
        {"rungs": "library"},
        {"rungs": "library", "fuse": "all"},
        {"rungs": "naive", "rung": MIXED},
        {"rungs": "best", "rung": MIXED},
    ],
    ids=lambda settings: " ".join(
        "mixed" if v == MIXED else f"{k} {v}" for k, v in settings.items()
    ),
)
def test_ten_steps_in_float32_are_those_of_the_reference(device, exact, settings):
    losses, norms, engine = train_steps(gpu_engine(device, **settings))
    np.testing.assert_allclose(losses, exact[0], rtol=1e-5)
    np.testing.assert_allclose(norms, exact[1], rtol=1e-3)
    ours = without_key_bias({name: engine.read(name) for name in PARAMETERS})
    theirs = without_key_bias({name: exact[2].read(name) for name in PARAMETERS})
    far = {name: distance(ours[name], theirs[name]) for name in PARAMETERS}
    assert max(far.values()) < 2e-3, far


@pytest.mark.parametrize(
    ("dtype", "rung_set"),
    [
        *(pytest.param("bf16", rungs, marks=BF16) for rungs in ("naive", "best", "library")),
        *(pytest.param("fp16", rungs, marks=FP16) for rungs in ("naive", "library")),
        pytest.param("fp16", "best", marks=[FP16, pytest.mark.sweep]),
    ],
)
def test_ten_steps_in_16_bits_are_near(device, exact, dtype, rung_set):
    losses, _, _ = train_steps(gpu_engine(device, dtype, rungs=rung_set))
    np.testing.assert_allclose(losses, exact[0], rtol=1e-2 if dtype == "bf16" else 2e-3)


@pytest.mark.parametrize("dtype", [IN_FP32, IN_BF16])
@pytest.mark.parametrize("arch", ["this GPU", "sm_80"])
def test_three_steps_on_the_highest_rungs_are_near(device, exact, arch, dtype):
    """Whether or not they are the fastest for so small a model; all fused ops among them."""
    target = device.target(DTYPES[SHORT[dtype]])
    if arch != "this GPU":
        if target.sm < 80:
            pytest.skip("older than sm_80")
        target = replace(target, arch=arch)
    highest = highest_rungs(build(SHAPE, B, T, fusions=tuple(FUSIONS)).calls, target)
    losses, _, _ = train_steps(gpu_engine(device, dtype, fuse="all", rung=highest), steps=3)
    np.testing.assert_allclose(losses, exact[0][:3], rtol=1e-2 if dtype == "bf16" else 1e-5)


@pytest.mark.parametrize(
    ("dtype", "rung_set"),
    [
        pytest.param("fp32", "naive", marks=FP32),
        *(pytest.param("bf16", rungs, marks=DETERMINISTIC) for rungs in ("best", "library")),
        pytest.param("fp16", "naive", marks=FP16),
    ],
)
def test_a_resumed_run_continues_bit_for_bit(device, tmp_path, dtype, rung_set):
    """Validations in between make the steps wait for each other; they change nothing."""
    model = save_model(tmp_path / "dropping", dropout=0.2)
    common = {"model": model, "device": "cuda", "dtype": dtype, "rungs": rung_set}
    common |= {"deterministic": True, "total_tokens": 64, "checkpoint_every": 4, "warmup": 2}
    straight, halves = tmp_path / "straight", tmp_path / "halves"
    run(tmp_path, **common, steps=8, val_every=3, output=str(straight))
    run(tmp_path, **common, steps=4, output=str(halves))
    del common["rungs"]  # as the checkpoint says
    outcome, _ = run(tmp_path, **common, steps=8, output=str(halves), resume=True)
    assert [step for step, _ in outcome.val_losses] == [8]
    assert_same(parameters(straight, 8), parameters(halves, 8))
    assert losses(straight)[4:] == losses(halves)[4:]
    states = [checkpoint.load(directory, 8)[1] for directory in (straight, halves)]
    assert states[0]["stepper"] == states[1]["stepper"]


@BF16
def test_what_the_flags_change_is_not_what_is_computed(device, tmp_path):
    """Graphs or not, waiting or not, recomputing or not."""
    common = {"device": "cuda", "rungs": "naive", "deterministic": True, "steps": 5}
    changes = {
        "plain": {},
        "recompute": {"recompute": 2},
        "debug-sync": {"debug_sync": True},
        "debug-nan": {"debug_nan": True},
        "waiting": {"nonfinite": "skip"},
    }
    for name, more in changes.items():
        run(tmp_path, **common, **more, output=str(tmp_path / name))
    courses = {name: losses(tmp_path / name) for name in changes}
    assert all(course == courses["plain"] for course in courses.values()), courses


@FP32
def test_debug_nan_names_the_op_on_the_gpu(device):
    engine = gpu_engine(device, rungs="naive", watch=find_not_finite)
    engine.write("tokens", np.zeros((B, T)))
    engine.write("ln2b", np.full((128,), np.inf), 1)
    with pytest.raises(LadderError, match=r"--debug-nan: h1\.ln_2, layernorm\.forward rung 1"):
        engine.predict()
