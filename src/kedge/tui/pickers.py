"""Choosing a model, its effort, an API key and a theme."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kedge.client.errors import ClientError
from kedge.tui.themes import AUTO

if TYPE_CHECKING:
    from kedge.protocol.api import Offered
    from kedge.protocol.runs import Effort
    from kedge.tui.port import Interface


DEFAULT_EFFORT = "default"
OTHER_SERVER = "other server"  # no provider's id


class CurrentModel(NamedTuple):
    name: str
    context_window: int | None
    is_ready: bool  # whether a prompt sent now would have a model
    efforts: list[Effort] | None = None  # that it knows; None: unknown


def find_current_model(offered: Offered, launch_model: str | None, session_model: str | None) -> CurrentModel:
    """Return the model of the command line, else of the session, else the server's default."""
    name = launch_model or session_model or offered.model
    if name is None:
        return CurrentModel("", None, is_ready=False)
    found = next((model for each in offered.providers for model in each.models if model.name == name), None)
    provider = next((each for each in offered.providers if each.id == name.partition("/")[0]), None)
    is_ready = provider is None or provider.usable  # of an unknown provider the server knows more
    if found is None:
        return CurrentModel(name, None, is_ready=is_ready)
    return CurrentModel(name, found.context_window, is_ready=is_ready, efforts=found.efforts)


async def pick_model(app: Interface, name: str) -> None:
    """Set a model, by name or from a list: for this session, or as the default if there is no session yet."""
    from kedge.tui.dialogs.models import ModelDialog

    if not name:
        chosen = await app.ask(ModelDialog(await app.api.list_models(), app.chat.model))
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


async def pick_effort(app: Interface, level: str) -> None:
    """Set an effort, by name or from the list of those that the model knows. It applies where a model would."""
    from kedge.protocol.runs import EFFORTS
    from kedge.tui.dialogs.dialog import Palette

    session_id = app.chat.session_id
    if not level:
        session = app.workspace.sessions.get(session_id or "")
        offered = await app.api.list_models()
        current = find_current_model(offered, app.launch.model, session.model if session else None)
        if current.efforts == []:
            app.chat.hint(f"{current.name} is not known to support an effort")
            return
        levels = [each for each in EFFORTS if current.efforts is None or each in current.efforts]
        items = [(DEFAULT_EFFORT, "as configured, or the model's own", ""), *((each, "", "") for each in levels)]
        level = await app.ask(Palette(items, f"Effort of {current.name}")) or ""
    elif level not in (DEFAULT_EFFORT, *EFFORTS):
        app.chat.hint(f"Unknown effort {level!r}. Use one of: {', '.join((*EFFORTS, DEFAULT_EFFORT))}")
        return
    if not level:
        return
    try:
        if session_id is not None:
            await app.api.choose_effort(session_id, None if level == DEFAULT_EFFORT else level)
        elif level == DEFAULT_EFFORT:
            await app.api.remove_config("reasoning_effort")
        else:
            await app.api.set_config("reasoning_effort", level)
    except ClientError as error:
        app.chat.hint(str(error))
    else:
        app.notify(f"Effort: {level}" + ("" if session_id else ", for all sessions that choose none"))


async def log_in(app: Interface, provider: str) -> bool:
    """Ask for an API key, which the server checks and stores; return whether there is a new one."""
    from kedge.tui.dialogs.dialog import Palette
    from kedge.tui.dialogs.models import KeyDialog

    try:
        known = (await app.api.credentials()).providers
    except ClientError as error:
        app.chat.hint(str(error))
        return False
    if not provider:
        items = [(each.provider_id, each.title, each.key_variable) for each in known if each.needs_key]
        items.append((OTHER_SERVER, "Any OpenAI-compatible server", ""))
        provider = await app.ask(Palette(items, "Choose a provider")) or ""
    if provider == OTHER_SERVER:
        return await add_server(app)
    found = next((each for each in known if each.provider_id == provider), None)
    if found is None:
        if provider:
            app.chat.hint(f"Unknown provider {provider!r}, or one that needs no key")
        return False
    session = app.chat.session
    is_rejected = session is not None and session.rejected_provider == provider
    return bool(await app.ask(KeyDialog(app.api, found, is_rejected=is_rejected)))


async def add_server(app: Interface) -> bool:
    """Ask for the address of a server and store it in the user's configuration; return whether there is a new one."""
    from kedge.tui.dialogs.models import ServerDialog

    try:
        known = (await app.api.credentials()).providers
    except ClientError as error:
        app.chat.hint(str(error))
        return False
    return bool(await app.ask(ServerDialog(app.api, {each.provider_id for each in known})))


async def first_start(app: Interface) -> bool:
    """Show the first-start dialog until there is a model, or the user skips it; return whether there is one."""
    from kedge.tui.dialogs.models import FirstStart

    while not await app.choose_model():
        choice = await app.ask(FirstStart(await app.api.list_models()))
        if choice is None:
            app.chat.hint("No model yet. Use /login to add an API key, or /model to choose a model.")
            return False
        is_new = (choice == "key" and await log_in(app, "")) or (choice == "server" and await add_server(app))
        if choice == "model" or is_new:
            await pick_model(app, "")
    return True


async def pick_theme(app: Interface, name: str) -> None:
    """Set a theme, by name or from a list that shows each one at once, and store it in the user's configuration."""
    from kedge.tui.dialogs.themes import ThemeDialog

    if not name:
        before = app.theme
        name = await app.ask(ThemeDialog(app.available_themes, app.settings.theme, app.show_theme)) or ""
        if not name:
            app.theme = before
            return
    elif name != AUTO and name not in app.available_themes:
        app.chat.hint(f"Unknown theme {name!r}. Use /theme to choose one.")
        return
    app.show_theme(name)
    try:
        await app.api.set_config("tui.theme", name)
    except ClientError as error:
        app.chat.hint(f"Theme applied, but couldn't be saved: {error}")
