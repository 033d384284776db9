"""One rung as one `.cu` file that needs nothing else: its kernel, main, and samples of the result.

    text = export(find("layernorm.forward"), rung, {"N": 4096, "C": 768}, target)
    path.write_text(text)
    print(shlex.join(build_command(path, target)))

It is put together from what the repository holds: the rung's file with its headers, what every main
needs (ladder/core/show/exported), and samples of what the NumPy reference computes
(ladder/core/show/samples.py). The expressions of the rung's header are worked out for one shape,
real type and GPU.
"""

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_text
from ladder.core.contract import signature
from ladder.core.contract.device import refuse_tile
from ladder.core.contract.device_code import INCLUDE
from ladder.core.contract.ladder import PACKAGE, Ladder
from ladder.core.contract.launch_plan import FLAG, Launch, LaunchPlan
from ladder.core.contract.op import Arg, Dims, Op, Scalar, format_dims, resolve_dtype
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.target import Target
from ladder.core.show.samples import Input, Samples, make_inputs, take_samples
from ladder.core.verify.inputs import scalars

PARTS = Path(__file__).parent / "exported"
MOST_BYTES = 64 << 20  # of all arguments at the default shape, and
MOST_FLOPS = 1.2e9  # of the op: the reference then takes a second or two
COLUMNS = 100  # of a line

_QUIET = "#pragma nv_diag_suppress 177  // headers define more than this kernel uses"
_C_TYPES = {"real": "real", "float32": "float", "int32": "int", "uint32": "unsigned"}
_TENSOR_TYPES = {"float32": "FLOAT32", "float16": "FLOAT16", "bfloat16": "BFLOAT16"}
# What is for the emulator alone, up to its #else or #endif; group 1 is what is not.
_EMULATED = re.compile(
    r"^#ifdef KERNEL_LADDER_EMULATOR\b.*\n(?:.*\n)*?(?:#else.*\n((?:.*\n)*?))?#endif.*\n",
    re.MULTILINE,
)
_OWN_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)".*\n', re.MULTILINE)
_SYSTEM_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<([^>]+)>.*\n", re.MULTILINE)


def default_shape(op: Op, rung: Rung, target: Target) -> Dims:
    """The smallest shape that the op is measured at and that the rung takes, made smaller if the
    reference would take long: the rows are halved, down to one, then the largest dimension."""

    def size(dims: Dims) -> int:
        return sum(4 * math.prod(arg.resolve_shape(dims)) for arg in op.args)

    shapes = sorted(op.bench.values(), key=size)
    taken = (dims for dims in shapes if rung.plan(dims, target).refusal is None)
    dims = dict(next(taken, shapes[0]))
    while size(dims) > MOST_BYTES or op.flops(dims) > MOST_FLOPS:
        rows = op.dims[0]
        dims[rows if dims[rows] > 1 else max(dims, key=dims.__getitem__)] //= 2
    return dims


def file_name(op: Op, rung: Rung, suffix: str = ".cu") -> str:
    """What the file is called unless the user says otherwise: layernorm_forward_3.cu; Python
    can import the name of a .py file."""
    which = rung.path.stem if rung.is_own_file and rung.path else rung.id
    name = f"{op.kernel}_{which}"
    return (name if suffix == ".cu" else re.sub(r"\W", "_", name)) + suffix


def command(op: Op, rung: Rung, dims: Dims, target: Target) -> str:
    """The command that writes the file anew."""
    which = rung.path.name if rung.is_own_file and rung.path else rung.id
    shape = ",".join(f"{name}={size}" for name, size in dims.items())
    call = f"--shape {shape} --dtype {target.real.name} --arch {target.arch}"
    return f"python -m ladder export {op.name} {which} {call}"


def build_command(path: Path, target: Target) -> list[str]:
    """The command line that builds the program `path`, of the same name without `.cu`."""
    number = target.arch.removeprefix("sm_")
    code = f"arch=compute_{number},code=sm_{number}"
    program = str(path.with_suffix(""))
    return ["nvcc", "-O3", "-std=c++17", "-gencode", code, str(path), "-o", program]


def export(ladder: Ladder, rung: Rung, dims: Dims, target: Target, name: str | None = None) -> str:
    """The text of the file `name`, else of `file_name`. What it takes and raises: as `prepare`."""
    op = ladder.op
    plan, inputs, samples = prepare(ladder, rung, dims, target)
    tables = _tables(inputs, samples)
    names = ["arrays", "timing", *(["probabilities"] if "probs" in inputs else [])]
    names += ["scratch"] if plan.scratch else []
    body = [
        *(f"extern const double {table};" for table in tables),
        "",
        *_main(op, rung, plan, dims, target, inputs),
    ]
    return tidy(
        _title(op, rung, dims, target, name or file_name(op, rung)),
        *device_code(op, rung, plan, target, names),
        "\n".join(body),
        _heading("3. The numbers: inputs, and samples of the results (index, value, tolerance)"),
        *(
            "\n".join([f"const double {name} = {{", *wrapped(numbers), "};"])
            for name, numbers in tables.items()
        ),
    )


def prepare(
    ladder: Ladder, rung: Rung, dims: Dims, target: Target
) -> tuple[LaunchPlan, dict[str, Input], dict[str, Samples]]:
    """The launch of a rung, its inputs, and samples of what it must compute.

    target  a GPU of the architecture that the program is for, and the real type of the run

    Raises LadderError where the rung is no kernel, or cannot run this shape and type there.
    """
    op, path = ladder.op, rung.path
    if path is None:
        raise LadderError(f"{op.name} {rung.label} is no .cu file; choose another rung to export")
    plan = rung.plan(dims, target)
    if plan.refusal is not None:
        raise LadderError(
            f"{op.name} {rung.label} cannot run at {format_dims(dims)} in {target.real.name} on "
            f"{target.arch}: {plan.refusal}; choose another --shape, --dtype or --arch"
        )
    if (problem := signature.mismatch(op, rung)) is not None:
        raise LadderError(f"{path}: {problem}")

    inputs = make_inputs(op, dims, target.real)
    return plan, inputs, take_samples(op, rung, dims, target, inputs)


def device_code(
    op: Op, rung: Rung, plan: LaunchPlan, target: Target, names: Sequence[str]
) -> list[str]:
    """Sections of a file: the kernel, and the parts of these names that its launch needs."""
    kernel = _with_headers(rung.file, (rung.file.parent, INCLUDE))
    names = [*names, *(["tensor_map"] if plan.tiles else []), *(["peers"] if op.ranks else [])]
    parts = dict(part for name in names for part in _with_headers(PARTS / f"{name}.h", (PARTS,)))
    includes = {name for text in parts.values() for name in _SYSTEM_INCLUDE.findall(text)}
    return [
        "\n".join(f"#include <{name}>" for name in sorted({*includes, "cuda_runtime.h"})),
        _heading("1. The kernel"),
        _QUIET if len(kernel) > 1 else "",
        _constants(plan, target),
        *(_file_heading(file) + text for file, text in kernel),
        _heading("2. The program: inputs, launch, check, time"),
        *(_SYSTEM_INCLUDE.sub("", part) for part in parts.values()),
    ]


def tidy(*sections: str) -> str:
    """The text of a file of these sections."""
    text = "\n\n".join(section.strip("\n") for section in sections if section) + "\n"
    return re.sub(r"\n{3,}", "\n\n", text)


# ---- files that include each other ---------------------------------------------------------------


def _with_headers(path: Path, folders: Sequence[Path]) -> list[tuple[Path, str]]:
    """A file, and before it the repository's headers that it includes, each of them once."""
    texts: dict[Path, str] = {}

    def follow(path: Path) -> None:
        text = _EMULATED.sub(r"\1", read_text(path))
        for name in _OWN_INCLUDE.findall(text):
            header = next((f / name for f in (path.parent, *folders) if (f / name).is_file()), None)
            if header is None:
                raise LadderError(f"{path} includes {name}, which is not there")
            if header.resolve() not in texts:
                follow(header.resolve())
        text = _OWN_INCLUDE.sub("", text)
        texts[path] = re.sub(r"^#pragma once\n", "", text, flags=re.MULTILINE)

    follow(path.resolve())
    return list(texts.items())


# ---- sections ------------------------------------------------------------------------------------


def _title(op: Op, rung: Rung, dims: Dims, target: Target, name: str) -> str:
    real = target.real.name
    return f"""\
// {op.name}, {rung.label}, as one program
//
// It computes: {op.summary}
// Here {format_dims(dims)}, and `real` is {real}. The launches are laid out for a GPU of
// architecture {target.arch} with {target.multiprocessors} SMs (streaming multiprocessors).
//
// Build it and run it:
//     {" ".join(build_command(Path(name), target))}
//     ./{name.removesuffix(".cu")}
// It prints whether the result is right, and the time. Its exit status is 0 if the result is right,
// 1 if it is wrong, and 2 if a call of CUDA fails.
//
// Written by this command of Kernel Ladder; headings name the files that it took:
//     {command(op, rung, dims, target)}"""


def _heading(text: str) -> str:
    return f"// ==== {text} ".ljust(COLUMNS, "=")


def _file_heading(path: Path) -> str:
    name = path.relative_to(PACKAGE.parent) if path.is_relative_to(PACKAGE) else path.name
    return f"// ---- {name} ".ljust(COLUMNS, "-") + "\n\n"


def _constants(plan: LaunchPlan, target: Target) -> str:
    """What the repository gives the compiler with -D."""
    defines = {"WARP_SIZE": target.warp, **plan.constants}
    return "\n".join(
        [
            "// The type `real`, and the values of the constants in `Define` of the rung's header.",
            f"#define REAL_{target.real.name.upper()}",
            *(f"#define {name} {value}" for name, value in defines.items()),
        ]
    )


def _main(
    op: Op,
    rung: Rung,
    plan: LaunchPlan,
    dims: Dims,
    target: Target,
    inputs: Mapping[str, Input],
) -> list[str]:
    launch = launching(op, rung, plan, dims, target)
    body = [
        *sizes(op, dims, launch),
        "",
        "// The kernel's arguments: name, rows, columns.",
        *(array(arg) for arg in op.args),
        "",
        "// Inputs: numbers from -2 to 2, unless the op asks for others.",
        *(_fill(name, given) for name, given in inputs.items()),
        *_call("upload", (arg.name for arg in op.args)),
        "",
        *launch,
        "launch();",
        "check(cudaDeviceSynchronize());",
        "",
        "bool right = true;",
        *(
            f"right &= {arg.name}.verify({arg.name}_samples);"
            for arg in op.args
            if arg.role != "in"
        ),
        "",
        "// The least that must be moved and computed.",
        f"const double bytes = {op.least_bytes(dims, target.real)};",
        f"const double flops = {op.flops(dims)};",
        "double us = median_us(launch);",
        'printf("%.2f us, %.0f GB/s, %.2f TFLOP/s\\n", us, bytes / us / 1e3, flops / us / 1e6);',
        "return right ? 0 : 1;",
    ]
    return ["int main() {", *indent(body), "}"]


def sizes(op: Op, dims: Dims, launch: Sequence[str]) -> list[str]:
    """The dimensions, and those of the scalars that the lines of `launch` name."""
    words, values = set(re.findall(r"\w+", "\n".join(launch))), scalars(op)
    named = (scalar for scalar in op.scalars if scalar.name in words)
    return [
        f"const int {', '.join(f'{name} = {dims[name]}' for name in op.dims)};",
        *(_constant(scalar, values[scalar.name]) for scalar in named),
    ]


def _fill(name: str, given: Input) -> str:
    """The line of main that makes an input."""
    return {
        "hash": f"{name}.fill({given.number});",
        "probabilities": f"fill_probabilities({name}, {given.number});",
        "values": f"{name}.repeat({name}_values);",
        "factors": f"{name}.scale(dout, {name}_values);",
    }[given.how]


def _constant(scalar: Scalar, value: float) -> str:
    text = f"{np.float32(value)}f" if scalar.dtype == "float32" else f"{int(value)}u"
    return f"const {_C_TYPES[scalar.dtype]} {scalar.name} = {text};"


def array(arg: Arg, tensor: str = "") -> str:
    """The declaration of an argument: all dimensions but the last together are the rows. `tensor`:
    the expression that it is made of, with a comma."""
    *leading, columns = (size.replace("*", " * ") for size in arg.shape.split())
    rows = " * ".join(leading) or "1"
    rows = f"(size_t){rows}" if len(leading) > 1 else rows
    note = {"in": "", "out": "  // written", "inout": "  // updated"}[arg.role]
    return (
        f'Array<{_C_TYPES[arg.dtype]}> {arg.name}("{arg.name}", {tensor}{rows}, {columns});{note}'
    )


def launching(
    op: Op, rung: Rung, plan: LaunchPlan, dims: Dims, target: Target, stream: str = ""
) -> list[str]:
    """The rung's buffers, and `launch`, a function that launches its kernels. With a stream, it is
    called many times, and the buffers are kept."""
    lines, kept = [], "static " if stream else ""
    for buffer in plan.scratch:
        kind = _C_TYPES[buffer.stored]
        zero = ", 0" if buffer.dtype == FLAG else ""
        size = math.prod(buffer.shape)
        lines.append(f"{kept}{kind}* {buffer.name} = scratch<{kind}>({size}{zero});")
    for tile in plan.tiles:
        name, box = tile.argument, tile.box
        given: dict[str, tuple[str, tuple[int, ...], str]]
        given = {arg.name: (arg.dtype, arg.resolve_shape(dims), arg.role) for arg in op.args}
        given |= {buffer.name: (buffer.stored, buffer.shape, "scratch") for buffer in plan.scratch}
        stored, shape, role = given[name]
        dtype = resolve_dtype(stored, target.real)
        refuse_tile(np.broadcast_to(np.empty((), dtype), shape), box)
        tf32 = rung.tf32 and role in ("in", "scratch")  # rounded by TMA, as on a device here
        kind = f"CU_TENSOR_MAP_DATA_TYPE_{'TFLOAT32' if tf32 else _TENSOR_TYPES[dtype.name]}"
        matrix = name
        if role == "scratch":
            matrix = f"Matrix<{_C_TYPES[stored]}>{{{name}, {shape[-1]}, {math.prod(shape[:-1])}}}"
        map_ = f"TensorMap {name}_tiles = tiles_of"
        lines += _call(map_, [matrix, kind, str(box[0]), str(box[1])])
    given_as = _arguments(op, plan, dims)
    for launch in plan.launches:
        if launch.shared:  # above 48 KB with the kernel's static arrays, CUDA must be asked
            limit = "cudaFuncAttributeMaxDynamicSharedMemorySize"
            asked = [launch.kernel, limit, str(launch.shared)]
            lines += _call("check(cudaFuncSetAttribute", asked, end="));")
    lines.append("auto launch = [&] {")
    for launch in plan.launches:
        own = [given_as[each.name] for each in signature.arguments(rung, launch.kernel)]
        lines += indent(_call(f"{launch.kernel}{_geometry(launch, stream)}", own))
    return [*lines, "    check(cudaGetLastError());", "};"]


def _arguments(op: Op, plan: LaunchPlan, dims: Dims) -> dict[str, str]:
    """What main passes for each parameter that a kernel may name, in the contract's order."""
    given = {arg.name: f"{arg.name}.device" for arg in op.args}
    buffers = {buffer.name: buffer.name for buffer in plan.scratch}
    if op.ranks:  # the rows of all ranks
        for arg in op.args:
            kind = f"{'const ' if arg.role == 'in' else ''}{_C_TYPES[arg.dtype]}"
            given[arg.name] = f"peers<{kind}>({arg.name}.device, {op.ranks}, {arg.name}.columns)"
        for buffer in plan.scratch:
            kind, size = _C_TYPES[buffer.stored], math.prod(buffer.shape) // dims[op.ranks]
            buffers[buffer.name] = f"peers<{kind}>({buffer.name}, {op.ranks}, {size})"
    return {
        **given,
        **{name: name for name in op.dims},
        **({"first_rank": "0"} if op.ranks else {}),
        **{scalar.name: scalar.name for scalar in op.scalars},
        **buffers,
        **{name: name for name in (f"{tile.argument}_tiles" for tile in plan.tiles)},
    }


def _geometry(launch: Launch, stream: str) -> str:
    parts = [_dim3(launch.grid), _dim3(launch.block)]
    parts += [str(launch.shared)] if launch.shared or stream else []
    parts += [stream] if stream else []
    return f"<<<{', '.join(parts)}>>>"


def _dim3(sizes: tuple[int, int, int]) -> str:
    x, y, z = sizes
    if y == z == 1:
        return str(x)
    return f"dim3({x}, {y})" if z == 1 else f"dim3({x}, {y}, {z})"


def _tables(
    inputs: Mapping[str, Input], samples: Mapping[str, Samples]
) -> dict[str, Sequence[str]]:
    """The numbers in the program: declarations, and what is in them."""
    tables: dict[str, Sequence[str]] = {}
    for name, given in inputs.items():
        if given.values is not None:
            tables[f"{name}_values[{len(given.values)}]"] = [str(x) for x in given.values]
    for name, taken in samples.items():
        tables[f"{name}_samples[{len(taken.index)}][3]"] = rows(taken, "{}")
    return tables


def rows(taken: Samples, brackets: str) -> list[str]:
    """Each sample, with digits enough for its tolerance, which is 0.2 % larger at most."""
    texts = []
    for index, value, tolerance in zip(
        taken.index.tolist(), taken.value.tolist(), taken.tolerance.tolist(), strict=True
    ):
        digits = 17
        if tolerance:
            digits = 4 + max(0, math.ceil(math.log10(abs(value) / tolerance))) if value else 1
        numbers = f"{index},{value:.{digits}g},{1.0011 * tolerance:.4g}"
        texts.append(f"{brackets[0]}{numbers}{brackets[1]}")
    return texts


def wrapped(numbers: Iterable[str]) -> list[str]:
    return indent(textwrap.wrap(", ".join(numbers), COLUMNS - 4, break_on_hyphens=False))


def _call(function: str, args: Iterable[str], end: str = ");") -> list[str]:
    """A call, broken into lines where it is long."""
    listed = ", ".join(args)
    if len(function) + len(listed) + len(end) < COLUMNS - 8:
        return [f"{function}({listed}{end}"]
    lines = textwrap.wrap(
        listed + end, COLUMNS - 16, break_long_words=False, break_on_hyphens=False
    )
    return [f"{function}(", *indent(lines)]


def indent(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" if line else "" for line in lines]
