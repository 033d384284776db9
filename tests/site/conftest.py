"""The site that `make site` built; without it, its tests are skipped, or fail with CI set."""

import functools
import http.server
import os
import shutil
import threading
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def lacking(what: str) -> NoReturn:
    """Skips the test for what this machine does not have; with CI set, the test fails."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(what)


@pytest.fixture(scope="session")
def site() -> Path:
    if not (SITE / "index.html").exists():
        lacking("the site is not built: make sitetest")
    return SITE


@pytest.fixture(scope="session")
def address(site):
    """A web server for the site, on this machine only."""
    handler = functools.partial(Quiet, directory=site)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="session")
def chromium(site):
    """A browser without a window."""
    try:
        from playwright import sync_api
    except ImportError:
        lacking("no Playwright: make sitetest")
    program = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if not program:
        lacking("no Chromium on this machine: apt install chromium")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_api.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium):
    """Opens a tab: tab(width=390, color_scheme="dark"). What goes wrong in it fails the test."""
    problems: list[str] = []

    def open_tab(width: int = 1300, height: int = 1000, **options):
        context = chromium.new_context(viewport={"width": width, "height": height}, **options)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(f"{page.url}: {error}"))
        page.on("response", lambda got: got.status < 400 or problems.append(got.url))
        page.on(
            "console",
            lambda said: (
                said.type in ("error", "warning") and problems.append(f"{page.url}: {said.text}")
            ),
        )
        return page

    yield open_tab
    for context in chromium.contexts:
        context.close()
    assert problems == []
