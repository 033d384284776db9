"""A kernel that you already have: `adopt` makes a rung of it."""

import argparse
import dataclasses
from pathlib import Path

from ladder.core.adopt.adopt import Options, adopt
from ladder.core.commands import shared
from ladder.core.common.errors import LadderError
from ladder.core.common.files import atomic_write
from ladder.core.contract import rung_file
from ladder.core.contract.ladder import find
from ladder.core.emulator.host import TARGET


def add_to(commands: shared.Commands) -> None:
    parser = commands.add("adopt", adopt_kernel)
    parser.add_argument("file", help="the .cu file that has it")
    parser.add_argument(
        "kernel", help="its name, or that of the host function that launches several kernels"
    )
    parser.add_argument("--op", required=True, help=shared.OP_HELP)
    repeated = {
        "--arg": ("THEIRS=OURS", "what an argument of theirs is: an argument of the op, a number, "
                  "nullptr, or an expression such as 'scale[0]'"),
        "--scratch": ("'float32 NAME[N, C]'", "a buffer of the kernel's own"),
        "--fill": ("'NAME = 0'", "a buffer to set before the kernel runs"),
        "--then": ("'NAME += VALUE'", "a buffer to change after it has run"),
        "--needs": ("'C % 4 == 0'", "what shapes and types must meet"),
    }  # fmt: skip
    group = parser.add_argument_group("arguments and buffers; each may be given several times")
    for flag, (metavar, meaning) in repeated.items():
        group.add_argument(flag, action="append", default=[], metavar=metavar, help=meaning)
    once = {
        "--grid": "blocks, such as 'ceil_div(N, 256)'; with --block, where the host code does not "
        "give the launch",
        "--block": "threads of a block, such as 256 or '(32, 8)'",
        "--shared": "bytes of dynamic shared memory",
        "--template": "template arguments, such as '64, 8'",
    }
    group = parser.add_argument_group("the launch")
    for flag, meaning in once.items():
        group.add_argument(flag, default="", help=meaning)
    parser.add_argument("-o", "--output", metavar="FILE", help="default: KERNEL.cu, here")


def adopt_kernel(options: argparse.Namespace) -> int:
    """Make a rung of a kernel in somebody else's .cu file."""
    op = find(options.op).op
    arguments = dict(_pair(text) for text in options.arg)
    names = [field.name for field in dataclasses.fields(Options) if field.name != "arguments"]
    output = Path(options.output or f"{options.kernel}.cu")
    if output.suffix != ".cu":
        raise LadderError(f"{output}: a rung's file ends in .cu")
    if output.exists() and (not options.output or output.samefile(options.file)):
        raise LadderError(f"{output} exists already; choose another name: -o FILE.cu")
    adopted = adopt(
        Path(options.file),
        options.kernel,
        op,
        Options(arguments, **{name: getattr(options, name) for name in names}),
    )
    with atomic_write(output) as file:
        file.write(adopted.text.encode())
        file.flush()
        try:
            rung = rung_file.parse(Path(file.name), op.kernel)  # what makes no rung is not kept
            rung.plan(op.shapes[-1], TARGET)
        except LadderError as error:
            raise LadderError(str(error).replace(file.name, options.file)) from None
        if output.exists() and output.read_bytes() != adopted.text.encode():
            print(f"{output} held another text: it is {output.replace(f'{output}.before')} now")
    for note in adopted.notes:
        print(f"  {note}")
    for line in rung.header["launch"]:
        print(f"  launch: {line}")
    print(
        f"written to {output}; whether it computes {op.name} is what this tells:\n"
        f"python -m ladder check {op.name} {output}"
    )
    return 0


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (sign and name.strip() and value.strip()):
        raise LadderError(f"--arg {text}: write THEIRS=OURS, such as --arg x=inp")
    return name.strip(), value.strip()
