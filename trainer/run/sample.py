"""Text from a model: `python -m trainer sample --model runs/gpt2-tinyshakespeare --prompt ROMEO`.

One token at a time, each from a plain forward pass over the whole window: no key-value cache, so a
token costs what the window costs. A window is as long as prompt and sample together, at most the
model's context; beyond that it slides.
"""

from __future__ import annotations

import codecs
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np

from ladder.common.errors import LadderError
from ladder.contract.device import Device
from ladder.contract.dtypes import DTYPES as DTYPE_OF
from ladder.contract.rung_file import Rung
from trainer.data.datasets import data_directory
from trainer.data.tokenizers import Tokenizer, get_tokenizer
from trainer.engine import fusion_choice, rung_choice
from trainer.engine.device_choice import open_for
from trainer.engine.engine import Engine
from trainer.model import weights
from trainer.model.model_config import ModelConfig, padded
from trainer.model.program import Program, build
from trainer.run.display import printable
from trainer.settings.config import DTYPES, TrainConfig, resolve
from trainer.settings.flags import build_parser


class NoChoice(LadderError):
    """There is no next token: the logits are not finite."""


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
            "there is no next token, since the model's logits are not finite; where they are too "
            "large for --dtype fp16, fp32 and bf16 may do"
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

    def __init__(
        self,
        shape: ModelConfig,
        T: int,
        vocab: int,
        device: Device,
        real: np.dtype,
        rungs: Mapping[str, Rung],
        weights_of: Engine | None = None,
        *,
        fusions: Collection[str] = (),
        recompute: int = 0,
    ) -> None:
        """vocab: how many ids the tokenizer knows. weights_of: an engine that holds the weights;
        without it they are to be written into `engine`. fusions, recompute: as in the program that
        the rungs were chosen for."""
        self.T, self.vocab = T, vocab
        program = forward_only(shape, T, fusions, recompute)
        self.engine = Engine(program, device, real, rungs, weights_of)

    def __call__(self, ids: Sequence[int]) -> np.ndarray:
        """Logits (vocab) of what follows `ids`, in float32."""
        window = ids[-self.T :]
        tokens = np.zeros((1, self.T), np.int32)  # what follows the window does not reach back
        tokens[0, : len(window)] = window
        self.engine.write("tokens", tokens)
        self.engine.predict()
        row = self.engine.arrays["logits"][0, len(window) - 1]
        return self.engine.device.download(row)[: self.vocab].astype(np.float32)


def forward_only(
    shape: ModelConfig, T: int, fusions: Collection[str], recompute: int = 0
) -> Program:
    """What a Predictor runs."""
    return build(shape, 1, T, training=False, fusions=fusions, recompute=recompute)


def decode_stream(tokenizer: Tokenizer, ids: Iterator[int]) -> Iterator[str]:
    """The text of tokens as they come; a character that spans tokens comes when it is whole."""
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
        raise LadderError(f"--prompt {prompt!r} is no text in UTF-8; write it as such") from None
    ids = begin + tokenizer.encode(prompt)
    return ids or tokenizer.encode("\n")  # characters only: a new line begins


def main(argv: Sequence[str]) -> int:
    """The command line of `python -m trainer sample`."""
    config = parse(argv)
    tokenizer, predictor = open_predictor(config)
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


def parse(argv: Sequence[str]) -> TrainConfig:
    """The settings of a run that matter to a sample, from the same flags as in training."""
    names = ("model", "prompt", "sample_tokens", "temperature", "top_k", "seed", "tokenizer")
    names += ("data_dir", "device", "dtype", "rungs", "rung", "fuse", "gelu_fusion")
    parser = build_parser("python -m trainer sample", __doc__.partition("\n")[0], names)
    return TrainConfig(**vars(parser.parse_args(argv)))


def open_predictor(config: TrainConfig) -> tuple[Tokenizer, Predictor]:
    """The tokenizer and the model that `config` names; a model without weights is refused."""
    data_dir = data_directory(config.data_dir)
    device, config, _ = open_for(config)
    tokenizer = get_tokenizer(config.tokenizer or weights.tokenizer_of(config.model), data_dir)
    model = weights.open_model(
        config.model, vocab=tokenizer.vocab, seed=config.seed, data_dir=data_dir
    )
    if not model.trained:
        why, *_ = (model.note or "it has random weights").split(f": {weights.INSTEAD}")
        raise LadderError(
            f"-e {config.model}: {why}; "
            "train first, then name the run's folder or a model file by -e"
        )
    if model.tokenizer not in (None, tokenizer.name):
        raise LadderError(
            f"--tokenizer {tokenizer.name}: {config.model} was trained on the tokens of "
            f"{model.tokenizer}; leave --tokenizer out"
        )
    # Some models have a few ids more than tokens, to make the number of them a round one.
    too_few = config.tokenizer is not None and model.tokenizer is None
    too_few &= padded(tokenizer.vocab) < model.shape.vocab
    if tokenizer.vocab > model.shape.vocab or too_few:
        raise LadderError(
            f"the tokenizer {tokenizer.name} has {tokenizer.vocab} tokens, the model "
            f"{model.shape.vocab}; choose the one it was trained with by --tokenizer"
        )
    config = resolve(config, device.kind, model.shape.context)
    length = len(encode_prompt(tokenizer, config.prompt)) + config.sample_tokens
    shape = dataclasses.replace(model.shape, dropout=0.0)
    real = DTYPE_OF[DTYPES[config.dtype]]
    T = min(length, shape.context)
    build_fused = functools.partial(forward_only, shape, T)
    fused, _ = fusion_choice.choose(config, device, real, build_fused)
    calls = build_fused(fused).evaluate
    chosen = {op: c.rung for op, c in rung_choice.choose(calls, config, device, real).items()}
    predictor = Predictor(shape, T, tokenizer.vocab, device, real, chosen, fusions=fused)
    for name, layer, array in model.pieces:
        predictor.engine.write(name, array, layer)
    return tokenizer, predictor
