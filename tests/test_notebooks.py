"""The notebooks run from top to bottom, read well as committed, and show today's kernels."""

import itertools
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find, ladders
from ladder.core.contract.op import DTYPES, REALS
from ladder.core.device.cuda import compiler, nvrtc
from ladder.core.device.open import default_device
from ladder.core.show import notebook, pages
from ladder.core.show.execute import FOLDER, execute
from tests.mutants.changes import read
from trainer.data.download import VARIABLE

NOTEBOOKS = sorted(FOLDER.glob("[0-9]*.ipynb"))
MOST_BYTES = 1_500_000  # a web page shows no larger ones
QUICK = ("00_start",)  # `make test` runs these and their exercises, `make sweep` the others
FOLDERS = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|Users|mnt|var|opt|workspace)/[\w./-]+")


def pytest_generate_tests(metafunc):
    """Each test of a notebook, for each notebook. One process takes all tests of a notebook, which
    runs once for them."""
    if "path" not in metafunc.fixturenames:
        return
    runs = "executed" in metafunc.fixturenames
    cases = [
        pytest.param(
            path,
            id=path.stem,
            marks=[pytest.mark.xdist_group(path.stem)]
            + [pytest.mark.sweep] * (runs and path.stem not in QUICK),
        )
        for path in NOTEBOOKS
    ]
    metafunc.parametrize("path", cases, scope="module")


@pytest.fixture(scope="module")
def committed(path):
    return nbformat.read(path, as_version=4)


@pytest.fixture(scope="module")
def executed(path, tmp_path_factory):
    """The notebook run afresh, in a new process that finds this repository's package, and what data
    there is, but no network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # where nobody answers
        if VARIABLE not in os.environ:
            patch.setenv(VARIABLE, str(tmp_path_factory.mktemp("data")))
        folders = [str(pages.ROOT), os.environ.get("PYTHONPATH")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, folders)))
        return execute(path)  # fails at the first cell that does


def code_cells(content):
    return [cell for cell in content.cells if cell.cell_type == "code"]


def markdown_outputs(content):
    """What the cells say of kernels: sources, diffs, tables. It is the same on every machine."""
    return [
        output.data["text/markdown"]
        for cell in code_cells(content)
        for output in cell.outputs
        if output.output_type == "display_data" and "text/markdown" in output.data
    ]


def verdicts(content):
    """What `check` says first, ✓ or ✗, in the order of the cells."""
    return [
        mark
        for cell in code_cells(content)
        for output in cell.outputs
        if output.output_type == "stream"
        for mark in re.findall(r"^[✓✗]", output.text, flags=re.MULTILINE)
    ]


@pytest.mark.costly
@pytest.mark.emulator
def test_it_runs_from_top_to_bottom(executed):
    for cell in code_cells(executed):
        assert cell.execution_count is not None
        assert not [output for output in cell.outputs if output.output_type == "error"]


@pytest.mark.sweep
def test_colabs_notebook_sets_itself_up_without_a_virtual_environment(tmp_path):
    env = {key: os.environ[key] for key in os.environ if key not in ("VIRTUAL_ENV", "PYTHONPATH")}
    env["XDG_STATE_HOME"] = str(tmp_path)
    packages = sysconfig.get_paths()["purelib"]
    command = [sys.executable, "-S", pages.ROOT / "tests" / "colab.py", packages]
    run = subprocess.run(command, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.findall(r"^[✓✗]", run.stdout, re.MULTILINE) == ["✓", "✗"]
    if "tokens to train on" in run.stdout:  # the text is here, or there is a network
        assert "named by --rung" in run.stdout


@pytest.mark.costly
@pytest.mark.slow
def test_an_error_with_a_remedy_comes_without_a_traceback(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(pages.ROOT))
    lines = "from ladder.core.show import notebook as nb", 'nb.show("start.ad", 1)'
    one = tmp_path / "error.ipynb"
    cells = [nbformat.v4.new_code_cell(line) for line in lines]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), one)
    with pytest.raises(CellExecutionError) as caught:
        execute(one)
    assert re.search(r"'start\.ad'.* start\.add\b", caught.value.evalue)
    assert "Traceback" not in caught.value.traceback


def test_it_is_committed_with_its_outputs(committed):
    counts = [cell.execution_count for cell in code_cells(committed)]
    assert counts == list(range(1, len(counts) + 1)), "python -m ladder notebooks runs it in order"
    shown = [o.data for cell in code_cells(committed) for o in cell.outputs if "data" in o]
    kinds = {kind for data in shown for kind in data}
    assert kinds <= {"text/plain", "text/markdown", "text/html"}, "each viewer shows these"
    images = [data["text/html"] for data in shown if "text/html" in data]
    assert all(re.match(r'<img alt="[^"<>]{4,}" src="data:image/svg', html) for html in images)


@pytest.mark.emulator
def test_the_checker_accepts_and_refuses_what_the_text_says(committed, executed):
    assert set(verdicts(committed)) == {"✓", "✗"}
    assert verdicts(executed) == verdicts(committed)


@pytest.mark.emulator
def test_what_it_shows_of_kernels_is_up_to_date(committed, executed):
    if default_device() == "cuda":
        pytest.skip("with a GPU, pictures of measurements stand where text stands without one")
    assert markdown_outputs(committed) == markdown_outputs(executed), (
        "the kernels or results have changed: python -m ladder notebooks"
    )


def test_it_says_nothing_about_the_machine_that_ran_it(path, committed):
    assert not FOLDERS.findall(path.read_text(encoding="utf-8"))
    assert set(committed.metadata) <= {"kernelspec", "language_info"}
    assert not any(set(cell.metadata) - {"tags", "magics_language"} for cell in committed.cells)


def test_it_is_small_enough_for_a_web_page(path):
    assert path.stat().st_size < MOST_BYTES


def test_a_unit_says_its_minutes_begins_with_hands_and_shows_short_diffs(committed):
    assert re.search(r"\b\d+ minutes", committed.cells[0].source)
    first = "\n".join(cell.source for cell in committed.cells[:8] if cell.cell_type == "code")
    assert re.search(r"^%%kernel |^\w+\.check_\w+\(", first, re.MULTILINE), "nothing to type"
    for cell in code_cells(committed):
        shown = "".join(o.data.get("text/markdown", "") for o in cell.outputs if "data" in o)
        diffs = re.findall(r"```diff\n(.*?)```", shown, re.DOTALL)
        assert "".join(diffs).count("\n") <= pages.MOST_LINES, cell.source


# ---- the functions that the notebooks call ------------------------------------------------------


def test_a_kernel_in_a_string_is_run_on_arrays():
    source = ladders()["start.add"].rung(3).source
    for kernel in (3, source):
        result = notebook.run("start.add", kernel, {"N": 5}, a=range(5), b=10)
        assert result["c"].tolist() == [10, 11, 12, 13, 14]


@pytest.mark.slow
def test_a_kernel_that_does_not_compile_gives_a_message_without_folders(capsys):
    source = ladders()["start.add"].rung(3).source.replace("a[i]", "nonsense[i]")
    notebook.check("start.add", source, device="emulated")
    text = capsys.readouterr().out
    assert text.startswith("✗ kernel.cu:")
    assert "nonsense" in text
    assert not FOLDERS.search(text)


@pytest.mark.parametrize("options", ["N=", "shapes=SHAPE"])
def test_a_first_line_that_is_wrong_is_named(options):
    with pytest.raises(LadderError, match=f"^%%kernel start.sum {options}: .*: %%kernel start"):
        notebook.kernel(f"start.sum {options}", "// start sum: empty\n", {})


# ---- the exercises ------------------------------------------------------------------------------

# By the title of an exercise: changes of its solution. WRONG says what the refusal must say, RIGHT
# what else is right.
ANSWERS = read(Path(__file__).parent / "wrong_answers", ("refused", "accepted"))
WRONG, RIGHT = (
    {
        exercise: [change for change in changes if change.kind == kind]
        for exercise, changes in itertools.groupby(ANSWERS, lambda change: change.of)
    }
    for kind in ("refused", "accepted")
)


def exercises(notebooks):
    """By title: the first cell of the notebook, the first line of the exercise's, its kernel, and
    the text above it, which has the folds."""
    for path in notebooks:
        cells = nbformat.read(path, as_version=4).cells
        first, text = next(cell.source for cell in cells if cell.cell_type == "code"), ""
        for cell in cells:
            if cell.cell_type == "markdown":
                text = cell.source
            elif cell.source.startswith("%%kernel ") and "<summary>Solution" in text:
                line, title, _ = cell.source.split("\n", 2)
                kernel = cell.source.partition("\n")[2]
                yield title.partition(": ")[2], (first, line[len("%%kernel ") :], kernel, text)


EXERCISES = dict(exercises(NOTEBOOKS))
QUICK_EXERCISE = next(iter(EXERCISES))  # `make test` gives a right answer and a wrong one to this


def solution_of(exercise):
    """The kernel in the fold."""
    *_, text = EXERCISES[exercise]
    ((_, solution),) = notebook.SOLUTION.findall(text)
    return solution


def grade(exercise, change, capsys):
    """What the cell of an exercise prints if its solution is typed in, with a change. A wrong
    answer is tried at fewer shapes, to save time."""
    first, line, *_ = EXERCISES[exercise]
    solution = solution_of(exercise)
    solution = change.apply(solution) if change else solution
    names = {}
    exec(first, names)
    if change and change.kind == "refused" and "SHAPES" in names:
        names["SHAPES"] = names["SHAPES"][:2]
    capsys.readouterr()
    notebook.kernel(line, solution, names)
    return capsys.readouterr().out


def test_each_exercise_has_hints_a_solution_and_wrong_answers():
    assert set(WRONG) == set(EXERCISES)
    for exercise, wrong in WRONG.items():
        changes = wrong + RIGHT[exercise]
        answers = {change.apply(solution_of(exercise)) for change in changes}
        assert wrong and len(answers) == len(changes) and solution_of(exercise) not in answers
    for _, _, kernel, text in EXERCISES.values():
        assert text.count("<details><summary>Hint ") >= 2
        assert text.index("<summary>Hint 2") < text.index("<summary>Solution")
        assert kernel not in text  # what is given is not the solution


@pytest.mark.emulator
@pytest.mark.parametrize(
    "exercise",
    [pytest.param(name, marks=[pytest.mark.sweep] * (name != QUICK_EXERCISE)) for name in WRONG],
)
def test_the_solution_of_an_exercise_passes(exercise, capsys, monkeypatch):
    monkeypatch.setattr(notebook, "default_device", lambda: "emulated")
    assert grade(exercise, None, capsys).startswith("✓")


def test_a_notebook_goes_on_with_the_solution_of_an_exercise():
    title = "one stage, and who waits"
    assert notebook.solution(title) == solution_of(title)
    with pytest.raises(LadderError, match="'nothing'"):
        notebook.solution("nothing")


@pytest.mark.nvrtc
@pytest.mark.skipif(not nvrtc.installed(), reason="NVRTC is not installed")
@pytest.mark.costly
@pytest.mark.parametrize("exercise", WRONG)
def test_the_solution_of_an_exercise_compiles_for_a_gpu(exercise):
    name = EXERCISES[exercise][1].split()[0]
    rung = notebook.rung_of(name, solution_of(exercise))
    targets = (compiler.typical_target("sm_90a", DTYPES[real]) for real in REALS)
    target = next(target for target in targets if rung.claims(target))
    plans = (rung.plan(dims, target) for dims in find(name).op.shapes)
    plan = next(plan for plan in plans if plan.refusal is None)
    cubin = compiler.compile_cubin(rung, plan.constants, target.real, target.arch)
    assert "warning" not in compiler.compile_log(cubin)
    assert compiler.remarks(cubin) == []


@pytest.mark.nvrtc
@pytest.mark.skipif(not nvrtc.installed(), reason="NVRTC is not installed")
def test_the_kernel_for_a_t4_compiles_for_it():
    cells = nbformat.read(FOLDER / "13_colab.ipynb", as_version=4).cells
    (kernel,) = (c.source for c in cells if c.source.startswith("%%kernel "))
    rung = notebook.rung_of("layernorm.forward", kernel.partition("\n")[2])
    target = compiler.typical_target("sm_75", DTYPES["float16"])
    plan = rung.plan({"N": 4096, "C": 768}, target)
    cubin = compiler.compile_cubin(rung, plan.constants, target.real, target.arch)
    assert "warning" not in compiler.compile_log(cubin)
    assert [takes.spill for takes in compiler.resources(cubin).values()] == [0]


def answers(changes):
    """Each change, for a test; `make test` tries the first one of the quick exercise."""
    return pytest.mark.parametrize(
        "change",
        [
            pytest.param(
                change,
                id=f"{exercise} {i}",
                marks=[pytest.mark.sweep] * (i > 0 or exercise != QUICK_EXERCISE),
            )
            for exercise, own in changes.items()
            for i, change in enumerate(own)
        ],
    )


@pytest.mark.emulator
@answers(WRONG)
def test_a_wrong_answer_is_refused(change, capsys, monkeypatch):
    if "local bytes" in change.what and not nvrtc.installed():
        pytest.skip("NVRTC is not installed")
    monkeypatch.setattr(notebook, "default_device", lambda: "emulated")
    said = grade(change.of, change, capsys)
    assert said.startswith("✗")
    assert change.what in " ".join(said.split())


@pytest.mark.emulator
def test_a_coalesced_kernel_is_not_told_to_coalesce(capsys, monkeypatch):
    monkeypatch.setattr(notebook, "default_device", lambda: "emulated")
    (again,) = (c for c in WRONG["one block per run"] if c.what == "too many sectors of dwte")
    said = " ".join(grade(again.of, again, capsys).split())  # whose lines are wrapped
    assert "Access each element once." in said and "Coalesce" not in said


@pytest.mark.costly
@pytest.mark.emulator
def test_a_limit_on_machine_code_says_where_it_is_not_counted(capsys, monkeypatch):
    monkeypatch.setattr(notebook, "default_device", lambda: "emulated")
    monkeypatch.setattr(nvrtc, "installed", tuple)
    said = grade("the row stays in registers", None, capsys)
    assert said.startswith("✓") and re.search("local bytes: .*NVRTC", said)


@pytest.mark.emulator
def test_what_an_unsolved_exercise_does_not_use_yet_is_no_warning(capsys, monkeypatch):
    monkeypatch.setattr(notebook, "default_device", lambda: "emulated")
    _, line, kernel, _ = EXERCISES["the launch instead of a loop"]
    notebook.kernel(line, kernel, {})
    said = capsys.readouterr().out
    assert said.startswith("✗") and "warning" not in said


@pytest.mark.emulator
@answers(RIGHT)
def test_another_right_answer_is_accepted(change, capsys, monkeypatch):
    monkeypatch.setattr(notebook, "default_device", lambda: "emulated")
    said = grade(change.of, change, capsys)
    assert said.startswith("✓"), said
