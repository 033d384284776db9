"""A rank that hangs ends all, whatever it is at: set-up, a sample, an evaluation, a checkpoint.

Ranks are threads. A function of one of them does not return; from that moment on, one place may
take a second, so that the test does not wait for longer, nor a busy machine make it fail.
"""

import queue
import re
import threading

import pytest

from tests.trainer.parallel_run import tables
from tests.trainer.tiny import settings
from trainer import report
from trainer.data import training_data
from trainer.data.multiple_choice import Example
from trainer.engine import engine, generation, rung_choice, scoring
from trainer.engine.engine import Engine
from trainer.files import checkpoint
from trainer.flags import Flags
from trainer.ranks import watch
from trainer.ranks.group import Ranks
from trainer.ranks.join import open_watch
from trainer.train import train

EXAMPLES = [Example((1, 2), ((3,), (4,), (5,), (6,)), 0)] * 3

SAMPLES = {"sample_every": 2, "sample_tokens": 2}

PHASES = {  # what hangs, on which rank, and the place that is named
    "choosing": (rung_choice, "_from_set", 0, r"the choice of a rung for adamw\.update"),
    "compiling": (engine, "bind", 1, r"the set-up of embedding, embedding\.forward rung 0 .*"),
    "weights": (Engine, "write", 1, "wte of the weights"),
    "evaluating": (scoring, "_submit", 1, "batch 1 of the evaluation"),
    "sampling": (generation, "draw", 0, "token 1 of the sample"),
    "saving": (checkpoint, "_flush", 0, r"\w+\.v of the checkpoint of step 2"),
}


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_a_rank_that_hangs_is_named_with_its_place(tmp_path, monkeypatch, phase):
    owner, name, victim, place = PHASES[phase]
    monkeypatch.setattr(watch, "INTERVAL", 0.05)
    monkeypatch.setattr(report, "measured_roof", lambda device, real, tf32: 1e9)
    monkeypatch.setattr(training_data, "open_examples", lambda *_: (EXAMPLES, []))
    flags = Flags(**settings(tmp_path, steps=2, total_tokens=64, checkpoint_every=2, **SAMPLES))
    ended, released = queue.Queue(), threading.Event()
    met = tables(2)
    groups = [Ranks(t, open_watch(t, 60.0, end=ended.put)) for t in met]
    function = getattr(owner, name)

    def hang(*args, **options):
        if threading.current_thread().name == f"rank {victim}":
            for group in groups:
                group._watch.most = 1.0
            released.wait(60)
            raise EOFError("the end of the test")
        return function(*args, **options)

    monkeypatch.setattr(owner, name, hang)

    def work(group, table):
        group._watch._main = threading.get_ident()
        try:
            train(flags, group=group)
        except Exception:  # of all ranks, once the test is over
            for link in table.links.values():
                link.talk.close()

    threads = [
        threading.Thread(target=work, args=pair, name=f"rank {rank}", daemon=True)
        for rank, pair in enumerate(zip(groups, met, strict=True))
    ]
    for thread in threads:
        thread.start()
    messages = {ended.get(timeout=30), ended.get(timeout=30)}
    released.set()
    for thread in threads:
        thread.join(30)
    assert None in messages, "one rank shows it"
    (message,) = messages - {None}
    named = rf"rank {victim} of 2 \(process {victim} on here\): .* at {place}"
    stands = r" \(in wait, threading\.py:\d+\) .* --hang-timeout \(1\);"
    assert re.match(named + stands, message), message
