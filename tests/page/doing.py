"""What a user does on the page."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

AXE_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]


def say(page: Any, text: str, waits: bool = True) -> None:
    """Sends a message; waits until its answer has its figures."""
    before = page.locator(".speed").count()
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")
    if waits:
        page.wait_for_function("n => document.querySelectorAll('.speed').length > n", arg=before)


def messages(page: Any) -> list[str]:
    return [text.strip() for text in page.locator(".message .said, .message .markdown").all_inner_texts()]


def open_side(page: Any) -> None:
    if page.locator(".menu").is_visible():
        page.click(".menu")
        page.locator(".side").wait_for(state="visible")


def press(page: Any, label: str) -> None:
    page.get_by_role("button", name=label, exact=True).last.click()


def until(is_so: Callable[[], bool], seconds: float = 5) -> None:
    """Waits for what happens in the server, on its own thread."""
    end_s = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end_s, f"not so within {seconds} s"
        time.sleep(0.01)
