"""The built site in a real browser: pages, search, folds, pictures, mathematics, dark mode."""

import io
from itertools import product

import matplotlib.image
import numpy as np
import pytest

from ladder.core.emulator.report import Access
from ladder.core.show.pictures import banks, fragments
from ladder.core.show.pictures.drawing import COLOURS
from ladder.core.show.pictures.recording import WARPGROUP, Event
from ladder.core.show.pictures.timeline import Durations, Replay

pytestmark = pytest.mark.site


@pytest.mark.parametrize("width", [390, 1300], ids=["phone", "desktop"])
def test_pages_load_without_errors_and_fit_the_screen(site, address, tab, width):
    page = tab(width)
    wide, broken = [], []
    for path in sorted(site.rglob("*.html")):
        name = path.relative_to(site).as_posix()
        page.goto(f"{address}/{name}", wait_until="load")
        if page.evaluate(
            """[document.documentElement, document.querySelector(".content")].some(
                 box => box.scrollWidth > box.clientWidth)"""
        ):
            wide.append(name)
        broken += page.evaluate(
            """async () => {
                 const images = [...document.querySelectorAll("article img")];
                 for (const image of images) image.loading = "eager";
                 await Promise.all(images.map(image => image.decode().catch(() => {})));
                 return images.filter(image => !image.naturalWidth).map(image => image.src);
               }"""
        )
    assert wide == [] and broken == []


def test_search_finds_swizzle(address, tab):
    page = tab()
    page.goto(f"{address}/index.html")
    page.fill("input[name=q]", "swizzle")
    page.press("input[name=q]", "Enter")
    hit = page.locator("ul.search li a", has_text="how is a tensor core fed?").first
    hit.wait_for()
    hit.click()
    page.wait_for_url("**/04_matmul_tensor_cores.html*")


def ground(picture) -> str:
    """The colour of most of a picture, as the browser shows it."""
    pixels = matplotlib.image.imread(io.BytesIO(picture.screenshot()))[..., :3].reshape(-1, 3)
    colours, counts = np.unique((255 * pixels).round().astype(int), axis=0, return_counts=True)
    red, green, blue = colours[counts.argmax()]
    return f"#{red:02x}{green:02x}{blue:02x}"


def test_pictures_follow_the_switch_between_light_and_dark(address, tab):
    page = tab(color_scheme="light")
    light, dark = COLOURS["paper"]
    for path in ("doc/layernorm.html", "notebooks/00_start.html"):
        page.goto(f"{address}/{path}")
        picture = page.locator('article img[src*="svg"]').first  # of a file, or in the page
        for theme, colour in (("light", light), ("dark", dark)):
            for _ in range(3):  # the switch goes round: automatic, light, dark
                if page.locator("body").get_attribute("data-theme") == theme:
                    break
                page.locator(".content-icon-container .theme-toggle").click()
            assert ground(picture) == colour, (path, theme)


def test_the_fragment_explorer_knows_what_mma_sync_does(address, tab):
    page = tab()
    page.goto(f"{address}/doc/explore/fragments.html")
    owned = page.evaluate("Array.from({ length: 32 }, (_, lane) => fragmentsOf(lane))")
    expected = fragments.mma_fragments()
    for lane, has in enumerate(owned):
        assert [16 * row + k for row, k, _ in has["a"]] == expected.a[lane].tolist()
        assert [16 * column + k for k, column, _ in has["b"]] == expected.b[lane].tolist()
        assert [8 * row + column for row, column, _ in has["d"]] == expected.d[lane].tolist()
    page.locator("#fragments table").nth(2).locator("tr").nth(3).locator("td").nth(6).hover()
    assert "Lane 15 " in page.locator("#fragments .said").inner_text()
    assert page.locator("#fragments td.mine").count() == 8 + 4 + 4


def test_the_bank_explorer_counts_wavefronts_as_the_pictures_do(address, tab):
    page = tab()
    page.goto(f"{address}/doc/explore/banks.html")
    choices = {
        "bytes": (4, 8, 16), "width": (8, 16, 32, 64), "padding": (0, 1, 2, 4), "column": (0, 5),
        "swizzle": (False, True), "pattern": ("row", "column"),
    }  # fmt: skip
    cases = [dict(zip(choices, case, strict=True)) for case in product(*choices.values())]
    counted = page.evaluate(
        "cases => cases.map(c => [offsetsOf(c), wavefronts(c.bytes, offsetsOf(c))])", cases
    )
    for case, (offsets, served) in zip(cases, counted, strict=True):
        access = Access(
            "", 1, "", "", "shared", "read", case["bytes"], (0, 0, 0), 0,
            tuple(range(32)), tuple(offsets),
        )  # fmt: skip
        expected = banks.wavefronts(access)
        assert served["ideal"] == expected.ideal, case
        assert [[*map(tuple, one)] for one in served["passes"]] == [*map(list, expected.passes)]
    said = page.locator("#banks .said")
    assert said.inner_text().startswith("32 wavefronts")
    page.locator("#banks input[name=padding]").press("ArrowRight")
    assert said.inner_text().startswith("1 wavefront;")


def ring(stages: int, consumers: int, tiles: int) -> list[Event]:
    """What a producer and its consumers do, as the emulator would record it."""
    events = [Event(0, 0, "init", "full", f"full {i}", 1) for i in range(stages)]
    events += [Event(0, 0, "init", "empty", f"empty {i}", consumers) for i in range(stages)]
    for k in range(tiles):
        i, turn = k % stages, k // stages
        events.append(Event(0, 0, "wait", "", f"empty {i}", (turn + 1) % 2))
        events.append(Event(0, 0, "expect", "", f"full {i}", 1024))
        events.append(Event(0, 0, "load", "", f"full {i}"))
        for thread in range(WARPGROUP, WARPGROUP * (consumers + 1), WARPGROUP):
            events.append(Event(0, thread, "wait", "", f"full {i}", turn % 2))
            events += [Event(0, thread, "product"), Event(0, thread, "product-wait")]
            events.append(Event(0, thread, "arrive", "", f"empty {i}", -1))
    return events


def test_the_pipeline_explorer_replays_a_ring_as_the_pictures_do(address, tab):
    page = tab()
    page.goto(f"{address}/doc/explore/pipeline.html")
    for stages, copy, lasts, consumers in product((1, 2, 3, 5), (1, 6, 13), (1, 2, 5), (1, 2)):
        values = {"stages": stages, "copy": copy, "product": lasts, "consumers": consumers}
        spans = {tuple(span.values()) for span in page.evaluate("spansOf", values)}
        replay = Replay(ring(stages, consumers, tiles=12), 1, Durations(copy, lasts, 0))
        expected = set()
        for (name, number), kind, start, end in replay.spans:
            row = name if name == "producer" else f"{name} {number - (name == 'consumer')}"
            expected.add((row, kind, start, end))
        assert spans == expected, values
    before = page.locator("#pipeline .said").inner_text()
    page.locator("#pipeline input[name=stages]").press("ArrowRight")
    assert page.locator("#pipeline .said").inner_text() != before
