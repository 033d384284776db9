"""From the settings of a run to everything that it needs, ready to train."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ladder.common.errors import LadderError
from ladder.common.files import atomic_write
from ladder.contract.device import Device
from ladder.contract.dtypes import DTYPES as DTYPE_OF
from trainer.data.datasets import TokenLoader, data_directory, prepare
from trainer.data.download import DownloadError
from trainer.data.tokenizers import GPT2Tokenizer, Tokenizer, get_tokenizer
from trainer.engine import fusion_choice, rung_choice
from trainer.engine.debug import watch_of
from trainer.engine.device_choice import open_for
from trainer.engine.engine import Engine
from trainer.engine.memory import refuse_what_does_not_fit
from trainer.model import checkpoint, weights
from trainer.model.model_config import ModelConfig
from trainer.model.program import Program, build
from trainer.model.tensor_file import Pieces
from trainer.run.resume import check_same, check_state, resume_step
from trainer.run.sample import Predictor, encode_prompt, forward_only
from trainer.settings.config import DTYPES, TrainConfig, resolve


@dataclass
class Setup:
    """All parts of a run. `step` is the first step to take: not 0 when resumed.

    notes   what is used instead of what was asked for, and why: a line each
    state   of the checkpoint that the run goes on from; None for a new run
    tokenizer is None where its vocabulary cannot be had, and predictor where no samples are taken
    """

    config: TrainConfig
    directory: Path
    device: Device
    real: np.dtype
    shape: ModelConfig
    program: Program
    engine: Engine
    choices: dict[str, rung_choice.Choice]
    data: str
    train: TokenLoader
    val: TokenLoader
    tokenizer: Tokenizer | None
    predictor: Predictor | None
    source: str
    notes: list[str]
    steps: int
    step: int = 0
    state: dict[str, Any] | None = None


@dataclass(frozen=True)
class Data:
    """What is trained on: patterns of token files, their tokenizer and its vocabulary."""

    name: str
    train: str
    val: str
    tokenizer: Tokenizer | None
    vocab: int
    note: str | None = None


def set_up(config: TrainConfig) -> Setup:
    """Open device, data, model and weights. Raises LadderError before anything is written."""
    device, config, notes = open_for(config)
    directory = run_directory(config)
    step = resume_step(config, directory)
    tensors, state = (None, None) if step is None else checkpoint.load(directory, step)
    if state is not None:
        check_state(state, directory)
    data = open_data(config, state)
    notes += [data.note] if data.note else []
    if state is None:
        data_dir = data_directory(config.data_dir)
        model = weights.open_model(
            config.model, vocab=data.vocab, seed=config.seed, data_dir=data_dir
        )
        notes += [model.note] if model.note else []
        shape, source = model.shape, model.source
    else:
        shape, source = weights.shape_of(tensors, state), f"checkpoint of step {step}"
    if data.vocab > shape.vocab:
        raise LadderError(
            f"the tokenizer has {data.vocab} tokens, beyond the model's {shape.vocab}; "
            "choose another --tokenizer or -e"
        )
    chosen_anew = config.rungs is not None
    config = resolve(config, device.kind, shape.context)
    before = None
    if state is not None:
        check_same(config, state)
        if state["device"] == device.kind and not chosen_anew:
            before = state["kernels"]
    train, val = open_loaders(config, data, shape.vocab)
    steps = config.steps if config.steps > 0 else max(1, train.tokens // config.total_tokens)
    if step is not None and step > steps:
        raise LadderError(f"-x {steps}: the checkpoint is of step {step}; choose -x {step} or more")

    real = DTYPE_OF[DTYPES[config.dtype]]

    def rebuild(B: int, fused: Collection[str] = ()) -> Program:
        return build(shape, B, config.sequence, fusions=fused, **config.program_options)

    refuse_what_does_not_fit(rebuild(config.batch), device, real, rebuild)
    build_fused = functools.partial(rebuild, config.batch)
    fused, slower = fusion_choice.choose(config, device, real, build_fused, before)
    notes += slower
    program = build_fused(fused)
    choices = rung_choice.choose(program.calls, config, device, real, before)
    chosen = {op: choice.rung for op, choice in choices.items()}
    rebuild_fused = functools.partial(rebuild, fused=fused)
    window = _window(config, data.tokenizer, shape)
    sampling = forward_only(shape, window, fused, config.recompute) if window else None
    refuse_what_does_not_fit(program, device, real, rebuild_fused, chosen, beside=sampling)
    engine = Engine(program, device, real, chosen, watch=watch_of(config))
    if tensors is None:
        load_parameters(engine, model.pieces)
    else:
        restore_tensors(engine, tensors)
        train.restore(state["train"])
    return Setup(
        config=config,
        directory=directory,
        device=device,
        real=real,
        shape=shape,
        program=program,
        engine=engine,
        choices=choices,
        data=data.name,
        train=train,
        val=val,
        tokenizer=data.tokenizer,
        predictor=_open_predictor(config, data.tokenizer, window, engine) if window else None,
        source=source,
        notes=notes,
        steps=steps,
        step=step or 0,
        state=state,
    )


def _window(config: TrainConfig, tokenizer: Tokenizer | None, shape: ModelConfig) -> int | None:
    """Tokens that a sample is taken from: prompt and sample. None where there are no samples."""
    if tokenizer is None or config.sample_every == 0:
        return None
    prompt = encode_prompt(tokenizer, config.prompt)
    return min(len(prompt) + config.sample_tokens, shape.context)


def _open_predictor(
    config: TrainConfig, tokenizer: Tokenizer, window: int, engine: Engine
) -> Predictor:
    """What samples are taken with: one row, and the weights that are trained."""
    return Predictor(
        engine.program.config,
        window,
        tokenizer.vocab,
        engine.device,
        engine.real,
        engine.rungs,
        fusions=engine.program.fusions,
        recompute=config.recompute,
        weights_of=engine,
    )


def run_directory(config: TrainConfig) -> Path:
    """Where the run's files go."""
    if config.output is not None:
        return Path(config.output)
    data = config.dataset if config.train_data is None else Path(config.train_data).parent.name
    return Path("runs") / f"{Path(config.model).stem}-{data or 'data'}"


def open_data(config: TrainConfig, state: Mapping[str, Any] | None = None) -> Data:
    """The token files named by -i and -j, or those prepared from --dataset. `state` is that of the
    checkpoint that a run goes on from, and with its tokenizer."""
    data_dir = data_directory(config.data_dir)
    before = state.get("tokenizer") if state else None
    name = config.tokenizer or before or weights.tokenizer_of(config.model)
    if config.train_data is None:
        found = prepare(config.dataset, data_dir, name)
        used = Path(
            found.train
        ).parent.name  # which is not config.dataset where that was not to be had
        vocab = found.tokenizer.vocab
        return Data(used, found.train, found.val, found.tokenizer, vocab, found.note)
    patterns = (config.train_data, config.train_data, config.val_data)
    try:
        tokenizer = get_tokenizer(name, data_dir)
    except DownloadError as error:
        if name != "gpt2":
            raise
        # The size of the vocabulary is known without the file, and only samples need the rest.
        note = f"{error}: there will be no text samples"
        return Data(*patterns, None, GPT2Tokenizer.vocab, note)
    return Data(*patterns, tokenizer, tokenizer.vocab)


def open_loaders(config: TrainConfig, data: Data, vocab: int) -> tuple[TokenLoader, TokenLoader]:
    """Batches for training and for validation. Overfitting takes the first batch of the latter, as
    in llm.c."""
    size = (config.batch, config.sequence)
    val = TokenLoader(data.val, *size, vocab=vocab, shuffle=False)
    if config.overfit:
        return TokenLoader(data.val, *size, vocab=vocab, shuffle=False), val
    shuffle, seed = config.shuffle, config.seed
    return TokenLoader(data.train, *size, vocab=vocab, shuffle=shuffle, seed=seed), val


def load_parameters(engine: Engine, pieces: Pieces) -> None:
    """Write a model's weights into the engine, piece by piece."""
    for name, layer, array in pieces:
        engine.write(name, array, layer)


# Beside a master copy, the 16-bit weight that was rounded from it at random.
ROUNDED = ".rounded"


def kept(program: Program) -> list[str]:
    """What a checkpoint holds: a parameter as its float32 master copy, if it has one, and two
    moments."""
    return [name + suffix for name in program.parameters for suffix in ("", ".m", ".v")]


def restore_tensors(engine: Engine, tensors: Mapping[str, np.ndarray]) -> None:
    """Put back what a checkpoint holds."""
    for name in kept(engine.program):
        if name not in tensors:
            raise LadderError(f"the checkpoint has no {name}: it is not of a training run")
        engine.write(name, tensors[name])
        if name + ROUNDED in tensors:
            engine.device.upload(engine.arrays[name], tensors[name + ROUNDED])


def _tensors(setup: Setup) -> dict[str, Callable[[], np.ndarray]]:
    """What `restore_tensors` puts back; every weight is there in float32, whatever its type."""
    engine, config = setup.engine, setup.config
    wide = functools.partial(np.asarray, dtype=np.float32)
    tensors = {name: (lambda name=name: wide(engine.read(name))) for name in kept(engine.program)}
    if config.stochastic_rounding and config.master_weights:
        for name in engine.program.parameters:
            weight = engine.arrays[name]
            tensors[name + ROUNDED] = functools.partial(engine.device.download, weight)
    return tensors


def save_checkpoint(setup: Setup, step: int, state: dict[str, Any]) -> Path:
    """Write a checkpoint of the moment before step `step`; `state` is what the loop adds."""
    state = {
        **weights.state_of(setup.shape),
        "config": asdict(setup.config),
        "tokenizer": setup.tokenizer.name if setup.tokenizer else None,
        "device": setup.device.kind,
        "kernels": {**rung_choice.record(setup.choices), "fusions": setup.program.fusions},
        "train": setup.train.state(),
        **state,
    }
    keep, major_every = setup.config.keep, setup.config.major_every
    return checkpoint.save(
        setup.directory, step, _tensors(setup), state, keep=keep, major_every=major_every
    )


def write_record(setup: Setup) -> None:
    """config.json and rungs.json in the run's folder: what was asked for, resolved."""
    for name, content in (
        ("config.json", {**asdict(setup.config), "weights": setup.source, "notes": setup.notes}),
        ("rungs.json", rung_choice.as_json(setup.choices)),
    ):
        with atomic_write(setup.directory / name) as file:
            file.write((json.dumps(content, indent=1) + "\n").encode())
