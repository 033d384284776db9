"""Exchanges beside the backward pass give the bits that exchanges behind it give.

The CPU does one thing at a time. Two devices stand for the extremes of what a GPU may do with work
beside other work: one does it at once, the other as late as it may. Where both give the same bits,
nothing that goes beside an exchange reads or writes what is exchanged.
"""

import dataclasses
from collections import Counter

import numpy as np
import pytest

from ladder.core.device.open import Cpu
from tests.trainer import late
from tests.trainer.model.test_branches import engine_of, in_conflict, unordered
from tests.trainer.parallel_run import together
from tests.trainer.tiny import SHAPE, save_model, settings
from trainer.flags import Flags
from trainer.model import program as program_module
from trainer.model import sharding as sharding_module
from trainer.model import update
from trainer.model.calls import Fork
from trainer.model.fusion import FUSIONS
from trainer.model.gpt2 import GPT2Config
from trainer.model.program import build
from trainer.model.sharding import Sharding
from trainer.open import open_run
from trainer.ranks.group import HostSums
from trainer.train import take_step

STEPS = 2


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch):
    """One for each layer of the tiny model, and the last."""
    monkeypatch.setattr(sharding_module, "LEAST", 1)
    monkeypatch.setattr(sharding_module, "PER_TOKEN", 0)
    for module in (sharding_module, update):
        monkeypatch.setattr(module, "LEAST_GATHERED", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With a model in it."""
    folder = tmp_path_factory.mktemp("overlap")
    save_model(folder / "model", dropout=0.2)
    return folder


@pytest.fixture
def as_late_as_allowed(monkeypatch):
    """A device that does what goes beside other work as late as it may."""

    def make(cpu=Cpu):
        monkeypatch.setattr(cpu, "fork", late.fork)
        monkeypatch.setattr(cpu, "join", late.join)

    return make


def train(folder, ranks, steps=STEPS, dloss=None, **changes):
    """Of each rank: weights as they are stored, losses and norms, after some steps."""
    flags = Flags(
        **settings(
            folder,
            **{
                "total_tokens": 2 * 16 * 2 * ranks,
                "dtype": "bf16",
                "grad_clip": 0.5,
                "weight_decay": 0.1,
                "checkpoint_every": 0,
                "overlap": True,
                **changes,
            },
        )
    )

    def work(group):
        setup = open_run(flags, group)
        engine = setup.engine
        if dloss is not None:
            forward = engine.forward
            engine.forward = lambda: (engine.write("dloss", dloss), forward())
        outcomes = [take_step(setup.steps, setup.train, number) for number in range(steps)]
        weights = {
            name: engine.read_stored(name).tobytes() for name in engine.program.config.parameters()
        }
        return weights, [(step.loss, step.norm) for step in outcomes]

    return together(ranks, work)


def cut_as_for_overlap(config, backward, sharding):
    return sharding_module.cut(config, backward, dataclasses.replace(sharding, overlaps=True))


KINDS = {"-z 1": {}, "-z 0": {"zero": 0}, "-z 1 -r 2": {"recompute": 2}}


@pytest.mark.costly
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [3, pytest.param(4, marks=pytest.mark.sweep)])
def test_exchanges_beside_and_behind_give_the_same_bits(
    folder, as_late_as_allowed, monkeypatch, ranks, kind
):
    one_bucket = train(folder, ranks, overlap=False, **KINDS[kind])
    monkeypatch.setattr(program_module, "cut", cut_as_for_overlap)
    behind = train(folder, ranks, overlap=False, **KINDS[kind])
    assert behind == [behind[0]] * ranks
    # Another order in which a norm is summed up: within rounding, the same losses and norms.
    assert np.allclose(one_bucket[0][1], behind[0][1], rtol=1e-5)
    assert train(folder, ranks, **KINDS[kind]) == behind
    as_late_as_allowed()
    assert train(folder, ranks, **KINDS[kind]) == behind


@pytest.mark.slow
def test_what_does_not_wait_for_an_exchange_is_seen(folder, as_late_as_allowed, monkeypatch):
    right = train(folder, 2, steps=1)
    as_late_as_allowed()
    monkeypatch.setattr(Cpu, "join", lambda device, end: None)
    assert train(folder, 2, steps=1) != right


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("zero", [0, 1])
def test_a_step_exchanges_once_whatever_it_accumulates(folder, monkeypatch, zero, overlap):
    seen = Counter()

    def counting(kind, exchange):
        def count(sums, *arrays):
            seen[kind] += sum(array.size for array in arrays)
            exchange(sums, *arrays)

        return count

    for kind in ("all_reduce", "reduce_scatter", "all_gather"):
        monkeypatch.setattr(HostSums, kind, counting(kind, getattr(HostSums, kind)))
    train(folder, 2, steps=1, total_tokens=2 * 16 * 2 * 3, zero=zero, overlap=overlap)
    vector = build(SHAPE, 2, 16, sharding=Sharding(0, 2, zero, overlap)).vector
    if zero:
        norms = 2 * len(vector.buckets) * (1 if overlap else 2)  # once more, to wake the links
        assert seen == {"reduce_scatter": 2 * vector.size, "all_gather": 2 * (vector.size + norms)}
    else:
        assert seen == {"all_reduce": 2 * vector.size}


def exchanges(item):
    return isinstance(item, Fork) and item.urgent


@pytest.mark.parametrize("fusions", [(), tuple(FUSIONS)])
@pytest.mark.parametrize("zero", [0, 1])
def test_no_call_touches_what_is_exchanged_beside_it(zero, fusions):
    engine = engine_of(SHAPE, np.float32, fusions=fusions, sharding=Sharding(1, 3, zero, True))
    program = engine.program
    assert sum(map(exchanges, program.last_backward)) == SHAPE.layers + 1
    for items in (program.last_backward, program.reduce, program.apply):
        assert not any(in_conflict(engine, *pair) for pair in unordered(items))


def test_all_but_the_last_bucket_go_beside_the_backward_pass():
    """The token table is the head's, too: it is complete last, with the first layer's rest."""
    program = build(SHAPE, 2, 16, sharding=Sharding(0, 2, 1, True))
    first, *_, last = program.vector.buckets
    above = "lnfw lnfb attprojw attprojb ln2w ln2b fcw fcb fcprojw fcprojb"
    assert {s.name for s in first.slices} == set(above.split())
    assert {s.name for s in last.slices} == {"wte", "wpe", "ln1w", "ln1b", "qkvw", "qkvb"}
    assert last.after == len(program.backward)
    for bucket in program.vector.buckets[:-1]:
        assert program.backward[bucket.after].op == "attention.backward"


CONFIG = GPT2Config(layers=5, channels=16, heads=2, vocab=10, padded_vocab=16, context=8)
LAYER = 12 * 16 * 16 + 13 * 16


def layers_in_buckets(vector):
    """Of how many layers each bucket has the second product's weights; it has all or none."""
    counts = [sum(s.name == "fcprojw" for s in bucket.slices) for bucket in vector.buckets]
    tensors = [(s.name, s.first) for bucket in vector.buckets for s in bucket.slices]
    assert len(tensors) == len(set(tensors)) == 4 + 12 * CONFIG.layers
    assert {s.name for s in vector.buckets[-1].slices} >= {"wte", "wpe"}
    return counts


@pytest.mark.parametrize(
    ("least", "counts"),
    [(1, [2, 1, 1, 1, 0]), (2, [3, 2, 0]), (3, [5, 0]), (5, [5])],
)
def test_a_bucket_waits_until_it_is_large_enough(monkeypatch, least, counts):
    """Before the attention of the last layer, three quarters of it are complete, too little for a
    bucket; then one layer more before each. If all of that is too little, it waits for the end."""
    monkeypatch.setattr(sharding_module, "LEAST", least * LAYER)
    monkeypatch.setattr(sharding_module, "LEAST_GATHERED", 4 * least * LAYER)
    vector = build(CONFIG, 2, 8, sharding=Sharding(0, 2, 1, True)).vector
    assert layers_in_buckets(vector) == counts
    for bucket in vector.buckets[:-1]:
        assert sum(s.count for s in bucket.slices) >= sharding_module.LEAST


@pytest.mark.parametrize(
    ("layers", "least", "counts"),
    [
        (1, 1, [1, 1, 1, 1, 1, 0]),
        (2, 2, [1, 2, 2, 0]),
        (2, 1, [1, 1, 1, 1, 1, 0]),
        (4, 9, [1, 4, 0]),
        (4, 2, [1, 2, 2, 0]),
    ],
)
def test_with_more_tokens_gradients_are_exchanged_later_and_more_at_once(
    monkeypatch, layers, least, counts
):
    """The attention beside them takes longer then. But weights are sent in buckets of `least`."""
    monkeypatch.setattr(sharding_module, "PER_TOKEN", layers * LAYER // 16)
    monkeypatch.setattr(sharding_module, "LEAST_GATHERED", least * LAYER)
    program = build(CONFIG, 2, 8, sharding=Sharding(0, 2, 1, True))
    vector = program.vector
    assert layers_in_buckets(vector) == counts
    attention = [i for i, call in enumerate(program.backward) if call.op == "attention.backward"]
    together = [item.calls[0].buffers for item in program.last_backward if exchanges(item)]
    assert sum(together, ()) == tuple(f"gradients.{i}" for i in range(len(counts)))
    *early, end = [vector.buckets[int(names[0].partition(".")[2])].after for names in together]
    assert early == sorted(attention[::-1][::layers]) and end == len(program.backward)


@pytest.mark.slow
def test_rounding_at_random_draws_the_same_words_on_any_number_of_ranks(folder):
    """Without gradients, weight decay alone moves the weights: only rounding could differ."""
    how = {"stochastic_rounding": True, "dloss": np.zeros(1), "lr": 0.1, "total_tokens": 192}
    ((alone, _),) = train(folder, 1, **how)
    ((nearest, _),) = train(folder, 1, **{**how, "stochastic_rounding": False})
    assert [weights for weights, _ in train(folder, 3, **how)] == [alone] * 3
    assert alone != nearest
