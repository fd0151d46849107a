"""The helper that compares screens with pictures."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.widgets import Static

from tests.tui import snapshots


class Screen(App[None]):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        yield Static(self.text)


async def _check(text: str, kept: Path) -> None:
    app = Screen(text)
    async with app.run_test(size=(20, 3)):
        snapshots.check(app, "small", kept=kept)


async def test_the_same_screen_passes_and_another_names_both_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(snapshots.UPDATE, "1")
    await _check("one", tmp_path)
    monkeypatch.delenv(snapshots.UPDATE)
    await _check("one", tmp_path)
    assert not (tmp_path / "small.actual.svg").exists()
    with pytest.raises(AssertionError, match=r"small\.actual\.svg with .*small\.svg"):
        await _check("two", tmp_path)


async def test_a_screen_without_a_picture_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(snapshots.UPDATE, raising=False)
    with pytest.raises(AssertionError, match="no picture yet"):
        await _check("one", tmp_path)
