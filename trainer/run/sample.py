"""Text from a model: `python -m trainer sample --model runs/gpt2-tinyshakespeare --prompt ROMEO`.

The command draws tokens with a key-value cache (generation.py). The samples of a training run come
from plain forward passes over the whole window, by the kernels that train.
"""

from __future__ import annotations

import codecs
import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from ladder.core.common import files
from ladder.core.common.errors import LadderError
from ladder.core.contract.device import Device
from reference.decode import draw
from trainer.data.datasets import data_directory
from trainer.data.tokenizers import Tokenizer
from trainer.engine.device_choice import open_for
from trainer.engine.engine import Engine
from trainer.engine.kernels import Kernels, choose
from trainer.engine.rung_map import names_any
from trainer.model import decoding, weights
from trainer.model.calls import Call
from trainer.model.fusion import FUSIONS
from trainer.model.model_config import ModelConfig
from trainer.model.program import Program, build
from trainer.run.display import printable
from trainer.run.generation import Generator, NoChoice, prefill_length
from trainer.settings.config import SampleConfig, resolve_sample
from trainer.settings.flags import Flags
from trainer.settings.kernel_settings import KernelSettings, resolve_kernels
from trainer.settings.parser import build_parser


def choose_token(
    logits: np.ndarray, temperature: float, top_k: int, rng: np.random.Generator
) -> int:
    """Draw a token id from logits (V), as `reference.decode.draw`, with one random number.

    Raises NoChoice where a logit is NaN or infinite.
    """
    token = draw(logits, rng.random(), temperature, top_k)
    if token < 0:
        raise NoChoice
    return token


def generate(
    logits_of: Callable[[Sequence[int]], np.ndarray],
    prompt: Sequence[int],
    tokens: int,
    *,
    temperature: float,
    top_k: int,
    rng: np.random.Generator,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[int]:
    """`tokens` token ids that follow `prompt`, which must hold at least one; fewer where `stop`
    says so."""
    ids = list(prompt)
    for _ in range(tokens):
        if stop():
            return
        ids.append(choose_token(logits_of(ids), temperature, top_k, rng))
        yield ids[-1]


class Predictor:
    """Tells the logits of the next token, by a forward pass over a window of T tokens."""

    def __init__(self, engine: Engine, vocab: int) -> None:
        """engine: of a program of `forward_only`, with its weights. vocab: how many ids the
        tokenizer knows."""
        self.engine, self.T, self.vocab = engine, engine.program.T, vocab

    def __call__(self, ids: Sequence[int]) -> np.ndarray:
        """Logits (vocab) of what follows `ids`, in float32."""
        window = ids[-self.T :]
        tokens = np.zeros((1, self.T), np.int32)  # later tokens do not influence earlier ones
        tokens[0, : len(window)] = window
        self.engine.write("tokens", tokens)
        self.engine.predict()
        row = self.engine.arrays["logits"][0, len(window) - 1]
        logits = self.engine.device.download(row)[: self.vocab]
        return np.asarray(logits, np.float32)


def forward_only(
    shape: ModelConfig, T: int, fusions: Collection[str], recompute: int = 0
) -> Program:
    """What a Predictor runs; fusions and recompute as in the program that is trained."""
    return build(shape, 1, T, training=False, fusions=fusions, recompute=recompute)


def decode_stream(tokenizer: Tokenizer, ids: Iterator[int]) -> Iterator[str]:
    """The text of tokens as they come; a character of several tokens comes with the last one."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for i in ids:
        if text := decoder.decode(tokenizer.token_bytes(i)):
            yield text
    if rest := decoder.decode(b"", final=True):
        yield rest


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The ids that a sample starts from: end-of-text where a document begins, then the prompt."""
    begin = [tokenizer.eot] if tokenizer.eot is not None else []
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError:  # Python keeps what it cannot read of a command line as surrogates
        raise LadderError(f"--prompt {prompt!r} is not valid UTF-8; encode it as UTF-8") from None
    ids = begin + tokenizer.encode(prompt)
    return ids or tokenizer.encode("\n")  # characters only: a new line begins


def main(argv: Sequence[str]) -> int:
    """The command line of `python -m trainer sample`."""
    flags, file = parse(argv)
    prompts = None if file is None else read_prompts(file)
    config, tokenizer, generator = open_generator(flags, prompts)
    rngs = [random_numbers(config.seed, b) for b in range(generator.B)]
    start = time.perf_counter()
    if prompts is None:
        ids = [encode_prompt(tokenizer, config.prompt)]
        drawn = (one for (one,) in generator.generate(ids, config.sample_tokens, rngs))
        print(printable(config.prompt), end="", flush=True)
        for text in decode_stream(tokenizer, drawn):
            print(printable(text), end="", flush=True)
        print()
    else:
        ids = [encode_prompt(tokenizer, prompt) for prompt in prompts]
        rows = list(generator.generate(ids, config.sample_tokens, rngs))
        for b, prompt in enumerate(prompts):
            text = "".join(decode_stream(tokenizer, (drawn[b] for drawn in rows)))
            print(f"--- {b + 1} of {len(prompts)} ---\n{printable(prompt + text)}")
    seconds = time.perf_counter() - start
    count = generator.B * config.sample_tokens
    rate = f"{count} tokens in {seconds:.3g} s, {count / seconds:,.0f} tokens/s"
    print(f"[{rate}, with the prompt's pass]", file=sys.stderr)
    return 0


def parse(argv: Sequence[str]) -> tuple[Flags, str | None]:
    """The flags of a run that matter to a sample, and the file of --prompts."""
    names = (
        *("model", "prompt", "sample_tokens", "temperature", "top_k", "seed", "tokenizer"),
        *("data_dir", "device", "dtype", "rungs", "rung", "fuse", "gelu_fusion"),
    )
    parser = build_parser("python -m trainer sample", "Text from a trained model.", names)
    parser.add_argument(
        "--prompts", metavar="FILE", help="a prompt on each line, sampled together; instead of one"
    )
    typed = vars(parser.parse_args(argv))
    file = typed.pop("prompts")
    if file is not None and typed["prompt"] is not None:
        raise LadderError("--prompt and --prompts: choose one of them")
    return Flags(**typed), file


def read_prompts(path: str) -> list[str]:
    """The lines of a file. Raises LadderError where there are none."""
    try:
        prompts = files.read_text(path).splitlines()
    except LadderError as error:
        raise LadderError(f"--prompts: {error}") from None
    if not prompts:
        raise LadderError(f"--prompts {path}: the file is empty; write a prompt on each line")
    return prompts


def random_numbers(seed: int, row: int) -> np.random.Generator:
    """What the tokens of a text are drawn by; the first one's are those of a text alone."""
    return np.random.default_rng(seed if row == 0 else (seed, row))


def open_generator(
    flags: Flags, prompts: Sequence[str] | None = None
) -> tuple[SampleConfig, Tokenizer, Generator]:
    """The resolved settings, the tokenizer, and the model; a model without weights is refused.

    prompts  several at once, instead of --prompt
    """
    data_dir = data_directory(flags.data_dir)
    device, place, _ = open_for(flags.device, flags.dtype, flags.value("model"))
    wanted = resolve_kernels(flags, place)
    name = flags.value("model")
    seed = flags.value("seed")
    model, tokenizer = weights.open_with_tokenizer(
        name, flags.tokenizer, seed=seed, data_dir=data_dir
    )
    config = resolve_sample(flags, place, tokenizer.name, str(data_dir))
    weights.refuse_random(name, model)
    ids = [encode_prompt(tokenizer, p) for p in ([config.prompt] if prompts is None else prompts)]
    step, fill = choose_decoding(config, wanted, device, model.shape, tokenizer.vocab, ids)
    engine = Engine(step.program, device, config.real, step.rungs)
    for parameter, layer, array in model.pieces:
        engine.write(parameter, array, layer)
    filling = None
    if fill is not None:
        filling = Engine(fill.program, device, config.real, fill.rungs, weights_of=engine)
    generator = Generator(engine, filling)
    if device.asynchronous:
        generator.warm_up()
    return config, tokenizer, generator


def choose_decoding(
    config: SampleConfig,
    wanted: KernelSettings,
    device: Device,
    shape: ModelConfig,
    vocab: int,
    prompts: Sequence[Sequence[int]],
) -> tuple[Kernels, Kernels | None]:
    """The kernels of a step, and those that fill the cache, if there is anything to fill.

    vocab  how many ids the tokenizer knows
    """
    B, T = len(prompts), prefill_length(prompts, config.sample_tokens, shape.context)
    drawing = functools.partial(
        decoding.step, vocab=vocab, temperature=config.temperature, top_k=config.top_k
    )

    def build_step(fusions: Collection[str]) -> Program:
        return drawing(shape, B, fusions=fusions)

    def build_fill(fusions: Collection[str]) -> Program:
        return decoding.prefill(shape, B, max(T, 1), fusions=fusions)

    filled = T > 0 and bool(build_fill(()).predict)
    of_fill = calls_of(build_fill) if filled else []
    of_step = calls_of(build_step)
    # --rung names calls of either program: what neither has is refused as of the step's.
    own = {
        key: which
        for key, which in wanted.rung.items()
        if names_any(key, of_step) or not names_any(key, of_fill)
    }
    step = choose(dataclasses.replace(wanted, rung=own), device, build_step)
    if not filled:
        return step, None
    own = {key: which for key, which in wanted.rung.items() if names_any(key, of_fill)}
    return step, choose(dataclasses.replace(wanted, rung=own), device, build_fill)


def calls_of(build: Callable[[Collection[str]], Program]) -> list[Call]:
    """The calls of a program, with and without fusions."""
    return [call for fusions in ((), FUSIONS) for call in build(fusions).predict]
