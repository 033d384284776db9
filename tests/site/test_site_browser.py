"""The built site in a real browser: pages, search, folds, pictures, mathematics, dark mode."""

import io

import matplotlib.image
import pytest

from ladder.show.pictures.palette import COLOURS

pytestmark = pytest.mark.site


@pytest.mark.parametrize("width", [390, 1300], ids=["phone", "desktop"])
def test_pages_load_without_errors_and_fit_the_screen(site, address, tab, width):
    page = tab(width)
    wide, broken = [], []
    for path in sorted(site.rglob("*.html")):
        name = path.relative_to(site).as_posix()
        page.goto(f"{address}/{name}", wait_until="load")
        if page.evaluate("document.documentElement.scrollWidth") > width:
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
    found = page.locator("ul.search li a", has_text="how is a tensor core fed?").first
    found.wait_for()
    found.click()
    page.wait_for_url("**/04_matmul_tensor_cores.html*")


def test_folds_open(address, tab):
    page = tab()
    page.goto(f"{address}/doc/layernorm.html")
    fold = page.locator("article details", has=page.locator(".highlight-diff")).first
    inside = fold.locator(".highlight-diff")
    assert not inside.is_visible()
    fold.locator("summary").click()
    assert inside.is_visible()


def test_mathematics_is_typeset(address, tab):
    page = tab()
    page.goto(f"{address}/doc/layernorm.html")
    page.locator("mjx-container").first.wait_for()
    assert r"\frac" not in page.locator("article").inner_text()


def test_cuda_is_highlighted(address, tab):
    page = tab()
    page.goto(f"{address}/doc/how_to_read_a_rung.html")
    assert page.locator("article .highlight-cpp .kr", has_text="__global__").count() > 0


def ground(picture) -> str:
    """The colour of a picture near its upper left corner, as the browser shows it."""
    pixels = matplotlib.image.imread(io.BytesIO(picture.screenshot()))
    red, green, blue = (round(255 * float(channel)) for channel in pixels[10, 5][:3])
    return f"#{red:02x}{green:02x}{blue:02x}"


def test_pictures_follow_the_switch_between_light_and_dark(address, tab):
    page = tab(color_scheme="light")
    light, dark = COLOURS["paper"]
    for path in ("doc/layernorm.html", "notebooks/00_start.html"):
        page.goto(f"{address}/{path}")
        picture = page.locator('article img[src$=".svg"]').first
        for theme, colour in (("light", light), ("dark", dark)):
            for _ in range(3):  # the switch goes round: automatic, light, dark
                if page.locator("body").get_attribute("data-theme") == theme:
                    break
                page.locator(".content-icon-container .theme-toggle").click()
            assert ground(picture) == colour, (path, theme)


def test_pictures_follow_a_dark_system(address, tab):
    page = tab(color_scheme="dark")
    page.goto(f"{address}/doc/layernorm.html")
    assert ground(page.locator('article img[src$=".svg"]').first) == COLOURS["paper"][1]
