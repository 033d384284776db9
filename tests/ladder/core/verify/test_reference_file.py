"""Any kernel against any reference: a contract in a Python file, and what is seen of a kernel."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ladder.__main__ import main
from ladder.core.common.errors import LadderError
from ladder.core.emulator.emulated import Emulated
from ladder.core.verify import sandbox
from ladder.core.verify.check import check
from ladder.core.verify.reference_file import load, open_ladder
from ladder.core.verify.tolerance import expect

ROOT = Path(__file__).parents[4]
RMSNORM, KERNEL, HOST = re.findall(
    r"```(?:python|cuda)\n(.*?)```", (ROOT / "doc" / "any_kernel.md").read_text(), re.DOTALL
)
SMALL = [{"N": 2, "C": 33}]

HISTOGRAM = """
import numpy as np

def histogram(values: "int32 N", BINS: int) -> {"counts": "int32 BINS"}:
    return np.bincount(values, minlength=BINS)

def inputs(rng, N, BINS):
    return {"values": rng.integers(0, BINS, N)}
"""
COUNTING = """// histogram: one thread per value
// Launch: clear<<<ceil_div(BINS, 256), 256>>>
// Launch: histogram<<<ceil_div(N, 256), 256>>>

__global__ void clear(int* counts, int BINS) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < BINS) counts[i] = 0;
}

__global__ void histogram(const int* values, int* counts, int N) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < N) atomicAdd(&counts[values[i]], 1);
}
"""


def replaced(text, old, new):
    assert text.count(old) == 1
    return text.replace(old, new)


def checked(reference, kernel, shapes=None, **options):
    """What `sandbox.check` finds, in this process."""
    ladder = open_ladder(reference)
    return check(ladder, ladder.find(kernel), Emulated(), shapes=shapes, wide=False, **options)


@pytest.mark.emulator
def test_a_kernel_agrees_races_or_lacks_a_tail(written):
    reference = written("ref.py", RMSNORM)
    report = sandbox.check(reference, written("mine.cu", KERNEL), shapes=SMALL)
    assert report.passed, report
    assert {outcome.inputs for outcome in report.outcomes} >= {"normal", "zeros", "small numbers"}
    racy = KERNEL.replace("    __syncthreads();\n    }", "    }")
    line = racy[: racy.index("+= partial")].count("\n") + 1
    report = checked(reference, written("racy.cu", racy), shapes=SMALL)
    assert ("race", line) in [problem[::2] for problem in report.failures[0].problems]
    assert "racy.cu --reference ref.py --shape N=2,C=33" in str(report)
    tail = replaced(KERNEL, "i < C; i += 256) out", "i < C / 4 * 4; i += 256) out")
    report = checked(reference, written("tail.cu", tail), shapes=SMALL)
    assert report.failures[0].detail.startswith("out[0, 32] is nan")


@pytest.mark.emulator
def test_whole_numbers_are_drawn_by_the_file_and_shapes_derived_from_the_kernel(written):
    reference = written("ref.py", HISTOGRAM)
    report = checked(reference, written("mine.cu", COUNTING))
    assert report.passed, report
    assert any(each.dims["N"] % 256 and each.dims["N"] > 256 for each in report.outcomes)
    racy = written("racy.cu", replaced(COUNTING, "atomicAdd(&counts[values[i]], 1)", "counts[0]++"))
    (failure, *_) = checked(reference, racy).failures
    assert [problem[::2] for problem in failure.problems] == [("race", 12)]


@pytest.mark.emulator
@pytest.mark.torch
def test_a_function_of_pytorchs_tensors_is_a_reference(written):
    pytest.importorskip("torch")
    text = RMSNORM[: RMSNORM.index("    return")].replace("numpy as np", "torch")
    body = "    return torch.nn.functional.rms_norm(x, x.shape[1:], weight, eps)\n"
    report = checked(written("ref.py", text + body), written("mine.cu", KERNEL), shapes=SMALL)
    assert report.passed, report


def test_the_terms_of_a_sum_are_the_axes_of_which_an_element_depends_on_several_slices(written):
    def terms(text):
        written("ref.py", f"import numpy as np\n{text}")
        return {arg.name: arg.terms for arg in load(Path("ref.py")).op.args if arg.role != "in"}

    product = 'def f(a: "M K", b: "K N") -> {"c": "M N", "s": "M"}: return a @ b, a.sum(1)'
    assert terms(product) == {"c": "(K)", "s": "(K)"}
    assert terms('def f(x: "N C") -> {"out": "C N"}: return x.T') == {"out": "1"}
    running = 'def f(x: "N C", out: "N C") -> {"out": "N C"}: return out + np.cumsum(x, 1)'
    assert terms(running) == {"out": "(C)"}


def test_16_bit_arrays_that_stay_so_are_float64_for_the_reference(written):
    op = load(written("half.py", 'def f(x: "float16 N") -> {"y": "bfloat16 N"}: return x * x')).op
    x, y = np.array([1.0, 1e-3]), np.zeros(2)
    op.compute([x, y], {"N": 2})
    assert y[1] == 1e-6 and op.reals == ("float32",)


@pytest.mark.parametrize(
    ("text", "names"),
    {
        "def f(x: 'N' -> {}": ":1: SyntaxError: ",
        "import nothing_like_it": ":1: ModuleNotFoundError: .*nothing_like_it",
        "def f(x: 'N'): return x": r": .* '-> {\"out\": \"N C\"}'",
        "def f(x) -> {'y': 'N'}: return x": ': f: .* x: "N C" ',
        "def f(x: 'N', K: int) -> {'y': 'N'}: return x": ": f: K .* N;.* K: int = 4",
        "def f(x: 'float64 N') -> {'y': 'N'}: return x": ": f: x: float64 .*float32",
        "def f(x: 'N +') -> {'y': 'N'}: return x": r": f: x: .*'\+'",
        "def f(x: 'int32 N') -> {'y': 'N'}: return x": ": f: .* x .*inputs.*{'x': rng.integers",
        "def f(x: 'N') -> {'y': 'N'}: return x[1:]": r': f .* y .*\(8,\).*"N".* \(9,\).* N=9',
        "def f(x: 'N') -> {'y': 'N'}: return x, x": ": f: .* 2 .* y$",
        "def f(x: 'N') -> {'y': 'N'}:\n  x += 1\n  return x * 1": ": f: .* x;.* copy",
        "def f(x: 'N') -> {'y': 'N'}:\n\n  return x[99]": ":3: f at N=9: IndexError: .*99",
        "fits = ['N > 3']\ndef f(x: 'N') -> {'y': 'N'}: return x": ": f: fits .*'N > 3'.*'T <= P'",
    }.items(),
)
def test_a_broken_contract_is_one_line_that_names_file_and_remedy(written, text, names):
    path = written("ref.py", text)
    with pytest.raises(LadderError, match=f"^ref.py{names}") as error:
        load(path)
    assert "\n" not in str(error.value)


@pytest.mark.emulator
def test_a_nan_of_the_reference_is_its_own_mistake(written):
    reference = written("ref.py", RMSNORM.replace("(x * x).mean", "x.mean"))
    with pytest.raises(LadderError, match=r"^ref\.py: .* out .* N=2 .*'inputs'"):
        checked(reference, written("mine.cu", KERNEL), shapes=SMALL)


def test_the_files_are_named_in_their_places(written, capsys):
    written("ref.py", RMSNORM), written("mine.cu", KERNEL)
    for words, remedy in (
        (["check", "mine.cu"], "--reference ref.py"),
        (["check", "layernorm.forward", "3", "--reference", "ref.py"], "check mine.cu --reference"),
        (["check", "mine.cu", "--reference", "mine.cu"], "--reference mine.cu: "),
        (["bench", "--reference", "ref.py"], "bench mine.cu --reference ref.py"),
    ):
        assert main(words) == 2
        assert remedy in capsys.readouterr().err


@pytest.mark.emulator
def test_findings_are_annotations_of_a_workflow_and_sarif_as_github_asks_for(written, capsys):
    racy = KERNEL.replace("    __syncthreads();\n    }", "    }")
    printing = replaced(
        racy, "    float sum = 0;", '    printf("::error::of a kernel\\n");\nfloat sum = 0;'
    )
    written("ref.py", RMSNORM), written("a,b.cu", printing)
    line = printing[: printing.index("+= partial")].count("\n") + 1
    words = ["check", "a,b.cu", "--reference", "ref.py", "--shape", "N=2,C=33", "--format"]
    assert main([*words, "github"]) == 1
    stop, *text, resume, annotation = capsys.readouterr().out.strip().split("\n")
    assert stop == f"::stop-commands::{resume.strip(':')}" and "::error::of a kernel" in text
    assert annotation.startswith(
        f"::error file=a%2Cb.cu,line={line},title=kernel-fault::ref.py: at N=2"
    )
    written("a,b.cu", racy)
    assert main([*words, "sarif"]) == 1
    log = json.loads(capsys.readouterr().out)
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    for rule in driver["rules"]:
        assert all(rule[key]["text"] for key in ("shortDescription", "fullDescription", "help"))
    (result,) = run["results"]
    assert driver["name"] and result["ruleId"] == "kernel-fault" and result["message"]["text"]
    ((_, place),) = result["locations"][0].items()
    assert place["artifactLocation"]["uri"] == "a%2Cb.cu"
    source = racy.splitlines()[line - 2]
    assert place["region"] == {
        **{"startLine": line - 1, "startColumn": 1, "endLine": line - 1},
        "endColumn": len(source) + 1,
    }
    assert re.fullmatch(r"\w+:1", result["partialFingerprints"]["primaryLocationLineHash"])


@pytest.mark.emulator
def test_the_actions_last_step_fails_with_an_annotation_where_a_kernel_is_wrong(written, tmp_path):
    yaml = pytest.importorskip("yaml")
    step = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"][-1]
    command = tmp_path / "temp/kernel-ladder/bin/kernel-ladder"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ladder "$@"\n')
    command.chmod(0o755)
    written("ref.py", RMSNORM)
    broken = replaced(KERNEL, "* weight[i]", "* nothing[i]")
    line = broken[: broken.index("nothing")].count("\n") + 1
    written("my kernel.cu", broken)
    given = {"kernel": "my kernel.cu", "reference": "ref.py", "arguments": "--shape N=2,C=33"}
    inputs = {name: given[text.split()[1].partition(".")[2]] for name, text in step["env"].items()}
    env = {**os.environ, **inputs, "RUNNER_TEMP": str(tmp_path / "temp"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [step["shell"], "-ec", step["run"]], env=env, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert f"\n::error file=my kernel.cu,line={line},title=kernel-fault::" in done.stdout


@pytest.mark.parametrize(
    ("reference", "kernel", "passes"),
    [
        ("np.exp(x / 999) - 1", lambda x: np.exp(x / 999) - 1, True),
        ("np.expm1(x / 999)", lambda x: np.exp(x / 999) - 1, False),
        ("x * (1 + np.tanh(x))", lambda x: x * (1 + np.tanh(x)), True),
    ],
)
@pytest.mark.parametrize("columns", [1, 64])
def test_a_kernel_may_be_as_far_off_as_the_reference_is_in_float32(
    written, reference, kernel, passes, columns
):
    """Where the reference itself subtracts what is nearly equal, a kernel may, too."""
    text = f'import numpy as np\ndef f(x: "N C") -> {{"y": "N C"}}:\n    return {reference}\n'
    op, float32 = load(written("ref.py", text)).op, np.dtype(np.float32)
    x = np.random.default_rng(0).standard_normal((512, columns), float32)
    (expected,) = expect(op, {"N": 512, "C": columns}, float32, {"x": x})
    problem, _ = expected.verify(kernel(x))
    assert (problem is None) == passes, problem
