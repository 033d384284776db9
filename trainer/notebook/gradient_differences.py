"""Which gradients of a run are wrong: one backward pass on its kernels, one on the reference.

Both start from the same weights and the same batch, so that the only difference is rounding, or a
wrong kernel. The reference can be put in place of any of the kernels, to find out which.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ladder.core.contract.ladder import find
from trainer.engine.engine import Engine
from trainer.engine.rung_map import op_of
from trainer.model.calls import Ref
from trainer.model.program import Program
from trainer.notebook.small_run import Run

APART = 1e-3  # relative difference from which rounding in float32 is no excuse


def differences(run: Run, ops: Collection[str]) -> dict[str, float]:
    """The relative difference of every gradient from the reference's, if the named ops are on the
    kernels of the run and all others on the reference.

    The gradients are in the order in which the backward pass completes them. Each is compared by
    the largest difference in its tensor, relative to the largest element; NaN where there is one.
    """
    got, right = _gradients(run, ops), _gradients(run, ())
    return {
        name: float(np.abs(got[name] - right[name]).max() / np.abs(right[name]).max())
        for name in right
    }


def goes_wrong(run: Run, ops: Collection[str]) -> bool:
    """Whether a gradient is wrong if the named ops are on the kernels of the run."""
    return any(not apart < APART for apart in differences(run, ops).values())


def _gradients(run: Run, ops: Collection[str]) -> dict[str, np.ndarray]:
    """Of the first B * T tokens of the text, by tensor, and for a stacked one by layer."""
    rungs = {
        key: rung if op_of(key) in ops else find(op_of(key)).rung(0)
        for key, rung in run.engine.rungs.items()
    }
    engine = Engine(run.program, run.engine.device, run.engine.real, rungs, weights_of=run.engine)
    B, T = run.program.B, run.program.T
    engine.write("tokens", run.text[: B * T].reshape(B, T))
    engine.write("targets", run.text[1 : B * T + 1].reshape(B, T))
    engine.write("dloss", np.array([1 / (B * T)]))
    engine.zero_gradients()
    engine.forward()
    engine.backward()
    found = {}
    for name, layer in _completed(run.program):
        place = "" if layer is None else f"h{layer}."
        found[place + name.removeprefix("d")] = engine.read(name, layer)
    return found


def _completed(program: Program) -> list[Ref]:
    """The gradients in the order in which the backward pass writes them for the last time."""
    last: dict[Ref, int] = {}
    for number, call in enumerate(program.backward):
        for arg, ref in zip(find(call.op).op.args, call.args, strict=True):
            if ref is not None and arg.role != "in" and program.buffers[ref[0]].kind == "gradient":
                last[ref] = number
    return sorted(last, key=lambda ref: last[ref])
