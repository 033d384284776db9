"""llm.c's files byte for byte. The expected bytes are made here with `struct`, number by number."""

import math
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ladder.core.common.errors import LadderError
from tests.trainer.damage import damaged, header
from tests.trainer.tiny import whole
from trainer.data.tokenizers import CharTokenizer
from trainer.files.llmc_files import State, load_model, save_model, save_state, save_tokenizer
from trainer.model.gpt2 import GPT2Config

TINY = GPT2Config(context=3, vocab=5, padded_vocab=8, layers=2, heads=2, channels=4)
# llm.c's ParameterTensors (train_gpt2.c), as (name, numbers).
ORDER = [(name, math.prod(shape)) for name, shape in TINY.parameter_shapes().items()]
TOTAL = sum(count for _, count in ORDER)
NUMBERS = [(i % 251 - 125) / 8 for i in range(TOTAL)]  # each a bfloat16 exactly
NUMBERS[5 * 4 : 8 * 4] = [0.0] * 12  # the rows of wte that pad the vocabulary


def bfloat16(number: float) -> bytes:
    return struct.pack("<f", number)[2:]  # the upper half, where the lower one is zero


MODEL_HEADER = (
    3,
    5,
    2,
    2,
    4,
    8,
)  # max_seq_len, vocab_size, num_layers, num_heads, channels, padded
FP32 = header(20240326, 3, *MODEL_HEADER) + struct.pack(f"<{TOTAL}f", *NUMBERS)
BF16 = header(20240326, 5, *MODEL_HEADER) + b"".join(map(bfloat16, NUMBERS))


def read(name: str) -> np.ndarray:
    start = 0
    for tensor, count in ORDER:
        if tensor == name:
            flat = np.array(NUMBERS[start : start + count], np.float32)
            return flat.reshape(TINY.parameter_shapes()[name])
        start += count
    raise KeyError(name)


def load(path) -> tuple[GPT2Config, dict[str, np.ndarray]]:
    return whole(*load_model(path))


@pytest.mark.parametrize(("dtype", "expected"), [("float32", FP32), ("bfloat16", BF16)])
def test_a_model_is_llmcs_bytes(tmp_path, dtype, expected):
    save_model(tmp_path / "model.bin", TINY, read, dtype)
    assert (tmp_path / "model.bin").read_bytes() == expected


@pytest.mark.parametrize("content", [FP32, BF16], ids=["fp32", "bf16"])
def test_llmcs_models_are_read(tmp_path, content):
    (tmp_path / "model.bin").write_bytes(content)
    config, ours = load(tmp_path / "model.bin")
    assert config == TINY
    for name, _ in ORDER:
        np.testing.assert_array_equal(ours[name], read(name), err_msg=name)


def test_bfloat16_is_rounded_to_nearest_even(tmp_path):
    ties = {"lnfb": np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -1 / 3], np.float32)}
    save_model(tmp_path / "model.bin", TINY, lambda name: ties.get(name, read(name)), "bfloat16")
    assert load(tmp_path / "model.bin")[1]["lnfb"].tolist() == [
        1.0,
        1 + 2**-6,
        1 + 2**-7,
        -0.333984375,
    ]


def test_rows_that_pad_the_vocabulary_are_read_as_zero(tmp_path):
    filled = bytearray(FP32)
    filled[1024 + 4 * 5 * 4 : 1024 + 4 * 8 * 4] = struct.pack("<12f", *range(1, 13))
    (tmp_path / "model.bin").write_bytes(filled)
    wte = load(tmp_path / "model.bin")[1]["wte"]
    assert not wte[5:].any()
    assert wte[:5].any()


def with_header(at: int, value: int) -> bytes:
    return FP32[: 4 * at] + struct.pack("<i", value) + FP32[4 * at + 4 :]


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (b"", " 20240326 "),
        (FP32[:1000], " 20240326 "),
        (with_header(0, 20240520), " 20240326 "),
        (with_header(1, 1), "version 1 .*train_gpt2.py"),
        (with_header(1, 5), " 3184 bytes .* 2104;"),
        (with_header(2, 0), "context .* 0,"),
        (with_header(4, -1), "layers .* -1,"),
        (with_header(7, 4), "5 tokens .* 4 columns"),
        (with_header(5, 3), "4 channels .* 3 heads"),
        (with_header(4, 2**31 - 1), " 3184 bytes .* 2095944040704;"),
        (FP32[:1024], " 1024 bytes .* 3184;"),
        (FP32[:-1], " 3183 bytes .* 3184;"),
        (FP32 + b"\0", " 3185 bytes .* 3184;"),
        (FP32[:-4] + struct.pack("<f", float("nan")), " lnfb .*NaN"),
        (BF16[:1024] + b"\x80\x7f" + BF16[1026:], " wte .*NaN"),
    ],
)
def test_a_damaged_model_is_one_clear_error(tmp_path, content, names):
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    with pytest.raises(LadderError, match=names) as error:
        load(path)
    assert str(path) in str(error.value)


def test_sizes_that_only_the_header_claims_allocate_nothing(tmp_path):
    huge = header(20240326, 3, *[2**31 - 1] * 3, 1, *[2**31 - 1] * 2)
    (tmp_path / "model.bin").write_bytes(huge + bytes(1 << 16))
    tracemalloc.start()
    try:
        with pytest.raises(LadderError, match=f" {1024 + (1 << 16)} bytes"):
            load_model(tmp_path / "model.bin")
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(content=st.one_of(damaged(FP32), damaged(BF16)))
def test_fuzz_damaged_models_load_or_are_refused(tmp_path, content):
    (tmp_path / "model.bin").write_bytes(content)
    try:
        _, ours = load(tmp_path / "model.bin")
    except LadderError:
        return
    assert all(np.isfinite(array).all() for array in ours.values())


def test_a_state_is_llmcs_bytes(tmp_path):
    B, T, V, Vp = 2, 3, 5, 8
    inputs = np.arange(B * T, dtype=np.int32).reshape(B, T) % V
    targets = (inputs + 1) % V
    logits = np.arange(B * T * Vp, dtype=np.float32).reshape(B * T, Vp)
    gradients = {name: read(name) for name in TINY.parameters()}
    save_state(tmp_path / "state.bin", TINY, State(inputs, targets, logits, 1.5, gradients))
    expected = header(20240327, 2, B, T)
    expected += struct.pack("<6i", 0, 1, 2, 3, 4, 0) + struct.pack("<6i", 1, 2, 3, 4, 0, 1)
    for row in range(B * T):
        expected += struct.pack("<5f", *range(row * Vp, row * Vp + V))
    expected += struct.pack("<f", 1.5)
    expected += struct.pack(f"<{TOTAL}f", *NUMBERS)
    assert (tmp_path / "state.bin").read_bytes() == expected


def test_a_tokenizer_is_llmcs_bytes(tmp_path):
    class Words:
        name, vocab, eot = "words", 3, 2

        def token_bytes(self, i):
            return [b"a", b"\xff" * 255, b""][i]

    save_tokenizer(tmp_path / "tokenizer.bin", Words())
    expected = header(20240328, 2, 3, 2) + b"\x01a" + b"\xff" + b"\xff" * 255 + b"\x00"
    assert (tmp_path / "tokenizer.bin").read_bytes() == expected


def test_a_tokenizer_without_end_of_text_makes_no_file(tmp_path):
    with pytest.raises(LadderError, match=r"chars.*--tokenizer"):
        save_tokenizer(tmp_path / "other.bin", CharTokenizer.of_text("abc"))
    assert not (tmp_path / "other.bin").exists()
