"""Global norm: the length of all gradients taken as one vector (Pascanu, Mikolov and Bengio 2013).

norm = sqrt(sum(grad^2))
"""

import numpy as np

from reference.blocks import blocks


def forward(norm: np.ndarray, grad: np.ndarray) -> None:
    """norm (1) from grad (N): short sums in its own type, their total in float64."""
    total = sum(float(grad[block] @ grad[block]) for block in blocks(grad.size, 2**14))
    norm[0] = np.sqrt(total)
