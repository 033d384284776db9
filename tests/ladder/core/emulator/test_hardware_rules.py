"""The rules of the hardware: each right kernel of rules.cu passes, and what breaks a rule is named.

The kernels take the bug as an argument, so that few compilations do for all of them.
"""

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.contract.launch_plan import Launch
from ladder.core.contract.rung_file import Rung
from ladder.core.emulator.kernel import KernelError
from tests.ladder.emulation import array, bugs_in, line, short, zeros

pytestmark = pytest.mark.emulator

BFLOAT = np.dtype(ml_dtypes.bfloat16)
FILE = Path(__file__).parent / "rules.cu"
SOURCE = FILE.read_text()
BUGS = bugs_in(SOURCE)
ROUNDS = 5


def launch(device, name, *args, grid=1, block=64, shared=0, constants=None):
    kernels = device.compile(Rung("1", "a test", FILE, SOURCE), constants or {}, BFLOAT)
    kernels[name](Launch(name, (grid, 1, 1), (block, 1, 1), shared), args)


def pipeline(device, bug):
    rows = array(np.random.default_rng(0).integers(0, 9, (8 * ROUNDS + 8, 64)), BFLOAT)
    out = zeros(64)
    tiles = device.tensor_map(rows, (8, 64))
    launch(device, "pipeline", out, tiles, np.int32(ROUNDS), np.int32(bug))
    return (out == rows[: 8 * ROUNDS].astype(np.float32).sum(0)).all()


def store(device, bug):
    out = zeros(8 * ROUNDS, 64, dtype=BFLOAT)
    launch(device, "store", device.tensor_map(out, (8, 64)), np.int32(ROUNDS), np.int32(bug))
    return (out == np.arange(1, ROUNDS + 1).repeat(8)[:, None]).all()


def product(device, bug):
    rng = np.random.default_rng(0)
    a, b = (array(rng.integers(-3, 4, (64, 64)), BFLOAT) for _ in "ab")
    out = zeros(64, 64)
    launch(device, "product", out, a, b, np.int32(bug), block=128)
    return (out == 2 * a.astype(np.float32) @ b.astype(np.float32).T).all()


def pair(device, bug):
    rows = array(np.arange(8 * 64).reshape(8, 64) % 16, BFLOAT)
    out = zeros(2, 64)
    launch(device, "pair", out, device.tensor_map(rows, (8, 64)), np.int32(bug), grid=2)
    return (out == np.arange(64) + rows[0].astype(np.float32) + [[100], [0]]).all()


def copies(device, bug):
    inp, out = array(np.arange(256 * ROUNDS + 4)), zeros(256 * ROUNDS)
    launch(device, "copies", out, inp, np.int32(ROUNDS), np.int32(bug))
    index = np.arange(256 * ROUNDS)
    return (out == index + (index ^ 8)).all()


def named(device, bug):
    out = zeros(64)
    launch(device, "named", out, np.int32(bug), block=128)
    return (out == np.arange(64) ^ 33).all()


KERNELS = (pipeline, store, product, pair, copies, named)


@pytest.mark.parametrize("kernel", KERNELS)
def test_right_kernels_pass(devices, kernel):
    for device in devices.values():
        assert kernel(device, 0)


def broken(device, kernel, bug):
    """The problems, in the order in which they are shown; [] if only the result is wrong."""
    try:
        assert not kernel(device, BUGS[bug]), "the bug does not show"
    except KernelError as error:
        return error.problems
    return []


# What the counting mode says of each: the kind, the marks of the lines (either of them may be the
# one that comes second), and what the message names.
RULES = [
    (pipeline, "INVISIBLE_BARRIER", "barrier misuse", "EMPTY FULL MAKE", "no barrier .*_init"),
    (pipeline, "NO_INIT", "barrier misuse", "EMPTY", r"empty\[0\] .*mbarrier_init"),
    (pipeline, "INIT_TWICE", "barrier misuse", "INIT_TWICE", r"full\[0\] again"),
    (pipeline, "WRONG_COUNT", "deadlock", "FULL EMPTY", r"full\[0\] .* 1 of 2 .* 0 bytes"),
    (pipeline, "EXPECT_MORE", "deadlock", "FULL EMPTY", r"full\[0\] .* 16 bytes (?!more)"),
    (pipeline, "EXPECT_LESS", "deadlock", "FULL EMPTY", r"full\[0\] .* 16 bytes more"),
    (pipeline, "NO_FULL_WAIT", "uninitialised shared memory", "READ", "tiles"),
    (pipeline, "WRONG_PARITY", "uninitialised shared memory", "READ", "tiles"),
    (pipeline, "WRONG_BARRIER", "race", "LOAD READ", "mbarrier"),
    (pipeline, "EMPTY_BEFORE_READ", "race", "LOAD READ", "no barrier"),
    (pipeline, "NO_EMPTY_WAIT", "barrier misuse", "EXPECT", r"full\[0\] .* 1 threads .* 1024 "),
    (pipeline, "UNALIGNED_TILE", "misaligned", "LOAD", "TMA .* tiles .* 128"),
    (pipeline, "TILE_PAST_END", "out of bounds", "LOAD", "write of 1024 .* tiles"),
    (pipeline, "LAST_COPY_UNUSED", "in flight", "LOAD", "TMA .* mbarrier"),
    (store, "NO_PROXY_FENCE", "race", "FILL STORE", "tma_store_fence"),
    (store, "NO_BARRIER", "race", "FILL STORE", "tma_store_wait"),
    (store, "STORE_WAIT_TOO_FEW", "race", "FILL STORE", "tma_store_wait"),
    (store, "NO_STORE_WAIT", "in flight", "STORE", "tma_store_wait"),
    (store, "NO_STORE_COMMIT", "race", "FILL STORE", "tma_store_wait"),
    (product, "NO_PROXY_FENCE", "race", "FILL_OPERAND WGMMA", "tma_store_fence"),
    (product, "NO_BARRIER", "race", "FILL_OPERAND WGMMA", "no barrier"),
    (product, "NO_WGMMA_FENCE", "in flight", "WGMMA", "no wgmma_fence"),
    (product, "NO_WGMMA_COMMIT", "race", "WGMMA FILL_OPERAND", "wgmma_wait"),
    (product, "NO_WGMMA_WAIT", "race", "WGMMA FILL_OPERAND", "wgmma_wait"),
    (product, "READ_IN_FLIGHT", "in flight", "READ_D", "accumulators .* wgmma_wait"),
    (product, "OVERWRITTEN_OPERAND", "race", "WGMMA OVERWRITE", "wgmma_wait"),
    (product, "UNALIGNED_OPERAND", "misaligned", "WGMMA", "operand a .* 128 bytes .* 1024"),
    (product, "OPERAND_PAST_END", "out of bounds", "WGMMA", "read of 16 .* tiles"),
    (pair, "NO_CLUSTER_BARRIER", "barrier misuse", "MULTICAST", "cluster_barrier .*mbarrier_init"),
    (pair, "NO_LAST_CLUSTER_BARRIER", "cluster", "PEER", "cluster_barrier"),
    (pair, "NO_PEER_BARRIER", "race", "OWN PEER", "cluster barrier"),
    (pair, "TOO_MANY_BLOCKS", "cluster", "MULTICAST", "blocks 0x7 .* 2 blocks"),
    (pair, "LANES_APART", "divergent barrier", "ALONE LEAVE", "__syncwarp"),
    (copies, "NO_COPY_WAIT", "race", "COPY USE", "cp_async_wait"),
    (copies, "NO_BARRIER_AFTER_WAIT", "race", "COPY USE", "cp_async_wait"),
    (copies, "REFILLED_TOO_EARLY", "race", "COPY USE", "no barrier"),
    (copies, "COPY_NEVER_WAITED_FOR", "race", "COPY", "cp_async_wait"),
    (copies, "UNALIGNED_COPY", "misaligned", "COPY", "cp.async .* 16 bytes .* 16$"),
    (named, "BARRIER_OF_TOO_FEW", "race", "SHOW SHOWN", "no barrier"),
    (named, "BARRIER_OF_OTHERS", "barrier misuse", "NAMED", "barrier 1 for 64 .* 96$"),
    (named, "NO_SYNCWARP", "race", "NEXT NEIGHBOUR", "no barrier"),
]


@pytest.mark.parametrize("kernel, bug, kind, marks, names", RULES, ids=short)
def test_broken_rule_is_named(devices, kernel, bug, kind, marks, names):
    problems = broken(devices["counting"], kernel, bug)
    lines = {line(SOURCE, f"// {mark}") for mark in marks.split()}
    named = [
        problem
        for problem in problems
        if (problem.kind, problem.line in lines) == (kind, True)
        and (problem.other is None or len(lines) == 1 or problem.other[1] in lines)
        and re.search(names, problem.message)
    ]
    assert named, [problem.message for problem in problems]


# What needs no counting: the fast mode ends with the same problem.
FAST = ("deadlock", "barrier misuse", "in flight", "misaligned", "out of bounds", "cluster")
NOT_FAST = ("INVISIBLE_BARRIER", "NO_CLUSTER_BARRIER", "NO_LAST_CLUSTER_BARRIER", "READ_IN_FLIGHT")


@pytest.mark.parametrize(
    "kernel, bug, kind, names",
    [(kernel, bug, kind, names) for kernel, bug, kind, _, names in RULES if kind in FAST],
    ids=short,
)
def test_fast_mode_names_what_it_can(devices, kernel, bug, kind, names):
    if bug in NOT_FAST:
        return
    (problem,) = broken(devices["late"], kernel, bug)
    assert problem.kind == kind
    assert re.search(names, problem.message)


def test_a_copy_that_is_never_waited_for_is_named_in_fast_mode(devices):
    problems = broken(devices["late"], copies, "COPY_NEVER_WAITED_FOR")
    assert {(p.kind, p.line) for p in problems} == {("in flight", line(SOURCE, "// COPY"))}


def test_accumulators_must_be_fenced_after_they_change(devices):
    (problem,) = broken(devices["late"], product, "FENCE_BEFORE_CHANGE")
    assert (problem.kind, problem.line) == ("in flight", line(SOURCE, "// WGMMA"))
    assert re.search("accumulators .* wgmma_fence", problem.message)


def test_registers_that_wgmma_reads_are_not_loaded_before_it_is_waited_for(devices):
    out = zeros(128)
    launch(devices["late"], "registers", out, np.int32(2), block=128)
    with pytest.raises(KernelError) as caught:
        launch(devices["late"], "registers", out, np.int32(1), block=128)
    (problem,) = caught.value.problems
    assert (problem.kind, problem.line) == ("in flight", line(SOURCE, "// REGISTERS"))


@pytest.mark.parametrize(
    "kernel, bug", [(pipeline, "EMPTY_BEFORE_READ"), (copies, "REFILLED_TOO_EARLY")]
)
def test_early_copies_show_what_is_overwritten_too_soon(devices, kernel, bug):
    assert kernel(devices["late"], BUGS[bug])  # late copies hide it
    assert not kernel(devices["early"], BUGS[bug])


def test_descriptor_of_an_operand_in_another_block_of_the_cluster(devices):
    """The shared memory address of block 1 has its rank in bit 24, which no descriptor holds."""
    rng = np.random.default_rng(0)
    a, b = (array(rng.integers(-3, 4, shape), BFLOAT) for shape in ((64, 16), (16, 128)))
    out = zeros(64, 128)

    def multiply(constants):
        where = dict(grid=2, block=128, constants=constants)
        launch(devices["late"], "second_block", out, a, b, **where)

    multiply({"IN_CLUSTER": 1})
    assert (out == a.astype(np.float32) @ b.astype(np.float32)).all()
    with pytest.raises(KernelError, match="2304") as caught:
        multiply({})
    assert caught.value.problems[0].line == line(SOURCE, "// SECOND")


ALL = 227 << 10  # bytes that a block can have


@pytest.mark.parametrize(
    "kernel, dynamic, mark, names",
    [
        (("fixed_size",), 0, "FIXED", "49156 .* 49152 .* extern __shared__"),
        (("all_memory",), ALL, "FEW", f"{ALL + 256} .* 256 .* {ALL} .* {ALL}:"),
        (("unused_memory", np.int32(1)), ALL, "MANY", f"{ALL + 256} .* {ALL}:"),
    ],
)
def test_more_shared_memory_than_there_is(devices, kernel, dynamic, mark, names):
    name, *args = kernel
    with pytest.raises(KernelError, match=names) as caught:
        launch(devices["late"], name, zeros(1), *args, block=1, shared=dynamic)
    (problem,) = caught.value.problems
    assert (problem.kind, problem.line) == ("too much shared memory", line(SOURCE, f"// {mark}"))
    launch(devices["late"], "all_memory", zeros(1), block=1, shared=ALL - 256)


@pytest.mark.parametrize("mode", ("late", "counting"))
def test_dynamic_shared_memory_counts_where_the_kernel_never_uses_it(devices, mode):
    out = zeros(1)
    launch(devices[mode], "unused_memory", out, np.int32(1), block=1, shared=ALL - 256)
    assert out[0] == 1
    out = zeros(1)
    with pytest.raises(LadderError, match=f"unused_memory .* {ALL + 1} .* {ALL}: .* shared_bytes"):
        launch(devices[mode], "unused_memory", out, np.int32(0), block=1, shared=ALL + 1)
    assert out[0] == 0
