"""Checks of the whole project that no linter makes: versions, lengths of modules, links, lists."""

import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from kedge.version import VERSION

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MAX_LINES = 500  # one subject in one module; longer ones have become two

# Homes of people and machines: a path that works only where it was written.
MACHINE_PATH = re.compile(r"/(?:root|home|Users|work)/\w")


def test_installed_version_is_the_constant() -> None:
    assert version("kedge") == VERSION


def test_changelog_speaks_of_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"## [{VERSION}]" in changelog


def test_modules_stay_short() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in (ROOT / "src").rglob("*.py")}
    too_long = {str(path.relative_to(ROOT)): lines for path, lines in lengths.items() if lines >= MAX_LINES}
    assert not too_long


def test_no_machine_paths() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in project_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert not found


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_decisions_are_numbered_from_one_without_a_gap() -> None:
    decisions = sorted((ROOT / "docs/adr").glob("*.md"))
    numbers = [int(path.name[:4]) for path in decisions]
    assert numbers == list(range(1, len(decisions) + 1))
    assert [int(path.read_text().partition(".")[0].removeprefix("# ")) for path in decisions] == numbers


def test_every_long_exploration_is_listed_in_contributing() -> None:
    marked = {path for path in project_files() if path.suffix == ".py" and "\n@pytest.mark.long\n" in path.read_text()}
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| exploration |")[2]
    listed = re.findall(r"^\| `(tests/\S+\.py)` \|", table, re.MULTILINE)
    assert sorted(listed) == sorted(str(path.relative_to(ROOT)) for path in marked)


def project_files() -> Iterator[Path]:
    yield from (path for path in ROOT.iterdir() if path.suffix in {".md", ".py", ".toml"})
    for folder in (".ci", ".github", "src", "tests", "docs", "bench"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path
