"""`Settings`: the `[tui]` configuration as the server reports it; `KEYS`: key bindings; `Launch`: the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Self, cast

from textual.binding import Binding

from kedge.protocol.runs import Mode
from kedge.tui.editor.keys import KEYS as EDITOR_KEYS
from kedge.tui.terminal import Notify

if TYPE_CHECKING:
    from kedge.protocol.api import ConfigAnswer

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
    Key("clear", "ctrl+c", "Copy the selection, clear the prompt, or quit", "General"),
    Key("leave", "ctrl+q", "Quit (runs keep going)", "General"),
    Key("suspend", "ctrl+z", "Suspend", "General"),
    Key("escape", "escape", "Press twice to cancel the run, or to go back to an earlier prompt", "Runs"),
    Key("next_mode", "shift+tab", "Next mode: plan, ask, auto-edit, auto, yolo", "Runs"),
    Key("queue", "ctrl+t", "Edit, move, send or remove queued prompts", "Runs", "queue"),
    Key("answer", "f2", "Answer a request, or go to a session that waits for you", "Runs"),
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
    found: list[Binding] = []
    for name, keys, about, _, command in KEYS:
        action = f"screen.run_command({command!r})" if command else f"screen.{name}"
        found.append(Binding(keys, action, about, id=name, show=False, priority=name != "escape"))
    return found


_KEYS = "tui.keys."
_IDS = {
    **{key.action: f"editor.{key.action}" for key in EDITOR_KEYS if key.help},
    **{key.action: key.action for key in KEYS},
}


class Settings(NamedTuple):
    mode: Mode = "ask"
    theme: str = "auto"
    notifications: Notify = "auto"
    keys: Mapping[str, str] = MappingProxyType({})  # by binding id
    unknown: tuple[str, ...] = ()  # unknown actions in `[tui.keys]`
    has_cost_limit: bool = False  # of each run

    @classmethod
    def read(cls, answer: ConfigAnswer) -> Self:
        values = {value.key: value.value for value in answer.values}
        given = {key.removeprefix(_KEYS): str(value) for key, value in values.items() if key.startswith(_KEYS)}
        return cls(
            mode=cast("Mode", values.get("permissions.mode", "ask")),
            theme=str(values.get("tui.theme", "auto")),
            notifications=cast("Notify", values.get("tui.notifications", "auto")),
            keys={_IDS[name]: keys.replace(" ", "") for name, keys in given.items() if name in _IDS},
            unknown=tuple(sorted(given.keys() - _IDS.keys())),
            has_cost_limit=values.get("agent.max_cost") is not None,
        )


class Launch(NamedTuple):
    directory: str = "."
    host: str | None = None
    data_dir: str | None = None
    token_file: str | None = None
    session_id: str | None = None
    is_continued: bool = False  # continue the session that was used last
    model: str | None = None
    mode: Mode | None = None
    prompt: str | None = None  # sent as soon as there is a model

    @property
    def is_local(self) -> bool:
        """Whether the directory is on this machine."""
        return self.host is None or self.host.startswith("unix:")

    def resume_command(self, session_id: str) -> str:
        """Return the command that opens a session again, on the same server."""
        from shlex import quote

        places = (("--host", self.host), ("--data-dir", self.data_dir), ("--token-file", self.token_file))
        options = [f"{name} {quote(value)}" for name, value in places if value]
        if Path(self.directory).absolute() != Path.cwd():
            options.append(f"-c {quote(self.directory)}")
        return " ".join(["kedge", *options, "-s", session_id])
