"""The loss scale of float16 runs.

Gradients of activations are often smaller than 6e-8, the least that float16 can hold. So the loss
is multiplied by a large number before the backward pass, and the gradient of the parameters, which
is float32, divided by it afterwards (Micikevicius et al. 2017, Mixed Precision Training). The
scale is found by trial, as torch.amp.GradScaler does with its default settings: the largest that
does not overflow.
"""

from typing import Any

START = 2.0**16
GROWTH_INTERVAL = 2000  # steps without overflow after which a larger scale is tried


class LossScale:
    """`value` is the scale of the next step."""

    def __init__(self) -> None:
        self.value = START
        self.good_steps = 0  # since the scale has changed

    def update(self, overflow: bool) -> None:
        """Adjust the scale after a step. If its gradient overflowed, the update must be skipped."""
        if overflow:
            self.value /= 2
            self.good_steps = 0
            return
        self.good_steps += 1
        if self.good_steps == GROWTH_INTERVAL:
            self.value *= 2
            self.good_steps = 0

    def state(self) -> dict[str, Any]:
        return {"value": self.value, "good_steps": self.good_steps}

    def restore(self, state: dict[str, Any]) -> None:
        self.value, self.good_steps = state["value"], state["good_steps"]
