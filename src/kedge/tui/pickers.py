"""Which model the next prompt goes to, and how another is chosen or a key entered."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kedge.client.errors import ClientError

if TYPE_CHECKING:
    from kedge.protocol.models import Offered, OfferedModel
    from kedge.tui.port import Interface


class Current(NamedTuple):
    name: str
    context_window: int | None
    is_ready: bool  # whether a prompt sent now would find a model


def current(offered: Offered, launched: str | None, of_session: str | None) -> Current:
    """What the command line said, else what the session was given, else what the server would take."""
    name = launched or of_session or offered.model
    if name is None:
        return Current("", None, is_ready=False)
    found = find(offered, name)
    provider = next((each for each in offered.providers if each.id == name.partition("/")[0]), None)
    is_ready = provider is None or provider.usable  # of a stranger the server knows more, and says so
    return Current(name, found.context_window if found else None, is_ready=is_ready)


def find(offered: Offered, name: str) -> OfferedModel | None:
    return next((model for each in offered.providers for model in each.models if model.name == name), None)


async def pick_model(app: Interface, name: str) -> None:
    """By name, or from the list; for this session, or for all where there is none yet."""
    from kedge.tui.dialogs.models import ModelDialog

    if not name:
        offered = await app.api.offered()
        chosen = await app.ask(ModelDialog(offered, app.chat.model))
        if chosen is None:
            return
        if chosen.provider is not None:
            await log_in(app, chosen.provider)
            return
        name = chosen.model
    app.launch = app.launch._replace(model=None)
    try:
        if app.chat.session_id is not None:
            await app.api.choose_model(app.chat.session_id, name)
        else:
            await app.api.configure_model(name)
    except ClientError as error:
        app.chat.hint(str(error))


async def log_in(app: Interface, provider: str) -> bool:
    """Ask for a key, let the server check it, and keep it; whether there is a new one now."""
    from kedge.tui.dialogs.choices import Palette
    from kedge.tui.dialogs.models import KeyDialog

    try:
        known = (await app.api.credentials()).providers
    except ClientError as error:
        app.chat.hint(str(error))
        return False
    if not provider:
        items = [(each.provider_id, each.title, each.key_variable) for each in known if each.needs_key]
        provider = await app.ask(Palette(items, "Whose key?")) or ""
    found = next((each for each in known if each.provider_id == provider), None)
    if found is None:
        if provider:
            app.chat.hint(f"There is no provider {provider!r} that takes a key")
        return False
    return bool(await app.ask(KeyDialog(app.api, found)))


async def first_start(app: Interface) -> None:
    """Until there is a model, or the person wants to look around first."""
    from kedge.tui.dialogs.models import FirstStart

    while not await app.choose_model():
        choice = await app.ask(FirstStart(await app.api.offered()))
        if choice is None:
            app.chat.hint("No model yet: /login enters a key, /model chooses one")
            return
        if choice == "model" or (choice == "key" and await log_in(app, "")):
            await pick_model(app, "")


# How it looks: a theme by its name or from the list, kept in the user's own configuration.


async def pick_theme(app: Interface, name: str) -> None:
    if not name:
        name = await _chosen(app)
    elif name not in app.available_themes:
        app.chat.hint(f"There is no theme {name!r}; /theme lists what there is")
        return
    if not name:
        return
    app.theme = name
    try:
        await app.api.set_config("tui.theme", name)
    except ClientError as error:
        app.chat.hint(f"It looks so until you leave; not stored: {error}")


async def _chosen(app: Interface) -> str:
    """Empty: none was."""
    from kedge.tui.dialogs.choices import Palette

    items = [(theme, "", "") for theme in sorted(app.available_themes)]
    return await app.ask(Palette(items, "Theme")) or ""
