"""C++ as a syntax tree: tree-sitter reads it, with its grammar for CUDA.

    root = parse(b"__global__ void k(float* x) {}")
    [text(node) for node in find(root, "function_definition")]

A file need not be complete: what cannot be read becomes a node of the kind ERROR.
"""

import functools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ladder.core.common.errors import LadderError
from ladder.core.common.install import install

if TYPE_CHECKING:
    from tree_sitter import Node as Node
    from tree_sitter import Parser
else:
    Node = Any  # for those who import it from here

WORD = re.compile(r"[A-Za-z_]\w*")
# What the grammar does not know before a name; it changes nothing of what is read here.
ATTRIBUTES = re.compile(rb"__(?:align|cluster_dims)__\s*\((?:[^()]|\([^()]*\))*\)")
_NO_NAMES = {"comment", "string_literal", "raw_string_literal", "char_literal", "number_literal"}


@functools.cache
def _parser() -> "Parser":
    try:
        import tree_sitter
        import tree_sitter_cuda
    except ImportError as error:
        raise LadderError(f"{error.name} is missing: {install('adopt')}") from None
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_cuda.language()))


def parse(code: bytes) -> Node:
    """The tree of a file. Its nodes have the positions of `code`, and blanks for ATTRIBUTES."""
    return _parser().parse(ATTRIBUTES.sub(lambda match: b" " * len(match[0]), code)).root_node


def expression(code: str) -> Node | None:
    """The tree of an expression; None if the text is none."""
    whole = parse(f"int x = {code};".encode())
    declared = next(find(whole, "init_declarator"), None)
    value = part(declared, "value") if declared else None
    complete = value is not None and value.end_byte == whole.end_byte - 1
    return value if complete and not whole.has_error else None


def text(node: Node | None) -> str:
    """The code of a node on one line; "" for none."""
    return " ".join((node.text or b"").decode().split()) if node else ""


def part(node: Node, *fields: str) -> Node | None:
    """The child of a field, of this child the child of the next field, and so on."""
    child: Node | None = node
    for field in fields:
        child = child and child.child_by_field_name(field)
    return child


def parts(node: Node | None) -> list[Node]:
    """The children that are no punctuation, without comments."""
    return [child for child in node.named_children if child.type != "comment"] if node else []


def find(node: Node, *kinds: str) -> Iterator[Node]:
    """The node and all nodes below that are of these kinds, in the order of the text."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if one.type in kinds:
            yield one
        waiting.extend(reversed(one.children))


def names(node: Node) -> set[str]:
    """Every name that the code uses; one behind a namespace is `space::name`."""
    used: set[str] = set()
    waiting = [node]
    while waiting:
        one = waiting.pop()
        space, name = part(one, "scope"), part(one, "name")
        if one.type == "qualified_identifier" and space and name:
            if name.type != "qualified_identifier":
                used.add(f"{WORD.findall(text(space))[0]}::{text(part(name, 'name') or name)}")
                name = part(name, "arguments")
            waiting += [space, name] if name else [space]
        elif one.children and one.type not in _NO_NAMES:
            waiting += one.children
        elif one.type not in _NO_NAMES:
            used.update(WORD.findall(text(one)))
    return used


def named(node: Node | None) -> str:
    """What a declarator declares, or a call calls: its name, without stars, brackets, namespaces
    and template arguments."""
    while node and parts(node) and node.type not in ("operator_name", "field_expression"):
        inner = part(node, "declarator") or part(node, "name")
        node = inner or parts(node)[-1]
    return text(node)
