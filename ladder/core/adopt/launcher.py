"""What a host function does that concerns the GPU: the kernels that it launches, in order, with
the buffers that it sets to a value or allocates, and what it asserts.

    steps = read(launcher, scope)

The function is read, not run: local variables are looked up where they are used, an `if` whose
condition is known takes its branch, another one becomes the condition of the launches in it. Loops
and switches are skipped, and a launch in one is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ladder.core.adopt.cpp import Node, expression, find, named, part, parts, text
from ladder.core.adopt.declarations import BRANCHES, Declaration
from ladder.core.adopt.host_expressions import (
    UNMAPPED,
    Scope,
    UnknownName,
    elements,
    geometry,
    in_code,
    in_header,
    number,
    simple,
    value,
)
from ladder.core.common.errors import LadderError

_UNREAD = {
    **{"for_statement": "a loop (for)", "for_range_loop": "a loop (for)"},
    **{"while_statement": "a loop (while)", "do_statement": "a loop (do)"},
    "switch_statement": "one case of a switch",
}


@dataclass(frozen=True)
class Launched:
    """One launch: the kernel, its template arguments, its geometry and arguments, and when."""

    kernel: str
    template: str
    grid: tuple[str, ...]
    block: tuple[str, ...]
    shared: str
    arguments: tuple[str, ...]
    condition: str = ""


@dataclass(frozen=True)
class Filled:
    """A cudaMemset: the buffer, each byte of it, and how many bytes."""

    buffer: str
    byte: int
    bytes: str
    condition: str = ""


@dataclass(frozen=True)
class Allocated:
    """A cudaMalloc: the variable, the type that it points to, and how many bytes."""

    name: str
    dtype: str
    bytes: str


@dataclass
class Steps:
    """What a launcher does, in order; `asserts` are conditions in the words of a header."""

    steps: list[Launched | Filled] = field(default_factory=list)
    allocated: list[Allocated] = field(default_factory=list)
    asserts: list[str] = field(default_factory=list)
    unknown: list[tuple[str, str]] = field(default_factory=list)  # (name, where it is needed)


def launches(node: Node) -> list[Node]:
    """The calls below a node that launch a kernel, in order."""
    calls = (one.parent for one in find(node, "kernel_call_syntax"))
    return [call for call in calls if call and call.type == "call_expression"]


def launched_by(function: Declaration) -> list[str]:
    """The kernels that a host function launches, in order."""
    return [named(part(call, "function")) for call in launches(function.node)]


def launcher_of(file: Sequence[Declaration], kernel: str) -> Declaration | None:
    """The host function that launches a kernel: that of the fewest launches, but `main` last."""
    hosts = [one for one in file if one.kind == "host" and kernel in launched_by(one)]
    hosts.sort(key=lambda one: (one.name == "main", len(set(launched_by(one)))))
    return hosts[0] if hosts else None


def passed_to(function: Declaration, kernel: str) -> list[str]:
    """The arguments of the function's first launch of a kernel, as they are written."""
    call = launches(function.node)[launched_by(function).index(kernel)]
    return [text(one) for one in parts(part(call, "arguments"))]


def read(function: Declaration, scope: Scope, only: str = "", first: bool = False) -> Steps:
    """What the function does. `only`: the launches of this kernel alone, and what comes before;
    `first`: no further than its first launch."""
    reader = _Reader(only, first)
    reader.block(parts(function.body), scope, "")
    return reader.done


class _Reader:
    def __init__(self, only: str, first: bool) -> None:
        self.only, self.first = only, first
        self.done = Steps()
        self.types: dict[str, str] = {}  # of local variables
        self.launched = False

    def block(self, statements: Sequence[Node], scope: Scope, condition: str) -> None:
        for one in statements:
            if not (self.first and self.launched):
                self.statement(one, scope, condition)

    def statement(self, node: Node, scope: Scope, condition: str) -> None:
        if node.type == "compound_statement":
            self.block(parts(node), scope.copy(), condition)
        elif node.type == "if_statement":
            self.choice(node, scope, condition)
        elif node.type in _UNREAD:
            if launches(node):
                raise LadderError(
                    f"a launch stands in {_UNREAD[node.type]}, and a Launch line is done once: "
                    "name the kernel, not its host function, and give --grid and --block"
                )
        elif node.type in (*BRANCHES, "ERROR"):
            self.block(parts(node), scope, condition)
        else:
            self.simple(node, scope, condition)

    def choice(self, node: Node, scope: Scope, condition: str) -> None:
        tested = part(node, "condition", "value")
        then, otherwise = part(node, "consequence"), parts(part(node, "alternative"))
        if tested is None or then is None:
            return
        if (known := value(tested, scope)) is not None:
            return self.branch([then] if known else otherwise, scope, condition)
        try:
            when = in_header(tested, scope)
        except LadderError:  # nothing is known of it: the launcher's own fallback is left out
            return self.branch([then], scope.copy(), condition)
        self.branch([then], scope.copy(), _both(condition, when))
        return self.branch(otherwise, scope.copy(), _both(condition, f"not ({when})"))

    def branch(self, statements: list[Node], scope: Scope, condition: str) -> None:
        """One branch; in braces or not, its assignments are those of `scope`."""
        braces = statements and statements[0].type == "compound_statement"
        self.block(parts(statements[0]) if braces else statements, scope, condition)

    # ---- simple statements -------------------------------------------------------------------

    def simple(self, node: Node, scope: Scope, condition: str) -> None:
        if node.type == "return_statement":
            return
        if launched := launches(node):
            for call in launched:
                self.launch(call, scope, condition)
            return
        if node.type == "static_assert_declaration":
            self.assertion(part(node, "condition"), scope)
        for call in find(node, "call_expression"):
            name, given = text(part(call, "function")), parts(part(call, "arguments"))
            if name == "assert" and given:
                self.assertion(given[0], scope)
            elif name in ("cudaMemset", "cudaMemsetAsync") and len(given) > 2:
                return self.fill(given, scope, condition)
            elif name == "cudaMalloc" and len(given) > 1:
                return self.allocate(given, scope)
        if node.type == "declaration":
            self.define(node, scope)
        for one in find(node, "assignment_expression"):
            self.assign(one, scope)

    def launch(self, call: Node, scope: Scope, condition: str) -> None:
        called = part(call, "function")
        kernel = named(called)
        if self.only and kernel != self.only:
            return
        where = f"the launch of {kernel}"
        template = next(find(called, "template_argument_list"), None) if called else None
        sizes = parts(next(find(call, "kernel_call_syntax")))
        given = parts(part(call, "arguments"))
        try:
            grid, block = (geometry(one, scope) for one in sizes[:2])
            shared = in_header(sizes[2], scope) if len(sizes) > 2 else "0"
        except UnknownName as error:
            self.done.unknown.append((error.name, where))
            grid, block, shared = ("1",), ("1",), "0"
        except (LadderError, ValueError) as error:
            raise LadderError(
                f"a header cannot say the grid, block or shared memory of {where}: "
                f"{str(error).replace(UNMAPPED, '')}; say what a variable of it is, by --arg "
                f"NAME=VALUE, or name {kernel} itself, with --grid and --block"
            ) from None
        self.launched = True
        self.done.steps.append(
            Launched(
                kernel,
                ", ".join(self.template_argument(one, scope) for one in parts(template)),
                grid,
                block,
                shared,
                tuple(in_code(one, scope) for one in given),
                condition,
            )
        )

    def template_argument(self, node: Node, scope: Scope) -> str:
        inner = parts(node)[0] if node.type == "type_descriptor" and len(parts(node)) == 1 else node
        known = value(inner, scope)
        if known is None or inner.type.endswith("literal"):
            return in_code(node, scope)
        written = in_header(inner, scope)
        return written if written.isidentifier() else str(known)  # a constant of Define stays one

    def assertion(self, node: Node | None, scope: Scope) -> None:
        """A condition of the header, where it speaks of what a header knows."""
        message = part(node, "right") if node else None
        if message and message.type == "string_literal":
            node = part(node, "left") if node else None
        try:
            written = in_header(node, scope) if node else "1"
        except LadderError:
            return
        if number(written) is None:
            self.done.asserts.append(written)

    def fill(self, given: list[Node], scope: Scope, condition: str) -> None:
        buffer = in_code(given[0], scope)
        try:
            byte, count = number(in_header(given[1], scope)), in_header(given[2], scope)
        except UnknownName as error:
            return self.done.unknown.append((error.name, "a cudaMemset"))
        except LadderError:
            byte = None
        if byte is None:
            sets = f"{text(given[0])} sets bytes to {in_code(given[1], scope)}"
            raise LadderError(
                f"cudaMemset of {sets}, which is no whole number: name the kernel alone, and say "
                "--fill instead"
            )
        return self.done.steps.append(Filled(buffer, byte & 255, count, condition))

    def allocate(self, given: list[Node], scope: Scope) -> None:
        variable = named(given[0])
        if variable in scope.fixed:
            return
        try:
            size = in_header(given[1], scope)
        except UnknownName as error:
            return self.done.unknown.append((error.name, "a cudaMalloc"))
        dtype = self.types.get(variable, "float")
        self.done.allocated.append(Allocated(variable, dtype, size))
        scope.code[variable] = variable

    def define(self, node: Node, scope: Scope) -> None:
        """Variables that are declared."""
        kind = text(part(node, "type"))
        for one in node.children_by_field_name("declarator"):
            name, given = named(one), part(one, "value")
            if one.type == "function_declarator":  # dim3 grid(N), which is read as a function
                name = named(part(one, "declarator"))
                call = expression(f"{kind}{text(part(one, 'parameters'))}")
                given = part(call, "arguments") if call else None
            listed = elements(given) if given else None
            self.types[name] = kind
            if listed and len(listed) == 1 and kind != "dim3":
                self.set(name, listed[0], scope)
            elif given:
                self.set(name, given, scope)
            elif name not in scope.fixed:
                scope.code[name] = f"{UNMAPPED}{name}"

    def assign(self, node: Node, scope: Scope) -> None:
        """A variable that gets another value."""
        name, sign = text(part(node, "left")), text(part(node, "operator"))
        given = part(node, "right")
        if sign != "=":
            given = expression(f"{name} {sign[:-1]} ({text(given)})")
        if given and name.isidentifier():
            self.set(name, given, scope)

    def set(self, name: str, given: Node, scope: Scope) -> None:
        """From here on, `name` stands for this, as its own names stand now."""
        if name in scope.fixed:
            return
        try:
            written = in_code(given, scope)
        except LadderError:
            written = f"{UNMAPPED}{name}"
        if given.type in ("argument_list", "initializer_list"):
            written = f"dim3({written[1:-1]})"
        elif (known := value(given, scope, with_defines=False)) is not None:
            written = str(known)
        scope.code[name] = written
        whole = expression(written)
        if sizes := elements(whole) if whole else None:
            texts = [*map(text, sizes), "1", "1"]
            scope.code |= {f"{name}.{axis}": one for axis, one in zip("xyz", texts, strict=False)}


def _both(one: str, other: str) -> str:
    return simple(f"({one}) and ({other})") if one and other else one or other
