"""What the stand-ins for cuBLAS and rocBLAS share: a product of column-major matrices in memory."""

import ctypes

import numpy as np


def matrix(address, dtype, leading, columns):
    """A column-major matrix (leading, columns), as BLAS sees memory."""
    raw = (ctypes.c_uint8 * (leading * columns * dtype.itemsize)).from_address(address.value)
    return np.frombuffer(raw, dtype).reshape(columns, leading).T


def multiply(m, n, k, alpha, a, b, beta, c):
    """c = alpha a b + beta c. Of a and b: whether they are transposed, and what `matrix` takes but
    for the columns; of c the latter."""
    factors = []
    for (transposed, *memory), (rows, columns) in ((a, (m, k)), (b, (k, n))):
        factor = matrix(*memory, rows if transposed else columns)
        factors.append(factor.T if transposed else factor)
    result = matrix(*c, n)
    assert [x.shape for x in (*factors, result)] == [(m, k), (k, n), (m, n)]
    product = alpha._obj.value * (factors[0].astype(np.float64) @ factors[1].astype(np.float64))
    if beta._obj.value:
        product += beta._obj.value * result.astype(np.float64)
    result[...] = product.astype(result.dtype)
