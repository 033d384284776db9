"""One way from flags to a model that is ready to run.

    machine = open_machine(flags)                    the device, the type, the kernels asked for
    kernels = machine.choose(build, B)               fusions, and a rung for every op
    engine = machine.engine(kernels, build, pieces)  memory, bound calls, weights

Every command takes these three steps; its `build` says which program it runs. `open_run` takes them
for a training run, and opens its data, its checkpoint and the way to the other ranks beside them;
`run_in_folder` keeps other runs out of its folder meanwhile.
"""

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ladder.core.common.errors import DeviceFault, LadderError
from ladder.core.common.files import alone_in
from ladder.core.contract.device import Communicator, Device
from ladder.core.contract.rung_file import Rung
from ladder.core.device.open import GPUS, default_gpu, open_device
from trainer.data import training_data
from trainer.data.download import data_directory
from trainer.data.multiple_choice import Example
from trainer.data.token_files import Loader, TokenLoader
from trainer.data.tokenizers import Tokenizer
from trainer.engine.engine import Engine, watch_of
from trainer.engine.generation import Predictor, encode_prompt
from trainer.engine.kernel_settings import KernelSettings, resolve_kernels
from trainer.engine.kernels import Kernels, choose
from trainer.engine.memory import refuse_what_does_not_fit
from trainer.engine.rung_choice import as_recorded
from trainer.engine.scoring import note_on_length
from trainer.engine.steps import Steps, note_on_warmup
from trainer.files import checkpoint, kept_model, resume, trackers, weights
from trainer.files.resume import Resumed
from trainer.files.tensor_file import Pieces
from trainer.flags import DEFAULT_DTYPE, DeviceChoice, Flags, StepConfig, TrainConfig, resolve_run
from trainer.model.model_config import ModelConfig
from trainer.model.program import Program, build
from trainer.model.sharding import Sharding
from trainer.ranks.group import ALONE, Group, open_communicator

Build = Callable[[int, Collection[str]], Program]  # of B, and the names of fusions


@dataclass(frozen=True)
class Machine:
    """Where a command computes, and by which kernels it is asked to.

    notes  what is used instead of a default, and why: a line each
    group  the processes that compute together
    """

    device: Device
    choice: DeviceChoice
    wanted: KernelSettings
    notes: Sequence[str]
    group: Group = ALONE

    def naming(self, rungs: Mapping[str, str]) -> "Machine":
        """The same, but for the rungs that --rung names."""
        return replace(self, wanted=replace(self.wanted, rung=rungs))

    def choose(self, build: Build, B: int, before: Mapping[str, Any] | None = None) -> Kernels:
        """The kernels that the flags ask for, or that a checkpoint records in `before`. Rank 0
        chooses for all."""
        group, build_fused = self.group, functools.partial(build, B)
        group.progress("the choice of kernels")
        if group.leads:
            kernels = choose(self.wanted, self.device, build_fused, before, group.working)
            group.share("the kernels", kernels.record())
        else:
            chosen = group.share("the kernels")
            program, choices = build_fused(chosen["fusions"]), as_recorded(chosen)
            kernels = Kernels(program, choices, self.wanted, [])
        group.progress(None)
        return kernels

    def engine(
        self,
        kernels: Kernels,
        build: Build,
        pieces: Pieces = (),
        *,
        rungs: Mapping[str, Rung] | None = None,
        beside: Callable[[int], Program | None] = lambda B: None,
        takes: Collection[str] = ("-b", "-t"),
        **options: Any,
    ) -> Engine:
        """An engine of the chosen program, with these weights.

        rungs          instead of the chosen ones
        beside, takes  as in `refuse_what_does_not_fit`, which raises LadderError
        options        what else `Engine` takes
        """
        program, real, rungs = kernels.program, self.choice.real, rungs or kernels.rungs

        def rebuild(B: int) -> Program:
            return build(B, program.fusions)

        refuse_what_does_not_fit(
            program, self.device, real, rebuild, rungs, beside=beside, takes=takes
        )
        working = self.group.working
        engine = Engine(program, self.device, real, rungs, on_progress=working, **options)
        for name, layer, array in pieces:
            working(f"{name} of the weights")
            engine.write(name, array, layer)
        return engine


def builder(shape: ModelConfig, T: int, **options: Any) -> Build:
    """The programs of a model with T tokens a row; `options`: what else `build` takes."""
    return lambda B, fusions: build(shape, B, T, fusions=fusions, **options)


def open_machine(flags: Flags, group: Group = ALONE) -> Machine:
    """The device that the flags name, or the default one; of several ranks, each its own."""
    local_rank = group.local_rank if group.size > 1 else None
    device, choice, notes = open_for(flags.device, flags.dtype, local_rank)
    group.agree("the device", [device.kind, choice.dtype])
    return Machine(device, choice, resolve_kernels(flags, choice), notes, group)


def of_newest_run(flags: Flags) -> Flags:
    """The same flags; without -e, those of the newest run that has left a model. What is used is
    said."""
    if flags.model is not None:
        return flags
    runs = kept_model.newest()
    if not runs:
        print(f"[-e {flags.value('model')}; no run in runs/ has left a model]", file=sys.stderr)
        return flags
    others = "".join(f", {run}" for run in runs[1:])
    print(f"[-e {runs[0]}{f'; there are also{others[1:]}' if others else ''}]", file=sys.stderr)
    return replace(flags, model=str(runs[0]))


@dataclass
class Run:
    """All parts of a training run.

    notes        what is used instead of what was asked for, and why: a line each
    group        the processes that train together
    peers        by which their devices exchange arrays; None where there is one process
    train_split  the training text in order, for --eval-train; None without it
    typed        what was typed, for config.json
    tokenizer    None where its vocabulary is not available
    predictor    None where no samples are taken, which rank 0 does
    examples     those of HellaSwag, where it is evaluated
    keeps_model  whether it leaves its model; of another architecture than GPT-2's it cannot
    saved        the step of the checkpoint that it goes on from; None for a new run
    """

    config: TrainConfig
    group: Group
    peers: Communicator | None
    device: Device
    shape: ModelConfig
    sharding: Sharding
    kernels: Kernels
    engine: Engine
    steps: Steps
    train: Loader
    val: TokenLoader
    train_split: TokenLoader | None
    tokenizer: Tokenizer | None
    predictor: Predictor | None
    examples: Sequence[Example]
    source: str
    notes: list[str]
    typed: Mapping[str, Any]
    keeps_model: bool
    saved: int | None

    @property
    def directory(self) -> Path:
        return Path(self.config.output)

    @property
    def settings(self) -> dict[str, Any]:
        """All settings, those of the kernels among them, as the run's files keep them."""
        return {**asdict(self.config), **self.kernels.settings.record()}

    def save(self, step: int) -> Path | None:
        """Write a checkpoint of the moment before `step`. Rank 0 writes; the others give it what
        they have, and return None."""
        tensors = resume.tensors_of(self.engine, self.config, self.group, step)
        if not self.group.leads:
            for give in tensors.values():
                give()
            return None
        state = {
            **weights.state_of(self.shape),
            "config": self.settings,
            "tokenizer": self.tokenizer.name if self.tokenizer else None,
            "device": self.device.kind,
            "kernels": self.kernels.record(),
            "train": self.train.state(),
            "stepper": self.steps.state(),
        }
        keep, major_every = self.config.keep, self.config.major_every
        return checkpoint.save(
            self.directory, step, tensors, state, keep=keep, major_every=major_every
        )

    def keep_model(self) -> Path | None:
        """Write the model as it is now. Rank 0 writes; the others give what they have."""
        tensors = resume.tensors_of(self.engine, self.config, self.group, self.config.steps)
        if not self.group.leads or self.tokenizer is None:
            for name in self.shape.parameters():
                tensors[name]()
            return None
        return kept_model.keep(
            self.directory, self.shape, lambda name: tensors[name](), self.tokenizer
        )

    def close(self) -> None:
        """Take down what the ranks made together: first the graphs, which use the group."""
        if self.peers is not None:
            self.engine.close()
            self.peers.close()


@contextlib.contextmanager
def run_in_folder(flags: Flags, group: Group = ALONE) -> Iterator[Run]:
    """A run that has its folder to itself, from before anything there is read: another run may
    delete checkpoints. A fault of the GPU is explained by the checkpoint that is left."""
    if group.leads:
        resume.check_directory(resume.run_directory(flags))
        trackers.require(flags.value("report_to"))
    with group.machine_by_machine("the text"):
        flags, notes = training_data.with_available_text(flags)
    folder = resume.run_directory(flags)
    with alone_in(folder) if group.leads else contextlib.nullcontext():
        run = open_run(flags, group)
        run.notes[:0] = notes
        left = functools.partial(resume.how_to_go_on, folder, run.config.checkpoint_every)
        group.advise(left)
        try:
            yield run
        except DeviceFault as error:
            named = run.config.debug_sync or not run.device.asynchronous
            more = "" if named else "; --debug-sync names the op at fault"
            apart = "\n" if "\n" in str(error) else "; "  # the emulator quotes the kernel's line
            raise DeviceFault(f"{error}{apart}{left()}{more}") from None
        run.close()


def open_run(flags: Flags, group: Group = ALONE) -> Run:
    """Open device, data, model and weights. Raises LadderError before anything is written."""
    machine = open_machine(flags, group)
    output, data_dir = resume.run_directory(flags), data_directory(flags.data_dir)
    resumed = resume.find_checkpoint(flags, output, group)
    with group.machine_by_machine("data and weights"):
        data, model, examples, notes = _open_files(flags, data_dir, resumed)
    shape = model.shape
    config = resolve_run(
        flags,
        machine.choice,
        context=shape.context,
        tokens=data.count(overfit=bool(flags.overfit)),
        ranks=group.size,
        **data.names,
        data_dir=str(data_dir),
        output=str(output),
    )
    if resumed is not None:
        resume.check_same(config, resumed)
    group.progress("the opening of the data")
    train, val, train_split = training_data.open_loaders(
        config, shape.vocab, group.rank, data.parts
    )
    group.agree("the number of HellaSwag's examples", len(examples))
    group.agree("the model", [model.source, asdict(shape)])
    group.agree("the training data", train.state())
    group.agree("the validation data", val.state())
    sharding = Sharding(group.rank, group.size, config.zero, config.overlap)
    build_at = functools.partial(build_step, shape, config, sharding)
    kernels = _choose_kernels(machine, flags, config, build_at, resumed)
    sampling = _sampling_program(shape, config, kernels, data.tokenizer) if group.leads else None
    group.progress("the set-up of the engine")
    peers = open_communicator(machine.device, group, config.exchange, sharding.overlaps)
    watch = watch_of(config.debug_nan, config.debug_sync)
    engine = machine.engine(
        kernels, build_at, model.pieces, beside=lambda B: sampling, watch=watch, peers=peers
    )
    predictor = None
    if sampling is not None:
        run_sampling = Engine(
            sampling, machine.device, config.real, kernels.rungs, weights_of=engine
        )
        predictor = Predictor(run_sampling, data.vocab)
    steps = Steps(config, engine, group)
    if resumed is not None:
        resume.restore_tensors(engine, resumed.tensors, group)
        steps.restore(resumed.state["stepper"])
        train.restore(resumed.state["train"])
    notes += [*note_on_length(examples, config.sequence), *note_on_warmup(config), *kernels.notes]
    before = resumed.state["config"] if resumed else weights.settings_of(Path(config.model))
    notes += resume.note_on_changes(config, before, config.output if resumed else config.model)
    readable = shape.hugging_face is not None and data.tokenizer is not None
    return Run(
        config=config,
        group=group,
        peers=peers,
        device=machine.device,
        shape=shape,
        sharding=sharding,
        kernels=kernels,
        engine=engine,
        steps=steps,
        train=train,
        val=val,
        train_split=train_split,
        tokenizer=data.tokenizer,
        predictor=predictor,
        examples=examples,
        source=model.source,
        notes=[*machine.notes, *notes],
        typed=flags.typed,
        keeps_model=config.keep_model and group.share("whether the model is kept", readable),
        saved=resumed.step if resumed else None,
    )


def _open_files(
    flags: Flags, data_dir: Path, resumed: Resumed | None
) -> tuple[training_data.Data, weights.Model, Sequence[Example], list[str]]:
    """The text, the model, the examples of HellaSwag, and notes on what is used instead of them."""
    name = flags.value("model")
    trained_on = weights.tokenizer_in(resumed.state) if resumed else None
    tokenizer = flags.tokenizer or trained_on or weights.tokenizer_of(name)
    data = training_data.open_data(flags, data_dir, tokenizer)
    examples, lack = training_data.open_examples(flags, data, data_dir)
    if resumed is None:
        seed = flags.value("seed")
        model = weights.open_model(name, vocab=data.vocab, seed=seed, data_dir=data_dir)
    else:
        shape = weights.shape_of(resumed.tensors, resumed.state)
        model = weights.Model(shape, (), f"checkpoint of step {resumed.step}")
    if data.vocab > model.shape.vocab:
        raise LadderError(
            f"the tokenizer has {data.vocab} tokens, beyond the model's {model.shape.vocab}; "
            "choose another --tokenizer or -e"
        )
    return data, model, examples, [note for note in (data.note, *lack, model.note) if note]


def _choose_kernels(
    machine: Machine, flags: Flags, config: TrainConfig, build_at: Build, resumed: Resumed | None
) -> Kernels:
    """The kernels of a run: those of the checkpoint, unless --rungs names others."""
    # Before kernels are compared, which takes a while, and after which other ranks may have taken
    # their memory. `machine.engine` looks again, and counts the scratch memory of the kernels.
    refuse_what_does_not_fit(
        build_at(config.batch, ()),
        machine.device,
        config.real,
        lambda B: build_at(B, ()),
        sharers=machine.group.local_size,
    )
    before = None
    if resumed is not None and flags.rungs is None:
        same_device = resumed.state["device"] == machine.device.kind
        before = resumed.state["kernels"] if same_device else None
    return machine.choose(build_at, config.batch, before=before)


def _sampling_program(
    shape: ModelConfig, config: TrainConfig, kernels: Kernels, tokenizer: Tokenizer | None
) -> Program | None:
    """What draws the samples of a run; None where it takes none."""
    if tokenizer is None or config.sample_every == 0:
        return None
    window = min(len(encode_prompt(tokenizer, config.prompt)) + config.sample_tokens, shape.context)
    fusions, recompute = kernels.program.fusions, config.recompute
    return build(shape, 1, window, training=False, fusions=fusions, recompute=recompute)


def build_step(
    shape: ModelConfig, config: StepConfig, sharding: Sharding, B: int, fusions: Collection[str]
) -> Program:
    options = config.program_options
    return build(shape, B, config.sequence, fusions=fusions, sharding=sharding, **options)


def open_for(
    name: str | None, dtype: str | None, local_rank: int | None = None
) -> tuple[Device, DeviceChoice, list[str]]:
    """The device of a run, what the settings say of it, and notes: what is used instead of what
    would be the default, and why.

    name, dtype  as typed
    local_rank   of several processes of this machine, the number of this one and of its GPU; None
                 where there is one process

    Raises LadderError where the device, or the type on it, is not available.
    """
    if name is not None:
        return _open_device(_own_gpu(name, local_rank), dtype)
    gpu, why = default_gpu(), []
    if gpu is None and local_rank is not None:
        why = ["no GPU was found ('python -m trainer doctor' says why)"]
    if gpu is not None:
        try:
            return _open_device(_own_gpu(gpu, local_rank), dtype)
        except LadderError as error:
            why = [str(error)]
    device, choice, notes = _open_device("cpu", dtype)
    return device, choice, [*notes, *(f"{reason}: this run uses the CPU" for reason in why)]


def _own_gpu(name: str, local_rank: int | None) -> str:
    """The name of this process's own GPU, where `name` is a kind of GPU: "cuda:1"."""
    kind, _, index = name.partition(":")
    if local_rank is None or kind not in GPUS:
        return name
    if index:
        raise LadderError(
            f"--device {name}: each of several ranks has a GPU of its own; name the kind only, "
            f"--device {kind}, and choose GPUs by {GPUS[kind].visible[0]} in the environment"
        )
    # Some launchers let each process see its own GPU only, which is its first one then.
    visible = [os.environ.get(name, "") for name in GPUS[kind].visible]
    alone = any(numbers and "," not in numbers for numbers in visible)
    return f"{kind}:0" if alone else f"{kind}:{local_rank}"


def _open_device(name: str, dtype: str | None) -> tuple[Device, DeviceChoice, list[str]]:
    device, notes = open_device(name), []
    chosen = dtype or (DEFAULT_DTYPE.gpu if device.is_gpu else DEFAULT_DTYPE.cpu)
    if device.is_gpu and chosen == "bf16" and not device.bfloat16:
        lacks = f"{device.name} has no tensor cores for bf16"
        if dtype is not None:
            raise LadderError(f"{lacks}; choose --dtype fp16 or fp32")
        chosen, notes = "fp16", [f"{lacks}: this run uses fp16"]
    return device, DeviceChoice(name, device.is_gpu, chosen), notes
