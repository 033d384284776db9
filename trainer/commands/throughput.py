"""`python -m trainer bench`: the time of a training step, by op, and beside its floor.

On a CPU, the matrix products of the step are also timed alone, in turn with the steps. NumPy's BLAS
library computes them, so the difference is the time of the reference's own code.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_json
from ladder.core.common.install import peak_memory
from ladder.core.contract.ladder import find
from ladder.core.measure import results
from trainer.commands import gpu_condition, op_timing, step_timing
from trainer.engine.engine import Engine
from trainer.flags import Flags
from trainer.model.calls import Call
from trainer.report import Display, open_console


def main(argv: Sequence[str] = ()) -> int:
    """Measure, print, and write doc/results/training/<machine>.json."""
    options = vars(step_timing.parser_of("bench", "Time a training step.").parse_args(argv))
    write = not options.pop("no_write")
    machine, measurement = measure(Flags(**options), write)
    show(machine, measurement, screen := Display(open_console(), 0))
    if write:
        screen.say(f"\nwritten to {record(machine, measurement)}")
    return 0


def measure(flags: Flags, write: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """(machine, measurement) for the result file; times in milliseconds."""
    job = step_timing.open_job(flags, "bench")
    device = job.device
    engine = job.engine(write=write)
    products = _numpy_products(engine) if device.runs_reference else None
    alone: list[float] = []
    with device.sensors() as sensors:
        steps = step_timing.time_steps(
            engine,
            job.config.steps,
            lambda: alone.append(1e3 * device.time(products)) if products else None,
            begin=sensors.begin,
        )
        sensed = sensors.end()
    roof = step_timing.roof_of(device, job.config.real)
    table = op_timing.rows_of(engine, op_timing.time_in_step(engine), roof)
    low, median, high = np.percentile(steps, (10, 50, 90))
    measurement = {
        **job.description(),
        **results.of_step(engine.rungs),
        "steps": len(steps),
        **{"step_ms": median, "low_ms": low, "high_ms": high},
        "tokens_per_second": 1e3 * job.tokens / median,
        "gflops": job.tokens * job.shape.flops_per_token(job.program.T) / median / 1e6,
        "floor_ms": sum(row["floor_ms"] for row in table),
        **step_timing.in_giga(roof),
        "device_bytes": engine.memory_by_kind().total(),
        "peak_memory_bytes": peak_memory(),
        **gpu_condition.entry(sensed),
        **op_timing.energy_of_step(engine, job.tokens),
        "ops": table,
    }
    if alone:
        measurement["products_ms"] = float(np.median(alone))
        measurement["ratio"] = median / measurement["products_ms"]
    return step_timing.machine_of(device), measurement


def _numpy_products(engine: Engine) -> Callable[[], None]:
    """A function that computes only the products of all linear layers of a step."""

    def factors(call: Call) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        out, second, *_ = arguments = engine.arguments(call)
        names = (arg.name for arg in find(call.op).op.args)
        named = dict(zip(names, arguments, strict=True))
        if call.op.endswith(".forward"):
            return out, named["inp"], named["weight"].T
        if call.op.endswith(".backward_input"):
            return out, second, named["weight"]
        return out, named["dout"].T, named["inp"]  # backward_weight, without adding up

    calls = (*engine.program.forward, *engine.program.backward)
    linear = [call for call in calls if call.op.startswith("matmul")]
    products = [factors(call) for call in linear if call.op != "matmul.backward_bias"]

    def run() -> None:
        for out, a, b in products:
            np.matmul(a, b, out=out)

    return run


def show(machine: dict[str, Any], m: dict[str, Any], screen: Display) -> None:
    on_gpu = "driver" in machine
    software = (
        f"driver {machine['driver']}, CuPy {machine['cupy']}, NVRTC {machine['nvrtc']}"
        if on_gpu
        else f"NumPy {machine['numpy']}, {machine['blas']}"
    )
    screen.say(f"{m['model']} B={m['B']} T={m['T']} {m['dtype']} on {machine['name']}")
    screen.say(f"{software}, Python {machine['python']}")
    screen.say(f"{step_timing.data_in_words(m)}\n")
    in_tf32 = f"in TF32 at {m['tf32_gflops']:,.0f}, " if "tf32_gflops" in m else ""
    rates = f"{m['matrix_gflops']:,.0f} GFLOP/s, {in_tf32}bytes at {m['bandwidth_gbs']:,.0f} GB/s"
    most = f"80 % between {m['low_ms']:,.2f} and {m['high_ms']:,.2f}"
    facts = [
        ("expected", f"{m['floor_ms']:10,.2f} ms   the floor of its ops: products at {rates}"),
        ("step", f"{m['step_ms']:10,.2f} ms   median of {m['steps']}, {most}"),
    ]
    if "ratio" in m:
        alone = f"its matrix products alone; the step is {m['ratio']:.2f} x that"
        facts.append(("products", f"{m['products_ms']:10,.2f} ms   {alone}"))
    where = " on the device" if on_gpu else f", {m['peak_memory_bytes'] / 1e9:.2f} GB in all"
    facts += [
        ("speed", f"{m['tokens_per_second']:10,.0f} tokens/s, {m['gflops']:,.0f} GFLOP/s"),
        ("memory", f"{m['device_bytes'] / 1e9:10.2f} GB of buffers{where}"),
        *(("GPU", line) for line in gpu_condition.lines(m)),
        ("energy", op_timing.energy_in_words(machine["name"], m)),
    ]
    screen.facts(facts)
    op_timing.show_ops(m["ops"], m["step_ms"], screen)


def record(
    machine: dict[str, Any], measurement: dict[str, Any], folder: Path = step_timing.FOLDER
) -> Path:
    """Write the measurement to the machine's file; it replaces an older one of the same job."""
    path = folder / f"{results.slug(machine['name'])}.json"
    job = (
        *("model", "B", "T", "dtype", "recompute", "rungs"),
        *("stochastic_rounding", "master_weights", "weights", "text"),
    )
    kept = []
    if path.exists():
        try:
            old = read_json(path)["steps"]
            kept = [other for other in old if any(other.get(k) != measurement.get(k) for k in job)]
        except (KeyError, TypeError) as error:
            raise LadderError(f"{path} is not a results file ({error!r}); move it away") from None
    step_timing.write_json(path, {"machine": machine, "steps": [*kept, measurement]})
    return path
