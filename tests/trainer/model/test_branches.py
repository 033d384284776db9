"""The backward pass in two branches: what goes beside the rest, and what waits for what.

Whether the waits suffice is asked twice, without the code that places them: of the memory itself,
in which an engine's arrays lie; and of a device that does what goes beside others as late as it
may.
"""

import itertools
from itertools import chain

import numpy as np
import pytest

from ladder.core.contract.ladder import find, ladders
from ladder.core.device.open import Cpu
from tests.trainer.cpu_engines import run_batch
from tests.trainer.late import Late
from trainer.commands.collective_timing import Silent
from trainer.engine.engine import Engine
from trainer.model.calls import Buffer, Call, Collective, Fork, Join, Piece, op_calls
from trainer.model.forks import spread
from trainer.model.fusion import FUSIONS
from trainer.model.gpt2 import GPT2Config
from trainer.model.lecture_gpt import LectureGPTConfig
from trainer.model.program import build
from trainer.model.sharding import Sharding

SHAPE = {"context": 6, "vocab": 11, "padded_vocab": 16, "layers": 3, "heads": 2, "channels": 8}
GPT2 = GPT2Config(**SHAPE, dropout=0.1, attention_dropout=0.1)
LECTURE = LectureGPTConfig(**SHAPE, dropout=0.1)
BRANCHES = ("main", "beside", "urgent")
KINDS = {
    "gpt2": (GPT2, {}),
    "lecture": (LECTURE, {}),
    "recompute": (GPT2, {"recompute": 2}),
    "fused": (GPT2, {"fusions": tuple(name for name in FUSIONS if name != "matmul_bias_backward")}),
    "fused rank": (GPT2, {"fusions": tuple(FUSIONS), "sharding": Sharding(1, 2, 1)}),
    "rank": (GPT2, {"sharding": Sharding(1, 2, 1)}),
    "overlap": (GPT2, {"sharding": Sharding(1, 2, 1, True)}),
}


def engine_of(config, real, device=None, **options):
    rungs = {name: ladder.rung(0) for name, ladder in ladders().items()}
    program = build(config, 2, 5, **options)
    return Engine(program, device or Cpu(), real, rungs, peers=Silent())


def touched(engine, call):
    """(first byte, end, whether it writes) of every array of a call."""
    if isinstance(call, Collective):
        for array in (engine.arrays[name] for name in call.buffers):
            yield array.ctypes.data, array.ctypes.data + array.nbytes, True
        return
    for arg, array in zip(find(call.op).op.args, engine.arguments(call), strict=True):
        if array is not None:
            start = array.ctypes.data
            yield start, start + array.nbytes, arg.role != "in"


def in_conflict(engine, one, other):
    return any(
        a < d and c < b and (w or v)
        for (a, b, w), (c, d, v) in itertools.product(touched(engine, one), touched(engine, other))
    )


def unordered(items):
    """Pairs of calls that may run at the same time, or in either order: the call of another branch
    comes first in the list, and is not among those that this one knows to be done."""
    done = {branch: [] for branch in BRANCHES}
    known = {branch: dict.fromkeys(BRANCHES, 0) for branch in BRANCHES}  # of each, how many
    ends = {}

    def learn(branch, other):
        known[branch] = {b: max(known[branch][b], other[b]) for b in BRANCHES}

    for item in items:
        if isinstance(item, Join):
            learn("main", ends[item.fork])
            continue
        branch, calls = "main", (item,)
        if isinstance(item, Fork):
            branch, calls = "urgent" if item.urgent else "beside", item.calls
            learn(branch, {**known["main"], "main": len(done["main"])})
            if item.behind is not None:
                learn(branch, ends[item.behind])
        for call in calls:
            for other in set(BRANCHES) - {branch}:
                yield from ((before, call) for before in done[other][known[branch][other] :])
            done[branch].append(call)
        ends[item] = {**known[branch], branch: len(done[branch])}


@pytest.mark.parametrize("kind", KINDS)
def test_what_runs_at_the_same_time_has_no_memory_in_common_that_either_writes(kind):
    config, options = KINDS[kind]
    engine = engine_of(config, np.float32, **options)
    for items in (engine.program.more_backward, engine.program.last_backward):
        pairs = [*unordered(items)]
        assert len(pairs) > config.layers
        for one, other in pairs:
            assert not in_conflict(engine, one, other), (one, other)
    without = [item for item in items if not isinstance(item, Join)]
    assert any(in_conflict(engine, one, other) for one, other in unordered(without))


def test_a_process_alone_has_one_branch_where_products_take_in_the_biases():
    program = build(GPT2, 2, 5, fusions=("matmul_bias_backward",))
    assert program.more_backward == program.last_backward == program.backward
    assert program.streams[1] == ()


@pytest.mark.parametrize("kind", KINDS)
def test_all_calls_are_there_in_order_and_end_together(kind):
    config, options = KINDS[kind]
    program = build(config, 2, 5, **options)
    items = program.more_backward
    assert tuple(op_calls(items)) == program.backward
    assert isinstance(items[-1], Join)
    assert items[-1].fork is [item for item in items if isinstance(item, Fork)][-1]
    aside = ("matmul.backward_bias", "matmul.backward_weight")  # fused, too: ..._weight_bias
    assert set(program.streams[1]) == {c for c in program.backward if c.op.startswith(aside)}
    assert sorted(map(id, chain(*map(set, program.streams)))) == sorted(map(id, set(program.calls)))


# Two arrays with memory, in which all other buffers lie: anywhere, one over the other.
HOSTS = {
    "memory": Buffer((40,), "real", "scratch"),
    "gradients": Buffer((40,), "float32", "gradient"),
}
OPS = ("residual.forward", "matmul.backward_weight", "matmul.backward_bias", "gelu.backward")


def random_program(rng):
    """Calls on any parts of memory, with the elements that each of them reads and writes."""
    buffers, elements = dict(HOSTS), {}

    def add(name, host):
        size, start = int(rng.integers(1, 5)), int(rng.integers(0, 20))
        kind, dtype = HOSTS[host].kind, HOSTS[host].dtype
        if name.startswith("whole"):
            buffers[name] = Buffer((size,), dtype, kind, inside=(host, start))
        elif name.startswith("layers"):
            buffers[name] = Buffer((3, size), dtype, kind, True, inside=(host, start))
        else:
            starts = rng.integers(0, 36, 3).tolist()
            pieces = tuple(Piece(i * size, size, host, at) for i, at in enumerate(starts))
            buffers[name] = Buffer((3, size), dtype, kind, True, pieces=pieces)
        for layer in range(3 if buffers[name].stacked else 1):
            at = start + layer * size if buffers[name].pieces is None else starts[layer]
            ref = name, layer if buffers[name].stacked else None
            elements[ref] = {(host, at + i) for i in range(size)}

    for host in HOSTS:
        for name in ("whole 0", "whole 1", "whole 2", "layers", "pieces"):
            add(f"{name} of {host}", host)
    refs = list(elements)
    calls, touches = [], {}
    for number in range(int(rng.integers(2, 16))):
        op = OPS[rng.integers(len(OPS))]
        args = tuple(refs[i] for i in rng.integers(len(refs), size=len(find(op).op.args)))
        call = Call(op, args, {}, {}, f"call {number}")
        calls.append(call)
        touches[call] = [
            (elements[ref], arg.role != "in")
            for arg, ref in zip(find(op).op.args, args, strict=True)
        ]
    return calls, buffers, touches


def test_calls_on_any_parts_of_memory_wait_for_those_in_conflict_and_for_no_others():
    rng = np.random.default_rng(0)
    waits = 0
    for _ in range(300):
        calls, buffers, touches = random_program(rng)

        def share(pair, touches=touches):
            both = itertools.product(*(touches[call] for call in pair))
            return any(a & b and (writes or also) for (a, writes), (b, also) in both)

        items = spread(calls, buffers)
        assert [*op_calls(items)] == calls
        assert not any(share(pair) for pair in unordered(items)), calls
        for place, item in enumerate(items[:-1]):
            if isinstance(item, Join):
                waits += 1
                assert any(
                    share(pair) for pair in unordered(items[:place] + items[place + 1 : place + 2])
                )
    assert waits > 100


def gradients(device, **options):
    engine = engine_of(GPT2, np.float64, device, **options)
    rng = np.random.default_rng(0)
    for name, shape in GPT2.parameter_shapes().items():
        engine.write(name, rng.normal(0.1, 0.3, shape))
    engine.write("rng", np.arange(4, dtype=np.uint32))
    run_batch(engine, *rng.integers(0, GPT2.vocab, (2, 2, 5)))
    return engine.read("gradients").tobytes()


@pytest.mark.parametrize("recompute", [0, 2])
def test_what_is_done_as_late_as_allowed_gives_the_same_bits(recompute):
    assert gradients(Late(), recompute=recompute) == gradients(Cpu(), recompute=recompute)
