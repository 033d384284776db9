"""Makes a rung of somebody else's kernel.

    adopted = adopt(Path("softmax_forward.cu"), "softmax_forward_kernel1", op, Options())
    adopted.text     a rung's file: header, what the kernel needs of the file, and a wrapper

The kernel becomes a device function, otherwise unchanged. A wrapper with the op's arguments, which
the header launches, hands them on in the kernel's order. What cannot be found in the file or by
name is asked for; every message says by which flag. A file of device code alone, in which only
names differ, stays as it is, under a header whose `Args` says which is which.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ladder.core.adopt import declarations, launcher, real_types
from ladder.core.adopt.cpp import WORD, find, names, text
from ladder.core.adopt.declarations import Declaration, Parameter
from ladder.core.adopt.host_expressions import UNMAPPED, Scope, number, simple
from ladder.core.adopt.launcher import Filled, Launched, Steps
from ladder.core.adopt.matching import BLOCK_NAMES, match
from ladder.core.adopt.real_types import RealNames, is_template_parameter, plain
from ladder.core.adopt.writing import OURS, Contents, Wrapper, kind_of, write
from ladder.core.common.errors import LadderError
from ladder.core.contract.expressions import parse as parse_header
from ladder.core.contract.launch_plan import LaunchLines
from ladder.core.contract.op import REAL, Op

BLOCK = 256  # threads, where the launcher leaves them to its caller
_SMS = "MULTIPROCESSORS"
_KNOWN = {  # what launchers know of the device
    "cuda_num_SMs": _SMS,
    "deviceProp.multiProcessorCount": _SMS,
    "prop.multiProcessorCount": _SMS,
    "cuda_threads_per_SM": "2048",
    "deviceProp.maxThreadsPerMultiProcessor": "2048",
    "f128::size": "4",
}
_LIBRARIES = re.compile(r"(cuda|cub|thrust|cute|cutlass)::(\w+)(::\w+)*")
_OF_CUDA = {  # what <cuda/barrier> and <cuda/pipeline> have
    *("barrier", "pipeline", "pipeline_shared_state", "pipeline_role", "make_pipeline"),
    *("memcpy_async", "aligned_size_t", "pipeline_consumer_wait_prior", "thread_scope"),
    *("thread_scope_thread", "thread_scope_block"),
}
_WHOLE = {"int", "unsigned", "unsigned int", "size_t", "long long"}  # types of a dimension
_WIDE = {"float4", "int4", "uint4"}


@dataclass(frozen=True)
class Options:
    """What the command line adds to the file.

    arguments  {their name: ours, a number, nullptr, or an expression of ours}
    scratch    entries of a Scratch line
    fill       "name = value": buffers that are set before the kernel
    then       "name = value": buffers that are set after it
    needs      conditions for the Needs line
    grid, block, shared    of the launch, in the words of a header, where no host code has them
    template   the kernel's template arguments, where no host code has them
    """

    arguments: Mapping[str, str] = field(default_factory=dict)
    scratch: Sequence[str] = ()
    fill: Sequence[str] = ()
    then: Sequence[str] = ()
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
        self.file = declarations.read(path)
        self.kernels = self.file.of("kernel")
        self.buffers = {arg.name: arg for arg in op.args}
        self.values = [*op.dims, *(scalar.name for scalar in op.scalars)]
        self.notes = [
            f"{name} is not in the folder of {path.name}: what it defines is not known"
            for name in self.file.missing
        ]
        self.defines: dict[str, str] = {}
        own = LaunchLines.parse({"scratch": tuple(options.scratch)}).scratch
        self.scratch = {one.name: entry for one, entry in zip(own, options.scratch, strict=False)}
        self.real = real_types.real_names(self.file)
        choosing = self.real.macros.values()  # macros that the build has instead of the file
        self.declared = [one for one in self.file.declarations
                         if one.kind != "macro" or one.name not in choosing]  # fmt: skip

    def run(self) -> Adopted:
        entry, only = self._entry()
        scope = self._scope(entry)
        if entry.kind == "kernel":
            host = launcher.launcher_of(self.file.declarations, entry.name)
            known: Steps | str = f"the launch of {entry.name} is not known"
            if host is not None and not (self.options.grid or self.options.block):
                known = self._from_main(host, entry, scope)
            steps = self._without_launcher(entry, scope, known) if isinstance(known, str) else known
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
        used = _words(argument for step in launches for argument in step.arguments)
        self._ask_for_unknown(steps, launches)
        self._ask_for_unwritten(used)
        if self.asked:
            raise LadderError("; and ".join(self.asked))
        self._note_unused(launches)
        needs = [*self._real_needs(launches), *self._conditions(steps, launches)]
        args = self._only_names(launches)
        named = self.op.kernel if args is None else launches[0].kernel
        wrappers = [
            *self._fills(self.options.fill, "fill"),
            *self._wrappers(steps, used, named),
            *self._fills(self.options.then, "then"),
        ]
        wanted = _words(wrapper.body for wrapper in wrappers)
        ours = {*self.buffers, *self.values, *self.scratch}
        kept = declarations.needed(self.declared, wanted - ours)
        self._refuse_libraries(kept)
        if any(_WIDE & one.uses for one in kept) and not self.options.needs:
            self.notes.append(
                "it accesses 16 bytes at a time: rows may have to be a multiple of them"
            )
            self.notes.append(f"  if so: --needs '{self.op.dims[-1]} % vector == 0'")
        if _SMS in wanted:
            self.defines[_SMS] = "multiprocessors"
        contents = Contents(
            self.op,
            f"{self.wanted} of {self.path.name}",
            needs,
            self.defines,
            self.scratch,
            wrappers,
            self.file,
            kept,
            self._renamed(kept, wrappers) if args is None else {},
            self.real,
            args,
        )
        return Adopted(write(contents), tuple(self.notes))

    # ---- what is launched, and by whom ---------------------------------------------------------

    def _entry(self) -> tuple[Declaration, str]:
        """The function whose parameters are the op's, and the kernel if only one counts."""
        hosts, wanted = self.file.of("host"), self.wanted
        if wanted in self.kernels:
            host = launcher.launcher_of(self.file.declarations, wanted)
            if self.options.grid or host is None or host.name == "main" or not host.parameters:
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
        if wanted in names(self.file.root):
            there += "; what a macro makes or a class has cannot be read: write the kernel out"
        raise LadderError(f"{self.path} has no kernel {wanted}; {there}")

    def _scope(self, entry: Declaration) -> Scope:
        """What the names of the launcher (or of the kernel, without one) stand for."""
        functions = {one.name: one for one in self.file.declarations
                     if one.names and one.kind in ("macro", "host", "device")}  # fmt: skip
        scope = Scope(dict(_KNOWN), functions=functions)
        scope.sizes.update(dict.fromkeys(self.real.names, "sizeof_real"))
        for constant in self.file.declarations:
            for name, meaning in constant.values.items() if not constant.branches else ():
                if name in self.values:  # it is not what the op calls so
                    scope.code[name] = text(meaning)
                elif meaning:
                    scope.header[name] = meaning
        scope.header |= {name: name for name in self.values}
        scope.header |= {_SMS: "multiprocessors", "warpSize": "warp", "WARP_SIZE": "32"}
        for vector in ("x128::size", *(f"Packed128<{name}>::size" for name in self.real.names)):
            scope.header[vector] = "vector"
        given = self.options.arguments
        ours, self.asked = match(self.op, entry.parameters, given)
        for one in entry.parameters:
            self._mean(scope, one, given.get(one.name, ours.get(one.name)))
        extra = [name for name in given if name not in {one.name for one in entry.parameters}]
        for other in extra:
            if other.isidentifier() and other not in names(self.file.root):
                has = ", ".join(one.name for one in entry.parameters)
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
            scope.code[name] = f"{UNMAPPED}{name}"
            return
        if theirs.pointer and ours in self.values:
            raise LadderError(f"{name} is a pointer, and {ours} of {self.op.name} is a number")
        if not theirs.pointer and theirs.kind and ours in self.buffers:
            raise LadderError(
                f"{name} is a number, and {ours} of {self.op.name} is a buffer; one element of it "
                f"is --arg '{name}={ours}[0]'"
            )
        known = {*self.buffers, *self.values, *self.scratch, "nullptr", "NULL", "f"}
        unknown = _words([ours]) - known
        if unknown and theirs.kind and not re.fullmatch(r"[\d.eE+-]+f?|\w+\([^()]*\)", ours):
            raise LadderError(
                f"--arg {name}={ours}: {self.op.name} has no {', '.join(sorted(unknown))}, but "
                f"{self._ours()}"
            )
        if BLOCK_NAMES.fullmatch(name) and ours.isdecimal():
            taken = names(self.file.root) | {*self.defines}
            free = ("BLOCK_SIZE", "BLOCK_THREADS", "THREADS_OF_BLOCK")
            constant = next(one for one in free if one not in taken)
            scope.code[name] = scope.header[constant] = constant
            scope.defines[constant] = self.defines[constant] = ours
            return
        if name != ours and theirs.kind:
            self.notes.append(f"{name} is {ours}")
        scope.code[name] = ours

    def _without_launcher(self, kernel: Declaration, scope: Scope, why: str) -> Steps:
        options, dim = self.options, self.op.dims[0]
        sizes = {f"--grid 'ceil_div({dim}, 256)'": options.grid, "--block 256": options.block}
        needed = declarations.needed(self.declared, {kernel.name})
        declared = (node for one in needed for node in find(one.node, "declaration"))
        if any({"extern", "__shared__"} <= {*map(text, node.children)} for node in declared):
            sizes["--shared '256 * 4' (bytes of its extern __shared__)"] = options.shared
        if missing := [flag for flag, given in sizes.items() if not given]:
            if len(missing) < len(sizes):
                flags = " and ".join(flag.split()[0] for flag in missing)
                why = f"the launch of {kernel.name} lacks only {flags}"
            self.asked.append(
                f"{self.path}: {why}; say it in the dimensions of the op: {' '.join(missing)}"
            )
        geometry = (options.grid,), (options.block,), options.shared or "0"
        arguments = tuple(
            scope.code[one.name] if one.name else f"{one.kind}{{}}" for one in kernel.parameters
        )
        return Steps([Launched(kernel.name, options.template, *geometry, arguments)])

    def _from_main(self, host: Declaration, kernel: Declaration, scope: Scope) -> Steps | str:
        """The first launch in a function that makes its arguments itself, as main() does: what it
        passes for a parameter stands for what the parameter is in the op. A number of its own is
        asked for: it is that of one size. If it is not known, why."""
        where = f"{kernel.name} is launched in {host.name}()"
        inside = scope.copy()
        passed = launcher.passed_to(host, kernel.name)
        for one, given in zip(kernel.parameters, passed, strict=False):
            ours = scope.code[one.name]
            if UNMAPPED in ours:
                continue
            if not one.pointer and not given.isidentifier():
                return f"{where} with {given} for {one.name}"
            inside.code[given] = ours
            inside.fixed |= {given}
        try:
            steps = launcher.read(host, inside, kernel.name, first=True)
        except LadderError as error:
            return f"{where}: {error}"
        if not steps.steps or not isinstance(launch := steps.steps[-1], Launched):
            return f"{where}, in a branch that is not read"
        arguments = tuple(
            theirs if one.pointer and UNMAPPED in scope.code[one.name] else scope.code[one.name]
            for one, theirs in zip(kernel.parameters, launch.arguments, strict=False)
        )
        steps.steps[-1] = launch = replace(launch, arguments=arguments)
        steps.allocated = [one for one in steps.allocated if one.name in _words(arguments)]
        first, *others = launch.grid
        if first.isdecimal() or any(size.isdecimal() and size != "1" for size in others):
            blocks = _launch_part(launch.grid)
            return f"{where} with {blocks} blocks, a number for its own size"
        return steps

    # ---- buffers -------------------------------------------------------------------------------

    def _allocate(self, allocated: launcher.Allocated) -> None:
        if allocated.name in self.scratch:
            return
        size, dtype = "4", {v: k for k, v in OURS.items()}.get(allocated.dtype, "float32")
        if allocated.dtype in self.real.names:
            size, dtype = "sizeof_real", REAL
        count = allocated.bytes.removesuffix(f" * {size}").removeprefix(f"{size} * ")
        if count == allocated.bytes:
            count = simple(f"({count}) // {size}")
        self.scratch[allocated.name] = f"{dtype} {allocated.name}[{count}]"

    def _fills(self, texts: Sequence[str], flag: str) -> list[Wrapper]:
        """The kernels that --fill or --then asks for."""
        result = []
        for given in texts:
            name, _, value = (part.strip() for part in given.partition("="))
            name, operator = name.rstrip("+-* "), name[len(name.rstrip("+-* ")) :].strip()
            if name in self.scratch:
                shape = self.scratch[name].partition("[")[2].removesuffix("]").split(",")
            elif name in self.buffers:
                shape = self.buffers[name].shape.split()
            else:
                raise LadderError(
                    f"--{flag} {given}: {self.op.name} has no buffer {name}, but "
                    f"{', '.join([*self.buffers, *self.scratch])}"
                )
            if not value:
                raise LadderError(f"--{flag} {given}: write e.g. '{name} = 0'")
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
        header = parse_header(count)
        if set(header.names) <= set(self.op.dims) and not header.functions and "//" not in count:
            index = "    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;\n"
            body = f"{index}    if (i < (size_t)({count})) {assignment}\n"
            return Wrapper(name, body, f"{name}<<<ceil_div({count}, 256), 256>>>{when}")
        body = f"    size_t i = blockIdx.x;\n    {assignment}\n"
        return Wrapper(name, body, f"{name}<<<{count}, 1>>>{when}")

    # ---- what does not fit ---------------------------------------------------------------------

    def _ours(self) -> str:
        return f"{', '.join(self.buffers)}; {', '.join(self.values)}"

    def _ask_for_unknown(self, steps: Steps, launches: list[Launched]) -> None:
        missing: dict[str, str] = {}
        for name, where in steps.unknown:
            missing.setdefault(name, where)
        for step in launches:
            texts = [*step.arguments, *step.grid, *step.block, step.shared]
            for name in re.findall(rf"{UNMAPPED}(\w+)", " ".join(texts)):
                missing.setdefault(name, f"the launch of {step.kernel}")
        if not missing:
            return
        (name, where), dim = next(iter(missing.items())), self.op.dims[0]
        remedy = f"--arg {name}={dim} for a dimension, or --arg {name}=256 for a number"
        parameters = (p for one in self.file.declarations for p in one.parameters)
        for theirs in (one for one in parameters if one.name == name and one.pointer):
            ours = next(arg.name for arg in self.op.args if theirs.const <= (arg.role == "in"))
            remedy = (
                f"--arg {name}={ours} for an argument, --arg {name}=nullptr "
                f"for none, or --scratch 'float32 {name}[{dim}, 4]' for memory of the kernel's own"
            )
        self.asked.append(
            f"{self.op.name} has {self._ours()}; nothing there is known as {', '.join(missing)}, "
            f"used by {where}. Say what it is, such as {remedy}"
        )

    def _ask_for_unwritten(self, used: set[str]) -> None:
        texts = [*self.options.fill, *self.options.then]
        filled = {text.partition("=")[0].rstrip("+-* ").strip() for text in texts}
        left = [arg.name for arg in self.op.args if arg.role != "in" and not arg.optional
                and arg.name not in used | filled]  # fmt: skip
        if left and UNMAPPED not in " ".join(used):  # which may be what it writes
            self.asked.append(
                f"{self.op.name} writes {', '.join(left)}, and {self.wanted} takes no such "
                f"argument that is known by its name; if it has another name: --arg "
                f"THEIRS={left[0]}. Where it computes less than {self.op.name}, compare it with a "
                "function of your own, as doc/any_kernel.md says"
            )

    def _note_unused(self, launches: Sequence[Launched]) -> None:
        """Notes the op's buffers that no kernel takes, or that it takes and never mentions."""
        mentioned = _words([*self.options.fill, *self.options.then])
        for step in launches:
            kernel = self.kernels[step.kernel]
            inside = names(kernel.body) if kernel.body else set()
            for one, argument in zip(kernel.parameters, step.arguments, strict=False):
                if one.name in inside:
                    mentioned |= _words([argument])
        self.notes += [
            f"{self.wanted} does not {'use' if arg.role == 'in' else 'compute'} {arg.name}"
            for arg in self.op.args
            if arg.name not in mentioned
        ]

    def _refuse_libraries(self, kept: Sequence[Declaration]) -> None:
        kinds = ("qualified_identifier", "nested_namespace_specifier")
        for one in kept:
            for library in map(_LIBRARIES.match, map(text, find(one.node, *kinds))):
                if not library or (library[1] == "cuda" and library[2] in _OF_CUDA):
                    continue
                raise LadderError(
                    f"{self.path}: {one.name} uses {library[0]}, of a C++ library that a rung is "
                    "compiled without; there are cooperative_groups, nvcuda::wmma, and of cuda:: "
                    "barrier, pipeline and memcpy_async, of a thread or a block"
                )

    def _renamed(self, kept: Sequence[Declaration], wrappers: Sequence[Wrapper]) -> dict[str, str]:
        """Other names for what is named as a kernel of the op."""
        taken = {wrapper.name for wrapper in wrappers}
        theirs = sorted({name for one in kept for name in one.names} & taken)
        self.notes += [f"their {name} is their_{name} here" for name in theirs]
        return {name: f"their_{name}" for name in theirs}

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

    def _conditions(self, steps: Steps, launches: list[Launched]) -> list[str]:
        """Those of --needs, and what the launcher asserts, where a header knows its names."""
        of_device = {"multiprocessors", "vector", "warp", "shared_bytes", "sizeof_real", "sm"}
        known = {*self.op.dims, *self.defines, *of_device}
        asserts = [text for text in steps.asserts if set(parse_header(text).names) <= known]
        limits = [
            simple(f"({step.shared}) <= shared_bytes")
            for step in launches
            if set(parse_header(step.shared).names) & set(self.op.dims)
        ]
        return [*asserts, *limits, *self.options.needs]

    # ---- kernels with the op's arguments -------------------------------------------------------

    def _only_names(self, launches: Sequence[Launched]) -> dict[str, str] | None:
        """{their name: ours} for a file of device code alone, in which nothing else differs; None
        for another one."""
        kernel, options = self.kernels[launches[0].kernel], self.options
        theirs = [one.name for one in kernel.parameters]
        given = dict(zip(theirs, launches[0].arguments, strict=False))
        file = self.file
        alone = not (file.headers or file.missing or file.of("host") or kernel.scope)
        alone &= len(self.kernels) == 1 and kernel.inner is kernel.node  # no template
        alone &= "WARP_SIZE" not in file.of("macro")  # which the build defines, too
        as_it_is = not (
            options.fill or options.then or options.template or self.defines or self.real.names
        )
        whole = {one.kind for one in kernel.parameters if not one.pointer} <= _WHOLE
        fits = len(given) == len({*given.values()} & {*self.buffers, *self.values, *self.scratch})
        return given if alone and as_it_is and whole and fits else None

    def _wrappers(self, steps: Steps, used: set[str], only: str) -> list[Wrapper]:
        """A kernel for each launch and each cudaMemset; `only`: the name of a single one."""
        number = sum(isinstance(step, Launched) for step in steps.steps)
        wrappers: list[Wrapper] = []
        for step in steps.steps:
            if isinstance(step, Filled):
                buffer = plain(step.buffer)
                if buffer not in used:
                    continue
                wrappers.append(self._memset(buffer, step))
                continue
            name = only if number == 1 else f"{self.op.kernel}_{step.kernel}"
            same = sum(re.fullmatch(rf"{name}(_\d+)?", one.name) is not None for one in wrappers)
            name += f"_{same + 1}" if same else ""
            geometry = [_launch_part(step.grid), _launch_part(step.block)]
            if step.shared != "0":
                geometry.append(step.shared)
            when = f" if {step.condition}" if step.condition else ""
            launch = f"{name}<<<{', '.join(geometry)}>>>{when}"
            wrappers.append(Wrapper(name, self._call(step), launch, self._bounds(step)))
        return wrappers

    def _memset(self, buffer: str, step: Filled) -> Wrapper:
        """A kernel for a cudaMemset: word by word where the bytes are whole words."""
        size = number(step.bytes)
        words = step.bytes.removesuffix(" * 4").removeprefix("4 * ")
        if size is not None and size % 4 == 0:
            words = str(size // 4)
        if words != step.bytes:
            value = f"((unsigned*){buffer})[i] = {step.byte * 0x01010101:#x};"
            return self._fill(buffer, words, value, condition=step.condition)
        value = f"((unsigned char*){buffer})[i] = {step.byte};"
        return self._fill(buffer, step.bytes, value, condition=step.condition)

    def _call(self, step: Launched) -> str:
        kernel = self.kernels[step.kernel]
        scope = "".join(f"{name}::" for name in kernel.scope)
        template = f"<{step.template}>" if step.template else ""
        arguments = []
        for one, written in zip(kernel.parameters, step.arguments, strict=False):
            if one.pointer and (arg := self.buffers.get(plain(written))):
                ours = kind_of(arg.dtype, self.real)
                theirs = ours if is_template_parameter(kernel, one.kind) else one.kind
                drops_const = arg.role == "in" and not one.const
                if theirs != ours or drops_const:
                    written = f"({'const ' if one.const else ''}{theirs}*){arg.name}"
                elif theirs == one.kind:
                    written = arg.name
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
        bounds = re.search(r"__launch_bounds__\s*\(((?:[^()]|\([^()]*\))*)\)", kernel.head)
        if bounds is None:
            return ""
        parameters = set(re.findall(r"\w+", kernel.head.partition("__global__")[0]))
        return "" if parameters & _words([bounds[1]]) else f"{bounds[0]} "


def _words(texts: Iterable[str]) -> set[str]:
    return {word for one in texts for word in WORD.findall(one)}


def _launch_part(sizes: Sequence[str]) -> str:
    texts = [*sizes]
    while len(texts) > 1 and texts[-1] == "1":
        texts.pop()
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"
