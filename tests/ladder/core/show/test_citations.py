"""Measured numbers in sentences name their file; one that is wrong or names none is found."""

import json
import re

import pytest

from ladder.core.contract.ladder import find
from ladder.core.measure import results
from ladder.core.show import citations, pages, tables

SOURCE = "8.36 ms, 490,142 tokens/s, 8.5e-07, 11.30 ms\n"


@pytest.fixture
def root(tmp_path):
    (tmp_path / "log.txt").write_text(SOURCE)
    return tmp_path


def problems(root, sentence, comment):
    text = f"Other words, 99 ms.\n\n{sentence}\n<!-- from log.txt: {comment} -->\n\nThe end.\n"
    return list(citations.problems(text, root))


@pytest.mark.parametrize(
    ("sentence", "comment"),
    [
        ("It takes 8.36 ms, for 490,142 tokens/s.", "8.36, 490,142"),
        ("It is 35 % faster.", "35 % = (11.30 / 8.36 - 1) * 100"),
        ("It takes 8.4 ms.", "8.4 = 8.36"),
        ("They agree to 9e-7.", "9e-7 = 8.5e-07"),
        ("It takes less than 9 ms.", "9 >= 8.36"),
        ("It takes 1,045 ms for 125 steps.", "1,045 = 8.36 * 1000 / 8"),
    ],
)
def test_what_follows_from_the_file_is_accepted(root, sentence, comment):
    assert problems(root, sentence, comment) == []


def test_a_number_of_the_kernels_is_looked_up_in_the_tables_of_its_page(root):
    table = "<!-- ladder:begin machine op 1 -->\n| 1 | 373 |\n| 2 | 1,400 |\n<!-- ladder:end -->\n"
    page = (
        f"{table}\nOf 1,400 instructions, 400 are gone.\n<!-- from this page's tables: {{}} -->\n"
    )

    def problems(comment):
        return list(citations.problems(page.format(comment), root))

    assert problems("1,400") == []
    assert problems("400")[0].startswith("from this page's tables: 400 ")
    assert re.search("1,400 - 373 .*1027.* 400$", problems("400 = 1,400 - 373")[0])


@pytest.mark.parametrize(
    ("sentence", "comment", "names"),
    [
        ("It takes 8.37 ms.", "8.37", "8.37 .*file"),
        ("It takes 8.3 ms.", "8.3", "8.3 .*file"),
        ("It takes 490 ms.", "490", "490 .*file"),
        ("It takes 8.36 ms.", "11.30", "11.30 .*paragraph"),
        ("It takes 99 ms less.", "8.36", "8.36 .*paragraph"),
        ("It takes 8.3 ms.", "8.3 = 8.36", "8.36 .*8.36.* 8.3$"),
        ("It is 36 % faster.", "36 % = (11.30 / 8.36 - 1) * 100", "35.1675.* 36$"),
        ("It is 35 % faster.", "35 % = (11.31 / 8.36 - 1) * 100", "11.31 .*file"),
        ("It takes 8 ms.", "8 >= 8.36", "8.36 .*8.36.* 8$"),
        ("It takes 8 ms.", "8 = 8.36 ** 1", r"8.36 \*\* 1: .* \+ - \* / "),
        ("It takes 8 ms.", "8 = 8.36 /", "8.36 /: "),
        ("It takes some ms.", "some", "'number = expression'.*'some'"),
    ],
)
def test_what_does_not_follow_is_refused(root, sentence, comment, names):
    (problem,) = problems(root, sentence, comment)
    assert re.match(f"from log.txt: .*{names}", problem)


def test_what_is_worked_out_shows_its_sum(root):
    def problems(comment):
        text = f"A tile needs 48 KB, 5 times as much.\n<!-- worked out: {comment} -->\n"
        assert list(citations.uncited(text)) == []
        return list(citations.problems(text, root))

    assert problems("5 times = (128 + 256) * 64 * 2 / 9830, 48 = 384 * 128 / 1024") == []
    (wrong,) = problems("5 times = 384 / 64")
    assert re.match("worked out: 384 / 64 .*6.* 5$", wrong)
    (bare,) = problems("5 times")
    assert re.match("worked out: .* 5 .*'5 = expression'", bare)


def test_measured_numbers_without_a_source_are_named():
    text = """\
It takes 8.36 ms and 3 steps of GPT-2 124M, 15 % less, 1.4 times, 1,151 µs, 490,142 tokens/s.
<!-- from log.txt: 8.36, 15 % = 1 -->

| `--x 5 ms` | 12 GB/s | 7 TFLOP/s |

A tile of 32 x 32, or 64 × 64. Here 8.36 ms again, and 2× more.

```
1 ms
```

    $ program 2 ms

<!-- ladder:begin log any -->
5 ms
<!-- ladder:end -->
"""
    assert list(citations.uncited(text)) == [
        *("1.4 times", "1,151 µs", "490,142 tokens/s", "12 GB/s", "7 TFLOP/s"),
        *("8.36 ms", "2×"),
    ]


@pytest.mark.parametrize(
    "page", ["README.md", "doc/training/measured.md", "doc/gelu.md", "doc/gelu/forward.md"]
)
def test_a_number_on_a_page_that_teaches_needs_a_source(root, page):
    (root / page).parent.mkdir(parents=True, exist_ok=True)
    (root / page).write_text("It takes 8.36 ms.\n")
    (problem,) = pages.update(write=False, root=root)
    assert re.match(f"{page}: .* '8.36 ms'", problem)


def test_sentences_of_other_pages_have_no_measured_numbers(root):
    page = root / "doc" / "latency.md"
    page.parent.mkdir()
    page.write_text("It takes 9 ms.\n<!-- from log.txt: 9 = 8.36 -->\n\n| a | 5 ms |\n")
    cited, typed = pages.update(write=False, root=root)
    assert cited.startswith("doc/latency.md: '<!-- from log.txt: 9 = 8.36 -->' ")
    assert typed.startswith("doc/latency.md: '9 ms' ")


# ---- tables of training steps -------------------------------------------------------------------


def test_a_step_whose_kernels_have_changed_since_is_marked(tmp_path, monkeypatch):
    rung = find("gelu.forward").rung(1)
    kept = results.of_step({"gelu.forward": rung})
    edited = {"rungs": kept["rungs"], "code": {"gelu.forward": "of another day"}}
    gone = {**kept, "rungs": {"gelu.forward": "99"}}
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    (tmp_path / "training").mkdir()

    def rows(of_ours):
        step = {"B": 4, "dtype": "bf16", "what": "ours, --rungs best", "ms": 8.0, "gib": 1.0}
        step |= {"tokens_per_second": 5e5, **of_ours}
        steps = [step, {**step, "what": "PyTorch, compiled"}]
        for other in steps[1:]:
            other.pop("code", None)
        path = tmp_path / "training" / "one-torch.json"
        path.write_text(json.dumps({"steps": steps}))
        return tables.step_times("one").splitlines()[2:]

    assert rows(kept)[0] == "| B=4 | `--rungs best` | 8.00 | 500,000 | 1.0 |"
    for of_ours in (edited, gone):
        ours, theirs = rows(of_ours)
        assert "| `--rungs best` (kernels changed since) | 8.00 |" in ours
        assert "changed since" not in theirs
