"""An application with nothing but the editor in it, which remembers what it was told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from textual import on
from textual.app import App, ComposeResult
from textual.containers import Vertical
from textual.pilot import Pilot
from textual.widgets import Static

import kedge.tui
from kedge.tui.editor.completion import Popup
from kedge.tui.editor.draft import Draft
from kedge.tui.editor.editor import PromptEditor
from kedge.tui.editor.history import EditorStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

LIMIT_S = 30.0
COMMANDS = [("help", "keys and commands"), ("model", "choose a model"), ("mode", "choose a mode")]
STYLES = Path(kedge.tui.__file__).parent / "kedge.tcss"


async def no_files(_: str) -> list[str]:
    return []


class EditorApp(App[None]):
    CSS_PATH = STYLES
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self,
        files: Callable[[str], Awaitable[list[str]]] = no_files,
        *,
        store: EditorStore | None = None,
        directory: Path | None = None,
    ) -> None:
        super().__init__()
        self.editor = PromptEditor(files, COMMANDS, store=store, directory=directory)
        self.submitted: list[Draft] = []
        self.told: list[str] = []
        self.escapes = 0

    def compose(self) -> ComposeResult:
        with Vertical(id="main"):
            yield Static("", id="chat")
            yield self.editor

    def on_mount(self) -> None:
        self.query_one("#chat").styles.height = "1fr"
        self.editor.focus()

    @on(PromptEditor.Submitted)
    def _submitted(self, event: PromptEditor.Submitted) -> None:
        self.submitted.append(event.draft)

    @on(PromptEditor.Notice)
    def _told(self, event: PromptEditor.Notice) -> None:
        self.told.append(event.text)

    def key_escape(self) -> None:
        self.escapes += 1

    @property
    def popup(self) -> list[str]:
        """What the list shows, if it is open."""
        return [choice.shown for popup in self.query(Popup) if popup.is_open for choice in popup.choices]


class Typist:
    """Keys in, and a wait for what comes of them."""

    def __init__(self, app: EditorApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.editor = app.editor
        self.pilot = pilot

    async def type(self, text: str) -> None:
        await self.pilot.press(*("space" if char == " " else "enter" if char == "\n" else char for char in text))

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def choose(self, shown: str) -> None:
        """Move to it in the list."""
        popup = self.app.query_one(Popup)
        for _ in popup.choices:
            if popup.chosen is not None and popup.chosen.shown == shown:
                return
            await self.press("down")
        raise AssertionError(f"{shown} is not among {popup.choices}")

    async def paste(self, text: str) -> None:
        from textual.events import Paste

        self.editor.post_message(Paste(text))
        await self.pilot.pause()

    async def until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not is_true():
                await self.pilot.pause(0.01)

    @property
    def text(self) -> str:
        return self.editor.text


@asynccontextmanager
async def typing(app: EditorApp | None = None, size: tuple[int, int] = (80, 24)) -> AsyncGenerator[Typist]:
    app = app or EditorApp()
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield Typist(app, pilot)
