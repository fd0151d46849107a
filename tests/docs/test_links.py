"""A link between pages leads to the page, and to the heading that it names. (`test_layout` looks at the pages.)"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import all_pages

PAGES = all_pages()


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_a_link_to_a_heading_finds_it(page: Path) -> None:
    links: list[tuple[str, str]] = re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", page.read_text())
    missing = [f"{target}#{anchor}" for target, anchor in links if anchor not in anchors(page, target)]
    assert missing == []


def test_the_index_names_every_page_for_readers() -> None:
    index = next(page for page in PAGES if page.name == "README.md" and page.parent.name == "docs")
    pages = {page.name for page in index.parent.glob("*.md")} - {index.name}
    assert {page for page in pages if f"({page})" not in index.read_text()} == set()


def anchors(page: Path, target: str) -> set[str]:
    """As GitHub makes them: lower case, words joined by hyphens, nothing else kept."""
    text = (page.parent / target).read_text() if target else page.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
