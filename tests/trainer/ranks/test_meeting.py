"""How ranks find each other, who is refused, and what is said when one does not come."""

import dataclasses
import json
import queue
import re
import socket
import threading
import time
from multiprocessing.connection import Client

import pytest

from ladder.core.common.errors import LadderError
from trainer.ranks import meeting
from trainer.ranks.launch import SECRET, RankLaunch
from trainer.ranks.meeting import FILE, meet


def launches(folder, size=2):
    return [RankLaunch(rank, size, None, "a test", folder) for rank in range(size)]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def at_address(size=2):
    port = free_port()
    return [RankLaunch(r, size, r, "a test", None, "127.0.0.1", port) for r in range(size)]


def meet_all(launches, settings=None, patience=10.0):
    """By rank, the table or the error of each, from threads of their own."""
    outcomes = queue.Queue()

    def run(index):
        own = (settings or {}).get(index, {"--batch": 4})
        try:
            outcomes.put((index, meet(launches[index], own, patience)))
        except LadderError as error:
            outcomes.put((index, str(error)))

    for index in range(len(launches)):
        threading.Thread(target=run, args=(index,), daemon=True).start()
    return dict(outcomes.get(timeout=20) for _ in launches)


def test_ranks_meet_in_a_folder_and_leave_nothing_there(tmp_path):
    folder = tmp_path / "new"
    tables = meet_all(launches(folder, 3))
    assert [tables[rank].rank for rank in range(3)] == [0, 1, 2]
    assert tables[0].members == tables[1].members == tables[2].members
    assert [member.local_rank for member in tables[0].members] == [0, 1, 2]  # of the same host
    tables[0].links[2].talk.send_bytes(b"to rank 2")
    assert tables[2].links[0].talk.recv_bytes() == b"to rank 2"
    assert not folder.exists()


def test_only_its_user_can_read_where_rank_0_listens(tmp_path):
    (tmp_path / "here").mkdir()
    with meeting._announced(launches(tmp_path / "here")[0], 1234, b"secret"):
        path = tmp_path / "here" / FILE
        assert path.stat().st_mode & 0o777 == 0o600
        assert json.loads(path.read_text())["secret"] == b"secret".hex()
    assert not path.exists()


def test_a_file_that_a_killed_run_has_left_does_no_harm(tmp_path):
    left = {"hosts": [socket.gethostname()], "port": free_port(), "secret": "00"}
    (tmp_path / FILE).write_text(json.dumps(left))
    tables = meet_all(launches(tmp_path))
    assert len(tables[1].members) == 2


def test_ranks_meet_at_an_address_with_a_secret(monkeypatch):
    monkeypatch.setenv(SECRET, "one")
    assert len(meet_all(at_address())[0].members) == 2


def test_without_a_secret_there_is_no_address(monkeypatch):
    monkeypatch.delenv(SECRET, raising=False)
    for outcome in meet_all(at_address(), patience=2.0).values():
        assert SECRET in outcome


@pytest.mark.slow
def test_another_secret_is_refused(monkeypatch):
    name = threading.current_thread  # each rank has threads of its own
    monkeypatch.setattr(meeting, "_known_secret", lambda: name().name.encode())
    outcomes = meet_all(at_address(), patience=1.0)
    assert re.search(f"rank 0 .*rank 1; .*{SECRET}", outcomes[1])
    assert re.search("rank 1 of 2 .* 1 seconds.* another secret", outcomes[0])


def test_a_port_in_use_is_named(monkeypatch):
    monkeypatch.setenv(SECRET, "one")
    with socket.create_server(("", 0)) as server:
        launch = dataclasses.replace(at_address()[0], port=server.getsockname()[1])
        with pytest.raises(LadderError, match=f"port {launch.port}: .*KERNEL_LADDER_PORT"):
            meet(launch, {}, 1.0)


@pytest.mark.slow
def test_a_rank_that_never_comes_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(meeting, "QUIET", 0.1)
    first, second, _ = launches(tmp_path, 3)
    outcomes = meet_all([first, second], patience=1.0)
    assert re.search(r"rank 2 of 3 .* 1 seconds \(a test\)", outcomes[0])
    assert "rank 0" in outcomes[1]
    with pytest.raises(LadderError, match=r"rank 1 of 3 .* rank 0 "):
        meet(second, {}, 0.3)
    said = capsys.readouterr().err
    assert re.search(r"\[rank 0 of 3 \(a test\) .* 1 seconds\]", said)
    assert re.search(rf"\[rank 1 of 3 \(a test\) .*{tmp_path}, .* 0\.3 s", said)


def test_a_machine_without_an_address_is_named_at_once(monkeypatch, capsys):
    monkeypatch.setenv(SECRET, "one")
    with pytest.raises(LadderError, match=r"^rank 1 of 2 .* no host:.* 0.2 seconds"):
        meet(dataclasses.replace(at_address()[1], address="no host"), {}, 0.2)
    assert ", no host, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "changes", "names"),
    [
        ({1: {"--batch": 8}}, {}, "--batch 8, rank 0 .* 4;"),
        ({}, {"size": 3}, "3 ranks, rank 0 .* 2"),
    ],
)
def test_a_rank_that_does_not_belong_is_refused(tmp_path, settings, changes, names):
    first, second = launches(tmp_path)
    outcomes = meet_all([first, dataclasses.replace(second, **changes)], settings)
    assert re.search(names, outcomes[0])
    assert re.search(names, outcomes[1])


def test_the_second_process_with_the_same_rank_is_refused(tmp_path):
    first, second, _ = launches(tmp_path, 3)
    outcomes = meet_all([first, second, second])
    assert all(re.match("rank 1 .*; .* 0 to 2", said) for said in outcomes.values())


@pytest.mark.slow
def test_two_ranks_0_in_one_folder_are_refused(tmp_path):
    first, _ = launches(tmp_path)
    outcomes = meet_all([first, first])
    assert all(re.match("rank 0 .*; .* 0 to 1", said) for said in outcomes.values())
    assert list(tmp_path.iterdir()) == []


def test_another_version_of_the_program_is_refused(tmp_path, monkeypatch):
    versions = iter(["one", "two"])
    monkeypatch.setattr(meeting, "source_digest", lambda: next(versions))
    for outcome in meet_all(launches(tmp_path)).values():
        assert re.match("rank 1 .*; install ", outcome)


@pytest.fixture
def leader(tmp_path):
    """(where rank 0 waits, the secret, what rank 1 needs to join it, the queue of its result)."""
    outcomes = queue.Queue()
    first, second = launches(tmp_path)
    threading.Thread(
        target=lambda: outcomes.put(meet(first, {}, 10.0)), name="leader", daemon=True
    ).start()
    while not list(meeting._where_to_go(second)):
        time.sleep(0.01)
    (address, secret), *_ = meeting._where_to_go(second)
    return address, secret, second, outcomes


def test_what_is_no_greeting_is_passed_over(leader):
    """A stranger that knows the secret of the file, but not what to say."""
    address, secret, second, outcomes = leader
    with Client(address, authkey=secret) as stranger:
        stranger.send_bytes(b"\x80\x04 no JSON")
        assert len(meet(second, {}, 10.0).members) == 2
    assert len(outcomes.get(timeout=10).members) == 2


def test_who_connects_and_says_nothing_holds_nobody_up(leader):
    """As a port scanner, or a check of the port, may."""
    address, _, second, outcomes = leader
    with socket.create_connection(address):
        assert len(meet(second, {}, 5.0).members) == 2
    assert len(outcomes.get(timeout=10).members) == 2
