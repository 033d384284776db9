"""Compares ten steps with llm.c's: `python -m trainer verify -e MODEL STATE`.

    python -m trainer verify -e gpt2_124M.bin gpt2_124M_debug_state.bin --dtype fp32

llm.c's train_gpt2.py writes both files, and so does `python -m trainer export`. The model takes a
step on the state's batch, and its logits, its loss and all its gradients are compared with the
state's; then it takes nine more on the same batch. Limits, settings and the losses of GPT-2 124M
are those of llm.c's own tests: test_gpt2.c for float32, test_gpt2.cu for bfloat16
(https://github.com/karpathy/llm.c). They differ in the settings of AdamW, and so in the losses.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from reference import adamw
from trainer.commands.parser import build_parser
from trainer.data.download import data_directory
from trainer.engine.engine import Engine
from trainer.engine.passes import fetch_loss, one_batch
from trainer.files import llmc_files, weights
from trainer.flags import Flags
from trainer.model.registry import SIZES
from trainer.open import builder, open_machine
from trainer.report import Display, open_console

SAME_BATCH = 1e-2  # between a state's loss and the first one below: it is llm.c's own state


@dataclass(frozen=True)
class LlmcTest:
    """One of llm.c's tests.

    logits, loss   largest difference that it allows
    gradients      the same for each tensor in the order of the file
    relative       a share of the expected gradient, which is allowed beside that
    optimizer      the settings of AdamW in its ten steps
    losses         of GPT-2 124M in these steps, on the batch of llm.c's state
    """

    name: str
    logits: float
    loss: float
    gradients: Sequence[float]
    relative: float
    optimizer: dict[str, float]
    losses: Sequence[float]


ADAMW = {"lr": 1e-4, "beta1": 0.9, "eps": 1e-8}

TESTS = {
    "fp32": LlmcTest(
        name="test_gpt2.c",
        logits=1e-2,
        loss=1e-2,
        gradients=(2e-2,) * 16,
        relative=0.0,
        optimizer={**ADAMW, "beta2": 0.999, "weight_decay": 0.01, "clip": 0.0},
        losses=(
            *(5.270007, 4.059707, 3.375123, 2.800783, 2.315382),
            *(1.849029, 1.394656, 0.999147, 0.624080, 0.376511),
        ),
    ),
    "bf16": LlmcTest(
        name="test_gpt2.cu",
        logits=25.0,
        loss=0.05,
        gradients=(
            *(0.5, 0.004, 0.1, 0.04, 0.05, 0.035, 0.02, 0.03),
            *(0.05, 0.03, 0.03, 0.03, 0.02, 0.01, 0.1, 0.02),
        ),
        relative=0.079,
        optimizer={**ADAMW, "beta2": 0.95, "weight_decay": 0.0, "clip": 1.0},
        losses=(
            *(5.270009, 4.060681, 3.320085, 2.717550, 2.181066),
            *(1.653923, 1.168050, 0.736873, 0.401021, 0.187493),
        ),
    ),
}


@dataclass(frozen=True)
class Difference:
    """Of one tensor: the largest, as it is and as a share of what is allowed, and the length of the
    difference over that of the expected tensor."""

    name: str
    largest: float
    of_limit: float
    relative: float

    @property
    def passes(self) -> bool:
        return self.of_limit <= 1


def main(argv: Sequence[str]) -> int:
    """The command line of `python -m trainer verify`; 1 where something differs too much."""
    names = (
        *("model", "data_dir", "device", "dtype", "rungs", "rung", "fuse"),
        *("deterministic", "tf32"),
    )
    description = "Compare ten steps of a model with llm.c's debug state."
    parser = build_parser("python -m trainer verify", description, names)
    parser.add_argument("state", help="the debug state that was made from this model")
    words = vars(parser.parse_args(argv))
    state = Path(words.pop("state"))
    return 0 if verify(Flags(**words), state) else 1


def verify(flags: Flags, path: Path) -> bool:
    """Whether all differences are within llm.c's limits; prints them."""
    name, machine = flags.value("model"), open_machine(flags)
    choice = machine.choice
    if choice.dtype not in TESTS:
        raise LadderError(f"llm.c has no limits for {choice.dtype}; choose --dtype fp32 or bf16")
    test = TESTS[choice.dtype]
    vocab = SIZES[name].config.vocab if name in SIZES else 0
    model = weights.open_model(name, vocab=vocab, seed=0, data_dir=data_directory(flags.data_dir))
    state = llmc_files.load_state(path, model.shape)
    B, T = state.inputs.shape
    shape = model.shape.without_dropout()
    build_at = builder(shape, T, master_weights=choice.dtype != "fp32")
    kernels = machine.choose(build_at, B)
    engine = machine.engine(kernels, build_at, model.pieces, takes=())

    screen = Display(open_console(), steps=len(test.losses))
    for note in [*machine.notes, *kernels.notes, *([model.note] if model.note else [])]:
        screen.say(note)
    screen.facts(
        [
            ("model", f"{model.source}: {model.shape.summary}"),
            ("state", f"{path}: B={B} T={T}, loss {state.loss:.6f}"),
            ("device", f"{machine.device.name}, {choice.dtype}; limits of llm.c's {test.name}"),
        ]
    )
    differences = list(first_step(engine, state, test))
    screen.table(
        ("tensor", "largest difference>", "of llm.c's limit>", "relative>", "within"),
        [
            (d.name, f"{d.largest:.1e}", f"{d.of_limit:.1%}", f"{d.relative:.1e}", _word(d.passes))
            for d in differences
        ],
    )
    known = test.losses if abs(state.loss - test.losses[0]) < SAME_BATCH else None
    close = True
    rows = []
    for number, loss in enumerate(steps(engine, test), 1):
        row = [str(number), f"{loss:.6f}"]
        if known is not None:
            off = abs(loss - known[number - 1])
            close = close and off < test.loss
            row += [f"{known[number - 1]:.6f}", f"{off:.1e}", _word(off < test.loss)]
        rows.append(row)
    columns = ["step>", "loss>", *(["llm.c>", "difference>", "within"] if known else [])]
    screen.table(columns, rows)
    if known is None:
        screen.say(
            "llm.c's test knows the losses of ten steps for GPT-2 124M on its own batch only"
        )
    passed = close and all(difference.passes for difference in differences)
    screen.say("all within llm.c's limits" if passed else "NOT all within llm.c's limits")
    return passed


def first_step(engine: Engine, state: llmc_files.State, test: LlmcTest) -> Iterator[Difference]:
    """Forward and backward on the state's batch, and what differs."""
    logits, loss = one_batch(engine, state.inputs, state.targets)
    yield compare("logits", logits[:, :, : state.logits.shape[2]], state.logits, test.logits)
    yield compare("loss", np.array(loss), np.array(state.loss), test.loss)
    for (name, expected), limit in zip(state.gradients.items(), test.gradients, strict=True):
        yield compare(f"d{name}", engine.read(f"d{name}"), expected, limit, test.relative)


def compare(
    name: str, actual: np.ndarray, expected: np.ndarray, limit: float, relative: float = 0.0
) -> Difference:
    """A tensor against what is expected of it; NaN counts as infinitely far off."""
    off = np.abs(np.asarray(actual, np.float64) - expected)
    off = np.where(np.isnan(off), np.inf, off)
    share = off / (limit + relative * np.abs(expected))
    length = float(np.linalg.norm(expected))
    distance = float(np.linalg.norm(off)) / length if length else float(off.max())
    return Difference(name, float(off.max()), float(share.max()), distance)


def steps(engine: Engine, test: LlmcTest) -> Iterator[float]:
    """The losses of ten steps on the batch that is written, whose gradients are there already."""
    for number in range(1, len(test.losses) + 1):
        if number > 1:
            engine.zero_gradients()
            engine.forward()
            engine.backward()
        loss = fetch_loss(engine)()
        engine.compute_norm()
        settings: dict[str, Any] = dict(test.optimizer)
        engine.write("hyper", adamw.hyper(step=number, **settings))
        engine.update()
        yield loss


def _word(passes: bool) -> str:
    return "yes" if passes else "NO"
