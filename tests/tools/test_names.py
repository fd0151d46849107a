"""The names of a workspace's files: ignored ones left out, walked once for many keys, and never too many."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kedge.tools.search import file_index as module
from kedge.tools.search.file_index import FRESH_S, FileIndex


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
