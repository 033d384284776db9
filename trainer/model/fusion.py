"""Fusions: two consecutive calls become one, which need not store the result of the first.

A fusion is written as rules over the names of arguments. `JOIN` reads: where residual.forward
writes a buffer, and the layernorm.forward behind it reads that one, both together are one
residual_layernorm.forward. What a fused op computes is what the two computed; how it is rounded on
the way may differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainer.model.calls import Call, Ref


@dataclass(frozen=True)
class Rule:
    """Two ops and the one that replaces them, each as (op, names of its arguments in order).

    A name that stands in several places is the same buffer in all of them; one that the fused op
    lacks is of a buffer that is not written any more, and that nothing else may read. `place`: of
    which of the two calls the fused one has its dimensions and its name in the model.
    """

    first: tuple[str, str]
    second: tuple[str, str]
    fused: tuple[str, str]
    place: int

    def apply(self, first: Call, second: Call) -> Call | None:
        """The call that replaces both; None if the rule does not match them."""
        buffers: dict[str, Ref | None] = {}
        for call, (op, names) in ((first, self.first), (second, self.second)):
            if call.op != op:
                return None
            for name, ref in zip(names.split(), call.args, strict=True):
                if buffers.setdefault(name, ref) != ref:
                    return None
        op, names = self.fused
        args = tuple(buffers[name] for name in names.split())
        kept = (first, second)[self.place]
        return Call(op, args, kept.dims, kept.scalars, kept.where)


JOIN = Rule(
    ("residual.forward", "residual inp1 inp2"),
    ("layernorm.forward", "out mean rstd residual weight bias"),
    ("residual_layernorm.forward", "residual out mean rstd inp1 inp2 weight bias"),
    place=1,
)
JOIN_BACKWARD = Rule(
    ("layernorm.backward", "through dweight dbias dout inp weight mean rstd"),
    ("residual.backward", "dinp through"),
    ("residual_layernorm.backward", "dinp dweight dbias dout inp weight mean rstd"),
    place=0,
)
PRODUCT = Rule(
    ("matmul.forward", "pre inp weight bias"),
    ("gelu.forward", "out pre"),
    ("matmul_gelu.forward", "out pre inp weight bias"),
    place=0,
)
DECODE_PRODUCT = Rule(
    ("decode.linear", "pre inp weight bias"),
    ("gelu.forward", "out pre"),
    ("decode.linear_gelu", "out inp weight bias"),
    place=0,
)
PRODUCT_BACKWARD = Rule(
    ("matmul.backward_input", "product dout weight"),
    ("gelu.backward", "dinp product pre"),
    ("matmul_gelu.backward_input", "dinp dout weight pre"),
    place=0,
)

FUSIONS: Mapping[str, tuple[Rule, ...]] = {
    "residual_layernorm": (JOIN, JOIN_BACKWARD),
    "matmul_gelu": (PRODUCT, DECODE_PRODUCT),
    "matmul_gelu_backward": (PRODUCT_BACKWARD,),
}


def takes(fusion: str) -> set[str]:
    """The ops that a fusion replaces, where its rules apply."""
    return {op for rule in FUSIONS[fusion] for op, _ in (rule.first, rule.second)}


def makes(fusion: str) -> set[str]:
    """The fused ops that replace them."""
    return {rule.fused[0] for rule in FUSIONS[fusion]}


def fuse(calls: Iterable[Call], rules: Iterable[Rule]) -> tuple[Call, ...]:
    """The calls, with every pair that a rule matches replaced."""
    rules = tuple(rules)
    fused: list[Call] = []
    for call in calls:
        for rule in rules if fused else ():
            if (one := rule.apply(fused[-1], call)) is not None:
                fused[-1] = one
                break
        else:
            fused.append(call)
    return tuple(fused)
