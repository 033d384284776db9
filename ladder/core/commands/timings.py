"""How fast: `bench` times rungs, `pick` finds the fastest for a shape, `latency` times loads."""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ladder.core.commands import shared
from ladder.core.common.errors import LadderError
from ladder.core.common.install import install
from ladder.core.contract.device import Device
from ladder.core.contract.ladder import Ladder, find, ladders
from ladder.core.contract.op import Dims, format_dims
from ladder.core.contract.rung_file import Rung
from ladder.core.device.open import default_device, open_device
from ladder.core.measure import bench, latency, pick, pick_cache, results
from ladder.core.measure.torch_baselines import BASELINES
from ladder.core.verify import sandbox

HOW = (
    "A time is the median of many calls in a CUDA graph, between two events; the second one waits "
    "for all that the calls have launched. The calls take several sets of random inputs in turn, "
    "together larger than the L2 cache, so that none finds its own there. A kernel of your own is "
    "checked before. The result is checked after. PyTorch, where it is installed with CUDA "
    f"({install('torch')}), does the same work in the same way."
)


def add_to(commands: shared.Commands) -> None:
    parser = commands.add("bench", bench_ladders)
    parser.epilog = HOW
    parser.add_argument(
        "op", nargs="*", help="ops or layers; OP RUNG; or .cu files, with --reference"
    )
    shared.add_reference(parser)
    shared.add_unconfined(parser)
    shared.add_device_options(parser)
    group = parser.add_argument_group("what is timed")
    shared.switch(group, "--all", "every op")
    group.add_argument("--rung", nargs="+", default=[], help="only these; ids or .cu files")
    group.add_argument(
        "--define", metavar="NAME=V,V", help="one rung, with each value of a constant: BLOCK=32,64"
    )
    shared.switch(group, "--peers", "PyTorch alone, beside what is kept of the rungs")
    shared.switch(group, "--joules", "mJ of a call, too, in turns: 8 seconds for each rung")
    group = parser.add_argument_group("what is kept")
    group.add_argument(
        "--save",
        nargs="?",
        const=True,
        type=shared.ending(".json", "; write ops before --save"),
        metavar="FILE.json",
        help="add the times to this file, and compare with those in it; without a name, to "
        f"{results.FOLDER / '<gpu>.json'}, which takes the repository's own rungs only",
    )
    shared.add_format(parser, "measurements, as doc/results holds them")

    parser = commands.add("pick", pick_rung)
    parser.add_argument("op", nargs="?", help=shared.OP_HELP)
    shared.add_device_options(parser)
    group = parser.add_argument_group("which may be chosen")
    shared.switch(group, "--library", "vendor libraries may be chosen")
    shared.switch(group, "--deterministic", "the same bits every time")
    shared.switch(group, "--tf32", "float32 may be multiplied as TF32")
    group = parser.add_argument_group("what is kept")
    shared.switch(group, "--fresh", "measure again")
    shared.switch(group, "--save", f"keep all that was picked here, in {results.FOLDER / 'picks'}")
    shared.switch(group, "--prune", "drop what is kept there of rungs that have changed")

    parser = commands.add("latency", measure_latency)
    parser.add_argument("--device", default=default_device(), help="cuda, cuda:1, or hip (AMD)")


def bench_ladders(options: argparse.Namespace) -> int:
    """Time rungs, or kernels of your own, beside the roof and PyTorch (needs a GPU)."""
    device = open_device(options.device)
    if options.save and device.measurable and not device.is_gpu:
        raise LadderError(f"--save keeps times of a GPU only; device {device.name} is not one")
    if options.reference:
        chosen, options.rung = [shared.own_op(options, options.op)], [*options.op, *options.rung]
    else:
        # OP RUNG, as check takes it: no op has a digit in its name.
        ids = [word for word in options.op[1:] if re.search(r"\d|\.cu$", word)]
        options.rung = [*ids, *options.rung]
        options.op = [word for word in options.op if word not in ids]
        chosen = [ladder for name in options.op for ladder in shared.matching(name)]
    chosen = chosen or (list(ladders().values()) if options.all else [])
    if not chosen:
        raise LadderError("name an op or a layer to measure, or give --all")
    output = shared.Output(options)
    if options.peers:
        return _bench_torch(chosen, device, options, output)
    rungs = [chosen[0].find(which) for which in options.rung]
    if rungs and len(chosen) > 1:
        raise LadderError(f"--rung needs one op, and {' '.join(options.op)} are several")
    for rung in rungs:
        if rung.is_own_file:
            if options.save is True:
                raise LadderError(
                    f"--save without a name keeps the repository's own rungs, not {rung.path}; "
                    "name a file: --save mine.json"
                )
            rights = shared.unconfined(options, rung)
            name = options.reference or chosen[0].op.name
            sandbox.require(name, rung, options.device, rights)
    if options.define:
        rungs = _variants(rungs, options.define, options.save)
    roofs, problems = bench.Roofs(device), []

    def say(line: str, wrong: bool) -> None:
        output.remark(line)
        problems.extend([line] if wrong else [])

    shapes = [_shape(ladder, options) for ladder in chosen]
    bench.refuse_emulated(device)
    if not device.is_gpu:
        seconds = bench.forecast(zip(chosen, shapes, strict=True), device, options.dtype)
        output.remark(f"on the CPU this takes about {max(seconds, 5):.0f} seconds")
    for ladder, named in zip(chosen, shapes, strict=True):
        for measurement in bench.bench(
            ladder, device, options.dtype, named, rungs or None, roofs, say, options.joules
        ):
            _keep(device.description(), measurement, options, output)
    output.end()
    return int(bool(problems))


def _shape(ladder: Ladder, options: argparse.Namespace) -> dict[str, Dims] | None:
    """The shape that --shape gives, by its name; None without."""
    dims = shared.shape_to_run(ladder, options)
    known = (name for name, bench_dims in ladder.op.bench.items() if bench_dims == dims)
    return {next(known, format_dims(dims)): dims} if options.shape else None


def _keep(
    device: Mapping[str, str | int],
    measurement: results.Measurement,
    options: argparse.Namespace,
    output: shared.Output,
) -> None:
    """Print a measurement if it is asked for as JSON, save it, and compare it with the one before
    in a file of the user's own."""
    output.add(lambda: None, [measurement])
    if not options.save:
        return
    file = None if options.save is True else options.save
    before = results.before(device, measurement, file)
    us = {results.who(row): row["median_us"] for row in before["rows"]} if file and before else {}
    for row in measurement["rows"]:
        if (earlier := us.get(who := results.who(row))) is not None:
            output.remark(
                f"{measurement['op']} {who}, {measurement['shape']}, {measurement['dtype']}: "
                f"{row['median_us'] / earlier:.3f} of the {earlier:.2f} us before"
            )
    output.remark(f"written to {results.record(device, measurement, file)}")


def _bench_torch(
    chosen: Sequence[Ladder], device: Device, options: argparse.Namespace, output: shared.Output
) -> int:
    """Time PyTorch at the shapes and in the types at which rungs were measured on such a GPU."""
    if options.rung or options.define:
        raise LadderError("--peers times PyTorch alone; leave out --rung and --define")
    bench.refuse_emulated(device)
    file = None if options.save in (None, True) else options.save
    content = results.of(device.description(), file)
    for ladder in chosen:
        op = ladder.op
        if op.name not in BASELINES:
            output.remark(f"{op.name}: PyTorch has no call that is compared with it")
            continue
        kept = [
            measurement
            for measurement in content["measurements"]
            if measurement["op"] == op.name
            and (not options.dtype or measurement["dtype"] in options.dtype)
            and (not options.shape or measurement["dims"] == options.shape)
        ]
        if not kept:
            raise LadderError(
                f"{op.name}: none of its rungs' times on {content['device']['gpu']} are kept that "
                f"PyTorch's could stand beside; first python -m ladder bench {op.name} --save"
            )
        for measurement in kept:
            renewed = bench.renew_baselines(measurement)
            _keep(content["device"], renewed, options, output)
    output.end()
    return 0


def _variants(rungs: Sequence[Rung], define: str, save: Path | bool | None) -> list[Rung]:
    """The rung with each of the values that --define names."""
    name, _, values = define.partition("=")
    if not re.fullmatch(r"\d+(,\d+)*", values):
        raise LadderError(f"--define {define}: write NAME=V,V with whole numbers: BLOCK=32,64,128")
    if len(rungs) != 1:
        raise LadderError("--define changes one rung: name it, and no other, with --rung")
    if save:
        raise LadderError("--save keeps the rungs as their files are; leave it or --define out")
    return [rungs[0].with_constant(name, int(value)) for value in values.split(",")]


def pick_rung(options: argparse.Namespace) -> int:
    """The fastest rung for each shape, and why no other (needs a GPU)."""
    if options.prune:
        for path in sorted((results.FOLDER / pick_cache.FOLDER).glob("*.json")):
            pick_cache.prune(path)
        return 0
    device = open_device(options.device)
    if options.save:
        if options.op is not None:
            raise LadderError("pick --save keeps what was picked before, of all ops; name none")
        bench.refuse_emulated(device)
        print(f"written to {pick_cache.keep(device)}")
        return 0
    if options.op is None:
        raise LadderError("name an op to pick a rung of, or give --save")
    ladder = find(options.op)
    given = shared.shape_to_run(ladder, options) if options.shape else None
    shapes = [given] if given else [*ladder.op.bench.values()]
    settings = ("library", "deterministic", "tf32", "fresh")
    chosen = {name: getattr(options, name) for name in settings}
    for dtype in options.dtype or ladder.op.reals:
        choices = pick.pick(ladder, device, dtype, *shapes, **chosen)
        for shape, choice in zip(shapes, choices, strict=True):
            print(f"{options.op} at {format_dims(shape)} in {dtype} on {device.name}:")
            for id, why in choice.reasons.items():
                mark = "->" if id == choice.rung else "  "
                print(f"{mark} rung {id} ({ladder.rung(id).idea}): {why}")
    return 0


def measure_latency(options: argparse.Namespace) -> int:
    """The time of a load from each cache and from memory, idle and busy (needs a GPU)."""
    device = open_device(options.device)
    bench.refuse_emulated(device, "doc/latency.md has the times of an H200")
    print(f"{device.name}: a thread loads addresses, each from where the one before points\n")
    print("array of      ns for a load")
    for size in latency.CHAINS:
        seconds = latency.Chase(device, size).idle()
        text = f"{size >> 10:,} KiB" if size < 1 << 20 else f"{size >> 20:,} MiB"
        print(f"{text:>10} {1e9 * seconds:>14,.1f}")
    print("\nThe same in 512 MiB, while on every other SM some threads read another array,")
    print(f"{latency.AT_ONCE * latency.VECTOR} bytes at a time\n")
    print("threads   ns for a load      GB/s   bytes in flight for each SM, GB/s x ns")
    for row in latency.by_load(device):
        in_flight = row.bytes_per_second * row.latency / row.sms
        print(
            f"{row.readers:>7} {1e9 * row.latency:>15,.1f} {row.bytes_per_second / 1e9:>9,.0f}"
            f" {in_flight:>8,.0f}"
        )
    return 0
