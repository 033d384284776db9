"""Train a GPT-2: `python -m trainer [flags]`; also `doctor`, `sample`, `bench`.

python -m trainer                      the quick start; --help lists the flags
python -m trainer doctor               what this machine has, and what will run on it
python -m trainer sample -e RUN        text from a trained model
python -m trainer bench                the time of a training step
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from ladder.errors import LadderError


def main(argv: Sequence[str]) -> int:
    command, *rest = argv or [""]
    # Each command imports what it needs only: doctor must work where training cannot.
    if command == "doctor":
        from trainer import doctor

        return doctor.main(rest)
    if command == "sample":
        from trainer import sample

        return sample.main(rest)
    if command == "bench":
        from trainer import bench

        return bench.main(rest)
    if command and not command.startswith("-"):
        raise LadderError(f"there is no command {command!r}; there are doctor, sample and bench")
    from trainer.flags import parse

    config = parse(argv)  # a wrong flag is told before anything slow is imported
    from trainer.train import train

    return train(config).status


def run(main: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """`main`, with a user's error as one plain line and status 2, and Ctrl-C as status 130."""
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


if __name__ == "__main__":
    sys.exit(run(main, sys.argv[1:]))
