"""The interface under a person's ui, without a terminal: real server, scripted model, waits for what is seen."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from textual.app import App
from textual.pilot import Pilot

from kedge.tui.app import KedgeApp
from kedge.tui.settings import Launch

LIMIT_S = 30.0
LOOK_S = 0.02


def screen_text(app: App[Any]) -> str:
    """All that is on the screen, dialogs in front."""
    width, height = app.size
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None, legacy_windows=False)
    # As Textual's own pictures are made.
    drawn = app.screen._compositor.render_update(full=True, screen_stack=app._background_screens)
    console.print(drawn)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


class UiDriver:
    def __init__(self, app: KedgeApp, pilot: Pilot[int]) -> None:
        self.app = app
        self.pilot = pilot
        self.said: list[str] = []  # to the terminal, beside the picture

    @property
    def text(self) -> str:
        return screen_text(self.app)

    @property
    def told(self) -> list[str]:
        """Words in the corner."""
        return [notice.message for notice in self.app._notifications]

    async def until(self, is_so: Callable[[], object], what: str = "") -> None:
        try:
            async with asyncio.timeout(LIMIT_S):
                while not is_so():
                    await asyncio.sleep(LOOK_S)
                    await self.pilot.pause()
        except TimeoutError:
            raise AssertionError(f"never: {what}\n{self.text}\n{self.told}") from None

    async def shows(self, *texts: str) -> None:
        """Until all of them are on the screen at once."""
        await self.until(lambda: all(text in self.text for text in texts), f"{texts} on the screen")

    async def hides(self, *texts: str) -> None:
        await self.until(lambda: not any(text in self.text for text in texts), f"{texts} gone from the screen")

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def write(self, text: str) -> None:
        """Into the field that has the focus, as a paste."""
        from textual import events

        assert self.app.focused is not None
        self.app.focused.post_message(events.Paste(text))
        await self.pilot.pause()

    async def submit(self, text: str) -> None:
        assert self.app.screen is self.app.chat, "a dialog is in the way"
        await self.write(text)
        assert self.app.chat.editor.text, "it is in the editor"
        await self.press("enter")

    async def ready(self) -> None:
        """Connected, and a model was found."""
        await self.until(lambda: self.app.sync.is_read and self.app.chat.model, "connected, with a model")

    async def idle(self) -> None:
        """What was asked is done."""
        await self.until(lambda: self.app.chat.session and not self.app.chat.session.is_busy, "nothing runs")

    def dialog(self, name: str) -> bool:
        """Whether it is open; a permission request also has the keys."""
        shown = self.app.chat.requests.permission
        if name == "PermissionDialog":
            return shown is not None and shown.is_in_use
        return type(self.app.screen).__name__ == name

    async def opens(self, name: str) -> None:
        await self.until(lambda: self.dialog(name), f"{name} is open")

    async def closes(self) -> None:
        await self.until(
            lambda: self.app.screen is self.app.chat and self.app.chat.requests.permission is None, "no dialog is open"
        )


@contextlib.asynccontextmanager
async def kedge(
    directory: Path, size: tuple[int, int] = (100, 30), *, is_ready: bool = True, **launch: Any
) -> AsyncGenerator[UiDriver]:
    app = KedgeApp(Launch(directory=str(directory), **launch))
    async with app.run_test(size=size, notifications=True) as pilot:
        ui = UiDriver(app, pilot)
        app.write_terminal = ui.said.append  # type: ignore[method-assign]
        if is_ready:
            await ui.ready()
        yield ui
