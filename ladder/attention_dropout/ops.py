"""Attention with dropout of its probabilities, drawn where they are used and drawn again backward.

A run without dropout calls attention's own ops. The mask is a function of a counter, as in dropout,
whose `rng` and `stream` these ops take: neither pass stores it.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from ladder.attention import ops as attention
from ladder.attention.ops import BENCH, SECOND_LAYER, equal_scores, large_scores, normal
from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Case, MakeInputs, read
from ladder.dropout.ops import SCALARS, VALUES, with_state
from reference import attention_dropout

MEASURED = {  # the character models', and one of attention's
    "B=64 T=256": {"B": 64, "T": 256, "C": 384, "NH": 6},
    "B=4 T=1024": BENCH["B=4 T=1024"],
}


def with_outputs(inputs: MakeInputs, **scalars: float) -> MakeInputs:
    """The same inputs for the backward pass: a random state, and out and lse that belong to qkv
    under its mask. `scalars` are those of the call that differ from VALUES."""
    values: dict[str, Any] = {**VALUES, **scalars}
    return attention.with_outputs(with_state(inputs), partial(attention_dropout.forward, **values))


forward = replace(
    attention.forward,
    name="attention_dropout.forward",
    summary="out = dropout(softmax(q @ k.T / sqrt(head size), causal)) @ v, for each head",
    args=(*attention.forward.args, read("rng", "4", "uint32")),
    scalars=SCALARS,
    scalar_values=VALUES,
    reference=attention_dropout.forward,
    bench=MEASURED,
    make_inputs=with_state(normal),
    cases={
        **attention.forward.cases,
        "p = 0": Case(scalars={"p": 0.0}),
        "p = 0.5, first stream": Case(scalars={"p": 0.5, "stream": 0}),
    },
)

backward = replace(
    attention.backward,
    name="attention_dropout.backward",
    summary="dqkv from dout, with scores and mask recomputed from qkv, lse and the counter",
    args=(*attention.backward.args, read("rng", "4", "uint32")),
    scalars=SCALARS,
    scalar_values=VALUES,
    reference=attention_dropout.backward,
    bench=MEASURED,
    make_inputs=with_outputs(normal),
    cases={
        "large scores": Case(with_outputs(large_scores), hard=True),
        "equal scores": Case(with_outputs(equal_scores)),
        "p = 0": Case(with_outputs(normal, p=0.0), scalars={"p": 0.0}),
        "p = 0.5, first stream": Case(
            with_outputs(normal, p=0.5, stream=0), scalars={"p": 0.5, "stream": 0}
        ),
        "second layer": SECOND_LAYER,
    },
)

LADDERS = (Ladder(forward), Ladder(backward))
