"""A rank that ends, falls silent or reports an error ends all others, with a message."""

import queue
import re
import time
from multiprocessing.connection import Pipe

import pytest

from ladder.core.common.errors import LadderError
from tests.trainer.parallel_run import tables, together
from trainer.ranks import join, watch
from trainer.ranks.group import Ranks
from trainer.ranks.join import open_watch

NAME = "rank 2 of 3 (process 2 on here)"


@pytest.fixture
def ranks(monkeypatch):
    """Three ranks, their links, and (rank, message) of each that ends."""
    monkeypatch.setattr(watch, "INTERVAL", 0.05)
    ended = queue.Queue()
    met = tables(3)

    def end(rank):
        return lambda message, status: ended.put((rank, message))

    groups = [Ranks(t, open_watch(t, 2.0, end=end(t.rank))) for t in met[:2]]
    groups[0].advise(lambda: "continue with -y 1")
    yield groups, met, ended
    for group in groups:
        group._watch._leaving.set()


def two(ended):
    return dict(ended.get(timeout=10) for _ in range(2))


def test_a_rank_that_ends_ends_all_and_is_named_by_rank_0_alone(ranks):
    _, met, ended = ranks
    met[2].links[0].watch.close()
    messages = two(ended)
    assert messages[0].startswith(f"{NAME} ") and messages[0].endswith("; continue with -y 1")
    assert messages[1] is None


@pytest.mark.slow
def test_a_rank_that_falls_silent_is_lost(ranks):
    _, _, ended = ranks
    begin = time.monotonic()
    messages = two(ended)  # rank 2 never gives a sign of life
    assert messages[0].startswith(f"{NAME} ") and " 2 seconds" in messages[0]
    assert messages[1] is None
    assert time.monotonic() - begin < 10


def test_an_error_of_a_rank_is_shown_by_rank_0(ranks):
    _, met, ended = ranks
    met[2].links[0].watch.send_bytes(watch.FAILED + b"1 the disk is full")
    assert two(ended)[0].startswith(f"{NAME}: the disk is full;")


def test_of_two_ranks_that_fail_at_once_one_message_is_shown():
    shown = queue.Queue()
    leader, other = tables(2)

    def end(message, status):
        time.sleep(0.2)
        shown.put(message)

    leading = open_watch(leader, 60.0, end=end)
    other.links[0].watch.send_bytes(watch.FAILED + b"2 the disk is full")
    assert leading._leaving.wait(10)
    leading.fail("the disk is full", 2)  # returns once the process would have ended
    assert "the disk is full; all ranks stop" in shown.get_nowait()


@pytest.mark.parametrize("status", [1, 2, 130])
def test_all_ranks_end_with_the_status_of_the_one_that_failed(monkeypatch, status):
    monkeypatch.setattr(watch, "INTERVAL", 0.05)
    ended = queue.Queue()
    met = tables(3)
    for table in met[:2]:
        open_watch(table, 60.0, end=lambda message, status: ended.put(status))
    failing = open_watch(met[2], 60.0)
    failing.fail("the disk is full", status)
    assert [ended.get(timeout=10) for _ in range(2)] == [status, status]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (LadderError("-b 0: must be at least 1"), 2),
        (KeyboardInterrupt(), 130),
        (watch.BrokenConnection("no answer"), 1),
        (RuntimeError("a kernel"), 1),
    ],
)
def test_only_what_would_fail_again_and_ctrl_c_keep_a_recipe_from_trying_again(error, status):
    assert join._status(error) == status


def test_the_loss_of_rank_0_is_shown_once_on_each_machine(monkeypatch):
    monkeypatch.setattr(watch, "INTERVAL", 0.05)
    leader, *others = tables(3)
    shown = queue.Queue()
    for table in others:
        open_watch(table, 60.0, end=lambda message, status: shown.put(message))
        leader.links[table.rank].watch.close()
    messages = {shown.get(timeout=10) for _ in others}
    assert None in messages
    (message,) = messages - {None}
    assert message.startswith("rank 0 of 3 (process 0 on here) ")


@pytest.fixture
def three(monkeypatch):
    """Three ranks that hang after 0.3 seconds, and (rank, message) of each that ends."""
    monkeypatch.setattr(watch, "INTERVAL", 0.05)
    ended = queue.Queue()

    def end(rank):
        return lambda message, status: ended.put((rank, message))

    groups = [Ranks(t, open_watch(t, 60.0, most=0.3, end=end(t.rank))) for t in tables(3)]
    yield groups, ended
    for group in groups:
        group._watch._leaving.set()


@pytest.mark.slow
@pytest.mark.parametrize("behind", [0, 2])
def test_the_rank_that_holds_up_the_others_is_named(three, behind):
    """They wait in a place behind it, inside a GPU's kernel, or in an exchange."""
    groups, ended = three
    for group in groups:
        group.progress("micro-batch 1 of step 8")
    inside, exchanging = (group for group in groups if group.rank != behind)
    inside.progress("the end of step 8")
    with exchanging._watch.waiting():
        messages = dict(ended.get(timeout=10) for _ in groups)
    hangs = rf"rank {behind} of 3 \(process {behind} on here\): .*micro-batch 1 of step 8"
    more = r" \(in \w+, \w+\.py:\d+\) .*--hang-timeout \(0\.3\)"
    assert re.match(hangs + more, messages.pop(0)), messages
    assert messages == {1: None, 2: None}


@pytest.mark.slow
def test_what_waits_for_others_or_may_take_any_time_does_not_hang(three):
    """Nor do those that are further, and wait for a rank that may take any time."""
    groups, ended = three
    for group in groups:
        group.progress("micro-batch 1 of step 8")
    groups[1].progress(None)
    groups[2].progress("micro-batch 2 of step 8")
    with groups[0]._watch.waiting():
        time.sleep(0.6)
    assert ended.empty()


@pytest.mark.slow
def test_long_work_in_parts_does_not_hang_and_a_part_that_does_is_named(three):
    """Rank 0 saves, and the others are already in the next step."""
    groups, ended = three
    for part in range(6):
        groups[0].working(f"tensor {part}")
        if part == 0:
            groups[1].progress("micro-batch 1 of step 8")
            groups[2].progress("micro-batch 1 of step 8")
        time.sleep(0.1)
    assert ended.empty()
    messages = dict(ended.get(timeout=10) for _ in groups)
    assert re.match(r"rank 0 of 3 \(process 0 on here\): .*tensor 5 \(in ", messages[0])


def test_a_broken_exchange_waits_for_the_watch_to_say_who_is_lost(monkeypatch):
    monkeypatch.setattr(watch, "INTERVAL", 0.05)
    here, there = Pipe()
    ended = queue.Queue()
    names, end = {1: "rank 1"}, lambda message, status: ended.put(message)
    quiet = watch.Watch({1: here}, names, rank=0, patience=0.2, shows=False, end=end)
    there.close()
    assert ended.get(timeout=10).startswith("rank 1 ")
    with pytest.raises(watch.BrokenConnection, match="gone"):
        quiet.explain(EOFError("gone"))


def test_ranks_that_are_at_different_places_of_the_program_are_stopped():
    def work(group):
        group.exchange("here" if group.leads else "there")

    with pytest.raises(LadderError, match=r"rank 1 .* 'there' .* rank 0 .* 'here'"):
        together(2, work)
