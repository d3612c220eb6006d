"""A real browser where there is one: Debian's Chromium, driven by Playwright. Elsewhere these tests are skipped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from tests.page.site import Site, served

from headrace.server import page as page_files

SIZES = {"desktop": (1280, 800), "phone": (390, 844)}
NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium_path() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="Playwright drives the browser; it is not installed")
    path = chromium_path()
    if path is None:
        pytest.skip("no Chromium here (apt-get install chromium)")
    with api.sync_playwright() as driver:
        # Chromium's sandbox needs user namespaces, which containers forbid; it meets only this test's own server.
        opened = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    if not page_files.FILES:
        pytest.skip("the page was not built (make page)")
    with served() as site:
        yield site


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    """Opens pages of their own, with empty storage; a complaint of the browser's fails the test."""
    contexts, complaints = [], []

    def note(message: Any) -> None:
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            complaints.append(message.text)

    def opened(url: str, size: str = "desktop", scheme: str = "light", script: str = "", **more: Any) -> Any:
        width, height = SIZES[size]
        is_phone = size == "phone"
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            has_touch=is_phone,
            is_mobile=is_phone,
            **more,
        )
        contexts.append(context)
        context.set_default_timeout(8_000)
        context.add_init_script(script)
        page = context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def desktop(open_page: Any, site: Site) -> Any:
    page = open_page(site.url)
    page.wait_for_selector("#prompt")
    return page


@pytest.fixture(params=SIZES)
def page(request: pytest.FixtureRequest, open_page: Any, site: Site) -> Any:
    """The chat, at desktop and at phone width."""
    page = open_page(site.url, request.param)
    page.wait_for_selector("#prompt")
    return page
