"""What bench, climb and profile share: a training step to measure, and its time.

Under a power limit its time depends on the data: arithmetic whose bits change less draws less
power, so the clock is higher. Random weights, the default, are at their fastest
(doc/training/power.md). `-e RUN` takes those of a run, and its text. The learning rate is 0, so
that the weights stay what they are, however many steps are timed.
"""

import dataclasses
import functools
import json
import math
import os
import platform
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ladder.core.common import cache, files
from ladder.core.common.command_line import Parser
from ladder.core.common.errors import LadderError
from ladder.core.common.install import cores
from ladder.core.contract.device import Communicator, Device
from ladder.core.contract.rung_file import Rung
from ladder.core.measure import results
from ladder.core.measure.bench import commit, refuse_emulated
from ladder.core.measure.roofline import Roof, copy_bandwidth, matrix_rate, measured_roof
from reference import adamw
from trainer.commands.doctor import processor_name
from trainer.commands.parser import build_parser
from trainer.data.token_files import TokenLoader
from trainer.engine.engine import Engine
from trainer.engine.kernels import Kernels
from trainer.engine.passes import write_rng, write_rows
from trainer.engine.rung_map import names_any
from trainer.files import weights
from trainer.files.tensor_file import Pieces
from trainer.flags import FUSIONS, Flags, StepConfig, resolve_step, resolve_zero
from trainer.model.model_config import ModelConfig
from trainer.model.program import Program, initial_parameters
from trainer.model.registry import SIZES
from trainer.model.sharding import WHOLE, Sharding
from trainer.open import Machine, build_step, open_machine
from trainer.ranks.group import ALONE, Group, open_communicator
from trainer.report import Display

FOLDER = results.FOLDER / "training"
WARM_UP = 2  # steps: memory is touched for the first time, threads start, graphs are recorded
STEPS_AT_A_TIME = 4  # on a GPU, so that the host is ahead of it as it is in training
LONG = 0.05  # seconds of a step from which the host is ahead anyway


@dataclass(frozen=True)
class Job:
    """A training step to be measured; of one rank, where there are several.

    trained  the file or run that the weights are of, and what messages call it; None: random ones
    text     a pattern of token files that the batch is of; None: random tokens
    """

    config: StepConfig
    machine: Machine
    shape: ModelConfig
    kernels: Kernels
    notes: list[str]
    sharding: Sharding = WHOLE
    peers: Communicator | None = None
    trained: tuple[Path, str] | None = None
    text: str | None = None

    @property
    def device(self) -> Device:
        return self.machine.device

    @property
    def program(self) -> Program:
        return self.kernels.program

    @property
    def tokens(self) -> int:
        return self.program.B * self.program.T

    @property
    def exchange(self) -> dict[str, Any]:
        """How ranks share the update, and what moves gradients and weights between them."""
        by = None if self.peers is None else self.peers.name
        return {"zero": self.sharding.stage, "overlap": self.sharding.overlaps, "exchanged_by": by}

    def engine(self, rungs: Mapping[str, Rung] | None = None, write: bool = False) -> Engine:
        """An engine with weights, random ones the same in all layers, and a batch, ready for a
        step. `rungs`: instead of the chosen ones. `write`: a result will be written; once nothing
        speaks against the measurement, that is said."""
        pieces: Pieces
        if self.trained is not None:
            pieces = weights.open_file(self.trained[0]).pieces
        else:
            drawn = initial_parameters(self.shape, seed=0, equal_layers=True)
            pieces = ((name, None, tensor) for name, tensor in drawn)
        engine = self.machine.engine(
            self.kernels, self._build, pieces, rungs=rungs, peers=self.peers
        )
        B, T, vocab = self.program.B, self.program.T, self.shape.vocab
        tokens, targets = np.random.default_rng(0).integers(0, vocab, (2, B, T))
        if self.text is not None:
            loader = TokenLoader(self.text, B, T, vocab=vocab, shuffle=False)
            tokens, targets = loader.next_batch()
        write_rows(engine, tokens, targets)
        write_rng(engine, 0, 0, 0)
        engine.write("dloss", np.array([1 / self.tokens]))
        engine.write(
            "hyper",
            adamw.hyper(
                step=10, lr=0.0, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip=1.0
            ),
        )
        if write:
            print(f"will write to {FOLDER}; --no-write leaves it as it is", file=sys.stderr)
        return engine

    def alone(self) -> "Job":
        """The same step of a process that trains alone."""
        alone = dataclasses.replace(self, sharding=WHOLE, peers=None)
        program = alone._build(self.program.B, self.program.fusions)
        kernels = dataclasses.replace(self.kernels, program=program)
        return dataclasses.replace(alone, kernels=kernels)

    def _build(self, B: int, fused: Collection[str]) -> Program:
        return build_step(self.shape, self.config, self.sharding, B, fused)

    def description(self) -> dict[str, Any]:
        c = self.config
        job = {"model": c.model, "B": c.batch, "T": c.sequence, "dtype": c.dtype}
        fused = {"fusions": self.program.fusions}
        rounding = {"stochastic_rounding": True, "master_weights": c.master_weights}
        job |= {"recompute": c.recompute, **(rounding if c.stochastic_rounding else {})}
        job |= {"weights": self.trained[1]} if self.trained is not None else {}
        job |= {"text": "/".join(Path(self.text).parts[-2:])} if self.text is not None else {}
        return {**job, **fused, "kernels": self.flags, "commit": commit()}

    @property
    def flags(self) -> str:
        """The flags that choose the kernels, in short: a part of the names of its files."""
        c, wanted = self.config, self.kernels.settings
        parts = [Path(wanted.rungs).stem]
        if wanted.from_file or wanted.rung:
            parts.append(cache.digest(json.dumps([wanted.from_file, wanted.rung]))[:8])
        if set(wanted.fuse.values()) != {"auto"}:
            parts += ["fused", *(self.program.fusions or ("none",))]
        parts += [f"r{c.recompute}"] * bool(c.recompute)
        parts += ["deterministic"] * wanted.deterministic
        parts += ["tf32"] * wanted.tf32
        parts += ["w0"] * (not c.master_weights)
        parts += ["stochastic"] * bool(c.stochastic_rounding and c.master_weights)
        return "-".join(parts)

    def fused(self, names: Collection[str], **changes: Any) -> "Job":
        """The same step with these fusions and no others; its rungs are chosen by the same
        settings with `changes`."""

        wanted, B = dataclasses.replace(self.kernels.settings, **changes), self.program.B
        calls = self._build(B, names).training_step
        wanted = dataclasses.replace(
            wanted,
            fuse={name: "yes" if name in names else "no" for name in FUSIONS},
            rung={key: which for key, which in wanted.rung.items() if names_any(key, calls)},
        )
        machine = dataclasses.replace(self.machine, wanted=wanted)
        return dataclasses.replace(self, kernels=machine.choose(self._build, B))


def parser_of(command: str, description: str, *more: str) -> Parser:
    """The flags of a measurement; they mean the same as in training. `more`: names of further
    fields of Flags."""
    names = (
        *more,
        *("model", "train_data", "batch", "sequence", "steps", "device", "dtype", "rungs", "rung"),
        *("recompute", "deterministic", "tf32", "fuse", "gelu_fusion"),
        *("master_weights", "stochastic_rounding"),
    )
    helps = {
        "model": "gpt2 | gpt2-medium | gpt2-large | gpt2-xl | d6 ... d84 | char | char-lecture, "
        "of random weights, or a file or folder: .bin, .safetensors, a run; default gpt2",
        "train_data": "token files that the batch is of, a .bin pattern; default: the text of the "
        "run that -e names, or random tokens",
        "steps": "steps to time; default 20",
        "device": "cpu, cuda or cuda:N, hip (AMD); a GPU where there is one",
    }
    description += f" The result is printed, and written to {FOLDER}."
    parser = build_parser(f"python -m trainer {command}", description, names, helps=helps)
    parser.set_defaults(steps=20)
    parser.add_argument("--no-write", action="store_true", help="only print: write no file")
    return parser


def open_job(flags: Flags, command: str, needs_gpu: bool = False, group: Group = ALONE) -> Job:
    """The step that the flags describe. Raises LadderError where it cannot be measured."""
    machine = open_machine(flags, group)
    device = machine.device
    refuse_emulated(device)
    if needs_gpu and not device.is_gpu:
        raise LadderError(f"{command} needs a GPU: on the CPU every op is on the reference, rung 0")
    model = flags.value("model")
    trained, text = None, flags.train_data
    if model in SIZES:
        shape = SIZES[model].config
    else:
        opened = weights.open_file(path := Path(model))
        shape, trained = opened.shape, (path, opened.source)
        text = text or weights.settings_of(path).get("train_data")
    config = resolve_step(flags, machine.choice, shape.context)
    zero = resolve_zero(flags, group.size)
    sharding = Sharding(group.rank, group.size, zero, config.overlap)
    build_at = functools.partial(build_step, shape, config, sharding)
    kernels = machine.choose(build_at, config.batch)
    peers = open_communicator(device, group, config.exchange, sharding.overlaps)
    notes = [*machine.notes, *kernels.notes]
    return Job(config, machine, shape, kernels, notes, sharding, peers, trained, text)


def data_in_words(job: Mapping[str, Any]) -> str:
    """What a step was measured on. `job`: its `description`."""
    weights, text = job.get("weights", "random"), job.get("text", "random tokens")
    return f"weights: {weights}; batch: {text}"


def one_step(engine: Engine, micro_steps: int = 1) -> None:
    engine.zero_gradients()
    for micro_step in range(micro_steps):
        engine.forward()
        engine.backward(more=micro_step + 1 < micro_steps)
    engine.update()


def time_steps(
    engine: Engine,
    count: int,
    between: Callable[[], None] = lambda: None,
    seconds: float = math.inf,
    begin: Callable[[], None] = lambda: None,
    micro_steps: int = 1,
    heating: float = 0.0,
    group: Group = ALONE,
) -> list[float]:
    """Milliseconds of each of `count` steps after a warm-up, or of several at a time on a GPU. All
    ranks of a group take the same number of steps, unless their time is limited.

    between  is called after every measurement
    seconds  time limit: after it, no measurement begins, but there are at least three
    begin    is called after the warm-up, which takes `heating` seconds or two steps
    """
    device, step = engine.device, functools.partial(one_step, engine, micro_steps)
    estimate = group.share("a step", min(device.time(step) for _ in range(WARM_UP)))
    at_a_time = STEPS_AT_A_TIME if device.asynchronous and estimate < LONG else 1
    for _ in range(int(heating / estimate)):
        step()
    device.synchronize()

    def steps() -> None:
        for _ in range(at_a_time):
            step()

    begin()
    times: list[float] = []
    while len(times) * at_a_time < count:
        times.append(1e3 * device.time(steps) / at_a_time)
        between()
        if len(times) >= 3 and sum(times) * at_a_time > 1e3 * seconds:
            break
    return times


def roof_of(device: Device, real: np.dtype) -> Roof:
    in_tf32 = matrix_rate(device, real, tf32=True) if real == np.float32 else None
    return Roof(copy_bandwidth(device), measured_roof(device, real), in_tf32)


def in_giga(roof: Roof) -> dict[str, float]:
    """A roof as result files hold it, in GB/s and GFLOP/s."""
    rates = {"bandwidth_gbs": roof.bandwidth, "matrix_gflops": roof.matrix_rate}
    rates["tf32_gflops"] = roof.tf32_rate
    return {name: rate / 1e9 for name, rate in rates.items() if rate is not None}


def machine_of(device: Device) -> dict[str, Any]:
    """The machine and the software that the numbers depend on."""
    common = {"device": device.kind, "python": platform.python_version(), "numpy": np.__version__}
    if device.is_gpu:
        return {"name": device.name, **common, **device.description()}
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {
        "name": f"{processor_name()}, {cores()} cores",
        **common,
        "cores": cores(),
        "threads": os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS"),
        "blas": f"{blas['name']} {blas['version']}",
    }


def file_name(kind: str, machine: Mapping[str, Any], job: Mapping[str, Any]) -> str:
    """The name of the files of a profile or climb, without suffix; different jobs have different
    names. `job`: its `description`."""
    size = (f"b{job['B']}", f"t{job['T']}")
    parts = (machine["name"], kind, job["model"], job["dtype"], *size, job["kernels"])
    return "-".join(map(results.slug, parts))


def write_result(
    kind: str, content: Any, job: Mapping[str, Any], draw: Callable[[Any], Any], screen: Display
) -> None:
    """Write a result and its picture to FOLDER, and say so. `job`: the job's `description`."""
    from trainer.plots.style import save  # takes a while, and bench draws nothing

    path = FOLDER / f"{file_name(kind, content['machine'], job)}.json"
    write_json(path, content)
    save(draw(content), path.with_suffix(".svg"))
    screen.say(f"\nwritten to {path} and .svg")


def write_json(path: Path, content: Any) -> None:
    """A file whose numbers have six significant digits; further ones are noise."""
    rounded = json.loads(json.dumps(content), parse_float=lambda x: float(f"{float(x):.6g}"))
    files.write_json(path, rounded)
