"""The loops in C++ that an exported program checks its kernel by: they agree with NumPy."""

import ctypes
import itertools

import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.contract import signature
from ladder.core.contract.dtypes import DTYPES, resolve_dtype
from ladder.core.contract.ladder import PACKAGE, ladders
from ladder.core.emulator import toolchain
from ladder.core.show import export
from ladder.core.verify.inputs import NORMAL, make_inputs, scalars
from reference.philox import random_words
from reference.rounding import round_at_random

pytestmark = pytest.mark.emulator

OPS = {name: ladder.op for name, ladder in ladders().items()}
SMALL = 2e6  # operations: of the op's shapes, those that take the loops no time
C_TYPES = {"int": ctypes.c_int, "unsigned": ctypes.c_uint, "float": ctypes.c_float}

# Functions without C++'s mangled names, for ctypes. Standard headers, which must have theirs, come
# first; so does a template, which cannot have a plain name.
TEXT = """\
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>
#include "rounding_cpu.h"
extern "C" {
%s
std::mt19937* new_random() { return new std::mt19937(1); }
unsigned word(const unsigned* rng, unsigned stream, int i) {
    return random_word_cpu(rng, stream, i);
}
}

struct Bfloat16 {
    uint16_t bits = 0;
    Bfloat16() = default;
    Bfloat16(float x) {  // to nearest, ties to even
        uint32_t wide;
        std::memcpy(&wide, &x, 4);
        bits = (wide + 0x7fff + (wide >> 16 & 1)) >> 16;
    }
    operator float() const {
        uint32_t wide = (uint32_t)bits << 16;
        float x;
        std::memcpy(&x, &wide, 4);
        return x;
    }
};
extern "C" double round_bfloat16(double x, unsigned word) {
    return round_at_random_cpu<Bfloat16>(x, word);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    try:
        compiler = toolchain.find_compiler()
    except LadderError as error:
        pytest.skip(str(error))
    includes = [f'#include "{export.cpu_file(op)}"' for op in OPS.values()]
    path = tmp_path_factory.mktemp("loops") / "loops.so"
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    flags += [f"-I{PACKAGE}", f"-I{export.INCLUDE}"]
    compiler.build([*flags, "-x", "c++", "-"], path, TEXT % "\n".join(includes))
    return ctypes.CDLL(str(path))


def parameters(op, suffix):
    return signature.parameters(export.cpu_file(op).read_text(), f"{op.kernel}_{suffix}")


def run(library, op, suffix, values):
    """Call `layernorm_forward_cpu` or `…_inputs` with arrays and numbers by their names."""
    arguments = []
    for kind, name, pointer in parameters(op, suffix):
        if name == "random":
            library.new_random.restype = ctypes.c_void_p
            arguments.append(ctypes.c_void_p(library.new_random()))
        elif pointer:
            wanted = {"double": np.float64, "int": np.int32, "unsigned": np.uint32}[kind]
            assert values[name].dtype == wanted, name
            arguments.append(ctypes.c_void_p(values[name].ctypes.data))
        else:
            arguments.append(C_TYPES[kind](values[name]))
    getattr(library, f"{op.kernel}_{suffix}")(*arguments)


def arrays_of(op, dims, inputs):
    """Every argument in double or as whole numbers; outputs are NaN."""
    arrays = {}
    for arg in op.args:
        dtype = resolve_dtype(arg.dtype, DTYPES["float64"])
        unwritten = np.nan if dtype.kind == "f" else 0
        arrays[arg.name] = np.full(arg.resolve_shape(dims), unwritten, dtype)
        if arg.role != "out":
            arrays[arg.name][...] = inputs[arg.name]
    return arrays


def small_shapes(op):
    return [dims for dims in op.shapes if op.flops(dims) <= SMALL]


@pytest.mark.parametrize("name", OPS)
def test_the_loop_computes_what_numpy_does(library, name):
    op = OPS[name]
    assert len(small_shapes(op)) >= 2
    for dims, case in itertools.product(small_shapes(op), (NORMAL, *op.cases)):
        rng = np.random.default_rng(0)
        inputs = make_inputs(op, dims, np.dtype(np.float64), rng, case)
        expected, arrays = arrays_of(op, dims, inputs), arrays_of(op, dims, inputs)
        constants = scalars(op, case)
        op.compute(list(expected.values()), dims, constants)
        run(library, op, "cpu", {**arrays, **dims, **constants})
        for arg in op.args:
            got = arrays[arg.name]
            np.testing.assert_allclose(got, expected[arg.name], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if parameters(op, "inputs")])
def test_inputs_of_the_loop_fit_the_op(library, name):
    """NumPy computes something finite from them, and statistics are those of the input."""
    op = OPS[name]
    dims = small_shapes(op)[-1]
    rng = np.random.default_rng(0)
    arrays = {
        arg.name: rng.standard_normal(arg.resolve_shape(dims)).astype(
            resolve_dtype(arg.dtype, DTYPES["float64"])
        )
        for arg in op.args
    }
    run(library, op, "inputs", {**arrays, **dims, **scalars(op)})
    given = {name: array.copy() for name, array in arrays.items()}
    results = arrays_of(op, dims, arrays)
    op.compute(list(results.values()), dims, scalars(op))
    for arg in op.args:
        assert np.isfinite(results[arg.name]).all(), arg.name
    if "targets" in given or "tokens" in given:
        ids = given.get("targets", given.get("tokens"))
        assert ids.min() >= 0 and ids.max() < dims["V"]
        assert len(set(ids.ravel().tolist())) > 1
    if "probs" in given:
        np.testing.assert_allclose(given["probs"].sum(axis=1), 1)
    if "rstd" in given and "inp" in given:
        np.testing.assert_allclose(given["mean"], given["inp"].mean(axis=1), atol=1e-12)
        np.testing.assert_allclose(given["rstd"], (given["inp"].var(axis=1) + 1e-5) ** -0.5)
    if "lse" in {arg.name for arg in op.args if arg.role == "in"}:
        out, lse = np.empty_like(given["out"]), np.empty_like(given["lse"])
        state = [given["rng"]] if "rng" in given else []
        forward = OPS[f"{op.layer}.forward"]
        forward.compute([out, lse, given["qkv"], *state], dims, scalars(forward))
        np.testing.assert_allclose(given["lse"], lse)
        np.testing.assert_allclose(given["out"], out)


@pytest.mark.parametrize("name", OPS)
def test_integers_and_their_kin_are_never_left_as_they_were_drawn(name):
    """Normal random numbers are no token ids: an op with whole numbers makes its own."""
    op = OPS[name]
    whole = {arg.name for arg in op.args if arg.dtype in ("int32", "uint32")}
    made = {name for _, name, pointer in parameters(op, "inputs") or [] if pointer}
    assert whole <= made


def test_random_words_and_rounding_are_those_of_numpy(library):
    rng = np.array([1, 2, 3, 2**32 - 1], np.uint32)
    words = random_words(rng, 7, slice(0, 1000))
    address = ctypes.c_void_p(rng.ctypes.data)
    got = [library.word(address, 7, i) & 0xFFFFFFFF for i in range(1000)]
    assert got == words.tolist()

    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    x[:4] = 0, 1, -1, 1e-40
    library.round_bfloat16.restype = ctypes.c_double
    library.round_bfloat16.argtypes = [ctypes.c_double, ctypes.c_uint]
    rounded = [
        library.round_bfloat16(*pair) for pair in zip(x.tolist(), words.tolist(), strict=True)
    ]
    expected = round_at_random(x, words, DTYPES["bfloat16"]).astype(np.float64)
    np.testing.assert_array_equal(rounded, expected)
    assert (expected != x.astype(DTYPES["bfloat16"])).any()
