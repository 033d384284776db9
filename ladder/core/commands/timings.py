"""How fast: `bench` times rungs, `pick` finds the fastest for a shape, `latency` times loads."""

import argparse
import re
from collections.abc import Sequence

from ladder.core.commands.options import OP_HELP, Commands, add_device_options, matching, shape_of
from ladder.core.common.errors import LadderError
from ladder.core.contract.device import Device
from ladder.core.contract.ladder import Ladder, find, find_rung, ladders
from ladder.core.contract.op import format_dims
from ladder.core.contract.rung_file import Rung
from ladder.core.device.open import default_device, open_device
from ladder.core.measure import bench, latency, pick, pick_cache, results
from ladder.core.measure.torch_baselines import BASELINES
from ladder.core.verify import sandbox


def add_to(commands: Commands) -> None:
    parser = commands.add("bench", bench_ladders)
    parser.add_argument("op", nargs="*", help="ops or layers")
    parser.add_argument("--all", action="store_true", help="every op")
    parser.add_argument("--rung", nargs="+", default=[], help="only these; ids or .cu files")
    add_device_options(parser)
    parser.add_argument(
        "--define", metavar="NAME=V,V", help="one rung, with each value of a constant: BLOCK=32,64"
    )
    parser.add_argument(
        "--peers", action="store_true", help="PyTorch alone, beside what is kept of the rungs"
    )
    parser.add_argument(
        "--joules", action="store_true", help="mJ of a call, too, in turns: 8 seconds for each rung"
    )
    parser.add_argument("--save", action="store_true", help="write to doc/results/<gpu>.json")

    parser = commands.add("pick", pick_rung)
    parser.add_argument("op", nargs="?", help=OP_HELP)
    add_device_options(parser)
    parser.add_argument("--library", action="store_true", help="vendor libraries may be chosen")
    parser.add_argument("--deterministic", action="store_true", help="the same bits every time")
    parser.add_argument("--tf32", action="store_true", help="float32 may be multiplied as TF32")
    parser.add_argument("--fresh", action="store_true", help="measure again")
    parser.add_argument(
        "--save", action="store_true", help="keep all that was picked here, in doc/results/picks"
    )
    parser.add_argument(
        "--prune", action="store_true", help="drop what is kept there of rungs that have changed"
    )

    parser = commands.add("latency", measure_latency)
    parser.add_argument("--device", default=default_device(), help="cuda, cuda:1, or hip (AMD)")


def bench_ladders(options: argparse.Namespace) -> int:
    """Time rungs beside the roof and PyTorch; --save keeps the numbers in doc/results."""
    device = open_device(options.device)
    if options.save and not device.is_gpu:
        raise LadderError(f"--save keeps times of a GPU only; device {device.name} is not one")
    chosen = [ladder for name in options.op for ladder in matching(name)]
    chosen = chosen or (list(ladders().values()) if options.all else [])
    if not chosen:
        raise LadderError("name an op or a layer to measure, or give --all")
    if options.peers:
        return _bench_torch(chosen, device, options)
    rungs = [find_rung(chosen[0].op.name, which) for which in options.rung]
    if rungs and len(chosen) > 1:
        raise LadderError(f"--rung needs one op, and {' '.join(options.op)} are several")
    for rung in rungs:
        if rung.is_own_file:
            if options.save:
                raise LadderError(f"--save keeps the repository's own rungs, not {rung.path}")
            sandbox.require(chosen[0].op.name, rung, options.device)
    if options.define:
        rungs = _variants(rungs, options.define, options.save)
    roofs, problems = bench.Roofs(device), []

    def say(line: str, wrong: bool) -> None:
        bench.tell(line)
        problems.extend([line] if wrong else [])

    for ladder in chosen:
        dims = shape_of(ladder, options)
        known = (name for name, bench_dims in ladder.op.bench.items() if bench_dims == dims)
        shapes = {next(known, format_dims(dims)): dims} if options.shape else None
        for measurement in bench.bench(
            ladder, device, options.dtype, shapes, rungs or None, roofs, say, options.joules
        ):
            if options.save:
                print(f"written to {results.record(device.description(), measurement)}")
    return int(bool(problems))


def _bench_torch(chosen: Sequence[Ladder], device: Device, options: argparse.Namespace) -> int:
    """Time PyTorch at the shapes and in the types at which rungs were measured on such a GPU."""
    if options.rung or options.define:
        raise LadderError("--peers times PyTorch alone; leave out --rung and --define")
    bench.refuse_emulated(device)
    content = results.of(device.description())
    for ladder in chosen:
        op = ladder.op
        if op.name not in BASELINES:
            print(f"{op.name}: PyTorch has no call that is compared with it")
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
            if options.save:
                print(f"written to {results.record(content['device'], renewed)}")
    return 0


def _variants(rungs: Sequence[Rung], define: str, save: bool) -> list[Rung]:
    """The rung with each of the values that --define names."""
    name, _, values = define.partition("=")
    if not re.fullmatch(r"\d+(,\d+)*", values):
        raise LadderError(f"--define {define}: write NAME=V,V with whole numbers: BLOCK=32,64,128")
    if len(rungs) != 1:
        raise LadderError("--define changes one rung; name it with --rung")
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
    shapes = [shape_of(ladder, options)] if options.shape else [*ladder.op.bench.values()]
    for dtype in options.dtype or ladder.op.reals:
        choices = pick.pick(
            ladder,
            device,
            dtype,
            *shapes,
            library=options.library,
            deterministic=options.deterministic,
            tf32=options.tf32,
            fresh=options.fresh,
        )
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
