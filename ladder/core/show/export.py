"""One rung as one `.cu` file that needs nothing else: its kernel, a CPU loop to check it, and main.

    text = export(find("layernorm.forward"), rung, {"N": 4096, "C": 768}, target)
    path.write_text(text)
    print(shlex.join(build_command(path, target)))

It is put together from what the repository holds: the rung's file with its headers, the op's loop
in C++ (`cpu.h` in the folder of the op's rungs), and what every main needs
(ladder/core/show/exported). The expressions of the rung's header are worked out for one shape, real
type and GPU.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_text
from ladder.core.contract import signature
from ladder.core.contract.device import refuse_tile
from ladder.core.contract.dims import Dims, format_dims
from ladder.core.contract.dtypes import REAL, resolve_dtype
from ladder.core.contract.ladder import PACKAGE, Ladder
from ladder.core.contract.launch_plan import FLAG, Launch, LaunchPlan
from ladder.core.contract.op import Arg, Op, Scalar
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.target import Target
from ladder.core.verify.inputs import scalars
from ladder.core.verify.tolerance import TF32, unit_roundoff

INCLUDE = PACKAGE / "include"
PARTS = Path(__file__).parent / "exported"
MOST_BYTES = 64 << 20  # of all arguments at the default shape, and
MOST_FLOPS = 1.2e9  # of the op: the CPU's loop then takes a second or two
COLUMNS = 100  # of a line

_QUIET = "#pragma nv_diag_suppress 177  // headers define more than this kernel uses"
_C_TYPES = {"real": "real", "float32": "float", "int32": "int", "uint32": "unsigned"}
_TENSOR_TYPES = {"float32": "FLOAT32", "float16": "FLOAT16", "bfloat16": "BFLOAT16"}
_OWN_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)".*\n', re.MULTILINE)
_SYSTEM_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<([^>]+)>.*\n", re.MULTILINE)


def default_shape(op: Op, rung: Rung, target: Target) -> Dims:
    """The smallest shape that the op is measured at and that the rung takes, made smaller if the
    CPU's loop would take long: the rows are halved, down to one, then the largest dimension."""

    def size(dims: Dims) -> int:
        return sum(4 * math.prod(arg.resolve_shape(dims)) for arg in op.args)

    shapes = sorted(op.bench.values(), key=size)
    taken = (dims for dims in shapes if rung.plan(dims, target).refusal is None)
    dims = dict(next(taken, shapes[0]))
    while size(dims) > MOST_BYTES or op.flops(dims) > MOST_FLOPS:
        rows = op.dims[0]
        dims[rows if dims[rows] > 1 else max(dims, key=dims.__getitem__)] //= 2
    return dims


def file_name(op: Op, rung: Rung) -> str:
    """What the program is called unless the user says otherwise: layernorm_forward_3.cu"""
    which = rung.path.stem if rung.is_own_file and rung.path else rung.id
    return f"{op.kernel}_{which}.cu"


def build_command(path: Path, target: Target) -> list[str]:
    """The command line that builds the program `path`, of the same name without `.cu`.

    Raises LadderError where nvcc would not take the file for CUDA C++.
    """
    if path.suffix != ".cu":
        raise LadderError(f"nvcc compiles CUDA C++ from files that end in .cu; rename {path}")
    number = target.arch.removeprefix("sm_")
    code = f"arch=compute_{number},code=sm_{number}"
    return [
        "nvcc",
        "-O3",
        "-std=c++17",
        "-gencode",
        code,
        str(path),
        "-o",
        str(path.with_suffix("")),
    ]


def cpu_file(op: Op) -> Path:
    """The op's loop in C++: the function `layernorm_forward_cpu`, in double; and, where an op asks
    for other inputs than normal random numbers, `layernorm_forward_inputs`."""
    return PACKAGE / op.layer / op.name.split(".")[1] / "cpu.h"


def export(ladder: Ladder, rung: Rung, dims: Dims, target: Target) -> str:
    """The text of the file.

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

    kernel = _with_headers(path, (path.parent, INCLUDE))
    if not cpu_file(op).is_file():
        raise LadderError(f"{op.name} has no loop for the CPU; write it in {cpu_file(op)}")
    loops = _with_headers(cpu_file(op), (PACKAGE, INCLUDE))
    if any(_at_random(arg, target) for arg in op.args):
        loops += _with_headers(INCLUDE / "rounding_cpu.h", (INCLUDE,))
    names = ["arrays", "timing"]
    names += ["scratch"] if plan.scratch else []
    names += ["tensor_map"] if plan.tiles else []
    names += ["peers"] if op.ranks else []
    parts = [text for name in names for _, text in _with_headers(PARTS / f"{name}.h", ())]

    loop = "\n".join(text for _, text in loops)
    includes = {name for text in (loop, *parts) for name in _SYSTEM_INCLUDE.findall(text)}
    sections = [
        _title(op, rung, dims, target),
        "\n".join(f"#include <{name}>" for name in sorted({*includes, "cuda_runtime.h"})),
        _heading("1. The kernel"),
        _QUIET if len(kernel) > 1 else "",
        _constants(plan, target),
        *(_file_heading(file) + text for file, text in kernel),
        _heading("2. The same on the CPU, in double: what the result must be"),
        _SYSTEM_INCLUDE.sub("", loop),
        _heading("3. The program: inputs, launch, check, time"),
        *(_SYSTEM_INCLUDE.sub("", part) for part in parts),
        _main(op, rung, dims, target, loop),
    ]
    text = "\n\n".join(section.strip("\n") for section in sections if section) + "\n"
    return re.sub(r"\n{3,}", "\n\n", text)


# ---- files that include each other ---------------------------------------------------------------


def _with_headers(path: Path, folders: Sequence[Path]) -> list[tuple[Path, str]]:
    """A file, and before it the repository's headers that it includes, each of them once."""
    found: dict[Path, str] = {}

    def follow(path: Path) -> None:
        text = _without_emulator(read_text(path))
        for name in _OWN_INCLUDE.findall(text):
            header = next((f / name for f in (path.parent, *folders) if (f / name).is_file()), None)
            if header is None:
                raise LadderError(f"{path} includes {name}, which is not there")
            if header.resolve() not in found:
                follow(header.resolve())
        text = _OWN_INCLUDE.sub("", text)
        found[path] = re.sub(r"^#pragma once\n", "", text, flags=re.MULTILINE)

    follow(path.resolve())
    return list(found.items())


def _without_emulator(text: str) -> str:
    """A header without what is for the emulator alone: what stands between
    `#ifdef KERNEL_LADDER_EMULATOR` and its #else or #endif."""
    kept = []
    branches: list[str] = []  # "emulator", "device" or "other": of the conditions around a line
    for line in text.splitlines(keepends=True):
        found = re.match(r"\s*#\s*(if|else|endif)", line)
        word = found.group(1) if found else ""
        ours = False
        if word == "if":
            ours = re.match(r"\s*#\s*ifdef\s+KERNEL_LADDER_EMULATOR\b", line) is not None
            branches.append("emulator" if ours else "other")
        elif word == "else" and branches[-1] == "emulator":
            branches[-1], ours = "device", True
        elif word == "endif":
            ours = branches.pop() != "other"
        if not ours and "emulator" not in branches:
            kept.append(line)
    return "".join(kept)


# ---- sections ------------------------------------------------------------------------------------


def _title(op: Op, rung: Rung, dims: Dims, target: Target) -> str:
    name, real = file_name(op, rung), target.real.name
    which = rung.path.name if rung.is_own_file and rung.path else rung.id
    shape = ",".join(f"{name}={size}" for name, size in dims.items())
    call = f"--shape {shape} --dtype {real} --arch {target.arch}"
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
//     python -m ladder export {op.name} {which} {call}"""


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


def _main(op: Op, rung: Rung, dims: Dims, target: Target, loop: str) -> str:
    arrays = [arg.name for arg in op.args]
    drawn = [arg.name for arg in op.args if arg.role != "out" and arg.dtype in ("real", "float32")]
    values = scalars(op)
    inputs = signature.parameters(loop, f"{op.kernel}_inputs")
    computes = signature.parameters(loop, f"{op.kernel}_cpu")
    if computes is None:
        raise LadderError(f"{cpu_file(op)}: it defines no function {op.kernel}_cpu")

    body = [
        f"const int {', '.join(f'{name} = {dims[name]}' for name in op.dims)};",
        *(_constant(scalar, values[scalar.name]) for scalar in op.scalars),
        "",
        "// The kernel's arguments: name, rows, columns.",
        *(_array(arg) for arg in op.args),
        "",
        "// Inputs: normal random numbers, unless the op asks for others.",
        "std::mt19937 random(1);",
    ]
    body += _call("fill_normal", ["random", *drawn])
    if inputs is not None:
        body += _call(f"{op.kernel}_inputs", (_host(name, arrays) for _, name, _ in inputs))
    body += [
        "",
        "// The right result, by the CPU.",
        "auto loop = [&] {",
        *_indent(_call(f"{op.kernel}_cpu", (_host(name, arrays) for _, name, _ in computes))),
        "};",
        *_call("run_on_cpu", ["loop", *arrays]),
        "",
        *_launch(op, rung, rung.plan(dims, target), dims, target),
        "launch();",
        "check(cudaDeviceSynchronize());",
        "",
        "bool right = true;",
    ]
    for arg in op.args:
        if arg.role != "in":
            body += _verify(arg, rung, target)
    body += [
        "",
        "// The least that must be moved and computed.",
        f"const double bytes = {op.least_bytes(dims, target.real)};",
        f"const double flops = {op.flops(dims)};",
        "double us = median_us(launch);",
        'printf("%.2f us, %.0f GB/s, %.2f TFLOP/s\\n", us, bytes / us / 1e3, flops / us / 1e6);',
        "return right ? 0 : 1;",
    ]
    return "\n".join(["int main() {", *_indent(body), "}"])


def _constant(scalar: Scalar, value: float) -> str:
    text = f"{np.float32(value)}f" if scalar.dtype == "float32" else f"{int(value)}u"
    return f"const {_C_TYPES[scalar.dtype]} {scalar.name} = {text};"


def _array(arg: Arg) -> str:
    """The declaration of an argument: all dimensions but the last together are the rows."""
    *leading, columns = (size.replace("*", " * ") for size in arg.shape.split())
    rows = " * ".join(leading) or "1"
    rows = f"(size_t){rows}" if len(leading) > 1 else rows
    note = {"in": "", "out": "  // written", "inout": "  // updated"}[arg.role]
    return f'Array<{_C_TYPES[arg.dtype]}> {arg.name}("{arg.name}", {rows}, {columns});{note}'


def _host(name: str, arrays: Sequence[str]) -> str:
    return f"{name}.cpu()" if name in arrays else name


def _launch(op: Op, rung: Rung, plan: LaunchPlan, dims: Dims, target: Target) -> list[str]:
    """The rung's buffers, and `launch`, a function that launches its kernels."""
    lines = []
    for buffer in plan.scratch:
        kind = _C_TYPES[buffer.stored]
        zero = ", 0" if buffer.dtype == FLAG else ""
        lines.append(f"{kind}* {buffer.name} = scratch<{kind}>({math.prod(buffer.shape)}{zero});")
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
    arrays = [f"{arg.name}.device" for arg in op.args]
    buffers = [buffer.name for buffer in plan.scratch]
    if op.ranks:
        ranks = dims[op.ranks]
        arrays = [
            _peers(arg, f"{arg.name}.device, {op.ranks}, {arg.name}.columns") for arg in op.args
        ]
        buffers = [
            f"peers<{_C_TYPES[buffer.stored]}>({buffer.name}, {op.ranks}, "
            f"{math.prod(buffer.shape) // ranks})"
            for buffer in plan.scratch
        ]
    args = [
        *arrays,
        *op.dims,
        *("0" for _ in op.ranks[:1]),
        *(scalar.name for scalar in op.scalars),
        *buffers,
        *(f"{tile.argument}_tiles" for tile in plan.tiles),
    ]
    launches = plan.launches
    for launch in launches:
        if launch.shared:  # above 48 KB with the kernel's static arrays, CUDA must be asked
            limit = "cudaFuncAttributeMaxDynamicSharedMemorySize"
            asked = [launch.kernel, limit, str(launch.shared)]
            lines += _call("check(cudaFuncSetAttribute", asked, end="));")
    lines.append("auto launch = [&] {")
    values = dict(zip((each.name for each in signature.expected(op, rung)), args, strict=True))
    for launch in launches:
        own = [values[each.name] for each in signature.arguments(rung, launch.kernel)]
        lines += _indent(_call(f"{launch.kernel}{_geometry(launch)}", own))
    return [*lines, "    check(cudaGetLastError());", "};"]


def _peers(arg: Arg, rows: str) -> str:
    const = "const " if arg.role == "in" else ""
    return f"peers<{const}{_C_TYPES[arg.dtype]}>({rows})"


def _geometry(launch: Launch) -> str:
    parts = [_dim3(launch.grid), _dim3(launch.block), *([str(launch.shared)] * (launch.shared > 0))]
    return f"<<<{', '.join(parts)}>>>"


def _dim3(sizes: tuple[int, int, int]) -> str:
    x, y, z = sizes
    if y == z == 1:
        return str(x)
    return f"dim3({x}, {y})" if z == 1 else f"dim3({x}, {y}, {z})"


def _verify(arg: Arg, rung: Rung, target: Target) -> list[str]:
    terms = arg.terms.replace("//", "/")
    if _at_random(arg, target):
        word = f"random_word_cpu({arg.rounded_by}.cpu(), stream, first + i)"
        return [
            f"auto store = [&](double x, size_t i) {{  // {arg.name} is rounded at random",
            f"    return round_at_random_cpu<real>(x, {word});",
            "};",
            f"right &= {arg.name}.verify({terms}, 0, store);",
        ]
    if rung.tf32:
        return [f"right &= {arg.name}.verify({terms}, 0x1p{round(math.log2(TF32))});  // TF32"]
    if rung.rounds and arg.dtype == REAL:
        rounding = f"0x1p{round(math.log2(unit_roundoff(target.real)))}"
        return [f"right &= {arg.name}.verify({terms}, {rounding});  // Rounds"]
    return [f"right &= {arg.name}.verify({terms});"]


def _at_random(arg: Arg, target: Target) -> bool:
    """Whether an output is rounded up or down at random (`Arg.rounded_by`)."""
    return arg.rounded_by is not None and resolve_dtype(arg.dtype, target.real).itemsize == 2


def _call(function: str, args: Iterable[str], end: str = ");") -> list[str]:
    """A call, broken into lines where it is long."""
    listed = ", ".join(args)
    if len(function) + len(listed) + len(end) < COLUMNS - 8:
        return [f"{function}({listed}{end}"]
    lines = textwrap.wrap(
        listed + end, COLUMNS - 16, break_long_words=False, break_on_hyphens=False
    )
    return [f"{function}(", *_indent(lines)]


def _indent(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" if line else "" for line in lines]
