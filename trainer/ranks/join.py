"""A process joins its group at the start of a run, and leaves it at the end."""

import atexit
import contextlib
import dataclasses
import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ladder.core.common.errors import LadderError
from trainer.flags import Flags
from trainer.ranks.group import ALONE, Group, Ranks
from trainer.ranks.launch import find_launch
from trainer.ranks.meeting import Table, meet
from trainer.ranks.supervise import stay_with_supervisor
from trainer.ranks.watch import LOST, BrokenConnection, Watch, end_process

OWN = ("process_rank",)  # flags that differ from rank to rank
MEETING = 10  # times --rank-timeout: how long ranks wait for each other at the start


@contextlib.contextmanager
def join(flags: Flags, output: Path) -> Iterator[Group]:
    """The group that this process is part of; ALONE, at once, where it was started alone.

    output  the run's folder

    Whatever ends the block by an error ends all ranks. Raises LadderError where they do not meet.
    """
    stay_with_supervisor(os.environ)
    launch = find_launch(flags, os.environ, output)
    if launch is None:
        yield ALONE
        return
    patience = flags.value("rank_timeout")
    table = meet(launch, _typed(flags), MEETING * patience)
    group = Ranks(table, open_watch(table, patience, most=flags.value("hang_timeout")))
    try:
        yield group
    except BaseException as error:
        status = _status(error)
        group.fail(_describe(error), status)
        if not group.leads:  # rank 0 shows it
            if not isinstance(error, LadderError | KeyboardInterrupt):
                traceback.print_exc()
            end_process(None, status)
        # A GPU may wait for the ranks that end now, and Python would wait for the GPU.
        atexit.register(end_process, None, status)
        raise
    group.leave()


def _status(error: BaseException) -> int:
    """The exit status of all ranks. 2: the same command would fail again, as command.py says for
    one process. recipes/train.sh tries again after `LOST` only."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    refused = isinstance(error, LadderError) and not isinstance(error, BrokenConnection)
    return 2 if refused else LOST


def _describe(error: BaseException) -> str:
    if isinstance(error, LadderError):
        return str(error)
    return "interrupted" if isinstance(error, KeyboardInterrupt) else f"{error!r}"


def open_watch(table: Table, patience: float, **how: Any) -> Watch:
    """The signs of life of a group. `how`: what else `Watch` takes."""
    host = table.members[table.rank].host
    others = [member.rank for member in table.members if member.rank > 0 and member.host == host]
    return Watch(
        {rank: link.watch for rank, link in table.links.items()},
        {member.rank: table.name(member.rank) for member in table.members},
        rank=table.rank,
        patience=patience,
        shows=table.rank == min(others, default=0),
        **how,
    )


def _typed(flags: Flags) -> dict[str, Any]:
    """What was typed, by the name of its flag."""
    return {
        f.metadata["names"][0]: value
        for f in dataclasses.fields(flags)
        if f.name not in OWN and (value := getattr(flags, f.name)) is not None
    }
