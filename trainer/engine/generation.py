"""Generation: texts that go on from prompts, token by token.

`Generator` draws the texts of the command `sample`, with a key-value cache. Its window holds as
many tokens as the model has positions. A text that outgrows it goes on from its last half: GPT-2's
positions are learned and absolute, so keys and values at other positions are other ones, and the
window is filled anew. A `Predictor` draws the samples of a training run: by plain forward passes
over the whole window, with the kernels that train.
"""

import codecs
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ladder.core.common.errors import LadderError
from reference.decode import draw
from trainer.data.tokenizers import Tokenizer
from trainer.engine.engine import Engine
from trainer.flags import SampleConfig
from trainer.ranks.group import ALONE, Group

AHEAD = 16  # steps that are submitted to a GPU before their tokens are fetched


class NoChoice(LadderError):
    """No next token can be drawn: the logits are not finite."""

    def __init__(self) -> None:
        super().__init__(
            "there is no next token, since the model's logits are not finite; if they are too "
            "large for --dtype fp16, try fp32 or bf16"
        )


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
    says so. Each is drawn from logits (V) with one random number, as `reference.decode.draw`."""
    ids = list(prompt)
    for _ in range(tokens):
        if stop():
            return
        ids.append(draw(logits_of(ids), rng.random(), temperature, top_k))
        if ids[-1] < 0:
            raise NoChoice
        yield ids[-1]


def sample(
    predictor: "Predictor",
    tokenizer: Tokenizer,
    config: SampleConfig,
    stop: Callable[[], bool],
    group: Group = ALONE,
) -> str | None:
    """The text of a sample of a training run, its prompt included; None where `stop` said so. It is
    drawn by the same random numbers each time, so that samples compare.

    group  is told of each token, for which the other ranks wait

    Raises NoChoice where a logit is NaN or infinite.
    """

    def reported(ids: Iterator[int]) -> Iterator[int]:
        group.working("token 1 of the sample")
        for number, token in enumerate(ids, 2):
            yield token
            group.working(f"token {number} of the sample")

    drawn = generate(
        predictor,
        encode_prompt(tokenizer, config.prompt),
        config.sample_tokens,
        temperature=config.temperature,
        top_k=config.top_k,
        rng=np.random.default_rng(config.seed),
        stop=stop,
    )
    text = config.prompt + "".join(decode_stream(tokenizer, reported(drawn)))
    return None if stop() else text


class Predictor:
    """Tells the logits of the next token, by a forward pass over a window of T tokens."""

    def __init__(self, engine: Engine, vocab: int) -> None:
        """engine: of a program of one row that does not train, with its weights. vocab: how many
        ids the tokenizer knows."""
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


def window_of(text: Sequence[int], context: int) -> list[int]:
    """The tokens that a window starts with: all if they fit, or else the last half of a context."""
    return list(text if len(text) <= context else text[-max(1, context // 2) :])


def prefill_length(prompts: Sequence[Sequence[int]], tokens: int, context: int) -> int:
    """The T that `decoding.prefill` needs for all windows of these texts; 0 where it needs none.

    A power of two or the context, so that kernels are compared for few shapes only.
    """
    most = max(len(window_of(prompt, context)) for prompt in prompts)
    if max(map(len, prompts)) + tokens > context + 1:  # the window is filled again
        # When one text is full, another may be about to be.
        most = max(most, context // 2 if len(prompts) == 1 else context)
    return min(context, 1 << (most - 2).bit_length()) if most > 1 else 0


class Generator:
    """Draws the tokens of B texts, with engines of decoding's programs that share weights and
    cache. `prefill` may be None where every window holds one token, or the model has no cache.
    """

    def __init__(self, step: Engine, prefill: Engine | None) -> None:
        self._step, self._prefill = step, prefill
        self.B, self.context = step.program.B, step.program.config.context
        self._ahead = 1 if step.waits else AHEAD

    def warm_up(self) -> None:
        """Set up what the first calls would: libraries, and the graph of a step."""
        for _ in range(2):
            self._step.write("positions", np.zeros(self.B, np.int32))
            self._step.predict()
        if self._prefill is not None:
            self._prefill.predict()
        self._step.read("positions")  # waits

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        tokens: int,
        rngs: Sequence[np.random.Generator],
        stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[list[int]]:
        """The next token of every text, `tokens` times; fewer where `stop` says so.

        prompts  B texts of at least one token each
        rngs     for each text, what its random numbers come from: one for a token

        Raises NoChoice where a logit is NaN or infinite.
        """
        windows = [list(prompt) for prompt in prompts]
        # In float32 a number close to 1 could become 1.
        coins = [np.minimum(rng.random(tokens), 1 - 2**-24) for rng in rngs]
        done = 0
        while done < tokens and not stop():
            windows = [window_of(window, self.context) for window in windows]
            self._fill(windows, [row[done:] for row in coins])
            lengths = [len(window) for window in windows]
            room = self.context + 1 - max(lengths)
            for drawn in self._draw(lengths, min(room, tokens - done), stop):
                if min(drawn) < 0:
                    raise NoChoice
                for window, token in zip(windows, drawn, strict=True):
                    window.append(token)
                done += 1
                yield drawn

    def _fill(self, windows: Sequence[Sequence[int]], coins: Sequence[np.ndarray]) -> None:
        """Write the windows and the next random numbers of the texts, and fill the cache."""
        tokens = np.zeros((self.B, self.context + 1), np.int32)
        numbers = np.zeros((self.B, self.context), np.float32)
        last = np.array([len(window) - 1 for window in windows], np.int32)
        for b, (window, p) in enumerate(zip(windows, last, strict=True)):
            tokens[b, : p + 1] = window
            some = coins[b][: self.context - p]
            numbers[b, p : p + len(some)] = some
        self._step.write("window", tokens)
        self._step.write("coins", numbers)
        self._step.write("positions", last)
        if self._prefill is not None and last.max() > 0:
            if last.max() > self._prefill.program.T:
                raise ValueError(
                    f"{last.max()} tokens, and the cache is filled with {self._prefill.program.T}"
                )
            # Where a text is shorter, its steps overwrite what comes into the cache behind it.
            self._prefill.write("tokens", tokens[:, : self._prefill.program.T])
            self._prefill.predict()

    def _draw(
        self, lengths: Sequence[int], steps: int, stop: Callable[[], bool]
    ) -> Iterator[list[int]]:
        """The tokens of so many steps. On a GPU, steps are under way while tokens are taken."""
        waiting: deque[tuple[range, Callable[[], np.ndarray]]] = deque()
        submitted = 0
        while waiting or (submitted < steps and not stop()):
            if submitted < steps and len(waiting) < (1 if self._ahead == 1 else 2) and not stop():
                some = range(submitted, min(steps, submitted + self._ahead))
                for _ in some:
                    self._step.predict()
                waiting.append((some, self._step.fetch("window")))
                submitted = some.stop
                continue
            some, fetched = waiting.popleft()
            window = fetched()
            for i in some:
                yield [int(window[b, length + i]) for b, length in enumerate(lengths)]
