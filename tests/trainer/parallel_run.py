"""Ranks as threads of one process: the same program as with processes, started in milliseconds."""

import io
import queue
import threading
from collections.abc import Callable
from multiprocessing.connection import Pipe
from typing import Any

from rich.console import Console

from trainer.flags import Flags
from trainer.ranks.group import ALONE, Group, Ranks
from trainer.ranks.join import open_watch
from trainer.ranks.meeting import Link, Member, Table
from trainer.report import Outcome
from trainer.train import train


def tables(size: int) -> list[Table]:
    """What a meeting of `size` ranks gives each of them, connected by pipes."""
    members = [Member(rank, "here", rank, rank) for rank in range(size)]
    pipes = {rank: (Pipe(), Pipe()) for rank in range(1, size)}
    links = {rank: Link(talk[0], watch[0]) for rank, (talk, watch) in pipes.items()}
    others = [Table(r, members, {0: Link(talk[1], watch[1])}) for r, (talk, watch) in pipes.items()]
    return [Table(0, members, links), *others]


def together(size: int, work: Callable[[Group], Any]) -> list[Any]:
    """What `work` returns on each rank. The first error of a rank is raised here."""
    if size == 1:
        return [work(ALONE)]
    outcomes: queue.Queue[tuple[int, Any, BaseException | None]] = queue.Queue()

    def run(table: Table) -> None:
        group = Ranks(table, open_watch(table, 60.0, end=lambda message, status: None))
        try:
            result = work(group)
            group.leave()
            outcomes.put((group.rank, result, None))
        except BaseException as error:
            group.fail(str(error), 1)
            outcomes.put((group.rank, None, error))

    for table in tables(size):
        threading.Thread(target=run, args=(table,), daemon=True).start()
    results: dict[int, Any] = {}
    while len(results) < size:
        rank, result, error = outcomes.get(timeout=60)
        if error is not None:
            raise error
        results[rank] = result
    return [results[rank] for rank in range(size)]


def run_ranks(size: int, flags: Flags) -> tuple[list[Outcome], str]:
    """Train with `size` ranks; returns their outcomes, and what rank 0 has printed."""
    screen = io.StringIO()

    def work(group: Group) -> Outcome:
        return train(flags, Console(file=screen, width=120) if group.leads else None, group)

    return together(size, work), screen.getvalue()
