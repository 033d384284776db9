"""Text from a model: `python -m trainer sample --model runs/gpt2-tinyshakespeare --prompt ROMEO`.

One token at a time, each from a plain forward pass over the whole window: no key-value cache, so a
token costs what the window costs. A window is as long as prompt and sample together, at most the
model's context; beyond that it slides.
"""

from __future__ import annotations

import codecs
import functools
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from ladder.common.errors import LadderError
from trainer.data.datasets import data_directory
from trainer.data.tokenizers import Tokenizer
from trainer.engine.device_choice import open_for
from trainer.engine.engine import Engine
from trainer.engine.kernels import choose
from trainer.model import weights
from trainer.model.model_config import ModelConfig
from trainer.model.program import Program, build
from trainer.run.display import printable
from trainer.settings.config import SampleConfig, resolve_sample
from trainer.settings.flags import Flags
from trainer.settings.kernel_settings import resolve_kernels
from trainer.settings.parser import build_parser


class NoChoice(LadderError):
    """No next token can be drawn: the logits are not finite."""


def choose_token(
    logits: np.ndarray, temperature: float, top_k: int, rng: np.random.Generator
) -> int:
    """Draw a token id from logits (V) at a temperature, among the `top_k` likeliest (0: all).

    Temperature 0 takes the likeliest. One random number is drawn whatever the settings. Raises
    NoChoice where a logit is NaN or infinite.
    """
    coin = rng.random()
    if not np.isfinite(logits).all():
        raise NoChoice(
            "there is no next token, since the model's logits are not finite; if they are too "
            "large for --dtype fp16, try fp32 or bf16"
        )
    if temperature == 0:
        return int(np.argmax(logits))
    scores = logits.astype(np.float64)
    if 0 < top_k < scores.size:
        likeliest = np.argsort(-scores, kind="stable")[:top_k]
        kept = np.full_like(scores, -np.inf)
        kept[likeliest] = scores[likeliest]
        scores = kept
    probs = np.exp((scores - scores.max()) / temperature)
    cumulative = np.cumsum(probs)
    return int(np.searchsorted(cumulative, coin * cumulative[-1], side="right"))


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
    config, tokenizer, predictor = open_predictor(parse(argv))
    ids = generate(
        predictor,
        encode_prompt(tokenizer, config.prompt),
        config.sample_tokens,
        temperature=config.temperature,
        top_k=config.top_k,
        rng=np.random.default_rng(config.seed),
    )
    print(printable(config.prompt), end="", flush=True)
    for text in decode_stream(tokenizer, ids):
        print(printable(text), end="", flush=True)
    print()
    return 0


def parse(argv: Sequence[str]) -> Flags:
    """The flags of a run that matter to a sample."""
    names = (
        *("model", "prompt", "sample_tokens", "temperature", "top_k", "seed", "tokenizer"),
        *("data_dir", "device", "dtype", "rungs", "rung", "fuse", "gelu_fusion"),
    )
    description = "Text from a trained model."
    return Flags(
        **vars(build_parser("python -m trainer sample", description, names).parse_args(argv))
    )


def open_predictor(flags: Flags) -> tuple[SampleConfig, Tokenizer, Predictor]:
    """The resolved settings, the tokenizer, and the model; a model without weights is refused."""
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
    length = len(encode_prompt(tokenizer, config.prompt)) + config.sample_tokens
    program = functools.partial(forward_only, model.shape, min(length, model.shape.context))
    kernels = choose(wanted, device, program, lambda program: program.evaluate)
    engine = Engine(kernels.program, device, config.real, kernels.rungs)
    for parameter, layer, array in model.pieces:
        engine.write(parameter, array, layer)
    return config, tokenizer, Predictor(engine, tokenizer.vocab)
