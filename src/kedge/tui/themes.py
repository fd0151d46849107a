"""How it looks: a theme by its name or from the list, kept in the user's own configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kedge.client.errors import ClientError

if TYPE_CHECKING:
    from kedge.tui.app import KedgeApp


async def pick(app: KedgeApp, name: str) -> None:
    if not name:
        name = await _chosen(app)
    elif name not in app.available_themes:
        app.chat.hint(f"There is no theme {name!r}; /theme lists what there is")
        return
    if not name:
        return
    app.theme = name
    try:
        await app.desk.set_config("tui.theme", name)
    except ClientError as error:
        app.chat.hint(f"It looks so until you leave; not stored: {error}")


async def _chosen(app: KedgeApp) -> str:
    """Empty: none was."""
    from kedge.tui.dialogs.choices import Palette

    items = [(theme, "", "") for theme in sorted(app.available_themes)]
    return await app.ask(Palette(items, "Theme")) or ""
