"""How the editor looks: empty, with lines and wide characters, with a list above it, as a shell, and while it sends."""

from __future__ import annotations

from tests.tui import snapshots
from tests.tui.editor.harness import EditorApp, typing


async def test_pictures() -> None:
    async def files(_: str) -> list[str]:
        return ["src/main.py", "docs/日本語.md", "with space/", "a/very/long/way/" + "x" * 90]

    async with typing(EditorApp(files), size=(60, 14)) as ui:
        editor = ui.editor
        editor.cursor_blink = False
        snapshots.check(ui.app, "editor/empty")
        await ui.paste("日本語 and é 👩‍💻\nsecond line that is long enough to be wrapped at the end of the screen\n")
        await ui.paste("\n" * 12)
        snapshots.check(ui.app, "editor/lines")
        await ui.press("ctrl+end")
        editor.move_cursor(editor.document.end)
        await ui.type(" @m")
        await ui.until(lambda: len(ui.app.popup) == 4)
        await ui.press("down")
        await ui.pilot.pause()
        snapshots.check(ui.app, "editor/files")
        await ui.press("escape", "enter")
        await ui.pilot.pause()
        snapshots.check(ui.app, "editor/sending")
        await ui.type("/mo")
        await ui.pilot.pause()
        snapshots.check(ui.app, "editor/commands")
        await ui.press("escape", "ctrl+u")
        await ui.type("!make")
        await ui.pilot.pause()
        snapshots.check(ui.app, "editor/shell")
