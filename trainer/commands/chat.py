"""A model at a prompt: `python -m trainer chat -e runs/gpt2-tinyshakespeare`.

A GPT-2 is a base model: it was trained to continue text, and not to answer. Each line is added to
the text, and the model goes on behind it, until it ends a document or has written -g tokens. An
empty line lets it go on where it stopped. It sees all of the text, its own too; once that is longer
than the context, it goes on from the last half of one. Ctrl-C stops the model, Ctrl-D ends the
program. Lines may come through a pipe.
"""

import io
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import numpy as np

from ladder.core.common.errors import LadderError
from trainer.commands.parser import TRAINED, build_parser
from trainer.commands.sample import SETTINGS, open_generator
from trainer.data.tokenizers import Tokenizer
from trainer.engine.generation import decode_stream, encode_prompt
from trainer.flags import Flags
from trainer.open import of_newest_run
from trainer.ranks.group import Interrupt
from trainer.report import printable


def main(argv: Sequence[str]) -> int:
    helps = {**TRAINED, "sample_tokens": "tokens written behind a line, at most; default 64"}
    parser = build_parser("python -m trainer chat", str(__doc__), SETTINGS, helps=helps)
    flags = of_newest_run(Flags(**vars(parser.parse_args(argv))))
    config, tokenizer, generator = open_generator(flags, any_prompt=True)
    hint = "goes on behind your line, and after an empty one; Ctrl-C stops it, Ctrl-D ends"
    print(f"[{config.model} {hint}; context: {generator.context:,} tokens]", file=sys.stderr)
    rng, text = np.random.default_rng(config.seed), list[int]()

    def written(stop: Callable[[], bool]) -> Iterator[int]:
        """What the model adds to the text; the token that ends a document is not shown."""
        for (token,) in generator.generate([text], config.sample_tokens, [rng], stop):
            text.append(token)
            if token == tokenizer.eot:
                return
            yield token

    for line in lines():
        try:
            text += encode_line(tokenizer, text, line)
        except LadderError as error:  # a character that the tokenizer lacks
            print(f"error: {error}", file=sys.stderr)
            continue
        with Interrupt() as interrupt:
            for part in decode_stream(tokenizer, written(interrupt.here)):
                print(printable(part), end="", flush=True)
        print()
        if (status := interrupt.status()) == 128 + signal.SIGTERM:
            return status
    return 0


def lines() -> Iterator[str]:
    """What is typed, or comes through a pipe, line by line."""
    with suppress(ImportError):
        import readline  # noqa: F401  # `input` edits lines by it
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    typed = sys.stdin.isatty()
    with suppress(EOFError):
        while True:
            with suppress(KeyboardInterrupt):
                yield input("> " if typed else "")
                continue
            print()  # what was typed of a line is dropped
    if typed:
        print()


def encode_line(tokenizer: Tokenizer, text: Sequence[int], line: str) -> list[int]:
    """The tokens that a line adds to the text. It begins as a line does, and the model goes on
    where it ends."""
    if not text:
        return encode_prompt(tokenizer, line)
    ended = text[-1] == tokenizer.eot or tokenizer.token_bytes(text[-1]).endswith(b"\n")
    return tokenizer.encode(line if ended or not line else f"\n{line}")
