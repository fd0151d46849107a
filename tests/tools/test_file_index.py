"""The index of file names: no ignored files, one listing for many keystrokes, the best match first."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.tools.search import file_index as module
from kedge.tools.search.file_index import FRESH_S, FileIndex, rank_names


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make(root: Path, *files: str) -> None:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("x")


async def test_files_and_their_directories_are_found_and_ignored_ones_are_not(tmp_path: Path) -> None:
    make(tmp_path, ".gitignore", "src/deep/main.py", "build/main.o", ".git/config", "with space/ü.txt")
    (tmp_path / ".gitignore").write_text("build/\n")
    found = await FileIndex().find(tmp_path, "", 100)
    wanted = {".gitignore", "src/", "src/deep/", "src/deep/main.py", "with space/", "with space/ü.txt"}
    assert (set(found.names), found.is_cut) == (wanted, False)
    assert (await FileIndex().find(tmp_path, "main", 1)).names == ["src/deep/main.py"]


async def test_a_walk_serves_for_a_while_and_then_new_files_are_found(tmp_path: Path) -> None:
    clock = Clock()
    names = FileIndex(clock)
    make(tmp_path, "one")
    assert (await names.find(tmp_path, "", 9)).names == ["one"]
    make(tmp_path, "two")
    assert (await names.find(tmp_path, "", 9)).names == ["one"]
    clock.now = FRESH_S + 1
    assert (await names.find(tmp_path, "", 9)).names == ["one", "two"]


async def test_those_who_ask_at_once_share_one_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "one")
    walks = 0
    files = module._list_files

    async def counted(directory: Path) -> tuple[list[bytes], bool]:
        nonlocal walks
        walks += 1
        return await files(directory)

    monkeypatch.setattr(module, "_list_files", counted)
    names = FileIndex()
    found = await asyncio.gather(*(names.find(tmp_path, "o", 9) for _ in range(5)))
    assert [each.names for each in found] == [["one"]] * 5
    assert walks == 1


async def test_too_many_files_are_cut_and_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILES", 3)
    make(tmp_path, *(f"f{n}" for n in range(10)))
    found = await FileIndex().find(tmp_path, "f", 100)
    assert (len(found.names), found.is_cut) == (3, True)


async def test_a_directory_that_is_gone_has_no_files(tmp_path: Path) -> None:
    assert await FileIndex().find(tmp_path / "gone", "", 9) == ([], False)


async def test_names_that_nobody_can_type_are_left_out(tmp_path: Path) -> None:
    make(tmp_path, "fine", "two\nlines", "esc\x1b[31m")
    assert (await FileIndex().find(tmp_path, "", 9)).names == ["fine"]


NAMES = [
    "README.md",
    "docs/reading.md",
    "src/",
    "src/app/",
    "src/app/main.py",
    "src/app/main_test.py",
    "src/domain/remainder.py",
    "src/app/file_name_parser.py",
    "src/appfile.py",
    "tests/main/",
    "tests/main/test_app.py",
]


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("main", ["tests/main/", "src/app/main.py", "src/app/main_test.py"]),
        ("main.py", ["src/app/main.py"]),
        ("MAIN.PY", ["src/app/main.py"]),
        ("read", ["README.md", "docs/reading.md"]),
        ("fnp", ["src/app/file_name_parser.py"]),
        ("src/app/", ["src/app/", "src/app/main.py"]),
        ("src/", ["src/", "src/app/"]),
        ("apmain", ["src/app/main.py"]),
        ("name", ["src/app/file_name_parser.py"]),
    ],
)
def test_the_likeliest_comes_first(typed: str, first: list[str]) -> None:
    assert rank_names(NAMES, typed, 10)[: len(first)] == first


def test_nothing_typed_lists_what_is_near_the_top() -> None:
    assert rank_names(NAMES, "", 2) == ["README.md", "src/"]


def test_what_is_not_in_a_name_in_its_order_does_not_fit() -> None:
    assert rank_names(NAMES, "niam", 10) == []
    assert rank_names(NAMES, "(.*", 10) == []


@given(st.lists(st.text("abAB/_.", min_size=1, max_size=12), unique=True), st.text("abAB/_.", max_size=4))
def test_exactly_the_names_with_these_characters_in_order_are_found(names: list[str], typed: str) -> None:
    def fits(name: str) -> bool:
        rest = iter(name.casefold())
        return all(char in rest for char in typed.casefold())

    assert set(rank_names(names, typed, 1_000)) == {name for name in names if fits(name)}


@pytest.mark.timeout(10)
def test_names_that_are_made_to_be_slow_cost_little() -> None:
    names = ["a" * 200 + "/" + "a" * 200] * 1_000
    assert rank_names(names, "a" * 20 + "b", 10) == []
    assert rank_names(names, "a" * 300_000, 10) == []
