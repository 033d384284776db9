"""What every command line of the trainer does with an error: one plain line."""

import sys
from collections.abc import Callable, Sequence

from ladder.core.common.command_line import (
    describe_missing_package,
    describe_system_error,
    replace_unprintable,
)
from ladder.core.common.errors import LadderError


def run(main: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """`main`, with a user's error as one plain line and status 2, and Ctrl-C as status 130."""
    replace_unprintable()
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
    except ModuleNotFoundError as error:
        print(f"error: {describe_missing_package(error)}", file=sys.stderr)
        return 2
    except (OSError, RuntimeError) as error:
        print(f"error: {describe_system_error(error)}", file=sys.stderr)
        return 2
    except MemoryError as error:  # not covered by the estimate made before the start
        why = f" ({error})" if str(error) else ""
        print(
            f"error: out of memory{why}; choose a smaller batch, sequence or model", file=sys.stderr
        )
        return 2
