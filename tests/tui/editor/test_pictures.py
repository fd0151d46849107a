"""How the editor looks: empty, with lines and wide characters, with a list above it, as a shell, and while it sends."""

from __future__ import annotations

from tests.tui import snapshots
from tests.tui.editor.harness import EditorApp, typing


async def test_pictures() -> None:
    async def files(_: str) -> list[str]:
        return ["src/main.py", "docs/日本語.md", "with space/", "a/very/long/way/" + "x" * 90]

    async with typing(EditorApp(files), size=(60, 14)) as hands:
        editor = hands.editor
        editor.cursor_blink = False
        snapshots.check(hands.app, "editor/empty")
        await hands.paste("日本語 and é 👩‍💻\nsecond line that is long enough to be wrapped at the end of the screen\n")
        await hands.paste("\n" * 12)
        snapshots.check(hands.app, "editor/lines")
        await hands.press("ctrl+end")
        editor.move_cursor(editor.document.end)
        await hands.type(" @m")
        await hands.until(lambda: len(hands.app.popup) == 4)
        await hands.press("down")
        await hands.pilot.pause()
        snapshots.check(hands.app, "editor/files")
        await hands.press("escape", "enter")
        await hands.pilot.pause()
        snapshots.check(hands.app, "editor/sending")
        await hands.type("/mo")
        await hands.pilot.pause()
        snapshots.check(hands.app, "editor/commands")
        await hands.press("escape", "ctrl+u")
        await hands.type("!make")
        await hands.pilot.pause()
        snapshots.check(hands.app, "editor/shell")
