"""Exercises of the pages: hints, a command that checks, and a solution that passes the check."""

import re
import shlex

import pytest

from ladder.__main__ import main
from ladder.core.contract.ladder import find, find_rung
from ladder.core.contract.op import DTYPES
from ladder.core.emulator.emulated import Emulated
from ladder.core.show import pages
from ladder.core.verify.check import FEW_CASE_BYTES, FEW_SHAPES, check, largest
from ladder.core.verify.shapes import derive_shapes
from tests.mutants.changes import read

FOLDER = pages.ROOT / "doc" / "solutions"
SOLUTIONS = [
    pytest.param(".".join(path.parts[-3:-1]), path, id=path.relative_to(FOLDER).as_posix())
    for path in sorted(FOLDER.rglob("*.cu"))
]


def shown():
    """The solutions that the pages show, as they name them: (op, name)."""
    text = "".join(page.read_text(encoding="utf-8") for page in (pages.ROOT / "doc").rglob("*.md"))
    return set(re.findall(r"ladder:begin solution (\S+) (\S+) -->", text))


def test_every_solution_is_shown_on_a_page():
    assert shown() == {(op, path.stem) for op, path in (param.values for param in SOLUTIONS)}


@pytest.mark.costly
@pytest.mark.emulator
@pytest.mark.parametrize(("op", "path"), SOLUTIONS)
def test_a_solution_passes_the_check(op, path):
    """At the largest of the telling shapes that is small, under one order of threads."""
    ladder, rung, device = find(op), find_rung(op, path), Emulated()
    dtype = next(d for d in ladder.op.reals if rung.claims(device.target(DTYPES[d])))
    telling = derive_shapes(ladder.op, rung, device.target(DTYPES[dtype]))[:FEW_SHAPES]
    shapes = largest(ladder.op, DTYPES[dtype], telling, 1, FEW_CASE_BYTES)
    report = check(ladder, rung, device, [dtype], shapes, brief=True)
    assert report.passed, str(report)


# Their pages ask whether the checker notices that `out` is of a sum before it was rounded.
NOT_OF_WHAT_IS_STORED = ("exact_sum", "exact_pre")


@pytest.mark.emulator
@pytest.mark.sweep
@pytest.mark.parametrize(("op", "path"), SOLUTIONS)
def test_a_solution_does_so_at_all_shapes_in_every_type(op, path):
    report = check(find(op), find_rung(op, path), Emulated())
    if path.stem in NOT_OF_WHAT_IS_STORED:
        wrong = [outcome for outcome in report.outcomes if outcome.status == "failed"]
        assert wrong and all("float32" not in outcome.label for outcome in wrong)
    else:
        assert report.passed, str(report)


# ---- other answers ------------------------------------------------------------------------------

ANSWERS = read(pages.ROOT / "tests" / "wrong_answers" / "pages", ("refused", "accepted"))


COMMANDS = {}  # the check that an exercise names, by its solution; `mine.cu` is the answer
for page in (pages.ROOT / "doc").rglob("*.md"):
    for part in page.read_text(encoding="utf-8").split("Check: ")[1:]:
        command = re.match(r"`python -m ladder (check [^`]*mine.cu[^`]*)`", part)
        if command and (shows := re.search(r"ladder:begin solution (\w+)\.(\w+) (\w+) -->", part)):
            COMMANDS[FOLDER / shows[1] / shows[2] / f"{shows[3]}.cu"] = shlex.split(command[1])

CASES = [(path, None) for path in COMMANDS if "--at" in " ".join(COMMANDS[path])]
CASES += [(FOLDER / answer.group / f"{answer.of}.cu", answer) for answer in ANSWERS]


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        pytest.param(path, own, id=f"{path.stem}-{own}", marks=[pytest.mark.sweep] * (i > 1))
        for i, (path, own) in enumerate(CASES)
    ],
)
def test_the_command_of_an_exercise_judges_an_answer(solution, answer, tmp_path, capsys):
    """The solution, and changes of it; in one type: most pages leave it open."""
    text, mine = solution.read_text(encoding="utf-8"), tmp_path / "mine.cu"
    mine.write_text(answer.apply(text) if answer else text, encoding="utf-8")
    words = [str(mine) if word == "mine.cu" else word for word in COMMANDS[solution]]
    status = main(["check", "--device", "emulated", "--dtype", "fp32", *words[1:]])
    said = " ".join(capsys.readouterr().out.split())
    refused = answer is not None and answer.kind == "refused"
    assert status == refused and (not refused or answer.what in said), said
