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
from dataclasses import dataclass, field, replace
from pathlib import Path

from ladder.core.adopt import declarations, launcher, real_types, tokens
from ladder.core.adopt.declarations import Declaration, SourceFile
from ladder.core.adopt.host_expressions import Scope, Text, in_code, parse_text
from ladder.core.adopt.launcher import Filled, Launched, Steps
from ladder.core.adopt.matching import BLOCK_NAMES, Parameter, match, parameter
from ladder.core.adopt.real_types import RealNames, is_template_parameter, plain
from ladder.core.adopt.tokens import names
from ladder.core.adopt.writing import OURS, Contents, Wrapper, kind_of, write
from ladder.core.common.errors import LadderError
from ladder.core.contract.dtypes import REAL
from ladder.core.contract.expressions import parse as parse_header
from ladder.core.contract.launch_plan import LaunchLines
from ladder.core.contract.op import Op

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
_LIBRARIES = re.compile(r"(?<![\w:])(cuda|cub|thrust|cute|cutlass)::(\w+)(::\w+)*")
_OF_CUDA = {  # what <cuda/barrier> and <cuda/pipeline> have
    *("barrier", "pipeline", "pipeline_shared_state", "pipeline_role", "make_pipeline"),
    *("memcpy_async", "aligned_size_t", "pipeline_consumer_wait_prior", "thread_scope"),
    *("thread_scope_thread", "thread_scope_block"),
}
_SMS = "MULTIPROCESSORS"
_WIDE = {"float4", "int4", "uint4"}
UNMAPPED = "UNMAPPED_"


@dataclass(frozen=True)
class Options:
    """What the command line adds to the file.

    arguments  {their name: ours, a number, nullptr, or an expression of ours}
    scratch    entries of a Scratch line
    fills      "name = value": buffers that are set before the kernel
    after      "name = value": buffers that are set after it
    needs      conditions for the Needs line
    grid, block, shared    of the launch, in the words of a header, where no host code has them
    template   the kernel's template arguments, where no host code has them
    """

    arguments: Mapping[str, str] = field(default_factory=dict)
    scratch: Sequence[str] = ()
    fills: Sequence[str] = ()
    after: Sequence[str] = ()
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
    try:
        return _Adoption(path, kernel, op, options).run()
    except RecursionError:
        raise LadderError(f"{path}: its code nests too deep") from None


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
        self.notes = [
            f"{name} is not in the folder of {path.name}: what it defines is not known"
            for name in self.file.missing
        ]
        self.constants: dict[str, int] = {}  # of Define
        self.scratch = {self._scratch_name(entry): entry.strip() for entry in options.scratch}
        self.real = real_types.real_names(self.file)
        self.dropped = frozenset(self.real.macros.values())

    def run(self) -> Adopted:
        entry, only = self._entry()
        parameters = [parameter(text) for text in entry.parameters]
        scope = self._scope(entry, parameters)
        if entry.kind == "kernel":
            host = launcher.launcher_of(self.file.declarations, entry.name)
            if host is None or self.options.grid or self.options.block:
                steps = self._without_launcher(entry, parameters, scope)
            else:
                steps = self._from_main(host, entry, parameters, scope)
        else:
            steps = launcher.read(entry, scope, only)
        launches = [step for step in steps.steps if isinstance(step, Launched)]
        if not launches:
            raise LadderError(f"{self.path}: {entry.name} launches no kernel of this file")
        if elsewhere := [step.kernel for step in launches if step.kernel not in self.kernels]:
            raise LadderError(
                f"{self.path}: {entry.name} launches {elsewhere[0]}, which neither this file nor "
                "one beside it that it includes defines"
            )
        for allocated in steps.allocated:
            self._allocate(allocated)
        used = {
            name for step in launches for name in names(" ".join(a.text for a in step.arguments))
        }
        self._refuse_unknown(steps, launches)
        self._refuse_unwritten(used)
        needs = [*self._real_needs(launches), *self._conditions(steps)]
        wrappers = [
            *self._fills(self.options.fills, "fill"),
            *self._wrappers(steps, used),
            *self._fills(self.options.after, "then"),
        ]
        wanted = names("".join(wrapper.body for wrapper in wrappers))
        wanted -= {*self.buffers, *self.values, *self.scratch}
        kept = declarations.needed(self.file.declarations, wanted)
        self._refuse_libraries(kept)
        if _WIDE & {name for one in kept for name in names(one.text)} and not self.options.needs:
            self.notes.append(
                "it accesses 16 bytes at a time: rows may have to be a multiple of them"
            )
            self.notes.append(f"  if so: --needs '{self.op.dims[-1]} % vector == 0'")
        defines = {name: str(value) for name, value in self.constants.items()}
        if any(_SMS in names(wrapper.body) for wrapper in wrappers):
            defines[_SMS] = "multiprocessors"
        title = f"{self.wanted} of {self.path.name}"
        contents = Contents(
            self.op,
            title,
            needs,
            defines,
            self.scratch,
            wrappers,
            kept,
            self.file.headers,
            self.real,
            self.dropped,
        )
        return Adopted(write(contents), tuple(self.notes))

    # ---- what is launched, and by whom ---------------------------------------------------------

    def _entry(self) -> tuple[Declaration, str]:
        """The function whose parameters are the op's, and the kernel if only one counts."""
        hosts, wanted = self.file.of("host"), self.wanted
        if wanted in self.kernels:
            host = launcher.launcher_of(self.file.declarations, wanted)
            if self.options.grid or host is None or _makes_arguments(host):
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
            if name != "warpSize":  # which a kernel knows
                scope.code[name] = Text(_SMS if text == "multiprocessors" else text)
        for vector in ("x128::size", *(f"Packed128<{name}>::size" for name in self.real.names)):
            scope.header[vector] = Text("vector")
        scope.sizes.update(dict.fromkeys(self.real.names, "sizeof_real"))
        for constant in self.file.declarations:
            body = _value(constant)
            if body and constant.name not in scope.header:
                scope.header[constant.name] = parse_text(body)
        scope.header["WARP_SIZE"] = Text("32", value=32)
        given = self.options.arguments
        ours = match(self.op, parameters, given)
        for one in parameters:
            self._mean(scope, one, given.get(one.name, ours.get(one.name)))
        extra = [name for name in given if name not in {one.name for one in parameters}]
        for other in extra:
            if other.isidentifier() and other not in self.file.names():
                has = ", ".join(one.name for one in parameters)
                raise LadderError(
                    f"--arg {other}={given[other]}: {self.path} names no {other}; "
                    f"{entry.name} takes {has}"
                )
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
        taken = self.file.names() | set(self.constants)
        return next(
            n for n in ("BLOCK_SIZE", "BLOCK_THREADS", "THREADS_OF_BLOCK") if n not in taken
        )

    def _without_launcher(
        self, kernel: Declaration, parameters: list[Parameter], scope: Scope
    ) -> Steps:
        options = self.options
        if not options.grid or not options.block:
            raise self._launch_needed(f"the launch of {kernel.name} is not known")
        grid, block, shared = (
            Text(text) for text in (options.grid, options.block, options.shared or "0")
        )
        shared = Text(shared.text, value=0) if shared.text == "0" else shared
        arguments = tuple(in_code(parse_text(one.name), scope) for one in parameters)
        return Steps(
            [Launched(kernel.name, options.template, (grid,), (block,), shared, arguments)]
        )

    def _launch_needed(self, why: str) -> LadderError:
        return LadderError(
            f"{self.path}: {why}; say how many blocks and threads, in the dimensions of the op: "
            f"--grid 'ceil_div({self.op.dims[0]}, 256)' --block 256"
        )

    def _from_main(
        self, host: Declaration, kernel: Declaration, parameters: list[Parameter], scope: Scope
    ) -> Steps:
        """The first launch in a function that makes its arguments itself, as main() does: what it
        passes for a parameter stands for what the parameter is in the op."""
        where = f"{kernel.name} is launched in {host.name}()"
        ours = [scope.code[one.name] for one in parameters]
        header, inside = dict(scope.header), scope.copy()
        passed = launcher.passed_to(host, kernel.name)
        for one, text, code in zip(parameters, passed, ours, strict=False):
            if UNMAPPED in code.text:
                continue
            if not one.pointer and not text.isidentifier():
                raise self._launch_needed(f"{where} with {text} for {one.name}")
            inside.code[text] = code
            if one.name in header:
                inside.header[text] = header[one.name]
            inside.fixed |= {text}
        try:
            steps = launcher.read(host, inside, kernel.name, first=True)
        except LadderError as error:
            raise self._launch_needed(f"{where}: {error}") from None
        if not steps.steps or not isinstance(launch := steps.steps[-1], Launched):
            raise self._launch_needed(f"{where}, in a branch that is not read")
        arguments = tuple(
            theirs if UNMAPPED in code.text else code
            for theirs, code in zip(launch.arguments, ours, strict=False)
        )
        steps.steps[-1] = replace(launch, arguments=arguments)
        used = names(" ".join(text.text for text in arguments))
        steps.allocated = [one for one in steps.allocated if one.name in used]
        if not names(" ".join(size.text for size in launch.grid)):
            blocks = _launch_part(launch.grid)
            self.notes.append(f"{host.name}() launches {blocks} blocks, here at every size;")
            self.notes.append("  if that is the number for its own size: --grid and --block")
        return steps

    # ---- buffers -------------------------------------------------------------------------------

    def _scratch_name(self, entry: str) -> str:
        lines = LaunchLines.parse({"scratch": (entry,)})
        return lines.scratch[0].name if lines.scratch else ""

    def _allocate(self, allocated: launcher.Allocated) -> None:
        if allocated.name in self.scratch:
            return
        size, dtype = "4", {v: k for k, v in OURS.items()}.get(allocated.dtype, "float32")
        if allocated.dtype in self.real.names:
            size, dtype = "sizeof_real", REAL
        text = allocated.bytes.text
        count = text.removesuffix(f" * {size}")
        if count == text:
            count = f"{allocated.bytes.within(8)} // {size}"
        self.scratch[allocated.name] = f"{dtype} {allocated.name}[{count}]"

    def _fills(self, texts: Sequence[str], flag: str) -> list[Wrapper]:
        """The kernels that --fill or --then asks for."""
        result = []
        for text in texts:
            name, _, value = (part.strip() for part in text.partition("="))
            name, operator = name.rstrip("+-* "), name[len(name.rstrip("+-* ")) :].strip()
            if name in self.scratch:
                shape = self.scratch[name].partition("[")[2].removesuffix("]").split(",")
            elif name in self.buffers:
                shape = self.buffers[name].shape.split()
            else:
                raise LadderError(
                    f"--{flag} {text}: {self.op.name} has no buffer {name}, but "
                    f"{', '.join([*self.buffers, *self.scratch])}"
                )
            if not value:
                raise LadderError(f"--{flag} {text}: write e.g. '{name} = 0'")
            parts = [part.strip() for part in shape]
            count = " * ".join(p if p.isalnum() else f"({p})" for p in parts)
            result.append(self._fill(name, count, f"{name}[i] {operator}= {value};", flag))
        return result

    def _fill(
        self, buffer: str, count: str, assignment: str, verb: str = "fill", condition: str = ""
    ) -> Wrapper:
        """A kernel that does something for i from 0 to `count`, an expression of the header."""
        name = f"{self.op.kernel}_{verb}_" + re.sub(r"\W", "_", buffer)
        when = f" if {condition}" if condition else ""
        if (
            set(parse_header(count).names) <= set(self.op.dims)
            and "//" not in count
            and not parse_header(count).functions
        ):
            index = "    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;\n"
            body = f"{index}    if (i < (size_t)({count})) {assignment}\n"
            return Wrapper(name, body, f"{name}<<<ceil_div({count}, 256), 256>>>{when}")
        body = f"    size_t i = blockIdx.x;\n    {assignment}\n"
        return Wrapper(name, body, f"{name}<<<{count}, 1>>>{when}")

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
        texts = [*self.options.fills, *self.options.after]
        filled = {text.partition("=")[0].rstrip("+-* ").strip() for text in texts}
        left = [arg.name for arg in self.op.args if arg.role != "in" and not arg.optional
                and arg.name not in used | filled]  # fmt: skip
        if left:
            raise LadderError(
                f"{self.op.name} writes {', '.join(left)}, and {self.wanted} takes no such "
                f"argument that is known by its name; if it has another name: --arg "
                f"THEIRS={left[0]}"
            )
        used = used | {name for text in texts for name in names(text)}
        unused = [arg.name for arg in self.op.args if arg.role == "in" and not arg.optional
                  and arg.name not in used]  # fmt: skip
        if unused:
            self.notes.append(f"{self.wanted} does not read {', '.join(unused)}")

    def _refuse_libraries(self, kept: Sequence[Declaration]) -> None:
        for one in kept:
            for found in _LIBRARIES.finditer(tokens.text_of(tokens.code(one.text))):
                if found[1] == "cuda" and found[2] in _OF_CUDA:
                    continue
                raise LadderError(
                    f"{self.path}: {one.name} uses {found[0]}, of a C++ library that a rung is "
                    "compiled without; there are cooperative_groups, nvcuda::wmma, and of cuda:: "
                    "barrier, pipeline and memcpy_async, of a thread or a block"
                )

    # ---- conditions ----------------------------------------------------------------------------

    def _real_needs(self, launches: list[Launched]) -> list[str]:
        """The real types that all of the kernels serve, as conditions."""
        written: set[str] = set()
        for step in launches:
            kernel = self.kernels[step.kernel]
            given = (kernel, step.arguments, self.buffers, self.real)
            real_types.refuse_wrong_types(*given, written)
            if why := real_types.float32_only(*given):
                self.real = RealNames((), {})
        if len(self.op.reals) == 1:
            return []
        if not self.real.names:
            self.notes.append(f"float32 only: {why or 'another of its kernels is'}")
            self.notes.append("  the check counts the other types as refused: that is no failure")
            return ["real == float32"]
        missing = {"FLOAT16", "BFLOAT16"} - set(self.real.macros)
        return [f"real != {kind.lower()}" for kind in sorted(missing)]

    def _conditions(self, steps: Steps) -> list[str]:
        """Those of --needs, and what the launcher asserts, where a header knows its names."""
        of_device = {"multiprocessors", "vector", "warp", "shared_bytes", "sizeof_real", "sm"}
        known = {*self.op.dims, *self.constants, *of_device}
        asserts = [text for text in steps.asserts if set(parse_header(text).names) <= known]
        launches = [step for step in steps.steps if isinstance(step, Launched)]
        limits = [
            f"{step.shared.within(7)} <= shared_bytes"
            for step in launches
            if set(parse_header(step.shared.text).names) & set(self.op.dims)
        ]
        return [*asserts, *limits, *self.options.needs]

    # ---- kernels with the op's arguments -------------------------------------------------------

    def _wrappers(self, steps: Steps, used: set[str]) -> list[Wrapper]:
        number = sum(isinstance(step, Launched) for step in steps.steps)
        found: list[Wrapper] = []
        for step in steps.steps:
            if isinstance(step, Filled):
                buffer = plain(step.buffer)
                if buffer not in used:
                    continue
                found.append(self._memset(buffer, step))
                continue
            name = self.op.kernel if number == 1 else f"{self.op.kernel}_{step.kernel}"
            same = sum(re.fullmatch(rf"{name}(_\d+)?", one.name) is not None for one in found)
            name += f"_{same + 1}" if same else ""
            geometry = [_launch_part(step.grid), _launch_part(step.block)]
            if step.shared.value != 0:
                geometry.append(step.shared.text)
            when = f" if {step.condition}" if step.condition else ""
            launch = f"{name}<<<{', '.join(geometry)}>>>{when}"
            found.append(Wrapper(name, self._call(step), launch, self._bounds(step)))
        return found

    def _memset(self, buffer: str, step: Filled) -> Wrapper:
        """A kernel for a cudaMemset: word by word where the bytes are whole words."""
        size = step.bytes
        words = size.text.removesuffix(" * 4")
        if size.value is not None and size.value % 4 == 0:
            words = str(size.value // 4)
        if words != size.text:
            value = f"((unsigned*){buffer})[i] = {step.byte * 0x01010101:#x};"
            return self._fill(buffer, words, value, condition=step.condition)
        value = f"((unsigned char*){buffer})[i] = {step.byte};"
        return self._fill(buffer, size.text, value, condition=step.condition)

    def _call(self, step: Launched) -> str:
        kernel = self.kernels[step.kernel]
        scope = "".join(f"{name}::" for name in kernel.scope)
        template = f"<{step.template}>" if step.template else ""
        arguments = []
        for text, argument in zip(kernel.parameters, step.arguments, strict=False):
            one = parameter(text)
            written = argument.text
            arg = self.buffers.get(plain(argument)) if one.pointer else None
            if arg and not is_template_parameter(kernel, one.kind):
                written = arg.name
                drops_const = arg.role == "in" and not one.const
                if one.kind != kind_of(arg.dtype, self.real) or drops_const:
                    written = f"({'const ' if one.const else ''}{one.kind}*){arg.name}"
                if drops_const:
                    note = (
                        f"{one.name} is an input without const in {step.kernel}; if the kernel "
                        "writes it, the check fails"
                    )
                    self.notes += [note] * (note not in self.notes)
            arguments.append(written)
        return f"    {scope}{step.kernel}{template}({', '.join(arguments)});\n"

    def _bounds(self, step: Launched) -> str:
        """The launch bounds of a kernel, unless they are template parameters."""
        kernel = self.kernels[step.kernel]
        found = re.search(r"__launch_bounds__\s*\(((?:[^()]|\([^()]*\))*)\)", kernel.head)
        if found is None:
            return ""
        parameters = set(re.findall(r"\w+", kernel.head.partition("__global__")[0]))
        return "" if parameters & names(found[1]) else f"{found[0]} "


def _makes_arguments(host: Declaration) -> bool:
    """Whether a launcher makes the kernel's arguments itself: main(), or one without parameters."""
    return host.name == "main" or not any(host.parameters)


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
