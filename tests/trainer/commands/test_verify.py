"""`python -m trainer verify`: what differs from llm.c's debug state is shown, and fails."""

import struct

import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from tests.trainer.tiny import PARAMETERS, SHAPE, save_model
from trainer.commands import export, verify

HEADER = 1024  # bytes
B, T = 4, 32
TOKENS = 2 * B * T * 4
LOGITS = B * T * SHAPE.vocab * 4


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verify")
    run = save_model(folder / "run", dropout=0.1, factor=3.0)
    where = ["--data-dir", str(folder), "-o"]
    model, state = folder / "model.bin", folder / "state.bin"
    assert export.main([run, "--to", "llmc", *where, str(model)]) == 0
    batch = ["-b", str(B), "-t", str(T), "--dataset", "play"]
    assert export.main([run, "--to", "debug-state", *batch, *where, str(state)]) == 0
    return model, state


@pytest.fixture
def files(made, tmp_path):
    """A model file and its debug state, which a test may change."""
    (tmp_path / "state.bin").write_bytes(made[1].read_bytes())
    return made[0], tmp_path / "state.bin"


def call(files, *words):
    model, state = files
    return verify.main(["-e", str(model), str(state), *(words or ("--device", "cpu"))])


def change(path, at, value):
    raw = bytearray(path.read_bytes())
    raw[at : at + len(value)] = value
    path.write_bytes(raw)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_model_agrees_with_its_own_state(files, capsys, dtype):
    assert call(files, "--device", "cpu", "--dtype", dtype) == 0
    said = capsys.readouterr().out
    for name in ("logits", "loss", *(f"d{name}" for name in PARAMETERS)):
        assert f"\n{name} " in said
    steps = [line.split() for line in said.splitlines() if line.strip()[:2].isdigit()]
    losses = [float(loss) for _, loss in steps]  # and none of llm.c's beside them
    assert losses == sorted(losses, reverse=True), "ten steps on one batch"


@pytest.mark.emulator
@pytest.mark.sweep
def test_it_checks_kernels_on_the_emulator(files):
    assert call(files, "--device", "emulated", "--rungs", "naive") == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "name"),
    [
        (HEADER + TOKENS + 4 * 100, "logits"),
        (HEADER + TOKENS + LOGITS, "loss"),
        (HEADER + TOKENS + LOGITS + 4 + 4 * 7, "dwte"),
        (-4, f"d{PARAMETERS[-1]}"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_number_that_is_off_fails_and_is_named(files, capsys, at, name):
    state = files[1]
    at %= state.stat().st_size
    change(state, at, struct.pack("<f", struct.unpack_from("<f", state.read_bytes(), at)[0] + 0.1))
    assert call(files) == 1
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows if row[-1:] == ["NO"]] == [name]


def test_nan_is_infinitely_far_off():
    difference = verify.compare("x", np.array([1.0, np.nan]), np.array([1.0, 1.0]), limit=1.0)
    assert difference.largest == np.inf and not difference.passes


def test_the_losses_of_gpt2_124m_are_compared_where_the_state_is_llmcs(files, capsys):
    change(files[1], HEADER + TOKENS + LOGITS, struct.pack("<f", verify.TESTS["fp32"].losses[0]))
    assert call(files) == 1
    assert "4.059707" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("at", "value", "names"),
    [
        (0, b"xxxx", r"state\.bin .* 20240327 .*export"),
        (4, struct.pack("<i", 1), r"state\.bin .* 20240327 .*export"),
        (8, struct.pack("<i", 3), r"state\.bin .*B=3, T=32.* -e"),
        (8, struct.pack("<i", -2), r"state\.bin .*B=-2, T=32.* -e"),
        (HEADER, struct.pack("<i", SHAPE.vocab), rf"state\.bin .* {SHAPE.vocab}; .* -e$"),
        (HEADER, struct.pack("<i", -1), rf"state\.bin .* {SHAPE.vocab}; .* -e$"),
        (HEADER + TOKENS, struct.pack("<f", np.nan), r"state\.bin: logits .*NaN"),
    ],
)
def test_a_damaged_state_is_refused(files, at, value, names):
    change(files[1], at, value)
    with pytest.raises(LadderError, match=names):
        call(files)


def test_a_short_state_and_a_type_without_limits_are_refused(files):
    with pytest.raises(LadderError, match=r"fp16.*--dtype fp32"):
        call(files, "--device", "cpu", "--dtype", "fp16")
    files[1].write_bytes(files[1].read_bytes()[:500])
    with pytest.raises(LadderError, match=r"state\.bin .* 20240327 .*export"):
        call(files)
