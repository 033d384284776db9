"""`python -m trainer --ranks N`: starts N processes on this machine, and sees to their end."""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import FrameType

from ladder.core.common.install import ROOT, cores
from trainer.ranks.launch import FOLDER, number_in

GRACE = 10.0  # seconds that the others have to end by themselves once a rank has ended badly
INTERVAL = 0.05  # seconds between two looks
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
PR_SET_PDEATHSIG = 1  # of linux/prctl.h
PARENT = "KERNEL_LADDER_SUPERVISOR"  # its process, for the ranks


def supervise(argv: Sequence[str], ranks: int) -> int:
    """Run `python -m trainer` with these words as `ranks` processes; returns the exit status.

    A signal to this process goes on to all of them, once each: Ctrl-C ends the run as it ends one
    of a single process.
    """
    with tempfile.TemporaryDirectory(prefix="kernel-ladder-ranks-") as folder:
        children = [_start(argv, rank, ranks, folder) for rank in range(ranks)]

        def forward(number: int, frame: FrameType | None) -> None:
            for child in children:
                if child.poll() is None:
                    child.send_signal(number)

        before = {n: signal.signal(n, forward) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            return _wait(children)
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                child.wait()
            for number, handler in before.items():
                signal.signal(number, handler)


def stay_with_supervisor(environment: Mapping[str, str]) -> None:
    """To be called by a rank: the system ends it when its supervisor ends, however that ends."""
    if (parent := number_in(environment, PARENT)) is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before the system was asked
        os.kill(os.getpid(), signal.SIGKILL)


def _start(argv: Sequence[str], rank: int, ranks: int, folder: str) -> subprocess.Popen[bytes]:
    """One rank. In a session of its own, it gets no Ctrl-C from the terminal but ours."""
    share = max(1, cores() // ranks)
    environment = {
        **dict.fromkeys(THREADS, str(share)),  # of the CPU's cores; what the user set goes first
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        FOLDER: folder,
        PARENT: str(os.getpid()),
    }
    command = [sys.executable, "-m", f"{ROOT}trainer", *argv]
    return subprocess.Popen(command, env=environment, start_new_session=True)


def _wait(children: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait for all. Once one has ended badly, the others, who notice it themselves, have a while
    to end; then they are ended. Returns 0, or the status of the one that failed first."""
    status, deadline = 0, float("inf")
    left = dict(enumerate(children))
    while left:
        for rank, child in list(left.items()):
            code = child.poll()
            if code is None:
                continue
            del left[rank]
            if code < 0:
                name = signal.Signals(-code).name
                hint = "; often that is the system, out of memory" if name == "SIGKILL" else ""
                print(f"rank {rank} was ended by {name}{hint}", file=sys.stderr)
            if code != 0 and status == 0:
                status = code if code > 0 else 128 - code
                deadline = time.monotonic() + GRACE
        if left and time.monotonic() > deadline:
            print(f"ranks {', '.join(map(str, left))} do not end: ended", file=sys.stderr)
            return status
        time.sleep(INTERVAL)
    return status
