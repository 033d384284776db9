"""What this machine lets a process have, where Linux and macOS say it in different ways."""

import os
import resource
import sys


def cores() -> int:
    """How many CPU cores this process may use; on macOS, which has no such limit, all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def peak_memory() -> int:
    """The most bytes of memory that this process has had."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
