"""Expressions of host code become those of a rung's header: the same numbers, in its words."""

import pytest

from ladder.core.adopt.cpp import expression
from ladder.core.adopt.host_expressions import Scope, geometry, in_code, in_header
from ladder.core.common.errors import LadderError
from ladder.core.contract.expressions import evaluate_whole


def scope():
    code = {"n": "N", "threads": "256", "rows": "B * T", "prop.count": "SMS"}
    code |= {"grid": "dim3(N, 4)", "same": "dim3(N, 4)"}
    code |= {"grid.x": "N", "grid.y": "4", "grid.z": "1"}
    return Scope(code, header={name: name for name in ("N", "B", "T", "SMS")})


@pytest.mark.parametrize(
    ("host", "header"),
    [
        ("(n + threads - 1) / threads", "ceil_div(N, 256)"),
        ("(threads - 1 + n) / threads", "ceil_div(N, 256)"),
        ("(n + 255) / 256", "ceil_div(N, 256)"),
        ("(n + 254) / 256", "(N + 254) // 256"),
        ("(n - threads + 1) / threads", "(N - 256 + 1) // 256"),
        ("CEIL_DIV(n, 4 * 8)", "ceil_div(N, 32)"),
        ("(int)ceil((float)n / threads)", "ceil_div(N, 256)"),
        ("ceil(n / 256.0)", "ceil_div(N, 256)"),
        ("static_cast<unsigned>(ceilf(1.0f * n / 256.f))", "ceil_div(N, 256)"),
        ("static_cast<int>(n) / 4", "N // 4"),
        ("static_cast<int>(n + 1) * 4", "(N + 1) * 4"),
        ("n - (threads - 2)", "N - 254"),
        ("(n - 3) - (n - 2)", "N - 3 - (N - 2)"),
        ("n * 1 + 0", "N"),
        ("min(n, 7 / 2)", "min(N, 3)"),
        ("max(3, 1 << 4)", "16"),
        ("0x20u * n", "32 * N"),
        ("n > 4 ? n : 4", "N if N > 4 else 4"),
        ("n % 4 == 0 && n >= 8", "N % 4 == 0 and N >= 8"),
        ("sizeof(float) * n", "4 * N"),
        ("grid.x * grid.y * grid.z", "N * 4"),
        ("rows / 2", "B * T // 2"),
        ("prop.count * 2", "SMS * 2"),
        ("prop->count * 2", "SMS * 2"),
    ],
)
def test_a_size_in_host_code_is_the_same_one_in_a_header(host, header):
    text = in_header(expression(host), scope())
    assert text == header
    evaluate_whole(text, {"N": 1000, "B": 4, "T": 8, "SMS": 9})  # a header can be read


@pytest.mark.parametrize(
    ("host", "names"),
    [
        ("n & 3", " &$"),
        ("0.5 * n", r"0\.5"),
        ("log2(n)", "log2"),
        ("sizes[0]", r"sizes\[0\]"),
        ("unknown", "unknown"),
    ],
)
def test_what_a_header_cannot_say_is_refused(host, names):
    with pytest.raises(LadderError, match=names):
        in_header(expression(host), scope())


@pytest.mark.parametrize(
    ("host", "sizes"),
    [
        ("dim3(n, 2)", ["N", "2"]),
        ("dim3{n, 2}", ["N", "2"]),
        ("same", ["N", "4"]),
        ("(dim3)grid", ["N", "4"]),
        ("n", ["N"]),
    ],
)
def test_a_grid_has_the_sizes_of_what_it_is_made_of(host, sizes):
    assert list(geometry(expression(host), scope())) == sizes


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("p + n * rows[2].x", "out + (N + 1) * rows[2].x"),
        ("n - (p - 1)", "(N + 1) - (out - 1)"),
        ("static_cast<unsigned int>(p) * 2", "(unsigned int)out * 2"),
        ("static_cast<int>(n - 1) * 2", "(int)((N + 1) - 1) * 2"),
        ("f<float, 4>(p, n)", "f<float, 4>(out, N + 1)"),
        ("!n && -n", "!(N + 1) && -(N + 1)"),
        ("n ? p : 3", "(N + 1) ? out : 3"),
        ("q.x * 2", "width * 2"),
        ("q->y * n", "q->y * (N + 1)"),
        ("(&q)->y", "(&q)->y"),
        ("q->y->p", "q->y->p"),
        ("float4{n, p}", "float4{N + 1, out}"),
        ("Pair{{n, 2}, p[n]}.first", "Pair{{N + 1, 2}, out[N + 1]}.first"),
    ],
)
def test_in_code_names_are_replaced_and_the_rest_stays(host, code):
    names = Scope({"p": "out", "n": "N + 1", "q.x": "width"})
    assert in_code(expression(host), names) == code
