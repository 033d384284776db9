"""The page "try it": its checker says what `python -m ladder check` says, in a browser too."""

import json
import math
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from ladder.core.contract.ladder import PACKAGE, find, ladders
from ladder.core.contract.launch_plan import FLAG, names_of
from ladder.core.emulator import source
from ladder.core.emulator.emulated import Emulated
from ladder.core.show import notebook
from tests.mutants.changes import read
from tests.planted.__main__ import planted
from tests.site.conftest import ROOT, lacking

pytestmark = pytest.mark.site

NODE = ROOT / "build" / "browser" / "npm" / "node.mjs"
BUILT = ROOT / "build" / "browser" / "static" / "try"
FLOAT32 = "float32"
SOON = 3  # seconds


@pytest.fixture(scope="module")
def run(site, tmp_path_factory):
    """Runs a command of node.mjs on a list; what it prints, a line for each entry."""
    if not (BUILT / "runtime.wasm").exists() or not shutil.which("node"):
        lacking("the page's checker is not built: make site, with Node.js")

    def ask(what: str, content: object, *arguments: Path) -> list[dict]:
        file = tmp_path_factory.mktemp("node") / "list.json"
        file.write_text(json.dumps(content), encoding="utf-8")
        command = ["node", "--no-warnings", str(NODE), what, *map(str, arguments), str(file)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    return ask


def portable_rungs():
    """Those whose headers the page reads: on the trunk, without TMA or a neighbour's kernel."""
    for ladder in ladders().values():
        for rung in ladder.rungs:
            if rung.path is not None and not rung.track:
                lines = rung.lines
                flags = any(line.dtype == FLAG for line in lines.scratch)
                if not (lines.tiles or lines.prefetch or lines.args or lines.heuristics or flags):
                    yield ladder.op, rung


def test_it_makes_the_same_cpp_of_a_kernel(run):
    include = PACKAGE / "include"
    files = [rung.path for _, rung in portable_rungs()]
    texts = [path.read_text(encoding="utf-8") for path in files]
    content = {
        "includes": {path.name: path.read_text(encoding="utf-8") for path in include.glob("*.cuh")},
        "files": [
            {"path": str(path), "source": text} for path, text in zip(files, texts, strict=True)
        ],
    }
    for path, text, made in zip(files, texts, run("sources", content), strict=True):
        expected, kernels = source.prepare(path, text, [include])
        # The headers' own paths are another matter: the page has them from no folder.
        ours = re.sub(r'#line (\d+) ".*/', r'#line \1 "', made["text"])
        assert ours == re.sub(r'#line (\d+) ".*/', r'#line \1 "', expected)
        assert [kernel["name"] for kernel in made["kernels"]] == [k.name for k in kernels]


def test_it_reads_the_same_launches_from_a_header(run):
    target = Emulated().target(FLOAT32)
    names = names_of(target)
    calls = [(rung, dims) for op, rung in portable_rungs() for dims in op.shapes]
    plans = [rung.plan(dims, target) for rung, dims in calls]
    content = [{"source": rung.source, "names": {**names, **dims}} for rung, dims in calls]
    for expected, made in zip(plans, run("plans", content), strict=True):
        assert ("refusal" in made) == (expected.refusal is not None)
        if expected.refusal is None:
            assert made["macros"] == [f"{n}={v}" for n, v in expected.constants.items()]
            assert [tuple(each.values()) for each in made["launches"]] == [
                (one.kernel, [*one.grid], [*one.block], one.shared) for one in expected.launches
            ]
            assert [(each["name"], each["elements"]) for each in made["scratch"]] == [
                (line.name, math.prod(line.shape)) for line in expected.scratch
            ]


def exercises() -> dict[str, Path]:
    """The page's exercises by the kernel's file."""
    files = [path for path in (BUILT / "exercises").glob("*.json") if path.stem != "index"]
    return {json.loads(path.read_text(encoding="utf-8"))["file"]: path for path in files}


def test_it_refuses_every_planted_bug_of_its_rungs(run):
    known = exercises()
    bugs = [bug for bug in planted() if str(bug.path.relative_to(ROOT)) in known]
    content = [
        {"exercise": str(known[str(bug.path.relative_to(ROOT))]), "source": bug.rung()}
        for bug in bugs
    ]
    verdicts = run("check", content, BUILT)
    print(f"{len(verdicts)} planted bugs of {len(known)} kernels")
    for bug, verdict in zip(bugs, verdicts, strict=True):
        assert verdict["status"] == "failed", bug
        if bug.kind != "numbers":  # the checker names the line of these
            assert verdict["problems"], (bug, verdict["message"])


def test_it_grades_the_puzzles_as_the_notebook_does(run):
    folder = ROOT / "tests" / "wrong_answers"
    answers = [a for a in read(folder, ("refused", "accepted")) if a.group == "12_puzzles"]
    solutions = {title: notebook.solution(title) for title in {a.of for a in answers}}
    puzzles = {
        json.loads(path.read_text(encoding="utf-8"))["source"].split("\n")[0]: path
        for path in BUILT.glob("exercises/puzzle-*.json")
    }
    known = {head.partition(": ")[2]: path for head, path in puzzles.items()}
    given = [(of, "accepted", solution) for of, solution in sorted(solutions.items())]
    given += [(answer.of, answer.kind, answer.apply(solutions[answer.of])) for answer in answers]
    content = [{"exercise": str(known[of]), "source": text} for of, _, text in given]
    verdicts = run("check", content, BUILT)
    print(f"{len(solutions)} solutions, {len(answers)} other answers")
    told = {"accepted": "passed", "refused": "failed"}
    differ = [
        (of, kind, verdict["message"])
        for (of, kind, _), verdict in zip(given, verdicts, strict=True)
        if verdict["status"] != told[kind]
    ]
    assert differ == []


def wait_for(page, words, what, seconds):
    """Until the verdict has these words; prints how long that took."""
    start = time.perf_counter()
    page.locator(".verdict").get_by_text(words).first.wait_for(timeout=1000 * seconds)
    print(f"{what}: {time.perf_counter() - start:.1f} s")


def open_kernel(page, address, id):
    """The page with a kernel in its editor."""
    page.goto(f"{address}/doc/try.html#{id}", wait_until="commit")
    wait_for(page, "✓", "precompiled result", 3)
    return page, page.locator(".cm-content")


def test_a_kernel_is_changed_run_and_kept(run, address, tab):
    page, editor = open_kernel(tab(width=390), address, "start.sum-3")
    text = find("start.sum").rung("3").source
    (barrier,) = re.findall(r"\n.*this step's sums are written.*", text)
    editor.fill(text.replace(barrier, ""))
    editor.press("Control+Enter")
    race = "race on partial"
    wait_for(page, race, "first edit, with the download from this machine", 20)
    editor.fill(text.replace(barrier, "\n"))
    editor.press("Control+Enter")
    wait_for(page, race, "second edit", SOON)
    page.reload()
    page.locator(".cm-content", has_text="start_sum").wait_for()
    assert "this step's sums" not in page.locator(".cm-content").inner_text()
    page.get_by_role("button", name="Start over").click()
    page.locator(".verdict").get_by_text("✓").wait_for(timeout=3000)


def test_every_kernel_has_its_verdict_soon_after_an_edit(run, address, tab):
    page, editor = open_kernel(tab(), address, "start.sum-3")
    index = json.loads((BUILT / "exercises" / "index.json").read_text(encoding="utf-8"))
    took: dict[str, float] = {}
    for id in ["start.sum-3", *(entry["id"] for entry in index)]:  # the first loads the compiler
        file = BUILT / "exercises" / f"{id}.json"
        source = json.loads(file.read_text(encoding="utf-8"))["source"]
        head = source.partition("\n")[0]
        if id.startswith("puzzle-") and id != "puzzle-0":  # which is an example
            source = notebook.solution(head.partition(": ")[2])
        page.goto(f"{address}/doc/try.html#{id}")
        page.locator(".cm-line", has_text=head).first.wait_for()
        for edit in ("mine", "mine, too", "mine again"):  # others may use the cores meanwhile
            editor.fill(f"{source}\n// {edit}\n")
            start = time.perf_counter()
            editor.press("Control+Enter")
            page.locator(".verdict .passed").wait_for()
            took[id] = min(time.perf_counter() - start, took.get(id, math.inf))
            if took[id] < SOON:
                break
    slowest = max(took, key=lambda id: took[id])
    middle = sorted(took.values())[len(took) // 2]
    print(f"{len(took)} kernels after an edit: {middle:.1f} s, {slowest} {took[slowest]:.1f} s")
    assert took[slowest] < SOON


def test_a_loop_without_an_end_is_named_or_stopped(run, address, tab):
    page, editor = open_kernel(tab(), address, "start.add-1")
    text = find("start.add").rung("1").source
    editor.fill(text.replace("i++", "i += 0"))
    editor.press("Control+Enter")
    page.locator(".verdict").get_by_text("an endless loop?").first.wait_for(timeout=120_000)
    editor.fill(text.replace("i < end", "true").replace("c[i] = a[i] + b[i];", ";"))
    editor.press("Control+Enter")
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("status").get_by_text("Stopped").wait_for(timeout=5000)


def test_without_a_connection_the_page_says_so(run, address, chromium):
    page, editor = open_kernel(chromium.new_page(), address, "start.add-1")
    page.route("**/clang/**", lambda route: route.abort())
    editor.fill(find("start.add").rung("1").source + "\n// mine\n")
    editor.press("Control+Enter")
    page.get_by_role("status").get_by_text("is there a connection?").wait_for(timeout=60_000)
    page.context.close()
