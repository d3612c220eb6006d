"""What the README and the docs point to exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page):
    targets = [target for target in LINK.findall(page.read_text()) if not target.startswith(("http:", "https:"))]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []


def test_every_picture_is_used():
    text = "".join(page.read_text() for page in PAGES)
    unused = [path.name for path in (ROOT / "docs/images").iterdir() if f"images/{path.name}" not in text]
    assert unused == []


def test_every_make_target_that_a_page_names_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = "".join(page.read_text() for page in PAGES)
    assert set(re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE)) <= targets
