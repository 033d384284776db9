"""What a vendor's libraries compute on a device: matrix products, linear layers, an all-reduce."""

from typing import Any, Protocol

import numpy as np


class MatrixProduct(Protocol):
    """The vendor library's product of two matrices, on one device and its stream."""

    def __call__(
        self,
        operations: str,
        sizes: tuple[int, int, int],
        a: Any,
        b: Any,
        result: Any,
        add: bool = False,
    ) -> None:
        """result = a @ b, accumulated in float32, with the factors transposed as `operations` says.

        operations  two letters, "N" as it is or "T" transposed: what is done to a and to b, as the
                    library sees them
        sizes       m, n, k: rows, columns and terms of the product, as the library sees it: it
                    stores matrices by columns, so that our (rows, columns) is its (columns, rows)
        add         to the result's old content
        """


class LinearLayer(Protocol):
    """The vendor library's linear layer in one kernel, with bias and gelu in its epilogue."""

    def __call__(
        self, out: Any, inp: Any, weight: Any, bias: Any | None, pre: Any | None = None
    ) -> None:
        """out (N, OC) = inp (N, C) @ weight.T + bias (OC), in one kernel.

        pre  (N, OC): gets that result, and out its gelu in the tanh form; wants a bias

        Raises LadderError where the library has no kernel for it.
        """

    def ask(self, real: np.dtype, N: int, C: int, OC: int, bias: bool, gelu: bool = False) -> bool:
        """Whether the library has a kernel. What it says is kept: calls need not ask again."""


class GroupSum(Protocol):
    """The vendor library's all-reduce over the devices of a group, on the stream of each."""

    def __call__(self, out: Any, inp: Any) -> None:
        """Every row of out (R, N) = the sum over the rows of inp (R, N), a row on each device."""
