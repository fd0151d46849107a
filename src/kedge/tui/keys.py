"""Key bindings of the main screen, with the descriptions that help shows. `[tui.keys]` can change them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from textual.binding import Binding

_NAMES = {"escape": "Esc", "pageup": "PgUp", "pagedown": "PgDn", "underscore": "_", "slash": "/"}


class Key(NamedTuple):
    action: str
    keys: str  # several, separated by commas
    help: str
    group: str
    command: str = ""  # slash command that it runs; else the screen has `action_NAME`


# The editor's own keys are in `editor/keys.py`.
KEYS = (
    Key("help", "f1", "Help", "General", "help"),
    Key("palette", "ctrl+p", "Command palette", "General"),
    Key("leave", "ctrl+c,ctrl+q", "Copy the selection, or quit (runs keep going)", "General"),
    Key("suspend", "ctrl+z", "Suspend", "General"),
    Key("escape", "escape", "Press twice to cancel the run and the queue", "Runs"),
    Key("next_mode", "shift+tab", "Next mode: plan, ask, auto-edit, yolo", "Runs"),
    Key("queue", "ctrl+t", "Edit or remove queued prompts", "Runs", "queue"),
    Key("answer", "f2", "Answer a request", "Runs"),
    Key("models", "ctrl+o", "Choose a model", "Sessions", "model"),
    Key("sessions", "ctrl+s", "Sessions", "Sessions", "sessions"),
    Key("new_session", "ctrl+n", "New session", "Sessions"),
    Key("changes", "f4", "Changed files", "Sessions", "diff"),
    Key("sidebar", "ctrl+b", "Show or hide the sidebar", "View"),
    Key("focus_chat", "f6", "Switch between chat and editor", "View"),
    Key("fold_all", "f7", "Fold or unfold reasoning and results", "View"),
    Key("copy_answer", "f8", "Copy the last answer", "View", "copy"),
    Key("page_up", "pageup", "Scroll up", "View"),
    Key("page_down", "pagedown", "Scroll down", "View"),
    Key("chat_home", "ctrl+home", "Go to the start", "View"),
    Key("chat_end", "ctrl+end", "Go to the end", "View"),
)


def format_keys(keys: Iterable[str]) -> str:
    """Return key names for people: `Ctrl+T, F2`."""
    return ", ".join("+".join(_NAMES.get(part, part.capitalize()) for part in key.split("+")) for key in keys)


def bindings() -> list[Binding]:
    """Bindings of the main screen. `[tui.keys]` refers to their ids."""
    return [
        Binding(
            key.keys, f"screen.{_action(key)}", key.help, id=key.action, show=False, priority=key.action != "escape"
        )
        for key in KEYS
    ]


def _action(key: Key) -> str:
    return f"run_command({key.command!r})" if key.command else key.action
