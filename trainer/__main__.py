"""Train a GPT-2: `python -m trainer [flags]`; also `doctor`, `sample`, `bench`, `profile`, `climb`.

python -m trainer                      the quick start; --help lists the flags
python -m trainer doctor               what this machine has, and what will run on it
python -m trainer sample -e RUN        text from a trained model
python -m trainer bench                the time of a training step
python -m trainer profile              the same by op, against each one's floor, and the memory
python -m trainer climb                what each ladder is worth to the training step
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence

from ladder.commandline import explain, print_what_can_be
from ladder.errors import LadderError

COMMANDS = ("doctor", "sample", "bench", "profile", "climb")


def main(argv: Sequence[str]) -> int:
    command, *rest = argv or [""]
    # Each command imports what it needs only: doctor must work where training cannot.
    if command in COMMANDS:
        return importlib.import_module(f"trainer.{command}").main(rest)
    if command and not command.startswith("-"):
        known = ", ".join(COMMANDS)
        raise LadderError(f"there is no command {command!r}; besides training there are {known}")
    from trainer.flags import parse

    config = parse(argv)  # a wrong flag is told before anything slow is imported
    from trainer.train import train

    return train(config).status


def run(main: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """`main`, with a user's error as one plain line and status 2, and Ctrl-C as status 130."""
    print_what_can_be()
    try:
        return main(argv)
    except LadderError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as in `... | head`
        sys.stderr.close()
        return 1
    except (OSError, RuntimeError) as error:
        print(f"error: {explain(error)}", file=sys.stderr)
        return 2
    except MemoryError as error:  # beside what was foretold before the start
        why = f" ({error})" if str(error) else ""
        print(f"error: out of memory{why}; take a smaller -b, -t or -e", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
