"""How the ranks of a data parallel group share the optimizer's work and memory: ZeRO stage 1.

All parameters stand one after the other in one vector, and so do their gradients. The vector is cut
into as many equal shares as there are ranks, and rank r updates share r alone. So the moments and
the master copies of a share exist on one rank only (Rajbhandari et al. 2020, ZeRO: Memory
Optimizations Toward Training Trillion Parameter Models, its stage "os").

A cut may go through the middle of a tensor: AdamW treats every element by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ladder.contract.expressions import ceil_div
from trainer.model.model_config import ModelConfig

# Tensors and shares start at a multiple of so many elements: of 256 bytes, as kernels expect it of
# every buffer, in all types that there are.
STEP = 128


@dataclass(frozen=True)
class Sharding:
    """Rank `rank` of `size`. `stage`: 1 for ZeRO-1; 0: every rank updates all parameters."""

    rank: int = 0
    size: int = 1
    stage: int = 0

    @property
    def cuts(self) -> bool:
        """Whether a rank updates only its share of the parameters."""
        return self.size > 1 and self.stage == 1


WHOLE = Sharding()  # one process, which updates all parameters


def starts(config: ModelConfig) -> dict[str, int]:
    """Where each parameter starts in the vector of all, by name."""
    found, start = {}, 0
    for name, shape in config.parameter_shapes().items():
        found[name] = start
        start += ceil_div(math.prod(shape), STEP) * STEP
    return found


def share_size(config: ModelConfig, size: int) -> int:
    """Elements of the share of one of `size` ranks; the last ones may be beyond all parameters."""
    name, start = list(starts(config).items())[-1]
    return ceil_div(start + math.prod(config.parameter_shapes()[name]), size * STEP) * STEP


def pieces(config: ModelConfig, sharding: Sharding) -> Iterator[tuple[str, int, int]]:
    """(parameter, first element of it, elements) of all that is in the share of a rank."""
    share = share_size(config, sharding.size)
    begin = sharding.rank * share
    shapes = config.parameter_shapes()
    for name, start in starts(config).items():
        first = max(begin - start, 0)
        end = min(begin + share - start, math.prod(shapes[name]))
        if first < end:
            yield name, first, end - first
