"""What stands between the markers of a page is made from kernels and results, and drift is seen."""

import pytest
from fakes import FakeGpu

from ladder import pages, plots, results
from ladder.contract import find
from ladder.errors import LadderError

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
            "rung": number,
            "idea": ladder.rung(number).idea,
            "library": False,
            "code": results.code_digest(ladder.rung(number)),
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
    assert pages.update(write=True, root=site) == [
        "doc/layernorm.md: the generated parts have changed"
    ]
    assert pages.update(write=False, root=site) == []
    return page.read_text()


def test_words_around_the_blocks_stay(site):
    assert write(site, "rungs layernorm.forward").startswith("Words.\n\n<!-- ladder:begin rungs")


def test_the_ladder_is_listed_with_links_to_its_files(site):
    text = write(site, "rungs layernorm.forward")
    for rung in find("layernorm.forward").rungs[1:]:
        assert f"{rung.path.name}) | {rung.idea}" in text


def test_a_header_a_diff_and_a_source_come_from_the_files(site):
    text = write(
        site,
        "header layernorm.forward 3",
        "diff layernorm.forward 2 3 context=0",
        "source layernorm.forward 1",
    )
    rung = find("layernorm.forward").rung(3)
    assert "- **Change:** " + rung.header["change"][0][:30] in text
    assert "```diff\n--- 2_" in text
    assert find("layernorm.forward").rung(1).source in text


def test_the_table_holds_times_gains_and_shares(site):
    text = write(site, "table layernorm.forward")
    assert "one thread per row | 800.0 |  | 250 | 6% | 12% |" in text
    assert "one block per row | 200.0 | 4.00 | 1,000 | 25% | 50% |" in text
    assert "| PyTorch eager | 100.0 |  | 2,000 | 50% | 100% |" in text
    assert f"{SHAPE}, bfloat16: at least 200.0 MB; roof: 4,000 GB/s" in text


def test_a_file_that_was_edited_after_the_measurement_is_marked(site, monkeypatch):
    monkeypatch.setattr(results, "code_digest", lambda rung: "something else")
    assert "(file changed since)" in write(site, "table layernorm.forward")


def test_the_overview_has_the_best_rung_of_what_was_measured(site):
    text = write(site, "overview")
    assert "| layernorm.forward | N=65536 C=768, bfloat16 |" in text
    assert "one block per row | 200.0 | 25% | 50% of PyTorch eager |" in text
    assert "layernorm.backward" not in text


@pytest.mark.parametrize("kind", ["roofline", "bars"])
def test_a_picture_is_drawn_and_names_its_numbers(site, kind):
    text = write(site, f"{kind} layernorm.forward")
    picture = site / "doc" / "img" / f"layernorm-forward-{kind}-fake-9000.svg"
    assert f"](img/{picture.name})\n<!-- made from {plots.drawn_from(picture)} -->" in text
    assert "one block per row" in picture.read_text()
    first = picture.read_bytes()
    picture.unlink()
    assert pages.update(write=False, root=site) == [
        f"doc/layernorm.md: img/{picture.name} is missing or out of date"
    ]
    pages.update(write=True, root=site)
    assert picture.read_bytes() == first


def test_new_numbers_are_seen_as_drift(site):
    write(site, "table layernorm.forward", "bars layernorm.forward")
    (content,) = results.load_all().values()
    measurement = content["measurements"][0]
    measurement["rows"][1]["median_us"] = 150.0
    results.record(content["device"], measurement)
    assert pages.update(write=False, root=site) == [
        "doc/layernorm.md: the generated parts have changed",
        "doc/layernorm.md: img/layernorm-forward-bars-fake-9000.svg is missing or out of date",
    ]


def test_counts_and_access_pictures_are_made_once(site, monkeypatch):
    text = write(site, "counts start.add 2", "access start.add 2")
    assert "| read `a` |" in text
    assert "per request of a warp, counted by the emulator" in text
    assert (site / "doc" / "img" / "start-add-2-access.svg").exists()

    def fail(*arguments):
        raise AssertionError("nothing has changed: the emulator is not needed")

    monkeypatch.setattr("ladder.trace.trace", fail)
    assert pages.update(write=True, root=site) == []


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ("tables layernorm.forward", r"layernorm\.md:1: ladder:begin tables .*: there are rungs,"),
        ("table layernorm.sideways", "no op is named"),
        ("source layernorm.forward", "missing 1 required positional argument"),
        ("source layernorm.forward 99", "has no rung 99"),
        ("table layernorm.backward", "has not been measured at .*: python -m ladder bench layer"),
        ("table layernorm.forward dtype=float16", "has not been measured at .* float16"),
    ],
)
def test_a_request_that_is_not_understood_is_refused_with_its_place(site, request_, message):
    (site / "doc" / "layernorm.md").write_text(block(request_))
    with pytest.raises(LadderError, match=message):
        pages.update(write=False, root=site)
