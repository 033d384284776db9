"""`export` writes a rung as a program of its own, and prints the command that builds it."""

import argparse
import functools
import shlex
from pathlib import Path

from ladder.core.commands import shared
from ladder.core.common.errors import LadderError
from ladder.core.common.files import atomic_write
from ladder.core.contract.op import DTYPES
from ladder.core.device.cuda import compiler
from ladder.core.show import export, export_torch

SUFFIXES = {"nvcc": ".cu", "torch": ".py"}


def add_to(commands: shared.Commands) -> None:
    parser = commands.add("export", export_rung)
    shared.add_op_and_rung(parser)
    shared.add_call_options(parser)
    parser.add_argument(
        "--arch", default="sm_90a", help="sm_75, sm_80, sm_90a, ...; default sm_90a"
    )
    parser.add_argument(
        "--to",
        choices=SUFFIXES,
        default="nvcc",
        help="nvcc: a .cu file with main(); torch: a .py file with a function of tensors, which "
        "PyTorch's load_inline compiles; default nvcc",
    )
    parser.add_argument(
        "-o",
        dest="output",
        type=Path,
        metavar="FILE",
        help="replaces FILE if it is there; default: a new file, here, such as "
        "layernorm_forward_3.cu",
    )


def export_rung(options: argparse.Namespace) -> int:
    """Write a rung as one file that checks itself, for nvcc or PyTorch; needs no GPU."""
    ladder, rung = shared.op_and_rung(options)
    target_of = functools.partial(compiler.typical_target, options.arch)
    target = target_of(DTYPES[shared.dtype_of(ladder, rung, options, target_of)])
    if options.shape:
        dims = shared.shape_of(ladder, options)
    else:
        dims = export.default_shape(ladder.op, rung, target)
    suffix = SUFFIXES[options.to]
    path = options.output or Path(export.file_name(ladder.op, rung, suffix))
    if path.is_dir():
        raise LadderError(f"-o {path} is a folder; name a file")
    if path.exists() and not options.output:  # it may have been edited since it was exported
        raise LadderError(f"{path} exists already; choose another name, or replace it: -o FILE")
    if path.suffix != suffix:
        raise LadderError(f"{path}: a file for {options.to} ends in {suffix}; rename it")
    if rung.path is not None and path.resolve() == rung.path.resolve():
        raise LadderError(f"{path} is the rung itself; give the program another name by -o")
    if options.to == "torch":
        text, next_step = export_torch.export(ladder, rung, dims, target), ["python", str(path)]
        purpose = "where PyTorch with CUDA and nvcc are, check it with"
    else:
        text = export.export(ladder, rung, dims, target, path.name)
        purpose, next_step = "build it with", export.build_command(path, target)
    with atomic_write(path) as file:
        file.write(text.encode())
    print(f"written to {path}; {purpose}\n{shlex.join(next_step)}")
    return 0
