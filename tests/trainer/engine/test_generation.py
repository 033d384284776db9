"""Generation with a key-value cache: the logits are those of the full pass, at every position."""

import math

import numpy as np
import pytest

from ladder.core.contract.ladder import find
from ladder.core.contract.op import DTYPES
from ladder.core.device.open import Cpu
from tests.trainer.cpu_engines import distance
from tests.trainer.tiny import SHAPE, save_model
from trainer.commands import sample
from trainer.engine.engine import Engine
from trainer.engine.generation import (
    Generator,
    NoChoice,
    encode_prompt,
    prefill_length,
)
from trainer.engine.generation import generate as draw
from trainer.flags import Flags
from trainer.model import decoding
from trainer.model.program import build, initial_parameters

P = SHAPE.context
PROMPTS = [[256, 1, 2, 3, 4], [7], [9] * 12]
# An output is a sum of some 9 C products in each layer, and C more for the logits. A sum of n terms
# in float32 is off by 8 sqrt(n) 2^-24 or less (ladder/core/verify/tolerance.py).
TOLERANCE = 2 * 8 * math.sqrt((9 * SHAPE.layers + 1) * SHAPE.channels) * 2**-24
# In bfloat16 some 10 results of a layer are rounded, by a relative error of up to 2^-9, at random.
TOLERANCE_16 = 2 * math.sqrt(10 * SHAPE.layers) * 2**-9
FACTOR = 5  # of the weights, so that logits differ plainly


def write_weights(engine, factor=FACTOR):
    for name, array in initial_parameters(SHAPE, 0):
        engine.write(name, array * np.float32(factor))


def reference(program, real=np.float32, **options):
    rungs = {call.op: find(call.op).rung(0) for call in program.evaluate}
    return Engine(program, Cpu(), real, rungs, **options)


def generator(B, T, real=np.float32, temperature=1.0, top_k=0):
    step = decoding.step(SHAPE, B, vocab=257, temperature=temperature, top_k=top_k)
    engine = reference(step, real)
    write_weights(engine)
    fill = reference(decoding.prefill(SHAPE, B, T), real, weights_of=engine) if T else None
    return Generator(engine, fill), engine


def rngs(count):
    return [np.random.default_rng((1, b)) for b in range(count)]


class FullPass:
    """The logits of every token of a text, by one pass over all of it."""

    def __init__(self, real=np.float32):
        self.engine = reference(build(SHAPE, 1, P, training=False), real)
        write_weights(self.engine)

    def __call__(self, text):
        self.engine.write("tokens", np.array([[*text, *[0] * (P - len(text))]], np.int32))
        self.engine.predict()
        return self.engine.read("logits")[0, : len(text)].astype(np.float64)


def generated(generate, step, prompts, tokens):
    """The texts, and the logits (tokens, B, Vp) that their tokens were drawn from."""
    texts, logits = [list(prompt) for prompt in prompts], []
    for drawn in generate.generate(prompts, tokens, rngs(len(prompts))):
        logits.append(step.read("logits").reshape(len(prompts), -1))
        for text, token in zip(texts, drawn, strict=True):
            text.append(token)
    return texts, np.array(logits)


@pytest.mark.parametrize(("dtype", "bound"), [("float32", TOLERANCE), ("bfloat16", TOLERANCE_16)])
def test_each_token_of_a_batch_has_the_logits_of_the_full_pass(dtype, bound):
    tokens = P - max(map(len, PROMPTS))
    generate, step = generator(3, prefill_length(PROMPTS, tokens, P), DTYPES[dtype])
    full = FullPass(DTYPES[dtype])
    texts, logits = generated(generate, step, PROMPTS, tokens)
    for b, (prompt, text) in enumerate(zip(PROMPTS, texts, strict=True)):
        assert len(text) == len(prompt) + tokens
        expected = full(text)[len(prompt) - 1 : -1]
        for row, wanted in zip(logits[:, b], expected, strict=True):
            assert distance(row, wanted) < bound


def test_a_full_window_goes_on_from_its_last_half():
    prompt = [256, 5, 6]
    first, later = P + 1 - len(prompt), P // 2 + 1  # tokens that each window takes
    tokens = first + 2 * later
    generate, step = generator(1, prefill_length([prompt], tokens, P))
    full = FullPass()
    (text,), logits = generated(generate, step, [prompt], tokens)
    assert len(text) == len(prompt) + tokens
    start, known, drawn = 0, len(prompt), 0
    for count in (first, later, later):
        window = text[start : start + P]
        expected = full(window)[known - 1 :]
        for row, wanted in zip(logits[drawn : drawn + count, 0], expected, strict=True):
            assert distance(row, wanted) < TOLERANCE
        drawn += count
        start, known = start + P + 1 - P // 2, P // 2
    assert drawn == tokens


def test_a_text_does_not_depend_on_the_others_of_its_batch():
    tokens = 2 * P  # the windows become full at different times
    together, _ = generator(3, prefill_length(PROMPTS, tokens, P))
    batch = list(zip(*together.generate(PROMPTS, tokens, rngs(3)), strict=True))
    for prompt, rng, expected in zip(PROMPTS, rngs(3), batch, strict=True):
        alone, _ = generator(1, prefill_length([prompt], tokens, P))
        assert [token for (token,) in alone.generate([prompt], tokens, [rng])] == [*expected]


def test_it_draws_what_is_drawn_from_the_logits_of_full_passes():
    generate, _ = generator(1, 4, temperature=0.7, top_k=5)
    drawn = [token for (token,) in generate.generate([PROMPTS[0]], 20, rngs(1))]
    rng = rngs(1)[0]
    full = FullPass()
    expected = draw(
        lambda ids: full(ids)[-1, :257], PROMPTS[0], 20, temperature=0.7, top_k=5, rng=rng
    )
    assert drawn == list(expected)


def test_it_stops_when_it_is_told_to():
    generate, _ = generator(1, 0)
    asked = iter([False, False, False, True, True])
    assert len(list(generate.generate([[1]], 20, rngs(1), stop=lambda: next(asked)))) == 1


def test_logits_that_are_not_finite_give_no_token():
    generate, step = generator(1, 0)
    with np.errstate(all="ignore"), pytest.raises(NoChoice):
        write_weights(step, np.inf)
        list(generate.generate([[1]], 3, rngs(1)))


@pytest.mark.parametrize(
    ("lengths", "tokens", "T"),
    [
        ([1], 32, 0),  # the first step takes the only token
        ([2], 31, 1),
        ([6], 27, 8),  # 5 tokens, and a power of two
        ([1], 33, 16),  # one more, and the last half is filled in
        ([1, 1], 33, 32),  # when one is full, the other may nearly be
        ([33], 1, 16),  # too long from the start: its last half
        ([32], 1, 32),
    ],
)
def test_the_cache_is_filled_by_passes_of_few_lengths(lengths, tokens, T):
    assert prefill_length([[0] * length for length in lengths], tokens, 32) == T


# The kernels that start while the one before them runs.
OVERLAPPING = {"decode.linear": "6", "decode.linear_gelu": "3", "decode.append_attention": "4"}


@pytest.mark.emulator
def test_the_kernels_draw_the_tokens_of_the_reference(tmp_path):
    words = {"data_dir": str(tmp_path), "prompt": "RO", "top_k": 5, "sample_tokens": 4}
    model = save_model(tmp_path / "model", factor=FACTOR)
    drawn = []
    for device, rungs, more in (
        ("cpu", "reference", {}),
        ("emulated", "naive", {}),
        ("emulated", "naive", {"fuse": "all", "rung": OVERLAPPING}),
    ):
        flags = Flags(model=model, device=device, rungs=rungs, dtype="fp32", **words, **more)
        _, tokenizer, kernels = sample.open_generator(flags)
        prompt = encode_prompt(tokenizer, "RO")
        drawn.append(list(kernels.generate([prompt], 4, rngs(1))))
    assert drawn[0] == drawn[1] == drawn[2]


def test_a_prompt_beyond_what_fills_the_cache_is_refused():
    generate, _ = generator(1, 4)
    with pytest.raises(ValueError, match=r"^7 .* 4$"):
        list(generate.generate([[1] * 8], 3, rngs(1)))
