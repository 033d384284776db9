"""One rung as one Python file that needs PyTorch and nvcc: its kernel as an extension module that
`torch.utils.cpp_extension.load_inline` compiles, and a check of what it computes on tensors.

    path.write_text(export(find("layernorm.forward"), rung, {"N": 4096, "C": 768}, target))

Its CUDA source is that of ladder/core/show/export.py, with tensors (exported/tensors.h) instead of
arrays of its own.
"""

from collections.abc import Iterable, Mapping

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Arg, Dims, format_dims, resolve_dtype
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.target import Target
from ladder.core.show import export as cuda
from ladder.core.show.samples import Input

# PyTorch turns the operators of __half and __nv_bfloat16 off, which kernels use.
_OPERATORS = [
    "-U__CUDA_NO_HALF_OPERATORS__",
    "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_HALF2_OPERATORS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
]

_SCALAR_TYPES = {"float32": "kFloat", "float16": "kHalf", "bfloat16": "kBFloat16", "int32": "kInt"}

_CHECK = '''
# ---- the inputs that the NumPy reference had, and the comparison with samples of its results ----


def bits(number, shape):
    """32 random bits for each element; `number` tells inputs apart (MurmurHash3's mixing)."""
    x = torch.arange(math.prod(shape)) + number * 0x9E3779B9 & 0xFFFFFFFF
    x = (x ^ x >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    x = (x ^ x >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return (x ^ x >> 16).reshape(shape)


def uniform(number, shape):
    """Numbers from -2 to 2."""
    x = bits(number, shape)
    return (x - (x >> 31 << 32)).double() * 2**-30


def probabilities(number, shape):
    """Rows that sum to 1."""
    words = ((bits(number, shape) >> 8) + 1).double()
    return words / words.sum(-1, keepdim=True)


def repeated(values, shape):
    values = torch.tensor(values, dtype=torch.float64)
    return values[torch.arange(math.prod(shape)) % len(values)].reshape(shape)


def scaled(other, factors):
    """Each run of another input times its factor."""
    factors = torch.tensor(factors, dtype=torch.float32)
    return (factors[:, None] * other.cpu().float().reshape(len(factors), -1)).reshape(other.shape)


def stored(x, dtype):
    x = x.float() if dtype.is_floating_point else x.long()
    return x.to(dtype).to(DEVICE)


def verify(name, result):
    """Whether samples of a result are right and no element is NaN; prints a line that says so."""
    index, value, tolerance = torch.tensor(SAMPLES[name], dtype=torch.float64).unbind(1)
    error = (result.cpu().flatten()[index.long()].double() - value).abs()
    wrong = int((~(error <= tolerance)).sum()) + int(result.isnan().sum())
    verdict = f"WRONG, {wrong} of" if wrong else f"right, the largest error is {error.max():.2g} of"
    print(f"{name}: {verdict} {len(index)} samples")
    return not wrong
'''


def export(ladder: Ladder, rung: Rung, dims: Dims, target: Target) -> str:
    """The text of the file. What it takes and raises: as ladder/core/show/export.py's."""
    op, real = ladder.op, target.real.name
    if op.ranks:
        raise LadderError(f"{op.name} is of several GPUs, and --to torch of one")
    plan, inputs, samples = cuda.prepare(ladder, rung, dims, target)
    launch = cuda.launching(op, rung, plan, dims, target, "stream")
    signature = f"void on_tensors({', '.join(f'at::Tensor {arg.name}_' for arg in op.args)})"
    body = [
        f"const c10::cuda::CUDAGuard guard({op.args[0].name}_.device());",
        "const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();",
        *cuda.sizes(op, dims, launch),
        *(cuda.array(arg, f"{arg.name}_, at::{_stored(arg, target)[1]}, ") for arg in op.args),
        *launch,
        "launch();",
    ]
    source = cuda.tidy(
        *cuda.device_code(op, rung, plan, target, ["tensors"]),
        "\n".join([f"{signature} {{", *cuda.indent(body), "}"]),
    )
    if '"""' in source:
        raise LadderError(f'{rung.path} contains """, which would end a string of Python')
    name = cuda.file_name(op, rung, "")
    number = target.arch.removeprefix("sm_")
    flags = ["-O3", "-std=c++17", f"-gencode=arch=compute_{number},code=sm_{number}"]
    made = {arg.name: _made(arg, inputs.get(arg.name), dims, target) for arg in op.args}
    outputs = [arg.name for arg in op.args if arg.role != "in"]
    checks = ", ".join(f"verify({name!r}, {name})" for name in outputs)
    body = [
        *(f"{name} = {made[name]}" for name in sorted(made, key=lambda n: "scaled" in made[n])),
        f"{op.kernel}({', '.join(made)})",
        f"return 0 if all([{checks}]) else 1",
    ]
    main = "\n".join(cuda.indent(body))
    values = {name: map(str, one.values) for name, one in inputs.items() if one.values is not None}
    rows = {name: cuda.rows(taken, "()") for name, taken in samples.items()}
    return f'''"""{op.name}, {rung.label}, for PyTorch.

It computes: {op.summary}
Here {format_dims(dims)}, and `real` is {real}. The launches are laid out for a GPU of
architecture {target.arch} with {target.multiprocessors} SMs.

    {op.kernel}({", ".join(made)})

writes {", ".join(outputs)}. It takes contiguous tensors on the GPU, and works on the current
stream; one stream at a time may call it. To import this file compiles it by nvcc. Run as a program,
it compares results with samples of what the NumPy reference computes. Its exit status is 0 if they
are right, and 1 if not.

Written by this command of Kernel Ladder; headings name the files that it took:
    {cuda.command(op, rung, dims, target)} --to torch
"""

import math
import sys

import torch
from torch.utils.cpp_extension import load_inline

DEVICE = "cuda"
CUDA = r"""
{source}"""

{op.kernel} = load_inline(
    "{name}",
    "{signature};",
    CUDA,
    functions=["on_tensors"],
    extra_cuda_cflags={[*flags, *_OPERATORS]},
).on_tensors
{_CHECK}

VALUES = {_dictionary(values)}
SAMPLES = {_dictionary(rows)}  # index, value, tolerance


def main():
{main}


if __name__ == "__main__":
    sys.exit(main())
'''


def _made(arg: Arg, given: Input | None, dims: Dims, target: Target) -> str:
    """The expression that makes an argument. A result starts as NaN, so that it does not pass where
    it is never written."""
    shape = arg.resolve_shape(dims)
    dtype = f"torch.{_stored(arg, target)[0]}"
    if given is None:
        nothing = "-1" if "int" in dtype else "math.nan"
        return f"torch.full({shape}, {nothing}, dtype={dtype}, device=DEVICE)"
    made = {
        "hash": f"uniform({given.number}, {shape})",
        "probabilities": f"probabilities({given.number}, {shape})",
        "values": f"repeated(VALUES[{arg.name!r}], {shape})",
        "factors": f"scaled(dout, VALUES[{arg.name!r}])",
    }[given.how]
    return f"stored({made}, {dtype})"


def _stored(arg: Arg, target: Target) -> tuple[str, str]:
    """PyTorch's names for an argument's type, in Python and in C++."""
    name = resolve_dtype(arg.dtype, target.real).name.replace("uint", "int")
    return name, _SCALAR_TYPES[name]


def _dictionary(lists: Mapping[str, Iterable[str]]) -> str:
    items = (
        f"{name!r}: [\n" + "\n".join(cuda.wrapped(lines)) + "\n]," for name, lines in lists.items()
    )
    return "\n".join(["{", *items, "}"])
