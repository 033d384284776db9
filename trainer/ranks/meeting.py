"""How the processes of a group find each other at the start: rank 0 listens, the others connect.

Where rank 0 listens and the secret of the run are known to the others

    from a file    which rank 0 writes, readable by its user only, in a folder that all see
    beforehand     from an address (-ps) and the environment (KERNEL_LADDER_SECRET)

Both sides then prove by HMAC that they know the secret (multiprocessing.connection). Each rank but
0 makes two connections: one to exchange data by, and one for signs of life (watch.py).
"""

import functools
import hashlib
import json
import os
import queue
import secrets
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Client,
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)
from pathlib import Path
from typing import Any, NamedTuple

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_json, write_json
from trainer.ranks.launch import PORT, SECRET, RankLaunch

FILE = "ranks.json"
GREETING = 5.0  # seconds that a process which knows the secret has to say who it is
MOST_BYTES = 1 << 20  # of a message of the meeting
PAUSE = 0.1  # seconds between two attempts
QUIET = 3.0  # seconds after which a process says that it waits
LOOK = 1.0  # seconds between two looks for another rank 0


class Link(NamedTuple):
    """The two connections between rank 0 and another rank."""

    talk: Connection
    watch: Connection


@dataclass(frozen=True)
class Member:
    """A process of the group, as the others know it."""

    rank: int
    host: str
    process: int
    local_rank: int


@dataclass(frozen=True)
class Table:
    """All who met. `links`: by rank; rank 0 has one to each of the others, who have one to it."""

    rank: int
    members: Sequence[Member]
    links: Mapping[int, Link]

    def name(self, rank: int) -> str:
        member = self.members[rank]
        return f"rank {rank} of {len(self.members)} (process {member.process} on {member.host})"


def meet(launch: RankLaunch, settings: Mapping[str, Any], patience: float) -> Table:
    """Wait until all ranks are there.

    settings  what must be the same on all ranks, by name; JSON
    patience  seconds

    Raises LadderError, on all ranks that can be reached, where one does not come in time, or comes
    with other settings or with another version of this program.
    """
    end = time.monotonic() + patience
    hello = {
        "size": launch.size,
        "rank": launch.rank,
        "host": socket.gethostname(),
        "process": os.getpid(),
        "local_rank": launch.local_rank,
        "version": source_digest(),
        "settings": dict(settings),
    }
    whom = f"rank 0 at {launch.folder or launch.address}" if launch.rank else "the others"
    waits = f"rank {launch.rank} of {launch.size} ({launch.told_by}) waits for {whom}"
    told = threading.Timer(QUIET, _say_once, [f"{waits}, at most {patience:g} seconds"])
    if launch.rank == 0 or not launch.alone_on_machine:  # there, one of them is enough
        told.start()
    try:
        if launch.rank == 0:
            return _receive_all(launch, json.loads(json.dumps(hello)), end, patience)
        return _go_to_leader(launch, hello, end, patience)
    finally:
        told.cancel()


@functools.cache
def _say_once(text: str) -> None:
    print(f"[{text}]", file=sys.stderr, flush=True)


def source_digest() -> str:
    """What tells one version of this program from another: all of its code."""
    root = Path(__file__).parents[2]
    state = hashlib.sha256()
    for folder in ("ladder", "reference", "trainer"):
        for path in sorted((root / folder).rglob("*.py")):
            state.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return state.hexdigest()[:16]


def _receive_all(launch: RankLaunch, mine: dict[str, Any], end: float, patience: float) -> Table:
    """Rank 0's side."""
    hellos = {0: mine}
    links: dict[int, dict[str, Connection]] = {rank: {} for rank in range(1, launch.size)}
    with _listening(launch) as (arrivals, strangers, secret):
        while any(len(link) < 2 for link in links.values()):
            try:
                connection = arrivals.get(timeout=min(LOOK, max(0.0, end - time.monotonic())))
            except queue.Empty:
                if time.monotonic() < end:
                    _refuse_another(launch, mine, secret)
                    continue
                missing = [rank for rank, link in links.items() if len(link) < 2]
                raise LadderError(_who_is_missing(missing, launch, patience, strangers)) from None
            with suppress(EOFError, OSError, ValueError):
                if connection is None or not connection.poll(GREETING):
                    continue
                hello = json.loads(connection.recv_bytes(MOST_BYTES))
                if refusal := _refusal(hello, mine, links):
                    others = [other for link in links.values() for other in link.values()]
                    for other in (connection, *others):
                        with suppress(OSError):
                            other.send_bytes(json.dumps({"refusal": refusal}).encode())
                    raise LadderError(refusal)
                hellos[hello["rank"]] = hello
                links[hello["rank"]][hello["channel"]] = connection
                if hello["channel"] == "talk":  # the other connection is made after this
                    connection.send_bytes(json.dumps({"welcome": True}).encode())
    members = _members([hellos[rank] for rank in range(launch.size)])
    answer = json.dumps({"members": [asdict(member) for member in members]}).encode()
    for link in links.values():
        with suppress(OSError):  # the watch will tell
            link["talk"].send_bytes(answer)
    return Table(0, members, {rank: Link(**link) for rank, link in links.items()})


def _refusal(
    hello: Mapping[str, Any], mine: Mapping[str, Any], links: Mapping[int, Mapping[str, Any]]
) -> str | None:
    """Why a process cannot be part of the group; None if it can. Of another version, nothing is
    known but that it sends a JSON object."""
    size = mine["size"]
    who = f"rank {hello.get('rank')} (process {hello.get('process')} on {hello.get('host')})"
    if hello.get("version") != mine["version"]:
        return f"{who} runs another version of this program; install the same on all machines"
    rank = hello["rank"]
    if hello["size"] != size:
        return f"{who} was started as one of {hello['size']} ranks, rank 0 as one of {size}"
    if rank not in links or hello["channel"] in links[rank]:
        return f"{who} is there twice; give every process a rank of its own, 0 to {size - 1}"
    for name, value in mine["settings"].items():
        if hello["settings"].get(name) != value:
            return (
                f"{who} was started with {name} {hello['settings'].get(name)}, rank 0 with "
                f"{value}; start all ranks with the same flags"
            )
    return None


def _refuse_another(launch: RankLaunch, mine: Mapping[str, Any], secret: bytes) -> None:
    """Raise LadderError where another rank 0 has written the file since. It is told, and ends."""
    for address, other in _where_to_go(launch) if launch.folder else ():
        if other != secret and (connection := _connect(launch, address, other)) is not None:
            with connection, suppress(EOFError, OSError, ValueError, KeyError):
                connection.send_bytes(json.dumps({**mine, "channel": "talk"}).encode())
                if connection.poll(GREETING):
                    raise LadderError(json.loads(connection.recv_bytes(MOST_BYTES))["refusal"])


def _members(hellos: Sequence[Mapping[str, Any]]) -> list[Member]:
    """Where the launcher gave no local rank, it is counted among those on the same host."""
    counted: Counter[str] = Counter()
    members = []
    for hello in hellos:
        host, local = hello["host"], hello["local_rank"]
        local = counted[host] if local is None else local
        counted[host] += 1
        members.append(Member(hello["rank"], host, hello["process"], local))
    return members


def _who_is_missing(
    missing: Sequence[int], launch: RankLaunch, patience: float, strangers: Sequence[str]
) -> str:
    ranks = ("rank " if len(missing) == 1 else "ranks ") + ", ".join(map(str, missing))
    return (
        f"{ranks} of {launch.size} did not come within {patience:g} seconds ({launch.told_by}); "
        f"{'; '.join(['their own output may say why', *strangers[-1:]])}"
    )


@contextmanager
def _listening(
    launch: RankLaunch,
) -> Iterator[tuple[queue.Queue[Connection | None], list[str], bytes]]:
    """While the block runs: (connections of who knows the secret, a line for everyone else, the
    secret)."""
    secret = _known_secret() if launch.folder is None else secrets.token_bytes(32)
    place = "" if launch.alone_on_machine is False else "127.0.0.1"
    try:
        listener = Listener((place, launch.port), backlog=2 * launch.size)
    except OSError as error:
        raise LadderError(
            f"rank 0 cannot listen on port {launch.port}: {error.strerror}; choose another by "
            f"{PORT} in the environment of all ranks"
        ) from None
    arrivals: queue.Queue[Connection | None] = queue.Queue()  # None: of a stranger
    strangers: list[str] = []
    closing = threading.Event()

    def check(connection: Connection) -> None:
        with suppress(EOFError, OSError):
            arrivals.put(_check_secret(connection, secret, strangers))

    def accept() -> None:
        while not closing.is_set():
            with suppress(OSError):
                # In a thread of its own: who connects and says nothing must not hold up the others.
                come = threading.Thread(target=check, args=(listener.accept(),), daemon=True)
                come.start()

    threading.Thread(target=accept, name="accept", daemon=True).start()
    try:
        with _announced(launch, listener.address[1], secret):
            yield arrivals, strangers, secret
    finally:
        closing.set()
        listener.close()


def _check_secret(connection: Connection, secret: bytes, strangers: list[str]) -> Connection | None:
    """The connection, once both sides have proved that they know the secret; else None."""
    try:
        deliver_challenge(connection, secret)
        answer_challenge(connection, secret)
    except AuthenticationError:
        strangers.append("someone came with another secret")
        connection.close()
        return None
    return _without_delay(connection)


@contextmanager
def _announced(launch: RankLaunch, port: int, secret: bytes) -> Iterator[None]:
    """While the block runs, the file that says where rank 0 listens is there."""
    if launch.folder is None:
        yield
        return
    made = not launch.folder.exists()
    path = launch.folder / FILE
    content = {"hosts": _addresses(), "port": port, "secret": secret.hex()}
    before = os.umask(0o077)  # for its user's eyes only
    try:
        write_json(path, content)
    finally:
        os.umask(before)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        if made:
            with suppress(OSError):
                launch.folder.rmdir()


def _addresses() -> list[str]:
    """The names by which other machines may reach this one, the likeliest first."""
    names = [socket.gethostname()]
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("10.255.255.255", 1))  # sends nothing: it only chooses an interface
        names.append(probe.getsockname()[0])
    return names


def _known_secret() -> bytes:
    if not (secret := os.environ.get(SECRET)):
        raise LadderError(
            f"ranks that meet at an address need a secret in {SECRET}, the same for all: for one "
            f"run, export {SECRET}=$(openssl rand -hex 32) where it is started; or let them meet "
            "in a folder that all see, by -pi fs -pf FOLDER"
        )
    return secret.encode()


def _go_to_leader(launch: RankLaunch, hello: dict[str, Any], end: float, patience: float) -> Table:
    """The side of any other rank."""
    where = launch.folder / FILE if launch.folder else f"{launch.address}:{launch.port}"
    missing = (
        f"rank {launch.rank} of {launch.size} found no rank 0 at {where} within {patience:g} "
        f"seconds ({launch.told_by}); rank 0's own output may say why"
    )

    def connect(channel: str, answered: Callable[[], bool] = lambda: False) -> Connection:
        while time.monotonic() < end and not answered():
            for address, secret in _where_to_go(launch):
                if (connection := _connect(launch, address, secret)) is not None:
                    connection.send_bytes(json.dumps({**hello, "channel": channel}).encode())
                    return connection
            time.sleep(PAUSE)
        raise LadderError(missing)

    def answer(talk: Connection) -> dict[str, Any]:
        if not talk.poll(max(0.0, end - time.monotonic())):
            raise LadderError(missing)
        said: dict[str, Any] = json.loads(talk.recv_bytes(MOST_BYTES))
        if refusal := said.get("refusal"):
            raise LadderError(refusal)
        return said

    def both() -> Table:
        talk = connect("talk")
        answer(talk)  # that it is welcome
        try:
            watch = connect("watch", talk.poll)  # an answer before that is a refusal
        except LadderError:
            answer(talk)
            raise
        members = [Member(**member) for member in answer(talk)["members"]]
        return Table(launch.rank, members, {0: Link(talk, watch)})

    try:
        return _within(end, both, missing)
    except (EOFError, ConnectionError):
        raise LadderError(
            f"rank 0 went away before all {launch.size} ranks had met; its own output says why"
        ) from None


def _connect(launch: RankLaunch, address: tuple[str, int], secret: bytes) -> Connection | None:
    """A connection to rank 0; None where it is not there yet, or where a file leads to whoever
    has the port of a run that was killed. Raises LadderError where the secret is wrong."""
    try:
        return _without_delay(Client(address, authkey=secret))
    except AuthenticationError:
        if launch.folder is not None:
            return None
        raise LadderError(
            f"rank 0 at {address[0]}:{address[1]} has another secret than rank {launch.rank}; set "
            f"{SECRET} to the same on all machines"
        ) from None
    except (EOFError, OSError) as error:
        if isinstance(error, socket.gaierror) and launch.folder is None:
            _say_once(f"rank 0's machine, {address[0]}, is not known here: {error.strerror}")
        return None


def _without_delay(connection: Connection) -> Connection:
    """The connection, so that small messages leave at once. By default TCP holds one back until
    the one before it is acknowledged (Nagle's algorithm), which the other side puts off for 40 ms
    (delayed acknowledgements): longer than a step."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _where_to_go(launch: RankLaunch) -> Iterator[tuple[tuple[str, int], bytes]]:
    """(address, secret) of where rank 0 may listen."""
    if launch.folder is None:
        yield (launch.address, launch.port), _known_secret()
        return
    try:
        content = read_json(launch.folder / FILE)
        port, secret = int(content["port"]), bytes.fromhex(content["secret"])
        hosts = [str(host) for host in content["hosts"]]
    except (LadderError, KeyError, TypeError, ValueError):
        return  # not written yet
    if hosts and hosts[0] == socket.gethostname():
        hosts = ["127.0.0.1"]
    for host in hosts:
        yield (host, port), secret


def _within(end: float, work: Callable[[], Table], otherwise: str) -> Table:
    """What `work` returns or raises, before `end`: connecting may take the system minutes."""
    outcome: Future[Table] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except Exception as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="meet", daemon=True).start()
    if not wait([outcome], max(0.0, end - time.monotonic()) + PAUSE).done:
        raise LadderError(otherwise)
    return outcome.result()
