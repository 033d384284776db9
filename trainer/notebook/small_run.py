"""A run of the trainer to play with: a small GPT-2 on letters, taken step by step in a notebook."""

import os
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find
from ladder.core.contract.op import REAL
from ladder.core.show.notebook import rung_of
from ladder.core.show.pages import ROOT
from trainer.data import download
from trainer.data.download import data_directory
from trainer.data.token_files import find_shards, read_tokens
from trainer.data.training_data import open_data, open_loaders
from trainer.engine.engine import Engine, watch_of
from trainer.engine.generation import Predictor, decode_stream, encode_prompt, generate
from trainer.engine.rung_map import with_rung
from trainer.engine.steps import StepOutcome, Steps
from trainer.files import weights
from trainer.files.resume import run_directory
from trainer.flags import Flags, resolve_run
from trainer.model.model_config import ModelConfig
from trainer.model.program import build
from trainer.open import builder, open_machine
from trainer.train import take_step

STEPS = 300  # at which the learning rate has come down to 0

# pooch has tqdm, which misses ipywidgets in a notebook, for a progress bar that is not used here.
warnings.filterwarnings("ignore", "IProgress not found")


class Run:
    """A training run: `engine`, `steps` and `loader` are the trainer's own.

    source         the name of the text, or what is used instead of it, and why
    text           all of its tokens
    losses, rates, norms  of every step so far: loss, learning rate, norm of the gradient
    """

    def __init__(self, flags: Flags, shape: ModelConfig, kernels: Mapping[str, int | str]):
        machine, data_dir = open_machine(flags), data_directory(flags.data_dir)
        data = open_data(flags, data_dir, flags.tokenizer or "gpt2")
        if data.tokenizer is None:
            raise LadderError(f"the tokenizer {data.tokenizer_name} is not available")
        self.source = data.note or data.name
        where = {"data_dir": str(data_dir), "output": str(run_directory(flags)), **data.names}
        tokens = data.count(overfit=bool(flags.overfit))
        config = resolve_run(
            flags, machine.choice, context=shape.context, tokens=tokens, ranks=1, **where
        )
        self.shape, self.tokenizer = shape.with_vocab(data.vocab), data.tokenizer
        build_at = builder(self.shape, config.sequence)
        chosen = machine.choose(build_at, config.batch)
        rungs = chosen.rungs
        for op, kernel in kernels.items():
            rungs = with_rung(rungs, op, rung_of(op, kernel))
        pieces = weights.random_model(self.shape, config.seed).pieces
        watch = watch_of(config.debug_nan, config.debug_sync)
        self.program = chosen.program
        self.engine = machine.engine(chosen, build_at, pieces, rungs=rungs, watch=watch)
        self.loader, *_ = open_loaders(config, self.shape.vocab)
        self.text = np.concatenate([read_tokens(path) for path in find_shards(data.train)])
        self.steps = Steps(config, self.engine)
        self.losses: list[float] = []
        self.rates: list[float] = []
        self.norms: list[float] = []

    @property
    def name(self) -> str:
        """The device, as legends name it."""
        known = {"cpu": "NumPy", "emulated": "the kernels, emulated"}
        return known.get(self.engine.device.name, self.engine.device.name)

    def step(self, number: int) -> StepOutcome | None:
        """Take a step, as `trainer.train.take_step`; the last one whose outcome is known."""
        return take_step(self.steps, self.loader, number)

    def train(self, steps: int) -> list[float]:
        """Take some steps; the losses of all steps so far."""
        outcomes = [self.step(len(self.losses) + i) for i in range(steps)]
        known = [step for step in (*outcomes, self.steps.finish()) if step]
        self.losses += [step.loss for step in known]
        self.rates += [step.lr for step in known]
        self.norms += [step.norm for step in known]
        times = [step.ms for step in known if step.ms is not None and step.warmed_up]
        if self.engine.device.is_gpu and times:
            print(f"{np.median(times):.2f} ms a step")
        return self.losses

    def sample(self, tokens: int = 200, prompt: str = "", temperature: float = 0.8) -> str:
        """Text that the model makes up; the same random numbers are drawn each time."""
        T = min(tokens + len(prompt) + 1, self.shape.context)
        program = build(self.shape, 1, T, training=False, fusions=self.program.fusions)
        trained = self.engine
        engine = Engine(program, trained.device, trained.real, trained.rungs, weights_of=trained)
        ids = generate(
            Predictor(engine, self.tokenizer.vocab),
            encode_prompt(self.tokenizer, prompt),
            tokens,
            temperature=temperature,
            top_k=0,
            rng=np.random.default_rng(1),
        )
        return prompt + "".join(decode_stream(self.tokenizer, ids))

    def counted(self) -> dict[str, float]:
        """The losses of a unigram model, which knows how often each token comes, and of a bigram
        model, which knows how often it follows each other token. Both are counted in the text
        itself, so that no such model has a lower loss."""
        V = self.shape.vocab
        pairs = np.bincount(self.text[:-1].astype(int) * V + self.text[1:], minlength=V * V)
        pairs = pairs.reshape(V, V) / pairs.sum()
        after, single = pairs / pairs.sum(axis=1, keepdims=True).clip(1e-30), pairs.sum(axis=0)
        return {
            "unigrams": -float(np.sum(single * _log(single))),
            "bigrams": -float(np.sum(pairs * _log(after))),
        }

    def activation_gradients(self) -> np.ndarray:
        """The magnitudes of all gradients of activations that a backward pass computes."""
        self.engine.forward()
        seen = []
        for call in self.program.backward:
            self.engine.bound[call]()
            for arg, array in zip(find(call.op).op.args, self.engine.arguments(call), strict=True):
                if arg.role != "in" and arg.dtype == REAL:
                    seen.append(np.abs(self.engine.device.download(array)).reshape(-1))
        return np.concatenate(seen)


def _log(p: np.ndarray) -> np.ndarray:
    """log p, and 0 where p is 0, so that such a token adds nothing to a mean."""
    return np.asarray(np.log(p, out=np.zeros_like(p), where=p > 0))


def start(
    shape: ModelConfig,
    B: int,
    T: int,
    kernels: Mapping[str, int | str] | None = None,
    device: str = "cpu",
    **settings: Any,
) -> Run:
    """A run on tinyshakespeare, letter by letter, or on the play where that cannot be downloaded.

    shape     without its vocabulary, which is the text's
    kernels   rungs, or sources of kernels, that run unchecked; the trainer would check them
    settings  of trainer.flags.Flags
    """
    defaults = {"tokenizer": "chars", "dtype": "fp32", "beta2": 0.99, "grad_clip": 1.0}
    defaults |= {"steps": STEPS, "schedule": "linear", "lr": 6e-3, "warmup": 20, "final_lr": 0.0}
    defaults |= {"rungs": "reference" if device == "cpu" else "naive"}
    data = os.environ.get(download.VARIABLE) or str(ROOT / "data")
    where = {"device": device, "data_dir": data, "batch": B, "sequence": T}
    return Run(Flags(**{**defaults, **where, **settings}), shape, kernels or {})
