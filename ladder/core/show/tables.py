"""Measurements as Markdown tables, and what follows from a measured time: of ops, and of whole
training steps, from doc/results/training and doc/results/logs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_json, read_text
from ladder.core.contract.device_code import code_identity
from ladder.core.contract.ladder import Ladder, find, ladders
from ladder.core.contract.op import DTYPES, format_dims
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.target import Target
from ladder.core.emulator.kernel import SHARED_BYTES
from ladder.core.measure import results
from ladder.core.measure.torch_baselines import BASELINES

Link = Callable[[Rung], str]  # how a page refers to a rung's file


MILLISECONDS = 10_000  # µs, from which on a time is shown in ms


def markdown(titles: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table. Its first columns, `left` of them, hold texts, and the others numbers, which are
    aligned to the right."""
    rule = "---|" * left + "--:|" * (len(titles) - left)
    head, *body = (f"| {' | '.join(cells)} |" for cells in (titles, *rows))
    return "\n".join([head, f"|{rule}", *body])


class NotMeasured(LadderError):
    """What is asked for exists, but no measurement of it is kept."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A measured time of a rung or of a baseline, and what follows from it.

    name     the idea of the rung as it is called now, or the baseline
    rung     its id; None for a baseline
    kernel   whether it is a kernel of ours, not a library's
    tf32     whether it multiplies as TF32, with a roof of its own
    stale    whether the rung's code has changed since it was measured
    us       microseconds
    gain     over its parent, where that was measured; of a rung that grew from one of another
             ladder, over the one before it
    rate     GB/s, or TFLOP/s where the matrix rate is the roof
    of_roof  the rate as a share of the roof
    mj       millijoules of a call, where that was measured
    """

    name: str
    rung: str | None = None
    kernel: bool = False
    library: bool = False
    tf32: bool = False
    stale: bool = False
    us: float
    gain: float | None = None
    rate: float
    of_roof: float
    mj: float | None = None

    @property
    def since(self) -> str:
        """A remark on a stale row, to follow its name; "" for the others."""
        return " (file changed since)" if self.stale else ""


def table(op: str, link: Link, rungs: Sequence[str] = (), **which: str) -> str:
    """One measurement: time, gain, bytes or FLOPs per second, beside the roof and the library.

    rungs  the ids of those to show; default: all
    """
    device, measurement = find_measurement(op, **which)
    ladder = find(op)
    rows = measured_rows(measurement)
    if rungs:
        rows = [row for row in rows if row.rung in rungs or not row.kernel]
    reference, in_tf32 = best_baseline(measurement), best_baseline(measurement, tf32=True)
    joules = any(row.mj is not None for row in rows)
    time = "µs (or ms)" if any(row.us >= MILLISECONDS for row in rows) else "µs"
    titles = ["rung", time, "× parent", unit(measurement), "% of roof"]
    titles += [f"% of {reference.name}"] if reference else []
    lines = []
    for row in rows:
        name = row.name
        if row.rung is not None:
            rung = ladder.rung(row.rung)
            if row.library:
                name = f"{row.name} (`{rung.id}`){row.since}"
            else:
                name = f"{link(rung)} {row.name}{remarks(rung)}{row.since}"
        cells = [
            name,
            duration(row.us, 2 if row.us < 100 else 1),
            f"{row.gain:.2f}" if row.gain else "",
            rate(row.rate),
            percent(row.of_roof),
        ]
        if reference:
            beside = in_tf32 if row.tf32 else reference
            cells.append(percent(beside.us / row.us) if beside else "")
        if joules:
            cells.append("" if row.mj is None else f"{row.mj:,.4g}")
        lines.append(cells)
    note = caption(device, measurement)
    shown = {row.rung for row in rows}
    parents = [ladder.predecessor(ladder.rung(row.rung)) for row in rows if row.rung and row.gain]
    if any(parent and parent.id not in shown for parent in parents):
        note = f"A parent may be unlisted. {note}"
    return f"{markdown([*titles, *['mJ'] * joules], lines)}\n\n{note}"


def gain(op: str, before: Rung, after: Rung) -> str:
    """Two rungs at every shape and type at which both were measured, on the first such device."""
    for content in results.load_all().values():
        lines = []
        for measurement in content["measurements"]:
            if measurement["op"] != op:
                continue
            rows = {row.rung: row for row in measured_rows(measurement, (before, after))}
            if not {before.id, after.id} <= rows.keys():
                continue
            first, second = rows[before.id], rows[after.id]
            cells = [f"{measurement['shape']}, {measurement['dtype']}"]
            cells += [f"{duration(row.us)}{row.since}" for row in (first, second)]
            cells += [f"{first.us / second.us:.2f}", f"{rate(second.rate)} {unit(measurement)}"]
            lines.append([*cells, percent(second.of_roof)])
        if lines:
            names = [f"{rung.name}, µs" for rung in (before, after)]
            gpu = content["device"]["gpu"]
            return markdown([gpu, *names, "× as fast", "rate", "% of roof"], lines)
    raise NotMeasured(f"{before.name} and {after.name}: python -m ladder bench {op}")


def overview(link: Link) -> str:
    """The best rung of every op that was measured, one line each, at the op's first shape."""
    titles = ("op", "shape", "best rung", "µs", "% of roof", "% of PyTorch or library")
    lines, captions = [], set()
    for op in ladders():
        try:
            device, measurement = find_measurement(op)
        except NotMeasured:
            continue
        exact = [row for row in measured_rows(measurement) if row.kernel and not row.tf32]
        best = min(exact, key=lambda row: row.us, default=None)
        if best is None or best.rung is None:
            continue
        baseline = best_baseline(measurement)
        against = f"{percent(baseline.us / best.us)} of {baseline.name}" if baseline else ""
        shape = f"{measurement['shape']}, {measurement['dtype']}"
        name = f"{link(find(op).rung(best.rung))} {best.name}{best.since}"
        lines.append([op, shape, name, f"{best.us:,.1f}", percent(best.of_roof), against])
        captions.add(machine(device))
    return f"{markdown(titles, lines, left=3)}\n\nMeasured on {', '.join(sorted(captions))}."


def by_products(measurement: results.Measurement) -> bool:
    """Whether matrix products limit the op at this shape; else the bytes that it moves do."""
    roof = measurement["roof"]
    if not roof["matrix_tflops"]:
        return False
    products, copies = roof["matrix_tflops"] * 1e12, roof["copy_gbps"] * 1e9
    return bool(measurement["flops"] / products >= measurement["bytes"] / copies)


def unit(measurement: results.Measurement) -> str:
    """In which the op's rates are at this shape."""
    return "TFLOP/s" if by_products(measurement) else "GB/s"


def measured_rows(
    measurement: results.Measurement, rungs: Sequence[Rung] | None = None
) -> list[Row]:
    """The rows of a measurement: kernels in climbing order, then libraries, then baselines.

    Rungs that no longer exist are left out; with `rungs`, all others than these.
    """
    matrix = by_products(measurement)
    work = measurement["flops"] / 1e6 if matrix else measurement["bytes"] / 1e3
    roof = measurement["roof"]["matrix_tflops" if matrix else "copy_gbps"]
    tf32_roof = measurement["roof"].get("tf32_tflops", roof)
    ladder = find(measurement["op"])
    known = {rung.id: rung for rung in (ladder.rungs if rungs is None else rungs)}
    times = {row["rung"]: row["median_us"] for row in measurement["rows"] if "rung" in row}
    rows: list[Row] = []
    for measured in measurement["rows"]:
        us = measured["median_us"]
        rate = work / us
        if "peer" in measured:
            rows.append(Row(name=measured["peer"], us=us, rate=rate, of_roof=rate / roof))
        elif (rung := known.get(measured["rung"])) is not None:
            before = ladder.predecessor(rung)
            rows.append(
                Row(
                    name=rung.idea,
                    rung=rung.id,
                    kernel=rung.path is not None,
                    library=rung.library,
                    tf32=rung.tf32,
                    stale=code_identity(rung) != measured["code"],
                    us=us,
                    gain=times[before.id] / us if before and before.id in times else None,
                    rate=rate,
                    of_roof=rate / (tf32_roof if rung.tf32 else roof),
                    mj=measured.get("millijoules"),
                )
            )
    return sorted(rows, key=lambda row: (row.rung is None, row.library))


def best_baseline(measurement: results.Measurement, tf32: bool = False) -> Row | None:
    """The fastest library rung if there is one, else the fastest baseline; `tf32`: of TF32."""
    rows = [row for row in measured_rows(measurement) if row.tf32 == tf32]
    library = [row for row in rows if row.library]
    baselines = library or [row for row in rows if row.rung is None]
    return min(baselines, key=lambda row: row.us, default=None)


def find_measurement(
    op: str, dtype: str = "", shape: str = ""
) -> tuple[Mapping[str, Any], results.Measurement]:
    """The measurement that was asked for; by default the op's first shape, in bfloat16.

    Raises NotMeasured where there is none, LadderError where there can be none.
    """
    shapes = find(op).op.bench
    if shape and shape not in shapes:
        raise LadderError(f"{op} is measured at {', '.join(shapes)}, not at {shape}")
    if dtype and dtype not in find(op).op.reals:
        raise LadderError(f"{op} is measured in {', '.join(find(op).op.reals)}, not in {dtype}")
    wanted_shape = shape or next(iter(shapes))
    for content in results.load_all().values():
        by_type = {
            m["dtype"]: m
            for m in content["measurements"]
            if m["op"] == op and m["shape"] == wanted_shape and m["rows"]
        }
        for name in (dtype,) if dtype else ("bfloat16", "float16", "float32"):
            if name in by_type:
                return content["device"], by_type[name]
    wanted = " ".join(filter(None, (wanted_shape, dtype)))
    raise NotMeasured(f"{op} has not been measured at {wanted}: python -m ladder bench {op}")


def caption(device: Mapping[str, Any], measurement: results.Measurement) -> str:
    """Below a table: the shape, the least bytes, the roof, the machine, and what PyTorch calls."""
    roof = measurement["roof"]
    shape, dims = measurement["shape"], format_dims(measurement["dims"])
    name = shape if shape == dims else f"{shape} ({dims})"
    where = "from card to card" if find(measurement["op"]).op.ranks else "on the same card"
    size = measurement["bytes"]
    least = f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.0f} KB"
    text = (
        f"{name}, {measurement['dtype']}: at least {least}; roof: "
        f"{roof['copy_gbps']:,.0f} GB/s, a copy {where}"
    )
    if roof["matrix_tflops"]:
        text += f", and {roof['matrix_tflops']:,.0f} TFLOP/s, a 4096³ product"
    if "tf32_tflops" in roof:
        text += f" ({roof['tf32_tflops']:,.0f} in TF32, which is the roof of the rungs marked so)"
    if measurement["in_cache"]:
        text += "; everything fits in the L2 cache"
    text += f". {device['gpu']}, {measurement['date']}."
    if missing := unmeasured(device, measurement):
        text += f" Not measured: {_listed(find(measurement['op']), missing)}."
    return text + _peer_note(measurement)


def _peer_note(measurement: results.Measurement) -> str:
    """What PyTorch calls, as a paragraph after the caption; "" where it was not measured."""
    rows = [row for row in measurement["rows"] if "peer" in row]
    if not rows:
        return ""
    days = {row.get("date", measurement["date"]) for row in rows} - {measurement["date"]}
    when = f", measured {', '.join(sorted(days))}" if days else ""
    return f"\n\nPyTorch{when}: {BASELINES[measurement['op']].said}."


def unmeasured(device: Mapping[str, Any], measurement: results.Measurement) -> list[Rung]:
    """The rungs that could have a row and have none; libraries are no rungs here, and a rung that
    refuses the shape is not among those that could."""
    measured = {row.get("rung") for row in measurement["rows"]}
    sms = device.get("multiprocessors") or 1
    # As much shared memory as any GPU has, so that a rung is refused for its shape alone.
    target = Target(device.get("arch", ""), 32, sms, SHARED_BYTES, DTYPES[measurement["dtype"]])
    return [
        rung
        for rung in find(measurement["op"]).rungs
        if rung.path is not None and rung.id not in measured and rung.claims(target)
        if rung.plan(measurement["dims"], target).refusal is None
    ]


def _listed(ladder: Ladder, rungs: list[Rung]) -> str:
    """In words: "rung 7", "rungs 1 to 3", "rungs 1, 4 and 16bit-6 to 16bit-8"."""
    parts = ladder.spans(rungs)
    text = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
    return f"rung{'s' * (len(rungs) > 1)} {text}"


def machine(device: Mapping[str, Any]) -> str:
    """What a time was measured on."""
    return f"{device['gpu']}, driver {device.get('driver', '?')}, NVRTC {device.get('nvrtc', '?')}"


def duration(us: float, digits: int = 1) -> str:
    """Microseconds; from MILLISECONDS on, milliseconds with their unit."""
    return f"{us:,.{digits}f}" if us < MILLISECONDS else f"{us / 1000:,.4g} ms"


def percent(share: float) -> str:
    """A whole number, but a share below one in a hundred is not called nothing."""
    return f"{share:.0%}" if share >= 0.01 else f"{100 * share:.2g}%"


def rate(value: float) -> str:
    """GB/s or TFLOP/s, whole ones where there are ten or more."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def remarks(rung: Rung) -> str:
    """What a reader must know beside the idea, in brackets and italics; "" if there is nothing."""
    words = ["TF32"] if rung.tf32 else []
    words += [] if rung.pays else ["does not pay"]
    words += [] if rung.deterministic else ["not deterministic"]
    return f" _({', '.join(words)})_" if words else ""


# ---- training steps ----

# What tests/gpu_vs_torch.py times, in the order of the tables, and what a page calls it.
CONTENDERS = {
    "ours, --rungs best": "`--rungs best`",
    "ours, --rungs library": "`--rungs library`",
    "PyTorch, compiled": "PyTorch, compiled",
    "PyTorch, CUDA graph": "PyTorch, compiled, CUDA graph",
    "PyTorch, graph, cuDNN": "the same with cuDNN's attention",
}


def step_times(device: str) -> str:
    """Time of a training step of ours and of PyTorch, for each dtype and batch size."""
    rows = _measured(device)
    lines = []
    for dtype, batch in dict.fromkeys((row["dtype"], row["B"]) for row in rows):
        job = f"B={batch}" + (f", {dtype}" if dtype != "bf16" else "")
        for what, label in CONTENDERS.items():
            for row in rows:
                if (row["dtype"], row["B"], row["what"]) == (dtype, batch, what):
                    name = label + results.since(row)
                    lines.append([job, name, _speed(row), f"{row['gib']:.1f}"])
                    job = ""
    return markdown(["", "", "ms/step", "tokens/s", "GiB"], lines, left=2)


def step_summary(device: str, dtype: str) -> str:
    """Ours beside the fastest way to run PyTorch: a line each, a column for each batch size."""
    rows = [row for row in _measured(device) if row["dtype"] == dtype]
    batches = sorted({row["B"] for row in rows})
    heads = [title for batch in batches for title in (f"B={batch}: ms/step", "tokens/s")]
    lines = []
    for label, prefix in (
        ("hand-written kernels only, `--rungs best`", "ours, --rungs best"),
        ("cuBLAS for the matrix products, `--rungs library`", "ours, --rungs library"),
        ("PyTorch, compiled, the fastest of its variants", "PyTorch"),
    ):
        named = [row for row in rows if row["what"].startswith(prefix)]
        if {row["B"] for row in named} != {*batches}:  # not measured on this device
            continue
        fastest = [min((r for r in named if r["B"] == b), key=lambda r: r["ms"]) for b in batches]
        lines.append([label, *(_speed(row) + results.since(row) for row in fastest)])
    return markdown(["", *heads], lines)


def _measured(device: str) -> Sequence[dict[str, Any]]:
    path = results.kept(f"training/{device}-torch.json")
    try:
        steps: list[dict[str, Any]] = read_json(path)["steps"]
    except (KeyError, TypeError) as error:
        raise LadderError(f"{path} holds no step times: {error!r}") from None
    return steps


def _speed(row: dict[str, Any]) -> str:
    """Two cells."""
    return f"{row['ms']:,.2f} | {row['tokens_per_second']:,.0f}"


def log(name: str) -> str:
    """The output that is kept in doc/results/logs under a name, without its comments."""
    lines = read_text(results.kept(f"logs/{name}.txt")).splitlines()
    return "\n".join(line for line in lines if not line.startswith("# "))
