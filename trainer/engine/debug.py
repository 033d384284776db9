"""What `--debug-sync` and `--debug-nan` do after every call of a step."""

from collections.abc import Callable

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find
from trainer.engine.engine import Engine
from trainer.model.calls import Call

Watch = Callable[[Engine, Call], None]


def watch_of(debug_nan: bool, debug_sync: bool) -> Watch | None:
    """What runs after every call; None without a debug flag."""
    if debug_nan:
        return find_not_finite
    return wait if debug_sync else None


def wait(engine: Engine, call: Call) -> None:
    """Wait until the call is done, so that a fault in it is reported here, with its name."""
    try:
        engine.device.synchronize()
    except LadderError as error:
        raise type(error)(f"{engine.describe(call)}: {error}") from None


def find_not_finite(engine: Engine, call: Call) -> None:
    """Raise LadderError, naming call, output and place, where an output is not finite."""
    wait(engine, call)
    for arg, array in zip(find(call.op).op.args, engine.arguments(call), strict=True):
        if arg.role == "in" or array is None:
            continue
        bad = ~np.isfinite(engine.device.download(array).astype(np.float32, copy=False))
        if bad.any():
            first = tuple(int(i) for i in np.argwhere(bad)[0])
            # A first loss scale is often too large: gradients overflow, those of logits first.
            gradient = call.where == "loss" or call in engine.program.backward
            scaled = gradient and engine.real == np.float16
            hint = "; with fp16 that may be a loss scale that is still too large" if scaled else ""
            raise LadderError(
                f"--debug-nan: {engine.describe(call)} is the first whose output is not finite: "
                f"{arg.name} in {np.count_nonzero(bad):,} of {bad.size:,} places, first at {first}"
                f"{hint}"
            )
