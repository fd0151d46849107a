"""What is in the wheel and the sdist: everything that Kedge needs, nothing that is only ours."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import BytesParser
from pathlib import PurePosixPath

import pytest
from markdown_it import MarkdownIt

from hatch_build import PLACES
from kedge.version import VERSION
from tests.packaging.shop import ROOT, Shop
from tests.test_layout import MACHINE_PATH

pytestmark = pytest.mark.timeout(300)  # the first test builds, and fetches what a build needs

INFO = f"kedge-{VERSION}.dist-info"
DATA = f"kedge-{VERSION}.data/data"


@pytest.fixture(scope="module")
def files(shop: Shop) -> dict[str, bytes]:
    return files_of_wheel(shop.wheel)


@pytest.fixture(scope="module")
def about(files: dict[str, bytes]) -> Message:
    return BytesParser().parsebytes(files[f"{INFO}/METADATA"])


def files_of_wheel(wheel: object) -> dict[str, bytes]:
    with zipfile.ZipFile(str(wheel)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def files_of_the_tree() -> set[str]:
    """As git knows them, so that what lies around does not count; in an sdist, where no git is, everything."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    if listed:
        return {name for name in listed.split("\0") if name and (ROOT / name).exists()}
    found = [path for folder in ("src", "tests", "docs", "bench") for path in (ROOT / folder).rglob("*")]
    return {path.relative_to(ROOT).as_posix() for path in found if path.is_file() and "__pycache__" not in path.parts}


def test_every_file_of_the_package_is_in_the_wheel_and_nothing_else_is(files: dict[str, bytes]) -> None:
    source = {name.removeprefix("src/") for name in files_of_the_tree() if name.startswith("src/kedge/")}
    kinds = {PurePosixPath(name).suffix for name in source}
    assert {".py", ".md", ".sql", ".tcss", ".json", ".typed"} <= kinds
    inside = {name for name in files if not name.startswith((f"{INFO}/", f"{DATA}/"))}
    assert source - inside == set()
    assert [name for name in inside if not name.startswith("kedge/") or "test" in PurePosixPath(name).parts] == []
    assert {name.removeprefix(f"{DATA}/") for name in files if name.startswith(DATA)} == set(PLACES.values())


@pytest.mark.parametrize("shell", list(PLACES))
def test_the_completion_inside_is_what_the_command_prints(files: dict[str, bytes], shell: str) -> None:
    command = [sys.executable, "-m", "kedge", "completion", shell]
    printed = subprocess.run(command, cwd=ROOT / "src", capture_output=True, check=True).stdout
    assert files[f"{DATA}/{PLACES[shell]}"] == printed


def test_the_wheel_names_no_machine_and_no_directory_of_its_making(files: dict[str, bytes], shop: Shop) -> None:
    made_in = {str(ROOT).encode(), str(shop.directory).encode()}
    for name, content in files.items():
        assert not any(path in content for path in made_in), name
        assert not MACHINE_PATH.search(content.decode()), name


def test_the_metadata_says_what_an_index_shows(about: Message) -> None:
    assert (about["Name"], about["Version"], about["License-Expression"]) == ("kedge", VERSION, "MIT")
    assert about["Summary"]
    assert about["Requires-Python"] == ">=3.11"
    assert about.get_all("License-File") == ["LICENSE"]
    assert {"local", "keyring"} <= set(about.get_all("Provides-Extra", []))
    assert about.get_all("Project-URL") is None  # there is none yet, and a made-up one leads nowhere
    classifiers = about.get_all("Classifier", [])
    assert {"Typing :: Typed", "Programming Language :: Python :: 3.11"} <= set(classifiers)


def test_classifiers_are_ones_that_an_index_accepts(about: Message) -> None:
    from trove_classifiers import classifiers

    assert set(about.get_all("Classifier", [])) <= classifiers


def test_the_readme_is_the_description_and_renders(about: Message) -> None:
    assert about["Description-Content-Type"] == "text/markdown"
    text = about.get_payload()
    assert isinstance(text, str)
    assert text.splitlines()[0] == "# Kedge"
    html = MarkdownIt("commonmark").enable("table").render(text)
    assert "<h1>Kedge</h1>" in html
    assert "<table>" in html
    assert not re.search(r"^```", html, re.MULTILINE)  # every block of code was closed


def test_the_sdist_builds_the_same_wheel(files: dict[str, bytes], shop: Shop) -> None:
    again = files_of_wheel(shop.wheel_of_sdist)
    assert files.keys() == again.keys()
    assert [name for name in files if files[name] != again[name]] == []


def test_the_sdist_has_what_the_checks_and_tests_need(shop: Shop) -> None:
    with tarfile.open(shop.sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert files_of_the_tree() - inside == set()
