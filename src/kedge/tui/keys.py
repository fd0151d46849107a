"""Every key of the interface: what it does, and the words that help shows. `[tui.keys]` gives an action other keys."""

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
    command: str = ""  # what it runs; else there is `action_NAME` of the screen


# The editor's own keys are in `editor`; they are listed by help beside these.
KEYS = (
    Key("help", "f1", "help", "General", "help"),
    Key("palette", "ctrl+p", "command palette", "General"),
    Key("leave", "ctrl+c,ctrl+q", "copy what is selected, or leave; runs go on", "General"),
    Key("suspend", "ctrl+z", "suspend", "General"),
    Key("escape", "escape", "twice: cancel what runs and what waits", "Runs"),
    Key("next_mode", "shift+tab", "next mode: plan, ask, auto-edit, yolo", "Runs"),
    Key("queue", "ctrl+t", "queued prompts: edit or drop", "Runs", "queue"),
    Key("answer", "f2", "answer what is asked", "Runs"),
    Key("models", "ctrl+o", "choose a model", "Sessions", "model"),
    Key("sessions", "ctrl+s", "sessions", "Sessions", "sessions"),
    Key("new_session", "ctrl+n", "new session", "Sessions"),
    Key("changes", "f4", "what the session changed", "Sessions", "diff"),
    Key("sidebar", "ctrl+b", "sidebar", "View"),
    Key("focus_chat", "f6", "between chat and editor", "View"),
    Key("fold_all", "f7", "fold or unfold thoughts and results", "View"),
    Key("copy_answer", "f8", "copy the last answer", "View", "copy"),
    Key("page_up", "pageup", "scroll up", "View"),
    Key("page_down", "pagedown", "scroll down", "View"),
    Key("chat_home", "ctrl+home", "to the beginning", "View"),
    Key("chat_end", "ctrl+end", "to the end", "View"),
)


def shown(keys: Iterable[str]) -> str:
    """As they are written on a keyboard: `Ctrl+T, F2`."""
    return ", ".join("+".join(_NAMES.get(part, part.capitalize()) for part in key.split("+")) for key in keys)


def bindings() -> list[Binding]:
    """For the main screen. The id is what `[tui.keys]` names."""
    return [
        Binding(key.keys, f"screen.{_does(key)}", key.help, id=key.action, show=False, priority=key.action != "escape")
        for key in KEYS
    ]


def _does(key: Key) -> str:
    return f"run_command({key.command!r})" if key.command else key.action
