"""`python -m trainer bench`: how long a training step takes, where the time goes, and how that
compares with what the step costs at least.

The model has random weights and sees random tokens; neither changes the time. On the CPU the
step's matrix products are timed too, on their own, in turn with the steps: NumPy hands them to its
BLAS library, so all that the step takes beyond them is what the reference adds.
"""

from __future__ import annotations

import json
import os
import platform
import resource
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ladder import results
from ladder.bench import refuse_emulated
from ladder.contract import DTYPES as DTYPE_OF
from ladder.contract import find
from ladder.device import Device, open_device
from ladder.errors import LadderError
from ladder.roof import Roof, copy_bandwidth
from reference import adamw
from reference.gpt2 import build, initial_parameters
from reference.program import Call
from trainer import rungs
from trainer.atomic import atomic_write
from trainer.config import DTYPES, TrainConfig, resolve
from trainer.device import default_device
from trainer.doctor import processor_name
from trainer.engine import Engine
from trainer.flags import build_parser
from trainer.mfu import flops_per_token, measured_roof
from trainer.models import PRETRAINED_VOCAB, named_shape

FOLDER = results.FOLDER / "training"
WARM_UP = 2  # steps: memory is touched for the first time, threads start
CPU_COPY_BYTES = 1 << 26  # beyond its caches, and little beside the model


def main(argv: Sequence[str] = ()) -> int:
    """Measure, print, and write doc/results/training/<machine>.json."""
    names = ("model", "batch", "sequence", "steps", "device", "dtype", "rungs", "rung")
    parser = build_parser("python -m trainer bench", "Time a training step.", names)
    parser.set_defaults(steps=20)
    parser.add_argument("--no-write", action="store_true", help="leave doc/results as it is")
    options = vars(parser.parse_args(argv))
    write = not options.pop("no_write")
    machine, measurement = measure(TrainConfig(**options))
    print(report(machine, measurement))
    if write:
        print(f"\nwritten to {record(machine, measurement)}")
    return 0


def measure(config: TrainConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """(machine, measurement), as the result file holds them; times in milliseconds."""
    device = open_device(config.device or default_device())
    refuse_emulated(device)
    shape = named_shape(config.model, PRETRAINED_VOCAB)
    if shape is None:
        raise LadderError(f"-e {config.model}: bench takes a model's name, such as gpt2 or d6")
    config = resolve(config, device.kind, shape.context)
    if config.steps < 1:
        raise LadderError("-x must be 1 or more: the number of steps to time")
    real = DTYPE_OF[DTYPES[config.dtype]]
    program = build(shape, config.batch, config.sequence)
    calls = (*program.forward, *program.backward, *program.update)
    choices = rungs.choose(calls, config, device, real)
    engine = Engine(program, device, real, {op: choice.rung for op, choice in choices.items()})
    _fill(engine)

    products = _numpy_products(engine) if device.kind == "cpu" else None
    steps, alone = [], []
    for number in range(WARM_UP + config.steps):
        seconds = device.time(lambda: _step(engine))
        if number >= WARM_UP:
            steps.append(1e3 * seconds)
            if products is not None:
                alone.append(1e3 * device.time(products))
    peak_memory = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Linux: in KiB

    sizes = (CPU_COPY_BYTES,) if device.kind == "cpu" else ()
    roof = Roof(copy_bandwidth(device, *sizes), measured_roof(device, real))
    table = _by_op(engine, calls, roof)
    low, median, high = np.percentile(steps, (10, 50, 90))
    tokens = config.batch * config.sequence
    flops = tokens * flops_per_token(shape, config.sequence)
    measurement = {
        **{"model": config.model, "B": config.batch, "T": config.sequence, "dtype": config.dtype},
        "rungs": {op: choice.rung.number for op, choice in choices.items()},
        "steps": len(steps),
        **{"step_ms": median, "low_ms": low, "high_ms": high},
        "tokens_per_second": 1e3 * tokens / median,
        "gflops": flops / median / 1e6,
        "floor_ms": sum(row["floor_ms"] for row in table),
        "bandwidth_gbs": roof.bandwidth / 1e9,
        "matrix_gflops": roof.matrix_rate / 1e9,
        "device_bytes": sum(size for _, size in engine.memory_table()),
        "peak_memory_bytes": peak_memory,
        "ops": table,
    }
    if alone:
        measurement["products_ms"] = float(np.median(alone))
        measurement["ratio"] = median / measurement["products_ms"]
    return _machine(device), measurement


def _fill(engine: Engine) -> None:
    """Random weights and a random batch."""
    config = engine.program.config
    for name, tensor in initial_parameters(config, seed=0):
        engine.write(name, tensor)
    shape = (engine.program.B, engine.program.T)
    rng = np.random.default_rng(0)
    engine.write("tokens", rng.integers(0, config.vocab, shape))
    engine.write("targets", rng.integers(0, config.vocab, shape))
    engine.write("dloss", np.array([1 / np.prod(shape)]))
    if "rng" in engine.arrays:
        engine.write("rng", np.zeros(4, np.uint32))
    hyper = dict(lr=1e-4, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip=1.0)
    engine.write("hyper", adamw.hyper(step=10, **hyper))


def _step(engine: Engine) -> None:
    engine.zero_gradients()
    engine.forward()
    engine.backward()
    engine.update()


def _numpy_products(engine: Engine) -> Callable[[], None]:
    """A function that computes the products of all linear layers of a step, and nothing else."""

    def product(call: Call) -> Callable[[], None]:
        out, a, b = engine.arguments(call)[:3]
        if call.op == "matmul.forward":
            return lambda: np.matmul(a, b.T, out=out)
        if call.op == "matmul.backward_input":
            return lambda: np.matmul(a, b, out=out)
        return lambda: np.matmul(a.T, b, out=out)  # backward_weight, without adding up

    ops = ("matmul.forward", "matmul.backward_input", "matmul.backward_weight")
    calls = (*engine.program.forward, *engine.program.backward)
    products = [product(call) for call in calls if call.op in ops]

    def run() -> None:
        for each in products:
            each()

    return run


def _by_op(engine: Engine, calls: Sequence[Call], roof: Roof) -> list[dict[str, Any]]:
    """For each op its number of calls, their time and their floor together; the longest first.

    The medians of three rounds in which every call is timed by itself.
    """
    rounds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for number in range(3):
        engine.zero_gradients()
        for call in calls:
            rounds[call.op][number] += 1e3 * engine.device.time(engine.bound[call])
    floors: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for call in calls:
        floors[call.op] += 1e3 * roof.floor(find(call.op).op, call.dims, engine.real)
        counts[call.op] += 1
    rows = [
        {"op": op, "calls": counts[op], "ms": float(np.median(ms)), "floor_ms": floors[op]}
        for op, ms in rounds.items()
    ]
    return sorted(rows, key=lambda row: -row["ms"])


def _machine(device: Device) -> dict[str, Any]:
    """What the numbers depend on besides the code."""
    cores = len(os.sched_getaffinity(0))
    name = f"{processor_name()}, {cores} cores" if device.kind != "cuda" else device.name
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {
        "name": name,
        "device": device.kind,
        "cores": cores,
        "threads": os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": f"{blas['name']} {blas['version']}",
    }


def report(machine: dict[str, Any], m: dict[str, Any]) -> str:
    """The measurement as text."""
    lines = [
        f"{m['model']} B={m['B']} T={m['T']} {m['dtype']} on {machine['name']}",
        f"NumPy {machine['numpy']}, {machine['blas']}, Python {machine['python']}",
        "",
        f"expected  {m['floor_ms']:8,.0f} ms   the floor of its ops: products at "
        f"{m['matrix_gflops']:,.0f} GFLOP/s, bytes at {m['bandwidth_gbs']:,.0f} GB/s",
        f"step      {m['step_ms']:8,.0f} ms   median of {m['steps']}, "
        f"80 % between {m['low_ms']:,.0f} and {m['high_ms']:,.0f}",
    ]
    if "ratio" in m:
        lines.append(
            f"products  {m['products_ms']:8,.0f} ms   its matrix products alone; "
            f"the step is {m['ratio']:.2f} x that"
        )
    lines += [
        f"speed     {m['tokens_per_second']:8,.0f} tokens/s, {m['gflops']:,.0f} GFLOP/s",
        f"memory    {m['peak_memory_bytes'] / 1e9:8.2f} GB at most in the process, "
        f"{m['device_bytes'] / 1e9:.2f} GB of it buffers"
        if machine["device"] != "cuda"
        else f"memory    {m['device_bytes'] / 1e9:8.2f} GB of buffers on the device",
        "",
        f"{'op':<24}{'calls':>6}{'ms':>10}{'share':>8}{'floor ms':>10}",
    ]
    total = sum(row["ms"] for row in m["ops"])
    for row in m["ops"]:
        share = f"{100 * row['ms'] / total:.1f} %"
        lines.append(
            f"{row['op']:<24}{row['calls']:>6}{row['ms']:>10,.2f}{share:>8}{row['floor_ms']:>10,.2f}"
        )
    return "\n".join(lines)


def record(machine: dict[str, Any], measurement: dict[str, Any], folder: Path = FOLDER) -> Path:
    """Write the measurement to the machine's file, in the place of one of the same job."""
    path = folder / f"{results.slug(machine['name'])}.json"
    job = ("model", "B", "T", "dtype", "rungs")
    kept = []
    if path.exists():
        try:
            old = json.loads(path.read_text(encoding="utf-8"))["steps"]
            kept = [other for other in old if any(other[k] != measurement[k] for k in job)]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LadderError(f"{path} holds no results ({error!r}); move it away") from None
    content = {"machine": machine, "steps": [*kept, measurement]}
    with atomic_write(path) as file:
        file.write((json.dumps(_rounded(content), indent=1) + "\n").encode())
    return path


def _rounded(value: Any) -> Any:
    """Floats with six significant digits: more are noise."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
