"""Makes a rung of somebody else's kernel.

    adopted = adopt(Path("softmax_forward.cu"), "softmax_forward_kernel1", op, Options())
    adopted.text     a rung's file: header, what the kernel needs of the file, and a wrapper

The kernel becomes a device function, otherwise unchanged. A wrapper with the op's arguments, which
the header launches, hands them on in the kernel's order. What cannot be found in the file or by
name is asked for; every message says by which flag.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ladder.adopt import declarations, launcher
from ladder.adopt.declarations import Declaration, SourceFile
from ladder.adopt.host_expressions import Scope, Text, in_code, parse_text
from ladder.adopt.launcher import Filled, Launched, Steps
from ladder.adopt.matching import BLOCK_NAMES, Parameter, match, parameter
from ladder.adopt.tokens import names
from ladder.common.errors import LadderError
from ladder.contract.dtypes import REAL
from ladder.contract.expressions import parse as parse_header
from ladder.contract.launch_plan import LaunchLines
from ladder.contract.op import Op

BLOCK = 256  # threads, where the launcher leaves them to its caller
_KNOWN = {  # what launchers know of the device, in the words of a header
    "cuda_num_SMs": "multiprocessors",
    "deviceProp.multiProcessorCount": "multiprocessors",
    "prop.multiProcessorCount": "multiprocessors",
    "cuda_threads_per_SM": "2048",
    "deviceProp.maxThreadsPerMultiProcessor": "2048",
    "warpSize": "warp",
    "f128::size": "4",
}
_NARROW = {
    "__nv_bfloat16": "BFLOAT16",
    "nv_bfloat16": "BFLOAT16",
    "__half": "FLOAT16",
    "half": "FLOAT16",
}
_OURS = {"float32": "float", "int32": "int", "uint32": "unsigned"}
_WARPS = re.compile(
    r"__shfl|__syncwarp|_sync\(|cooperative_groups|\bwarp|WARP|\b32U?\b|0x1f|nvcuda"
)
_ATOMIC = re.compile(r"\batomicAdd\w*\s*\(")
_ALIGNED = "extern __shared__ __align__(16) "
UNMAPPED = "UNMAPPED_"


@dataclass(frozen=True)
class Options:
    """What the command line adds to the file.

    arguments  {their name: ours, a number, nullptr, or an expression of ours}
    scratch    entries of a Scratch line
    fills      "name = value": buffers that are set before the kernel
    needs      conditions for the Needs line
    grid, block, shared    of the launch, in the words of a header, where no host code has them
    template   the kernel's template arguments, where no host code has them
    """

    arguments: Mapping[str, str] = field(default_factory=dict)
    scratch: Sequence[str] = ()
    fills: Sequence[str] = ()
    needs: Sequence[str] = ()
    grid: str = ""
    block: str = ""
    shared: str = ""
    template: str = ""


@dataclass(frozen=True)
class Adopted:
    """A rung's file, and what was decided on the way, a line each."""

    text: str
    notes: tuple[str, ...]


def adopt(path: Path, kernel: str, op: Op, options: Options) -> Adopted:
    """The rung for `op` that this kernel of a file makes.

    kernel  the name of a `__global__` function, or of the host function that launches several

    Raises LadderError where the file has no such kernel, or something is not known.
    """
    return _Adoption(path, kernel, op, options).run()


@dataclass
class _Wrapper:
    """A kernel of the rung: its name, its body, and the launch line that calls it."""

    name: str
    body: str
    launch: str
    bounds: str = ""


class _Adoption:
    def __init__(self, path: Path, kernel: str, op: Op, options: Options) -> None:
        if op.ranks:
            raise LadderError(
                f"{op.name} runs on several GPUs at once, and takes no kernel of others"
            )
        self.path, self.wanted, self.op, self.options = path, kernel, op, options
        self.file: SourceFile = declarations.read(path)
        self.kernels = self.file.of("kernel")
        self.buffers = {arg.name: arg for arg in op.args}
        self.values = [*op.dims, *(scalar.name for scalar in op.scalars)]
        self.notes: list[str] = []
        self.constants: dict[str, int] = {}  # of Define
        self.scratch = {self._scratch_name(entry): entry.strip() for entry in options.scratch}
        self.float32_only: list[str] = []  # why
        self.written: set[str] = set()  # by the launches so far
        self.alias, self.macros = self._real_alias()

    def run(self) -> Adopted:
        entry, only = self._entry()
        parameters = [parameter(text) for text in entry.parameters]
        scope = self._scope(entry, parameters)
        if entry.kind == "kernel":
            steps = self._without_launcher(entry, parameters, scope)
        else:
            steps = launcher.read(entry, scope, only)
        launches = [step for step in steps.steps if isinstance(step, Launched)]
        if not launches:
            raise LadderError(f"{self.path}: {entry.name} launches no kernel of this file")
        for allocated in steps.allocated:
            self._allocate(allocated)
        used = {
            name for step in launches for name in names(" ".join(a.text for a in step.arguments))
        }
        self._refuse_unknown(steps, launches)
        self._refuse_unwritten(used)
        kept = declarations.needed(self.file.declarations, {step.kernel for step in launches})
        for step in launches:
            self._check_types(step)
        wrappers = [*self._fills(), *self._wrappers(steps, used)]
        return Adopted(self._text(kept, wrappers, steps), tuple(self.notes))

    # ---- what is launched, and by whom ---------------------------------------------------------

    def _entry(self) -> tuple[Declaration, str]:
        """The function whose parameters are the op's, and the kernel if only one counts."""
        hosts, wanted = self.file.of("host"), self.wanted
        if wanted in self.kernels:
            host = launcher.launcher_of(self.file.declarations, wanted)
            if self.options.grid or host is None or host.name == "main":
                return self.kernels[wanted], wanted
            return host, wanted
        if wanted in hosts and launcher.launched_by(hosts[wanted]):
            return hosts[wanted], ""
        launching = [name for name, one in hosts.items() if launcher.launched_by(one)]
        known = [*self.kernels, *launching]
        near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.4)
        there = (
            f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(known) or 'none'}"
        )
        raise LadderError(f"{self.path} has no kernel {wanted}; {there}")

    def _scope(self, entry: Declaration, parameters: list[Parameter]) -> Scope:
        """What the names of the launcher (or of the kernel, without one) stand for."""
        functions = {one.name: one for one in self.file.declarations
                     if one.names and one.kind in ("macro", "host", "device")}  # fmt: skip
        scope = Scope(functions=functions)
        for name, text in _KNOWN.items():
            scope.header[name] = Text(text, value=int(text) if text.isdecimal() else None)
        for vector in ("x128::size", *(f"Packed128<{name}>::size" for name in self.alias)):
            scope.header[vector] = Text("vector")
        scope.sizes.update(dict.fromkeys(self.alias, "sizeof_real"))
        for constant in self.file.declarations:
            body = _value(constant)
            if body and constant.name not in scope.header:
                scope.header[constant.name] = parse_text(body)
        scope.header["WARP_SIZE"] = Text("32", value=32)
        given = self.options.arguments
        ours = match(self.op, [one for one in parameters if one.name not in given])
        for one in parameters:
            self._mean(scope, one, given.get(one.name, ours.get(one.name)))
        extra = [name for name in given if name not in {one.name for one in parameters}]
        for other in extra:
            self._mean(scope, Parameter(other, "", False, False), given[other])
        scope.fixed = frozenset(given)
        return scope

    def _mean(self, scope: Scope, theirs: Parameter, ours: str | None) -> None:
        """Lets `theirs` stand for `ours`: an argument, a number, or an expression of arguments."""
        name = theirs.name
        if ours is None and name in self.scratch:
            ours = name
        if ours is None and not theirs.pointer and BLOCK_NAMES.fullmatch(name):
            ours = self.options.block if self.options.block.isdecimal() else str(BLOCK)
            if not self.options.block:
                self.notes.append(f"{name} is {ours}: another value by --block, or bench --define")
        if ours is None:
            scope.code[name] = Text(f"{UNMAPPED}{name}")
            return
        if theirs.pointer and ours in self.values:
            raise LadderError(f"{name} is a pointer, and {ours} of {self.op.name} is a number")
        if not theirs.pointer and theirs.kind and ours in self.buffers:
            raise LadderError(
                f"{name} is a number, and {ours} of {self.op.name} is a buffer; one element of it "
                f"is --arg '{name}={ours}[0]'"
            )
        unknown = names(ours) - {*self.buffers, *self.values, *self.scratch, "nullptr", "NULL", "f"}
        if unknown and theirs.kind and not re.fullmatch(r"[\d.eE+-]+f?|\w+\([^()]*\)", ours):
            raise LadderError(
                f"--arg {name}={ours}: {self.op.name} has no {', '.join(sorted(unknown))}, but "
                f"{self._ours()}"
            )
        if BLOCK_NAMES.fullmatch(name) and ours.isdecimal():
            constant = self._constant_name()
            self.constants[constant] = int(ours)
            scope.header[name] = scope.code[name] = Text(constant)
            scope.constants[name] = int(ours)
            return
        if name != ours and theirs.kind:
            self.notes.append(f"{name} is {ours}")
        node = parse_text(ours)
        code = in_code(node, Scope())
        value = int(ours) if ours.isdecimal() else None
        scope.code[name] = code
        scope.header[name] = Text(ours, code.binds, value)

    def _constant_name(self) -> str:
        taken = {name for one in self.file.declarations for name in names(one.text)} | set(
            self.constants
        )
        return next(
            n for n in ("BLOCK_SIZE", "BLOCK_THREADS", "THREADS_OF_BLOCK") if n not in taken
        )

    def _without_launcher(
        self, kernel: Declaration, parameters: list[Parameter], scope: Scope
    ) -> Steps:
        options = self.options
        if not options.grid or not options.block:
            raise LadderError(
                f"{self.path} has no host function that launches {kernel.name}; say how many "
                "blocks and threads, in the dimensions of the op: --grid 'ceil_div(N, 256)' "
                "--block 256"
            )
        grid, block, shared = (
            Text(text) for text in (options.grid, options.block, options.shared or "0")
        )
        shared = Text(shared.text, value=0) if shared.text == "0" else shared
        arguments = tuple(in_code(parse_text(one.name), scope) for one in parameters)
        return Steps(
            [Launched(kernel.name, options.template, (grid,), (block,), shared, arguments)]
        )

    # ---- buffers -------------------------------------------------------------------------------

    def _scratch_name(self, entry: str) -> str:
        lines = LaunchLines.parse({"scratch": (entry,)})
        return lines.scratch[0].name if lines.scratch else ""

    def _allocate(self, allocated: launcher.Allocated) -> None:
        if allocated.name in self.scratch:
            return
        size, dtype = "4", {v: k for k, v in _OURS.items()}.get(allocated.dtype, "float32")
        if allocated.dtype in self.alias:
            size, dtype = "sizeof_real", REAL
        text = allocated.bytes.text
        count = text.removesuffix(f" * {size}")
        if count == text:
            count = f"{allocated.bytes.within(8)} // {size}"
        self.scratch[allocated.name] = f"{dtype} {allocated.name}[{count}]"

    def _fills(self) -> list[_Wrapper]:
        """The kernels that --fill asks for."""
        result = []
        for text in self.options.fills:
            name, _, value = (part.strip() for part in text.partition("="))
            if name in self.scratch:
                shape = self.scratch[name].partition("[")[2].removesuffix("]").split(",")
            elif name in self.buffers:
                shape = self.buffers[name].shape.split()
            else:
                raise LadderError(
                    f"--fill {text}: {self.op.name} has no buffer {name}, but "
                    f"{', '.join([*self.buffers, *self.scratch])}"
                )
            if not value:
                raise LadderError(f"--fill {text}: write e.g. '{name} = 0'")
            parts = [part.strip() for part in shape]
            count = " * ".join(p if p.isalnum() else f"({p})" for p in parts)
            result.append(self._fill(name, count, f"{name}[i] = {value};"))
        return result

    def _fill(self, buffer: str, count: str, assignment: str, condition: str = "") -> _Wrapper:
        """A kernel that does something for i from 0 to `count`, an expression of the header."""
        name = f"{self.op.kernel}_fill_" + re.sub(r"\W", "_", buffer)
        when = f" if {condition}" if condition else ""
        if (
            set(parse_header(count).names) <= set(self.op.dims)
            and "//" not in count
            and not parse_header(count).functions
        ):
            index = "    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;\n"
            body = f"{index}    if (i < (size_t)({count})) {assignment}\n"
            return _Wrapper(name, body, f"{name}<<<ceil_div({count}, 256), 256>>>{when}")
        body = f"    size_t i = blockIdx.x;\n    {assignment}\n"
        return _Wrapper(name, body, f"{name}<<<{count}, 1>>>{when}")

    # ---- what does not fit ---------------------------------------------------------------------

    def _ours(self) -> str:
        return f"{', '.join(self.buffers)}; {', '.join(self.values)}"

    def _refuse_unknown(self, steps: Steps, launches: list[Launched]) -> None:
        missing: dict[str, str] = {}
        for name, where in steps.unknown:
            missing.setdefault(name, where)
        for step in launches:
            texts = [*step.arguments, *step.grid, *step.block, step.shared]
            for name in re.findall(rf"{UNMAPPED}(\w+)", " ".join(text.text for text in texts)):
                missing.setdefault(name, f"the launch of {step.kernel}")
        if not missing:
            return
        name, where = next(iter(missing.items()))
        all_names = ", ".join(missing)
        raise LadderError(
            f"{self.op.name} has {self._ours()}; nothing there is known as {all_names}, used by "
            f"{where}. Say what it is: --arg {name}=OURS for an argument, --arg {name}=256 for a "
            f"number, --arg {name}=nullptr for none, or --scratch 'float32 {name}[N, 4]' for "
            "memory of the kernel's own"
        )

    def _refuse_unwritten(self, used: set[str]) -> None:
        filled = {text.partition("=")[0].strip() for text in self.options.fills}
        left = [arg.name for arg in self.op.args if arg.role != "in" and not arg.optional
                and arg.name not in used | filled]  # fmt: skip
        if left:
            raise LadderError(
                f"{self.op.name} writes {', '.join(left)}, and {self.wanted} takes no such "
                f"argument that is known by its name; if it has another name: --arg "
                f"THEIRS={left[0]}"
            )
        used = used | {name for text in self.options.fills for name in names(text)}
        unused = [arg.name for arg in self.op.args if arg.role == "in" and not arg.optional
                  and arg.name not in used]  # fmt: skip
        if unused:
            self.notes.append(f"{self.wanted} does not read {', '.join(unused)}")

    # ---- types ---------------------------------------------------------------------------------

    def _real_alias(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """The file's names for what is float, half or bfloat16 by a macro, and the macros."""
        variants: dict[str, dict[str, str]] = {}
        for one in self.file.declarations:
            if one.kind != "type" or not one.branches:
                continue
            kinds = [word for word in re.findall(r"\w+", one.text) if word in _NARROW]
            macro = re.search(r"(\w+)\)?\s*$", one.branches[-1].lines[-1])
            if kinds and macro:
                variants.setdefault(one.name, {})[_NARROW[kinds[0]]] = macro[1]
        types = [one for one in self.file.declarations if one.kind == "type" and one.branches]
        floats = {one.name for one in types if re.search(r"\bfloat\b", one.text)}
        alias = tuple(name for name in variants if name in floats)
        return alias, {kind: macro for name in alias for kind, macro in variants[name].items()}

    def _check_types(self, step: Launched) -> None:
        """Notes what keeps the kernel to float32, and refuses what cannot be."""
        kernel = self.kernels[step.kernel]
        theirs = [parameter(text) for text in kernel.parameters]
        if len(theirs) != len(step.arguments):
            defaults = sum("=" in text for text in kernel.parameters)
            if not len(theirs) - defaults <= len(step.arguments) <= len(theirs):
                raise LadderError(
                    f"{step.kernel} takes {len(theirs)} arguments, not {len(step.arguments)}"
                )
        deduced: dict[str, set[str]] = {}
        for one, argument in zip(theirs, step.arguments, strict=False):
            ours = re.sub(r"^(\([^()]*\))+", "", argument.text)
            if not one.pointer or ours not in self.buffers:
                continue
            arg = self.buffers[ours]
            if not one.const:
                self.written.add(ours)
            elif arg.role == "out" and ours not in self.written:
                raise LadderError(
                    f"{step.kernel} only reads {one.name} (const), and {ours} is what "
                    f"{self.op.name} writes: name another argument by --arg {one.name}=OURS"
                )
            whole = arg.dtype in ("int32", "uint32")
            others = ("float", "double", *self.alias) if whole else ("double", "int", "unsigned")
            if one.kind in others:
                raise LadderError(
                    f"{one.name} of {step.kernel} points to {one.kind}, and {ours} of "
                    f"{self.op.name} holds {arg.dtype}: name another one by --arg {one.name}=OURS"
                )
            if whole:
                continue
            if (one.kind in self.alias) != (arg.dtype == REAL) and not self._is_parameter(
                kernel, one
            ):
                self.float32_only.append(f"{one.name} is {one.kind}")
            if self._is_parameter(kernel, one):
                deduced.setdefault(one.kind, set()).add(arg.dtype)
        if any(len(kinds) > 1 for kinds in deduced.values()):
            self.float32_only.append("one template parameter serves real and float32")
        if not self.alias and any(arg.dtype == REAL for arg in self.op.args):
            self.float32_only.append("its types are float")

    def _is_parameter(self, kernel: Declaration, one: Parameter) -> bool:
        """Whether a type is a template parameter of the kernel."""
        head = kernel.head.partition("__global__")[0]
        return (
            bool(re.search(rf"\b(?:typename|class)\s+{re.escape(one.kind)}\b", head))
            if one.kind
            else False
        )

    # ---- writing -------------------------------------------------------------------------------

    def _wrappers(self, steps: Steps, used: set[str]) -> list[_Wrapper]:
        number = sum(isinstance(step, Launched) for step in steps.steps)
        found: list[_Wrapper] = []
        for step in steps.steps:
            if isinstance(step, Filled):
                buffer = re.sub(r"^(\([^()]*\))+", "", step.buffer.text)
                if buffer not in used:
                    continue
                words = step.bytes.text.removesuffix(" * 4")
                if words != step.bytes.text:
                    value = f"((unsigned*){buffer})[i] = {step.byte * 0x01010101:#x};"
                    found.append(self._fill(buffer, words, value, step.condition))
                else:
                    value = f"((unsigned char*){buffer})[i] = {step.byte};"
                    found.append(self._fill(buffer, step.bytes.text, value, step.condition))
                continue
            name = self.op.kernel if number == 1 else f"{self.op.kernel}_{step.kernel}"
            same = sum(one.name.rstrip("_0123456789") == name for one in found)
            name += f"_{same + 1}" if same and name in {one.name for one in found} else ""
            geometry = [_launch_part(step.grid), _launch_part(step.block)]
            if step.shared.value != 0:
                geometry.append(step.shared.text)
            when = f" if {step.condition}" if step.condition else ""
            launch = f"{name}<<<{', '.join(geometry)}>>>{when}"
            found.append(_Wrapper(name, self._call(step), launch, self._bounds(step)))
        return found

    def _call(self, step: Launched) -> str:
        kernel = self.kernels[step.kernel]
        scope = "".join(f"{name}::" for name in kernel.scope)
        template = f"<{step.template}>" if step.template else ""
        arguments = []
        for text, argument in zip(kernel.parameters, step.arguments, strict=False):
            one = parameter(text)
            written = argument.text
            plain = re.sub(r"^(\([^()]*\))+", "", written)
            if one.pointer and plain in self.buffers and not self._is_parameter(kernel, one):
                arg = self.buffers[plain]
                same = one.kind == self._kind(arg.dtype)
                written = plain
                if not same or (arg.role == "in" and not one.const):
                    written = f"({'const ' if one.const else ''}{one.kind}*){plain}"
                if arg.role == "in" and not one.const:
                    note = f"{one.name} is not const in {step.kernel}; {plain} must not be written"
                    self.notes += [note] * (note not in self.notes)
            arguments.append(written)
        return f"    {scope}{step.kernel}{template}({', '.join(arguments)});\n"

    def _kind(self, dtype: str) -> str:
        """The type that the wrapper has for a dtype of the op."""
        if dtype == REAL:
            return self.alias[0] if self.alias and not self.float32_only else "float"
        return _OURS[dtype]

    def _bounds(self, step: Launched) -> str:
        """The launch bounds of a kernel, unless they are template parameters."""
        kernel = self.kernels[step.kernel]
        found = re.search(r"__launch_bounds__\s*\(((?:[^()]|\([^()]*\))*)\)", kernel.head)
        if found is None:
            return ""
        parameters = set(re.findall(r"\w+", kernel.head.partition("__global__")[0]))
        return "" if parameters & names(found[1]) else f"{found[0]} "

    def _text(self, kept: list[Declaration], wrappers: list[_Wrapper], steps: Steps) -> str:
        body = _emit(kept, set(self.macros.values()) | {"WARP_SIZE"} & set(self.constants))
        needs = []
        if self.float32_only:
            if len(self.op.reals) > 1:
                needs.append("real == float32")
                self.notes.append(f"float32 only: {self.float32_only[0]}")
        else:
            missing = {"FLOAT16", "BFLOAT16"} - set(self.macros)
            needs += [
                f"real != {kind.lower()}" for kind in sorted(missing) if len(self.op.reals) > 1
            ]
        if _WARPS.search(body):
            needs.append("warp == 32")
        names_of_device = {"multiprocessors", "vector", "warp", "shared_bytes", "sizeof_real"}
        for text in [*steps.asserts, *self.options.needs]:
            known = {*self.op.dims, *self.constants, *names_of_device, "real", "sm"}
            if text not in needs and (
                text in self.options.needs or set(parse_header(text).names) <= known
            ):
                needs.append(text)
        layer, direction = self.op.name.split(".")
        lines = [
            f"// {layer} {direction}: {self.wanted} of {self.path.name}".replace("_", "_"),
            f"// Needs:  {'; '.join(needs) or 'nothing'}",
        ]
        if self.constants:
            lines.append("// Define: " + "; ".join(f"{k} = {v}" for k, v in self.constants.items()))
        lines += [f"// Launch: {wrapper.launch}" for wrapper in wrappers]
        scratch = [entry for name, entry in self.scratch.items()
                   if any(name in names(wrapper.body) for wrapper in wrappers)]  # fmt: skip
        if scratch:
            lines.append("// Scratch: " + "; ".join(scratch))
        if _ATOMIC.search(body):
            lines.append("// Deterministic: no, float atomics are added in any order")
        lines += [
            "",
            f"// Adopted from {self.path.name} by `python -m ladder adopt`: what the kernel needs",
            "// of that file, the kernel as a device function, dynamic shared memory aligned to 16",
            "// bytes, and at the end a kernel with the arguments of the op, which calls it.",
            "",
        ]
        lines += self._includes(body)
        lines += ["", body.strip("\n"), ""]
        macros = {name for one in kept if one.kind == "macro" for name in one.names}
        arguments = self._arguments(scratch)
        for name in sorted(macros & set(names(" ".join(arguments)))):
            lines.append(f"#undef {name}  // an argument of the op")
        for wrapper in wrappers:
            head = f'extern "C" __global__ void {wrapper.bounds}{wrapper.name}('
            lines += ["", head]
            lines += [f"    {text}" for text in arguments[:-1]]
            lines += [f"    {arguments[-1]}) {{", wrapper.body.rstrip("\n"), "}"]
        return "\n".join(lines) + "\n"

    def _includes(self, body: str) -> list[str]:
        lines = ['#include "foreign.cuh"']
        if self.macros and not self.float32_only:
            for kind, macro in self.macros.items():
                header = "cuda_bf16.h" if kind == "BFLOAT16" else "cuda_fp16.h"
                lines += [
                    f"#if defined(REAL_{kind})",
                    f"#include <{header}>",
                    f"#define {macro}",
                    "#endif",
                ]
        found = set(names(body))
        for header in self.file.headers:
            groups = (
                header.startswith("cooperative_groups") and {"cooperative_groups", "cg"} & found
            )
            narrow = {"cuda_bf16.h": "bfloat16", "cuda_fp16.h": "half", "mma.h": "wmma"}.get(header)
            if groups or (narrow and re.search(narrow, body)):
                lines.append(f"#include <{header}>")
        return lines

    def _arguments(self, scratch: list[str]) -> list[str]:
        """The parameters of a wrapper, a line each, with the shapes of the buffers."""
        lines = []
        for arg in self.op.args:
            const = "const " if arg.role == "in" else ""
            shape = ", ".join(arg.shape.split())
            lines.append(f"{const}{self._kind(arg.dtype)}* {arg.name},  // ({shape})")
        values = [f"int {name}" for name in self.op.dims]
        values += [f"{_OURS[scalar.dtype]} {scalar.name}" for scalar in self.op.scalars]
        for entry in scratch:
            dtype, name = re.match(r"(\w+)\s+(\w+)", entry).groups()  # type: ignore[union-attr]
            kind = "unsigned" if dtype == "flag" else _OURS.get(dtype) or self._kind(REAL)
            values.append(f"{kind}* {name}")
        return [*lines, ", ".join(values)]


def _value(one: Declaration) -> str:
    """What a constant or a macro of a file stands for; "" for another declaration."""
    if one.branches or not one.names:
        return ""
    if one.kind == "macro":
        return "" if one.parameters else one.body
    found = re.search(r"=\s*([^;,{]+);\s*$", one.text) if one.kind == "variable" else None
    return found[1] if found else ""


def _launch_part(sizes: Sequence[Text]) -> str:
    texts = [size.text for size in sizes]
    while len(texts) > 1 and texts[-1] == "1":
        texts.pop()
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def _emit(kept: Sequence[Declaration], dropped: set[str]) -> str:
    """Declarations as a text, with the namespaces and the `#if`s around them."""
    lines: list[str] = []
    open_branches: list[declarations.Branch] = []
    open_scope: tuple[str, ...] = ()

    def close(depth: int) -> None:
        while len(open_branches) > depth:
            open_branches.pop()
            lines.append("#endif")

    for one in kept:
        if one.kind == "macro" and one.name in dropped:
            continue
        if one.scope != open_scope:
            close(0)
            lines.extend("}" for _ in open_scope)
            lines.extend(f"namespace {name} {{" for name in one.scope)
            open_scope = one.scope
        depth = 0
        for mine, theirs in zip(one.branches, open_branches, strict=False):
            if mine.number != theirs.number:
                break
            if mine.lines != theirs.lines:  # another branch of the same #if
                close(depth + 1)
                lines.extend(mine.lines[len(theirs.lines) :])
                open_branches[depth] = mine
            depth += 1
        close(depth)
        for branch in one.branches[depth:]:
            lines.extend(branch.lines)
            open_branches.append(branch)
        if one.kind == "macro":
            lines.append(f"#undef {one.name}")
        lines += (
            ["", _as_device_code(one)]
            if one.kind in ("kernel", "device", "host")
            else [_as_device_code(one)]
        )
    close(0)
    lines.extend("}" for _ in open_scope)
    return "\n".join(lines)


def _as_device_code(one: Declaration) -> str:
    """A declaration's text; a kernel, and a function of the host, as a device function."""
    text = re.sub(r"\bextern\s+__shared__\s+(?!__align__|alignas)", _ALIGNED, one.text)
    if one.kind == "host":
        at = text.index(one.head)
        head = one.head
        prefix = re.match(r"(?:template\s*<[^{}]*?>\s*(?=[\w]))?", head)
        end = prefix.end() if prefix else 0
        return f"{text[:at]}{head[:end]}__device__ {head[end:]}{text[at + len(head) :]}"
    if one.kind != "kernel":
        return text
    at = text.index(one.head)
    head = re.sub(
        r"__(?:launch_bounds|cluster_dims)__\s*\((?:[^()]|\([^()]*\))*\)\s*", "", one.head
    )
    head = re.sub(r'extern\s+"C"\s+', "", head).replace("__global__", "__device__")
    return text[:at] + head + text[at + len(one.head) :]
