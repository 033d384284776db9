"""What stands between the markers of a page is made from kernels and results, and drift is seen."""

import re

import pytest
from fakes import FakeGpu

from ladder.core.common.errors import LadderError
from ladder.core.contract.device_code import INCLUDE, code_identity
from ladder.core.contract.ladder import find, ladders
from ladder.core.contract.rung_file import KEYS
from ladder.core.contract.runs_on import FAMILIES
from ladder.core.measure import results
from ladder.core.show import pages, pictures, tables
from tests.size import page_size

DOC = pages.ROOT / "doc"
LAYERS = {ladder.op.layer for ladder in ladders().values()}
LESSONS = [DOC / "how_to_read_a_rung.md"] + [
    page
    for page in sorted(DOC.rglob("*.md"))
    if page.name != "measured.md" and page.relative_to(DOC).with_suffix("").parts[0] in LAYERS
    if "measured.md)" in page.read_text(encoding="utf-8")
]
OP = find("layernorm.forward").op
SHAPE = "N=65536 C=768"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A page that asks for everything, and results of two rungs and PyTorch."""
    (tmp_path / "doc").mkdir()
    monkeypatch.setattr(results, "FOLDER", tmp_path / "doc" / "results")
    ladder = find("layernorm.forward")
    rows = [
        {
            "rung": str(number),
            "idea": ladder.rung(number).idea,
            "library": False,
            "code": code_identity(ladder.rung(number)),
            "median_us": microseconds,
        }
        for number, microseconds in ((1, 800.0), (2, 200.0))
    ]
    rows.append({"peer": "PyTorch eager", "median_us": 100.0})
    measurement = {
        "op": OP.name,
        "dtype": "bfloat16",
        "shape": SHAPE,
        "dims": dict(OP.bench[SHAPE]),
        "bytes": 200_000_000,
        "flops": OP.flops(OP.bench[SHAPE]),
        "in_cache": False,
        "roof": {"copy_gbps": 4000.0, "matrix_tflops": None},
        "date": "2026-01-01",
        "rows": rows,
    }
    results.record(FakeGpu().description(), measurement)
    return tmp_path


def block(request: str, body: str = "") -> str:
    return f"<!-- ladder:begin {request} -->\n{body}<!-- ladder:end -->\n"


def write(site, *requests: str) -> str:
    """The page with these blocks, brought up to date."""
    page = site / "doc" / "layernorm.md"
    page.write_text("Words.\n\n" + "\n".join(block(request) for request in requests))
    (drift,) = pages.update(write=True, root=site)
    assert drift.startswith("doc/layernorm.md: ")
    assert pages.update(write=False, root=site) == []
    text = page.read_text()
    assert text.startswith("Words.\n\n<!-- ladder:begin ")
    return text


def test_a_page_that_was_right_waits_until_what_it_is_made_from_changes(site, monkeypatch):
    write(site, f"table {OP.name}")
    looked_at = []
    monkeypatch.setattr(pages, "render", lambda text, page, *how: looked_at.append(page) or text)
    assert pages.update(write=False, root=site) == looked_at == []
    (results_file,) = (site / "doc" / "results").glob("*.json")
    results_file.write_text(results_file.read_text() + "\n")
    assert pages.update(write=False, root=site) == []
    assert looked_at == [site / "doc" / "layernorm.md"]


def test_a_solution_is_shown_as_a_change_of_the_rung_that_it_grew_from(site, monkeypatch):
    kernel = site / "doc" / "solutions" / "layernorm" / "forward" / "slow.cu"
    kernel.parent.mkdir(parents=True)
    source = find("layernorm.forward").rung(2).source.replace("BLOCK = 256", "BLOCK = 64")
    kernel.write_text(source.replace("// After:  1", "// After:  2"))
    monkeypatch.setattr(pages, "ROOT", site)
    page = site / "doc" / "layernorm.md"
    request = "<!-- ladder:begin solution layernorm.forward slow -->"
    page.write_text(f"1. An exercise.\n\n   {request}\n   <!-- ladder:end -->\n")
    pages.update(write=True, root=site)
    text = page.read_text()
    assert "\n   -// Define: BLOCK = 256" in text  # as deep in the list as the comments
    assert "\n   +// Define: BLOCK = 64" in text
    assert "[slow.cu](solutions/layernorm/forward/slow.cu).\n   <!--" in text
    assert pages.update(write=False, root=site) == []
    kernel.write_text(source.replace("// After:  1\n", ""))
    with pytest.raises(LadderError, match=r"slow\.cu .*'// After: 3'"):
        pages.update(write=False, root=site)


@pytest.mark.parametrize("page", LESSONS, ids=lambda page: page.relative_to(DOC).as_posix())
def test_a_lesson_is_short(page):
    """What is complete stands in measured.md, to which it leads."""
    size = page_size(page.read_text(encoding="utf-8"))
    assert size.words <= 2500 and size.prose >= 0.7
    assert size.rows <= 20 and size.first_rung < 60


def test_a_passage_goes_from_one_line_to_another(site):
    text = write(site, 'passage residual.forward 2 first="// Define" last="// Launch"')
    assert text.count("\n// ") == 2
    assert "\n// Launch: residual_forward<<<" in text
    assert "constexpr int VECTOR" in write(
        site, 'passage portable.cuh first="constexpr int VECTOR"'
    )
    with pytest.raises(LadderError, match=r"portable\.cuh .*zzz"):
        write(site, "passage portable.cuh first=zzz")


def test_the_page_on_rungs_lists_keys_generations_headers_and_functions():
    page = pages.ROOT / "doc" / "rung_files.md"
    text = page.read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `([A-Z]\w+)` \|", text, re.MULTILINE)) == sorted(KEYS)
    for generation in (one for _, generations in FAMILIES for one in generations):
        assert f" {generation.name} | `{generation.arch}` | {generation.cards} |" in text
    for header in INCLUDE.rglob("*.cuh"):
        assert f"[{header.relative_to(INCLUDE).as_posix()}](" in text
    functions = re.findall(r"^\| \[`(\w+)`\]\((\S+)\) \|", text, re.MULTILINE)
    assert len(functions) > 40
    for function, header in functions:
        name = re.compile(rf"\b{function.removesuffix('_registers')}")
        assert name.search((page.parent / header).read_text(encoding="utf-8")), function


def test_the_table_holds_times_gains_and_shares(site):
    text = write(site, "table layernorm.forward")
    assert "one thread per row | 800.0 |  | 250 | 6% | 12% |" in text
    assert "shared-memory tree reduction | 200.0 | 4.00 | 1,000 | 25% | 50% |" in text
    assert "| PyTorch eager | 100.0 |  | 2,000 | 50% | 100% |" in text
    assert f"{SHAPE}, bfloat16: at least 200.0 MB; roof: 4,000 GB/s" in text


def test_the_caption_names_the_rungs_that_were_not_measured(site):
    def caption(op, dtype, arch, numbers):
        ladder = find(op)
        rows = [{"rung": str(n), "idea": ladder.rung(n).idea, "median_us": 1.0} for n in numbers]
        shape, dims = next(iter(ladder.op.bench.items()))
        (content,) = results.load_all().values()
        measurement = {**content["measurements"][0], "op": op, "dtype": dtype, "shape": shape}
        measurement |= {"dims": dict(dims), "rows": rows}
        return tables.caption({**content["device"], "arch": arch}, measurement)

    shown = caption("layernorm.forward", "bfloat16", "sm_90a", (2, 6, "7b", 9, 10, 11))
    assert shown.endswith(": rungs 1, 3 to 5, 7 and 8.")
    shown = caption("layernorm.forward", "bfloat16", "sm_90a", ("7b", *range(12)))
    assert shown.endswith("-01.")
    # Libraries are no rungs of the ladder; and what cannot run there is not missing.
    shown = caption("attention.forward", "bfloat16", "sm_80", (*range(1, 7), "16bit-7"))
    assert shown.endswith(": rungs 16bit-8 and 16bit-9.")


def test_a_file_that_was_edited_after_the_measurement_is_marked(site, monkeypatch):
    monkeypatch.setattr(tables, "code_identity", lambda rung: "something else")
    assert "(file changed since)" in write(site, "table layernorm.forward")


@pytest.mark.parametrize("kind", ["roofline", "ladder"])
def test_a_picture_is_drawn_and_names_its_numbers(site, kind):
    text = write(site, f"picture {kind} layernorm.forward")
    picture = site / "doc" / "img" / f"{kind}-layernorm-forward.svg"
    assert f"](img/{picture.name})\n<!-- made from {pictures.drawn_from(picture)} -->" in text
    assert "one block per row" in picture.read_text()
    first = picture.read_bytes()
    picture.unlink()
    (drift,) = pages.update(write=False, root=site)
    assert drift.startswith(f"doc/layernorm.md: img/{picture.name} ")
    pages.update(write=True, root=site)
    assert picture.read_bytes() == first


def test_a_long_diff_is_cut_and_says_how_to_see_the_rest(site):
    slot = pages.Slot(site / "doc" / "layernorm.md", old="", draw=False)
    _, shown, rest = pages.diff(slot, OP.name, "2").split("```")
    assert len(shown.splitlines()) == 1 + pages.MOST_LINES  # and the name of the language
    assert rest.endswith(" `python -m ladder diff layernorm.forward 2`")
    assert re.search("```diff\n.*float sum", pages.diff(slot, OP.name, "2", first="float sum"))


def test_a_bar_is_as_long_as_the_speed(site):
    write(site, "picture ladder layernorm.forward")
    svg = (site / "doc" / "img" / "ladder-layernorm-forward.svg").read_text()
    widths = [float(width) for width in re.findall(r'width="([\d.]+)" height="10"', svg)]
    rates = [row.rate for row in tables.measured_rows(tables.find_measurement(OP.name)[1])]
    assert widths == pytest.approx([rate * widths[-1] / rates[-1] for rate in rates], rel=1e-3)


def test_new_numbers_are_seen_as_drift(site):
    write(site, "table layernorm.forward", "picture ladder layernorm.forward")
    (content,) = results.load_all().values()
    measurement = content["measurements"][0]
    measurement["rows"][1]["median_us"] = 150.0
    results.record(content["device"], measurement)
    text, picture = pages.update(write=False, root=site)
    assert text.startswith("doc/layernorm.md: ") and "img/" not in text
    assert picture.startswith("doc/layernorm.md: img/ladder-layernorm-forward.svg ")


@pytest.mark.emulator
def test_counts_and_access_can_be_of_some_lines_only(site):
    some = 'layernorm.forward 1 shape="N=4 C=32" lines="mean[row] =|rstd[row] ="'
    text = write(site, f"counts {some} dtype=float32", f"picture access {some}")
    assert "write `mean`" in text
    assert "write `rstd`" in text
    assert "`inp`" not in text
    name = "access-layernorm-forward-1-shape-n-4-c-32-lines-mean-row-rstd-row.svg"
    picture = (site / "doc" / "img" / name).read_text()
    assert "write mean" in picture
    assert "read inp" not in picture
    with pytest.raises(LadderError, match=r"rung 2 .*zzz"):
        write(site, "counts start.add 2 dtype=float32 shape= lines=zzz")


@pytest.mark.emulator
def test_counts_and_access_pictures_are_made_once(site, monkeypatch):
    counts = "counts start.add 2 dtype=float32 shape=N=1024 lines="
    text = write(site, counts, 'picture access start.add 2 shape="N=1024"')
    assert "| read `a` |" in text
    assert (site / "doc" / "img" / "access-start-add-2-shape-n-1024.svg").exists()

    def fail(*arguments):
        raise AssertionError("nothing has changed: the emulator is not needed")

    monkeypatch.setattr("ladder.core.show.trace.trace", fail)
    assert pages.update(write=True, root=site) == []


@pytest.mark.parametrize(
    ("request_", "names"),
    [
        ("tables layernorm.forward", "rungs, .*table"),
        ("table layernorm.sideways", r"'layernorm\.sideways'"),
        ("source layernorm.forward", "argument: 'number'"),
        ("source layernorm.forward 99", "'99'"),
        ("table layernorm.forward shape=N=7", "N=65536 C=768, .* N=7$"),
    ],
)
def test_a_request_that_is_not_understood_is_refused_with_its_place(site, request_, names):
    (site / "doc" / "layernorm.md").write_text(block(request_))
    with pytest.raises(LadderError, match=rf"layernorm\.md:1: ladder:begin {request_}: .*{names}"):
        pages.update(write=False, root=site)


@pytest.mark.emulator
def test_how_often_a_load_is_used_is_counted(site):
    text = write(site, 'reuse matmul.forward 1 2 dtype=float32 shape="N=32 C=32 OC=32"')
    # rung 1: of a warp, 2 loads for a multiply-add, 1 + 32 sectors for 64 FLOPs; and the bias
    loads, sectors = 2 * 32 + 1, 33 * 32 + 4
    assert f"| 1: one thread per output | {loads / 32:.1f} | {64 / sectors:.2f} |  |" in text
    assert re.search(r"\| 2: shared-memory tiling \| [\d.]+ \| [\d.]+ \| 0\.2\d \|", text)
    assert pages.update(write=False, root=site) == []


@pytest.mark.emulator
def test_the_sectors_of_each_array_are_counted(site):
    text = write(site, 'traffic start.add 2 3 dtype=float32 shape="N=1024"')
    total = 3 * 1024 * 4 // 32  # of two inputs and an output, all of whose accesses are coalesced
    rows = re.findall(r"^\| [23]: .*", text, re.MULTILINE)
    assert len(rows) == 2
    for row in rows:
        assert re.findall(r"[\d,]+ \(33%\)|\b384\b", row) == [f"{total}"] + ["128 (33%)"] * 3


def test_the_last_rung_of_a_card_is_one_that_its_shared_memory_allows(site):
    rows = re.findall(r"^\| `(.+?)` \|(.*)", write(site, "cards"), re.MULTILINE)
    ids = {op: re.findall(r"\[(\S+)\]", cells) for op, cells in rows}
    assert ids["crossentropy.fused"] == ["6", "4", "4", "6", "6", "4"]  # 163 KB, 99 KB, 227 KB
    assert "layernorm.forward" not in ids  # the same on all of them


def test_the_overview_has_the_best_rung_of_what_was_measured(site):
    text = write(site, "overview")
    assert "| layernorm.forward | N=65536 C=768, bfloat16 |" in text
    assert "shared-memory tree reduction | 200.0 | 25% | 50% of PyTorch eager |" in text
    assert "layernorm.backward" not in text
