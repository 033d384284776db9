"""The mutations: each kind changes what it says, and nothing that only guides the compiler."""

import pytest

from ladder.core.contract.ladder import find
from tests.mutants.__main__ import EQUIVALENT, equivalent, make, sample, share
from tests.mutants.changes import read
from tests.mutants.operators import mutations

SOURCE = """\
// a header: i < N and 3
#include "portable.cuh"
extern "C" __global__ void __launch_bounds__(256, 2) k(float* out, int N, int C) {
    __shared__ alignas(16) float tile[64];  // 7 < 8
    for (int i = lane; i < N; i += 32) {
        if (i >= C) break;
        sum += tile[i] * scale;
        atomicAdd(&out[i], sum);
        __syncthreads();
        cp_async_wait<1>();
        turn ^= 1;
        wait(a - b);
        mbarrier_arrive(&empty);
    }
}
"""


@pytest.mark.parametrize(
    ("operator", "new"),
    [
        ("bound", "for (int i = lane; i <= N; i += 32) {"),
        ("sign", "wait(a + b);"),
        ("constant", "for (int i = lane; i < N; i += 31) {"),
        ("barrier", ";"),
        ("wait", "cp_async_wait<1 + 1>();"),
        ("parity", "turn ^= 0 & 1;"),
        ("arrival", ";"),
        ("arrival", "mbarrier_arrive(&empty);\nwait(a - b);"),
        ("operands", "wait(b - a);"),
        ("factor", "sum += tile[i];"),
        ("index", "if (i >= C) break;"),
        ("atomic", "out[i] += sum;"),
        ("assignment", "sum = tile[i] * scale;"),
        ("guard", ""),
    ],
)
def test_a_kind_of_change(operator, new):
    source = SOURCE.replace("i >= C", "i >= N") if operator == "index" else SOURCE
    made = [m.lines(source)[1] for m in mutations(source) if m.operator == operator]
    assert new in made


def test_each_mutant_differs_from_the_rung_and_from_the_others():
    made = [mutation.apply(SOURCE) for mutation in mutations(SOURCE)]
    assert len(set(made) | {SOURCE}) == len(made) + 1


def test_comments_header_and_guides_of_the_compiler_stay():
    for mutation in mutations(SOURCE):
        changed = mutation.apply(SOURCE)
        for kept in ("i < N and 3", "7 < 8", "__launch_bounds__(256, 2)", "alignas(16)"):
            assert kept in changed


def test_a_sample_is_the_same_each_time_and_of_all_kinds():
    mutants = make(["start.sum", "start.add", "relu.forward"])
    chosen = sample(mutants, 9, seed=4)
    assert [str(m) for m in chosen] == [str(m) for m in sample(mutants, 9, seed=4)]
    assert [str(m) for m in chosen] != [str(m) for m in sample(mutants, 9, seed=5)]
    assert len(chosen) == 18
    kinds = {m.mutation.operator for m in mutants if m.layer == "relu"}
    assert {m.mutation.operator for m in chosen if m.layer == "relu"} == kinds


def test_the_shares_are_all_mutants_together():
    mutants = make(["start.sum", "relu.forward"])
    shares = [share(mutants, which, 5) for which in range(5)]
    assert sorted(map(str, mutants)) == sorted(str(m) for each in shares for m in each)
    assert min(map(len, shares)) > len(mutants) / 15
    assert [str(m) for m in share(mutants, 7, 5)] == [str(m) for m in shares[2]]


@pytest.mark.slow
def test_what_is_listed_as_equivalent_is_a_mutant_and_has_a_reason():
    listed = read(EQUIVALENT, ("same",))
    rungs = {(one.op, of.id) for one in listed for of in find(one.op).rungs if of.path == one.path}
    made = {mutant.key for op, id in rungs for mutant in make([op], id)}
    assert set(equivalent()) <= made
    assert all(equivalent().values())
