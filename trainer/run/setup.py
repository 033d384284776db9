"""Opens everything that a run needs: device, data, model, kernels, checkpoint."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.common.files import atomic_write
from ladder.core.contract.collectives import Communicator
from ladder.core.contract.device import Device
from trainer.data.benchmarks import prepare_benchmark
from trainer.data.datasets import TokenLoader, data_directory, play_instead, prepare
from trainer.data.download import DownloadError
from trainer.data.multiple_choice import Example
from trainer.data.random_offsets import Loader, RandomOffsetLoader
from trainer.data.token_files import count_tokens, find_shards, pair_of
from trainer.data.tokenizers import GPT2Tokenizer, Tokenizer, get_tokenizer
from trainer.engine import rung_choice
from trainer.engine.debug import watch_of
from trainer.engine.device_choice import open_for
from trainer.engine.engine import Engine
from trainer.engine.kernels import Kernels, choose, follow
from trainer.engine.memory import refuse_what_does_not_fit
from trainer.model import checkpoint, weights
from trainer.model.model_config import ModelConfig
from trainer.model.program import Program, build
from trainer.model.sharding import Sharding
from trainer.model.tensor_file import Pieces
from trainer.parallel.group import ALONE, Group, HostSums, Ranks
from trainer.run.evaluation import note_on_length
from trainer.run.resume import check_same, check_state, resume_step
from trainer.run.sample import Predictor, encode_prompt, forward_only
from trainer.run.schedule import note_on_warmup
from trainer.settings.config import Place, TrainConfig, resolve_run
from trainer.settings.flags import Flags
from trainer.settings.kernel_settings import KernelSettings, resolve_kernels


@dataclass
class Setup:
    """All parts of a run. `step` is the first step to take: not 0 when resumed.

    notes        what is used instead of what was asked for, and why: a line each
    group        the processes that train together
    peers        by which their devices exchange arrays; None where there is one process
    train_split  the training text in order, for --eval-train; None without it
    tokenizer    None where its vocabulary is not available
    predictor    None where no samples are taken, which rank 0 does
    examples     those of HellaSwag, where it is evaluated
    state        of the checkpoint that the run goes on from; None for a new run
    """

    config: TrainConfig
    group: Group
    peers: Communicator | None
    device: Device
    shape: ModelConfig
    kernels: Kernels
    engine: Engine
    train: Loader
    val: TokenLoader
    train_split: TokenLoader | None
    tokenizer: Tokenizer | None
    predictor: Predictor | None
    examples: Sequence[Example]
    source: str
    notes: list[str]
    step: int = 0
    state: dict[str, Any] | None = None

    @property
    def directory(self) -> Path:
        return Path(self.config.output)

    @property
    def sharding(self) -> Sharding:
        """Which rank this is, and how the ranks share the update."""
        return sharding_of(self.group, self.config.zero, self.config.overlap)

    def close(self) -> None:
        """Take down what the ranks made together: first the graphs, which use the group."""
        if self.peers is not None:
            self.engine.close()
            self.peers.close()


@dataclass(frozen=True)
class Data:
    """What is trained on: patterns of token files, and the vocabulary of their tokenizer, which is
    None where only its name is known."""

    name: str
    train: str
    val: str
    tokenizer_name: str
    tokenizer: Tokenizer | None
    vocab: int
    note: str | None = None


@dataclass(frozen=True)
class Resumed:
    """The checkpoint that a run goes on from."""

    step: int
    tensors: checkpoint.CheckedTensors
    state: dict[str, Any]


def set_up(flags: Flags, group: Group = ALONE) -> Setup:
    """Open device, data, model and weights. Raises LadderError before anything is written."""
    name, seed = flags.value("model"), flags.value("seed")
    local_rank = group.local_rank if group.size > 1 else None
    device, place, notes = open_for(flags.device, flags.dtype, name, local_rank)
    group.agree("the device", [device.kind, place.dtype])
    wanted = resolve_kernels(flags, place)
    output = run_directory(flags)
    resumed = find_checkpoint(flags, output, group)
    data_dir = data_directory(flags.data_dir)
    pieces: Pieces = ()
    with group.machine_by_machine("data and weights"):
        trained_on = weights.tokenizer_in(resumed.state) if resumed else None
        data = open_data(flags, data_dir, trained_on)
        notes += [data.note] if data.note else []
        examples, lack = open_examples(flags, data, data_dir)
        notes += lack
        if resumed is None:
            model = weights.open_model(name, vocab=data.vocab, seed=seed, data_dir=data_dir)
            notes += [model.note] if model.note else []
            shape, source, pieces = model.shape, model.source, model.pieces
        else:
            shape = weights.shape_of(resumed.tensors, resumed.state)
            source = f"checkpoint of step {resumed.step}"
    if data.vocab > shape.vocab:
        raise LadderError(
            f"the tokenizer has {data.vocab} tokens, beyond the model's {shape.vocab}; "
            "choose another --tokenizer or -e"
        )
    group.agree("the number of HellaSwag's examples", len(examples))
    config = resolve(flags, place, data, shape.context, data_dir, output, group.size)
    before = None
    if resumed is not None:
        check_same(config, resumed.state)
        if resumed.step > config.steps:
            raise LadderError(
                f"-x {config.steps}: the checkpoint is of step {resumed.step}; "
                f"choose -x {resumed.step} or more"
            )
        if resumed.state["device"] == device.kind and flags.rungs is None:
            before = resumed.state["kernels"]
    notes += note_on_length(examples, config.sequence)
    notes += note_on_warmup(config)
    group.progress("the opening of the data")
    train, val, train_split = open_loaders(config, shape.vocab, group.rank)
    group.agree("the model", [source, asdict(shape)])
    group.agree("the training data", train.state())
    group.agree("the validation data", val.state())
    sharding = sharding_of(group, config.zero, config.overlap)

    def rebuild(B: int, fused: Collection[str] = ()) -> Program:
        options = config.program_options
        return build(shape, B, config.sequence, fusions=fused, sharding=sharding, **options)

    # Once before kernels are compared, which takes a while and after which other ranks may have
    # taken their memory, and once with the scratch memory of the kernels.
    refuse_what_does_not_fit(
        rebuild(config.batch), device, config.real, rebuild, sharers=group.local_size
    )
    build_fused = functools.partial(rebuild, config.batch)
    kernels = choose_together(group, wanted, device, build_fused, before=before)
    notes += kernels.notes
    window = _window(config, data.tokenizer, shape) if group.leads else None
    sampling = None
    if window is not None:
        sampling = forward_only(shape, window, kernels.program.fusions, config.recompute)
    rebuild_fused = functools.partial(rebuild, fused=kernels.program.fusions)
    refuse_what_does_not_fit(
        kernels.program, device, config.real, rebuild_fused, kernels.rungs, lambda B: sampling
    )
    group.progress("the set-up of the engine")
    peers = open_communicator(device, group, config.exchange, sharding)
    engine = Engine(
        kernels.program,
        device,
        config.real,
        kernels.rungs,
        watch=watch_of(config.debug_nan, config.debug_sync),
        peers=peers,
        told=group.working,
    )
    predictor = None
    if sampling is not None and data.tokenizer is not None:
        run_sampling = Engine(sampling, device, config.real, kernels.rungs, weights_of=engine)
        predictor = Predictor(run_sampling, data.tokenizer.vocab)
    if resumed is None:
        load_parameters(engine, pieces, group)
    else:
        restore_tensors(engine, resumed.tensors, group)
        train.restore(resumed.state["train"])
    return Setup(
        config=config,
        group=group,
        peers=peers,
        device=device,
        shape=shape,
        kernels=kernels,
        engine=engine,
        train=train,
        val=val,
        train_split=train_split,
        tokenizer=data.tokenizer,
        predictor=predictor,
        examples=examples,
        source=source,
        notes=notes,
        step=resumed.step if resumed else 0,
        state=resumed.state if resumed else None,
    )


def sharding_of(group: Group, zero: int, overlap: bool) -> Sharding:
    """Which rank of a group this is, and how its ranks share the update."""
    return Sharding(group.rank, group.size, zero, overlap)


def choose_together(
    group: Group,
    wanted: KernelSettings,
    device: Device,
    build: Callable[[Collection[str]], Program],
    **how: Any,
) -> Kernels:
    """The kernels that rank 0 chooses for all. `how`: what else `choose` takes."""
    group.progress("the choice of kernels")
    if group.leads:
        kernels = choose(wanted, device, build, told=group.working, **how)
        group.share("the kernels", kernels.describe())
    else:
        kernels = follow(group.share("the kernels"), wanted, build)
    group.progress(None)
    return kernels


def open_communicator(
    device: Device, group: Group, exchange: str, sharding: Sharding
) -> Communicator | None:
    """By which the devices of a group exchange arrays: our kernels, the vendor's library, or the
    host itself where arrays are the host's. None for a process alone.

    exchange  "p2p": kernels that reach the memory of all devices; "nccl"; "auto": p2p where that is
              possible, since it was faster

    Raises LadderError where the ranks cannot exchange so.
    """
    if not isinstance(group, Ranks):
        return None
    if (processes := device.processes) is None:
        return HostSums(group)
    if exchange != "nccl":
        try:
            if group.local_size < group.size:
                raise LadderError("--exchange p2p: the ranks are on several machines")
            return processes.join_p2p(group.exchange, group.rank, group.size, sharding.overlaps)
        except LadderError:
            if exchange == "p2p":
                raise
    made = processes.new_group() if group.leads else None
    name = group.exchange("the name of the devices' group", made or b"")[0]
    return processes.join_group(name, group.rank, group.size)


def resolve(
    flags: Flags,
    place: Place,
    data: Data,
    context: int,
    data_dir: Path,
    output: Path,
    ranks: int = 1,
) -> TrainConfig:
    """The settings of a run on this data; `context`: the model's. Raises LadderError."""
    return resolve_run(
        flags,
        place,
        context=context,
        dataset=data.name,
        train_data=data.train,
        val_data=data.val,
        tokens=count_tokens(data.val if flags.overfit else data.train),
        tokenizer=data.tokenizer_name,
        data_dir=str(data_dir),
        output=str(output),
        ranks=ranks,
    )


def _window(config: TrainConfig, tokenizer: Tokenizer | None, shape: ModelConfig) -> int | None:
    """Tokens that a sample is taken from: prompt and sample. None where there are no samples."""
    if tokenizer is None or config.sample_every == 0:
        return None
    prompt = encode_prompt(tokenizer, config.prompt)
    return min(len(prompt) + config.sample_tokens, shape.context)


def find_checkpoint(flags: Flags, directory: Path, group: Group = ALONE) -> Resumed | None:
    """The checkpoint in the run's folder that it goes on from; None to start anew. Rank 0 looks
    for it, and every rank reads it."""
    found = resume_step(bool(flags.resume), directory) if group.leads else None
    step: int | None = group.share("the checkpoint", found)
    if step is None:
        return None
    tensors, state = checkpoint.load(directory, step)
    check_state(state, directory)
    return Resumed(step, tensors, state)


def with_available_text(flags: Flags) -> tuple[Flags, list[str]]:
    """Flags of the text that is trained on, which are others, with a note, where tinyshakespeare
    cannot be downloaded: a run is named for its text."""
    if flags.train_data is None and flags.val_data is None:
        note = play_instead(flags.value("dataset"), data_directory(flags.data_dir))
        if note is not None:
            return dataclasses.replace(flags, dataset="play", tokenizer="bytes"), [note]
    return flags, []


def run_directory(flags: Flags) -> Path:
    """Where the run's files go."""
    if flags.output is not None:
        return Path(flags.output)
    data = Path(flags.value("dataset")).stem
    if named := flags.train_data or flags.val_data:
        data = Path(named).parent.name or "data"
    return Path("runs") / f"{Path(flags.value('model')).stem}-{data}"


def open_data(flags: Flags, data_dir: Path, before: str | None = None) -> Data:
    """The token files named by -i and -j, or those prepared from --dataset. `before`: the name of
    the tokenizer of the checkpoint that a run goes on from, and with its tokenizer."""
    name = flags.tokenizer or before or weights.tokenizer_of(flags.value("model"))
    if flags.train_data is None and flags.val_data is None:
        found = prepare(flags.value("dataset"), data_dir, name)
        used = Path(found.train).parent.name  # another one if --dataset could not be downloaded
        made_by = found.tokenizer
        return Data(used, found.train, found.val, made_by.name, made_by, made_by.vocab, found.note)
    train, val = _token_files(flags)
    patterns = (train, train, val)
    try:
        tokenizer = get_tokenizer(name, data_dir)
    except DownloadError as error:
        if name != "gpt2":
            raise
        # The size of the vocabulary is known without the file, and only samples need the rest.
        note = f"{error}: there will be no text samples"
        return Data(*patterns, name, None, GPT2Tokenizer.vocab, note)
    return Data(*patterns, name, tokenizer, tokenizer.vocab)


def _token_files(flags: Flags) -> tuple[str, str]:
    """The patterns of -i and -j; where one is missing, the other split of the same set."""
    splits = {"train": ("-i", flags.train_data), "val": ("-j", flags.val_data)}
    patterns = []
    for split, other in (("train", "val"), ("val", "train")):
        (flag, pattern), (given, named) = splits[split], splits[other]
        if pattern is None and named is not None:
            find_shards(named)  # where there are none, that is the error
            pattern = pair_of(named, other, split)
        if pattern is None:
            raise LadderError(
                f"{given} {named}: there are no {split} files of the same name; {flag} must name "
                "the matching ones as well"
            )
        patterns.append(pattern)
    return patterns[0], patterns[1]


def open_examples(flags: Flags, data: Data, data_dir: Path) -> tuple[Sequence[Example], list[str]]:
    """HellaSwag's examples where `-h 1` asks for them; none, and a note, where they are not here
    and cannot be downloaded."""
    if not flags.value("hellaswag"):
        return (), []
    try:
        _, examples = prepare_benchmark(
            "hellaswag", data.tokenizer_name, data_dir, vocab=data.vocab
        )
    except DownloadError as error:
        return (), [f"HellaSwag is not evaluated: {error}"]
    return examples, []


def open_loaders(
    config: TrainConfig, vocab: int, rank: int = 0
) -> tuple[Loader, TokenLoader, TokenLoader | None]:
    """Batches for training, for validation, and with --eval-train those of the training text in
    order. Overfitting takes the first batch of validation, as in llm.c, on all ranks."""
    turns: dict[str, Any] = {"vocab": vocab, "rank": rank, "ranks": config.ranks}
    size = config.batch, config.sequence

    def for_training() -> Loader:
        data, seed = config.train_data, config.seed
        if config.overfit:
            return TokenLoader(config.val_data, *size, vocab=vocab, shuffle=False)
        if config.random_offsets:
            return RandomOffsetLoader(data, *size, seed=seed, **turns)
        shuffle, llmc_order = config.shuffle, config.llmc_order
        return TokenLoader(data, *size, shuffle=shuffle, seed=seed, llmc_order=llmc_order, **turns)

    val = TokenLoader(config.val_data, *size, shuffle=False, **turns)
    train_split = None
    if config.eval_train:
        train_split = TokenLoader(config.train_data, *size, shuffle=False, **turns)
    return for_training(), val, train_split


def load_parameters(engine: Engine, pieces: Pieces, group: Group = ALONE) -> None:
    """Write a model's weights into the engine, piece by piece."""
    for name, layer, array in pieces:
        group.working(f"{name} of the weights")
        engine.write(name, array, layer)


# Beside a master copy, the 16-bit weight that was rounded from it at random.
ROUNDED = ".rounded"


def kept(program: Program) -> list[str]:
    """What a checkpoint holds: a parameter as its float32 master copy, if it has one, and two
    moments."""
    return [name + suffix for name in program.parameters for suffix in ("", ".m", ".v")]


def restore_tensors(
    engine: Engine, tensors: Mapping[str, np.ndarray], group: Group = ALONE
) -> None:
    """Put back what a checkpoint holds."""
    for name in kept(engine.program):
        group.working(f"{name} of the checkpoint")
        if name not in tensors:
            raise LadderError(f"the checkpoint has no {name}: it is not of a training run")
        engine.write(name, tensors[name])
        if name + ROUNDED in tensors:
            engine.write_stored(name, tensors[name + ROUNDED])


def _tensors(setup: Setup) -> dict[str, Callable[[], np.ndarray]]:
    """What `restore_tensors` puts back; every weight is there in float32, whatever its type.

    Of a tensor that ranks share, every rank gives its pieces, and must call the function."""
    engine, config, group = setup.engine, setup.config, setup.group
    vector = engine.program.vector
    shapes = setup.shape.parameter_shapes()
    masters = config.master_weights and engine.real.itemsize < 4

    def read(name: str) -> np.ndarray:
        return np.asarray(engine.read(name), np.float32)

    def gather(name: str, parameter: str) -> np.ndarray:
        own = read(name).reshape(-1)
        whole = np.empty(math.prod(shapes[parameter]) if group.leads else 0, np.float32)
        for rank, found in enumerate(group.gather(name, own)):
            assert vector is not None
            for piece, _ in vector.pieces(rank, parameter):
                whole[piece.first : piece.first + piece.count] = found[: piece.count]
                found = found[piece.count :]
        return whole.reshape(shapes[parameter]) if group.leads else own

    tensors: dict[str, Callable[[], np.ndarray]] = {}
    for name in kept(engine.program):
        parameter = name.split(".")[0]
        if setup.sharding.cuts and (masters or name != parameter):
            source = name + ".master" if name == parameter else name
            tensors[name] = functools.partial(gather, source, parameter)
        else:  # whole on every rank, as is a weight without a master copy
            tensors[name] = functools.partial(read, name)
    if config.stochastic_rounding and config.master_weights:
        for name in engine.program.parameters:
            tensors[name + ROUNDED] = functools.partial(engine.read_stored, name)
    return tensors


def _settings(setup: Setup) -> dict[str, Any]:
    """All settings of a run, those of its kernels among them, as its files keep them."""
    return {**asdict(setup.config), **setup.kernels.settings.record()}


def save_checkpoint(setup: Setup, step: int, state: dict[str, Any]) -> Path | None:
    """Write a checkpoint of the moment before step `step`; `state` is what the loop adds. Rank 0
    writes; the others give it what they have, and return None."""

    def telling(name: str, read: Callable[[], np.ndarray]) -> np.ndarray:
        setup.group.working(f"{name} of the checkpoint of step {step}")
        return read()

    tensors = {n: functools.partial(telling, n, read) for n, read in _tensors(setup).items()}
    if not setup.group.leads:
        for give in tensors.values():
            give()
        return None
    state = {
        **weights.state_of(setup.shape),
        "config": _settings(setup),
        "tokenizer": setup.tokenizer.name if setup.tokenizer else None,
        "device": setup.device.kind,
        "kernels": setup.kernels.record(),
        "train": setup.train.state(),
        **state,
    }
    keep, major_every = setup.config.keep, setup.config.major_every
    return checkpoint.save(
        setup.directory, step, tensors, state, keep=keep, major_every=major_every
    )


def write_record(setup: Setup) -> None:
    """config.json and rungs.json in the run's folder: what was asked for, resolved."""
    for name, content in (
        ("config.json", {**_settings(setup), "weights": setup.source, "notes": setup.notes}),
        ("rungs.json", rung_choice.as_json(setup.kernels.choices)),
    ):
        with atomic_write(setup.directory / name) as file:
            file.write((json.dumps(content, indent=1) + "\n").encode())
