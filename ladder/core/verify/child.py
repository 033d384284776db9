"""The child process of `sandbox`: it is confined, if it can be, before it imports anything large.

NumPy starts threads, and Linux confines one thread, with those that it starts later.
"""

import json
import signal
import sys
from typing import Any

from ladder.core.common import confine
from ladder.core.common.errors import LadderError
from ladder.core.emulator import toolchain


def main() -> None:
    """Answer the request on standard input; how is said by the command's words (`sandbox`)."""
    task, answer, seconds, *confined = sys.argv[1:]
    signal.setitimer(signal.ITIMER_REAL, float(seconds) + 5)  # in case the parent is gone by then

    def say(message: dict[str, Any]) -> None:
        with open(int(answer), "w", encoding="ascii", closefd=False) as file:
            print(json.dumps(message), file=file)

    try:
        if confined:
            _confine(float(seconds), *confined)
        from ladder.core.verify import sandbox

        def judge(asked: dict[str, Any]) -> dict[str, Any]:
            from ladder.core.show import limits  # which the other tasks do without

            given = (asked[name] for name in ("dims", "at_most", "at_least", "dtype"))
            kept, said = limits.judge(*sandbox.asked(asked), *given)
            return {"kept": kept, "said": said}

        known = {"seconds": float(seconds), "say": say}
        tasks = {**sandbox.TASKS, "judge": judge}
        say(tasks[task]({**json.load(sys.stdin), **known}))
    except LadderError as error:
        say({"error": str(error)})


def _confine(seconds: float, scratch: str, *files: str) -> None:
    toolchain.runtime()  # which is no stranger's
    compiler = toolchain.find_compiler().command[0]
    confine.enter(files, [scratch, *toolchain.scratch()], compiler, seconds)
