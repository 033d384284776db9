"""Text from a model: `python -m trainer sample --model runs/gpt2-tinyshakespeare --prompt ROMEO`.

Tokens are drawn with a key-value cache (trainer/engine/generation.py).
"""

import sys
import time
from collections.abc import Collection, Sequence

import numpy as np

from ladder.core.common import files
from ladder.core.common.errors import LadderError
from trainer.commands.parser import TRAINED, build_parser
from trainer.data.tokenizers import Tokenizer
from trainer.engine.engine import Engine
from trainer.engine.generation import Generator, decode_stream, encode_prompt, prefill_length
from trainer.engine.rung_map import names_any
from trainer.files import weights
from trainer.flags import Flags, SampleConfig, resolve_sample
from trainer.model import decoding
from trainer.model.calls import Call
from trainer.model.fusion import FUSIONS
from trainer.model.program import Program
from trainer.open import Build, Machine, of_newest_run, open_machine
from trainer.report import printable

SETTINGS = (  # the flags of a run that matter to a text
    *("model", "sample_tokens", "temperature", "top_k", "seed", "tokenizer"),
    *("data_dir", "device", "dtype", "rungs", "rung", "fuse", "gelu_fusion"),
)


def main(argv: Sequence[str]) -> int:
    flags, file = parse(argv)
    flags = of_newest_run(flags)
    prompts = None if file is None else read_prompts(file)
    config, tokenizer, generator = open_generator(flags, prompts)
    seed = config.seed  # the tokens of the first text are those of a text alone
    rngs = [np.random.default_rng((seed, b) if b else seed) for b in range(generator.B)]
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
    names = (*SETTINGS, "prompt")
    parser = build_parser("python -m trainer sample", "Text from a model.", names, helps=TRAINED)
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


def open_generator(
    flags: Flags, prompts: Sequence[str] | None = None, *, any_prompt: bool = False
) -> tuple[SampleConfig, Tokenizer, Generator]:
    """The resolved settings, the tokenizer, and the model; a model without weights is refused.

    prompts     several at once, instead of --prompt
    any_prompt  one at a time, which are not known yet and may fill the context
    """
    machine = open_machine(flags)
    model, tokenizer = weights.open_with_tokenizer(flags)
    config = resolve_sample(flags, machine.choice)
    weights.refuse_random(config.model, model)
    ids = [encode_prompt(tokenizer, p) for p in ([config.prompt] if prompts is None else prompts)]
    if any_prompt:
        ids = [[0] * model.shape.context]
    generator = open_decoding(machine, config, model, tokenizer.vocab, ids)
    if machine.device.asynchronous:
        generator.warm_up()
    return config, tokenizer, generator


def open_decoding(
    machine: Machine,
    config: SampleConfig,
    model: weights.Model,
    vocab: int,
    prompts: Sequence[Sequence[int]],
) -> Generator:
    """The engine of a step, and the one that fills the cache, if there is anything to fill.

    vocab  how many ids the tokenizer knows
    """
    shape, B = model.shape, len(prompts)
    T = prefill_length(prompts, config.sample_tokens, shape.context)

    def build_step(B: int, fusions: Collection[str]) -> Program:
        temperature, top_k = config.temperature, config.top_k
        return decoding.step(
            shape, B, vocab=vocab, temperature=temperature, top_k=top_k, fusions=fusions
        )

    def build_fill(B: int, fusions: Collection[str]) -> Program:
        return decoding.prefill(shape, B, max(T, 1), fusions=fusions)

    def calls_of(build: Build) -> list[Call]:
        return [call for fusions in ((), FUSIONS) for call in build(B, fusions).predict]

    filled = T > 0 and bool(build_fill(B, ()).predict)
    of_fill, of_step = calls_of(build_fill) if filled else [], calls_of(build_step)
    # --rung names calls of either program: what neither has is refused as of the step's.
    typed = machine.wanted.rung.items()
    rungs = {
        key: which for key, which in typed if names_any(key, of_step) or not names_any(key, of_fill)
    }
    kernels = machine.naming(rungs).choose(build_step, B)
    engine = machine.engine(kernels, build_step, model.pieces, takes=())
    if not filled:
        return Generator(engine, None)
    rungs = {key: which for key, which in typed if names_any(key, of_fill)}
    kernels = machine.naming(rungs).choose(build_fill, B)
    filling = Engine(kernels.program, machine.device, config.real, kernels.rungs, weights_of=engine)
    return Generator(engine, filling)
