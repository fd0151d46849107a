"""The keys of the editor, and what help says of them. `[tui.keys]` may give an action other keys by its name."""

from __future__ import annotations

from typing import NamedTuple, cast

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual.binding import Binding
from textual.keys import Keys

# What Alt+Enter is in a terminal without a protocol for keys: Textual would hear Enter alone, and send half a prompt.
cast("dict[str, object]", ANSI_SEQUENCES_KEYS)["\x1b\r"] = (Keys.ControlJ,)
# Enter with another key, as xterm tells it and Textual spells it.
MODIFIED_ENTER = ("shift+\r", "alt+\r", "ctrl+\r")


class EditorKey(NamedTuple):
    action: str
    keys: str  # several, separated by commas
    help: str = ""  # empty: what every editor does, and nobody looks up


KEYS = (
    EditorKey("submit", "enter", "send"),
    EditorKey("newline", "shift+enter,alt+enter,ctrl+j", "new line (or end a line with \\)"),
    EditorKey("complete", "tab", "complete a file or a command"),
    EditorKey("older", "up", "earlier prompts, from the first line"),
    EditorKey("newer", "down", "later prompts, from the last line"),
    EditorKey("search", "ctrl+r", "search earlier prompts"),
    EditorKey("edit_outside", "ctrl+g", "write in $EDITOR (or Ctrl+X Ctrl+E)"),
    EditorKey("paste", "ctrl+v", "paste, also an image"),
    EditorKey("expand", "f3", "show all of what was pasted"),
    EditorKey("undo", "ctrl+underscore,ctrl+slash,super+z", "undo"),
    EditorKey("redo", "ctrl+shift+z,alt+underscore", "redo"),
    EditorKey("kill_to_start", "ctrl+u,super+backspace", "cut to the start of the line"),
    EditorKey("kill_to_end", "ctrl+k", "cut to the end of the line"),
    EditorKey("kill_word", "ctrl+w", "cut the word before the cursor"),
    EditorKey("yank", "ctrl+y", "insert what was cut"),
    EditorKey("cursor_left", "left"),
    EditorKey("cursor_right", "right"),
    EditorKey("cursor_word_left", "ctrl+left,alt+b,alt+left"),
    EditorKey("cursor_word_right", "ctrl+right,alt+f,alt+right"),
    EditorKey("cursor_line_start", "home,ctrl+a"),
    EditorKey("cursor_line_end", "end,ctrl+e"),
    EditorKey("cursor_left(True)", "shift+left"),
    EditorKey("cursor_right(True)", "shift+right"),
    EditorKey("cursor_up(True)", "shift+up"),
    EditorKey("cursor_down(True)", "shift+down"),
    EditorKey("cursor_word_left(True)", "ctrl+shift+left"),
    EditorKey("cursor_word_right(True)", "ctrl+shift+right"),
    EditorKey("cursor_line_start(True)", "shift+home"),
    EditorKey("cursor_line_end(True)", "shift+end"),
    EditorKey("delete_left", "backspace,ctrl+h"),
    EditorKey("delete_right", "delete,ctrl+d"),
    EditorKey("delete_word_left", "ctrl+backspace,alt+backspace"),
    EditorKey("delete_word_right", "alt+delete,alt+d,ctrl+delete"),
)


def bindings() -> list[Binding]:
    return [
        Binding(key.keys, key.action, key.help, id=f"editor.{key.action}" if key.help else None, show=False)
        for key in KEYS
    ]
