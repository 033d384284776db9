"""Fusions: two consecutive calls become one, which need not store the result of the first, or reads
only once what both read.

A fusion is written as rules over the names of arguments. `JOIN` reads: where residual.forward
writes a buffer, and the layernorm.forward behind it reads that one, both together are one
residual_layernorm.forward. What a fused op computes is what the two computed; how it is rounded on
the way may differ.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ladder.core.contract.ladder import find
from trainer.model.calls import Call, Ref

# Names in rules that stand for the program's buffers of these names, and for no buffer at all.
FIXED: Mapping[str, Ref | None] = {
    **{name: (name, None) for name in ("logits", "factors", "scaled")},
    "-": None,
}


@dataclass(frozen=True)
class Rule:
    """Two ops and the one that replaces them, each as (op, names of its arguments in order).

    A name that stands in several places is the same buffer in all of them; one that the fused op
    lacks is of a buffer that is not written any more, and that nothing else may read. `place`: of
    which of the two calls the fused one has its name in the model, and its dimensions where both
    have them. It has the scalars of both. `kept`: another call of the first op, which stays.
    """

    first: tuple[str, str]
    second: tuple[str, str]
    fused: tuple[str, str]
    place: int = 0
    kept: str = ""

    def apply(self, first: Call, second: Call) -> tuple[Call, ...]:
        """The calls that replace both; none if the rule does not match them."""
        buffers = dict(FIXED)
        for call, (op, names) in ((first, self.first), (second, self.second)):
            if call.op != op:
                return ()
            for name, ref in zip(names.split(), call.args, strict=True):
                if buffers.setdefault(name, ref) != ref:
                    return ()
        op, names = self.fused
        place = (first, second)[self.place]
        sizes = {**first.dims, **second.dims, **place.dims}
        dims = {name: sizes[name] for name in find(op).op.dims}
        args = tuple(buffers[name] for name in names.split())
        fused = Call(op, args, dims, {**first.scalars, **second.scalars}, place.where)
        if not self.kept:
            return (fused,)
        args = tuple(buffers[name] for name in self.kept.split())
        return replace(first, args=args), fused


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
)
# What these two take is what JOIN and JOIN_BACKWARD make.
DROPPED_JOIN = Rule(
    ("dropout.forward", "dropped inp2 rng"),
    ("residual_layernorm.forward", "residual out mean rstd inp1 dropped weight bias"),
    ("dropout_residual_layernorm.forward", "residual out mean rstd inp1 inp2 weight bias rng"),
    place=1,
)
DROPPED_JOIN_BACKWARD = Rule(
    ("residual_layernorm.backward", "dinp dweight dbias dout inp weight mean rstd"),
    ("dropout.backward", "dbranch dinp rng"),
    (
        "dropout_residual_layernorm.backward",
        "dinp dbranch dweight dbias dout inp weight mean rstd rng",
    ),
)
PRODUCT = Rule(
    ("matmul.forward", "pre inp weight bias"),
    ("gelu.forward", "out pre"),
    ("matmul_gelu.forward", "out pre inp weight bias"),
)
DECODE_PRODUCT = Rule(
    ("decode.linear", "pre inp weight bias"),
    ("gelu.forward", "out pre"),
    ("decode.linear_gelu", "out inp weight bias"),
)
PRODUCT_BACKWARD = Rule(
    ("matmul.backward_input", "product dout weight"),
    ("gelu.backward", "dinp product pre"),
    ("matmul_gelu.backward_input", "dinp dout weight pre"),
)
BIAS_BACKWARD = Rule(
    ("matmul.backward_bias", "dbias dout"),
    ("matmul.backward_weight", "dweight dout inp"),
    ("matmul.backward_weight_bias", "dweight dbias dout inp"),
    place=1,
)
# Takes residual.forward before JOIN can: the product comes first. The layernorm is then alone.
PRODUCT_RESIDUAL = Rule(
    ("matmul.forward", "branch inp weight bias"),
    ("residual.forward", "out stream branch"),
    ("matmul_residual.forward", "out stream inp weight bias"),
)
RELU_PRODUCT = Rule(
    ("matmul.forward", "pre inp weight bias"),
    ("relu.forward", "out pre"),
    ("matmul_relu.forward", "out inp weight bias"),
)
RELU_PRODUCT_BACKWARD = Rule(
    ("matmul.backward_input", "product dout weight"),
    ("relu.backward", "dinp product out"),
    ("matmul_relu.backward_input", "dinp dout weight out"),
)
# A bias of the head would have to be in both.
LOSS = Rule(
    ("matmul.forward", "logits inp weight -"),
    ("crossentropy.fused", "losses logits targets dloss"),
    ("matmul_crossentropy.forward", "logits losses factors scaled inp weight targets dloss"),
)
LOSS_BACKWARD = Rule(
    ("matmul.backward_weight", "dweight logits inp"),
    ("matmul.backward_input", "dinp logits weight"),
    ("matmul_crossentropy.backward_input", "dinp logits factors weight"),
    place=1,
    kept="dweight logits scaled",
)

FUSIONS: Mapping[str, tuple[Rule, ...]] = {
    "residual_layernorm": (JOIN, JOIN_BACKWARD),
    "dropout_residual_layernorm": (DROPPED_JOIN, DROPPED_JOIN_BACKWARD),
    "matmul_gelu": (PRODUCT, DECODE_PRODUCT),
    "matmul_gelu_backward": (PRODUCT_BACKWARD,),
    "matmul_bias_backward": (BIAS_BACKWARD,),
    "matmul_residual": (PRODUCT_RESIDUAL,),
    "matmul_relu": (RELU_PRODUCT,),
    "matmul_relu_backward": (RELU_PRODUCT_BACKWARD,),
    "matmul_crossentropy": (LOSS, LOSS_BACKWARD),
}
# In float16 it is refused, whose numbers end at e^11; in float32 it is for whoever asks for it.
FOR_BFLOAT16 = {"matmul_crossentropy"}


def takes(fusion: str) -> set[str]:
    """The ops that a fusion replaces, where its rules apply."""
    rules = FUSIONS[fusion]
    return {rule.first[0] for rule in rules if not rule.kept} | {rule.second[0] for rule in rules}


def makes(fusion: str) -> set[str]:
    """The fused ops that replace them."""
    return {rule.fused[0] for rule in FUSIONS[fusion]}


def needs(fusion: str) -> set[str]:
    """The fusions whose fused ops it replaces: without them, its rules apply nowhere."""
    return {other for other in FUSIONS if makes(other) & takes(fusion)}


def applicable(ops: Iterable[str]) -> tuple[str, ...]:
    """The fusions of which a rule finds both its ops in a program of these ops, or in what those
    before have made of it."""
    names, there = [], {*ops}
    for name, rules in FUSIONS.items():
        if any({rule.first[0], rule.second[0]} <= there for rule in rules):
            names.append(name)
            there |= makes(name)
    return tuple(names)


def fuse(calls: Iterable[Call], rules: Iterable[Rule]) -> tuple[Call, ...]:
    """The calls, with every pair that a rule matches replaced: a fused call, too, is fused with the
    one before it and the one behind it, where a rule matches these."""
    rules = tuple(rules)
    fused: list[Call] = []
    for call in calls:
        while fused and (made := _apply(rules, fused[-1], call)):
            *kept, call = made
            fused[-1:] = kept
        fused.append(call)
    return tuple(fused)


def _apply(rules: Iterable[Rule], first: Call, second: Call) -> tuple[Call, ...]:
    """What the first rule that matches two calls makes of them; nothing if none does."""
    return next(filter(None, (rule.apply(first, second) for rule in rules)), ())
