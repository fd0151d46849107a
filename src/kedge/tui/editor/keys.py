"""Key bindings of the editor, with the descriptions that help shows. `[tui.keys]` can change those that have one."""

from __future__ import annotations

from typing import NamedTuple, cast

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual.binding import Binding
from textual.keys import Keys

# Alt+Enter in a terminal without a keyboard protocol. Textual would see Enter alone, and submit half a prompt.
cast("dict[str, object]", ANSI_SEQUENCES_KEYS)["\x1b\r"] = (Keys.ControlJ,)
# Enter with a modifier, as xterm reports it and Textual names it.
MODIFIED_ENTER = ("shift+\r", "alt+\r", "ctrl+\r")


class EditorKey(NamedTuple):
    action: str
    keys: str  # several, separated by commas
    help: str = ""  # empty: common in editors, not listed in help


KEYS = (
    EditorKey("submit", "enter", "Send; while a run works, queue"),
    EditorKey("steer", "ctrl+l", "Send into the running turn (with an empty prompt: the first queued one)"),
    EditorKey("interrupt", "ctrl+f", "Interrupt the running turn with it"),
    EditorKey("newline", "shift+enter,alt+enter,ctrl+j", "New line (or end a line with \\)"),
    EditorKey("complete", "tab", "Complete a file or command"),
    EditorKey("older", "up", "Previous prompt (on the first line)"),
    EditorKey("newer", "down", "Next prompt (on the last line)"),
    EditorKey("search", "ctrl+r", "Search prompt history"),
    EditorKey("edit_outside", "ctrl+g", "Edit in $EDITOR (or Ctrl+X Ctrl+E)"),
    EditorKey("paste", "ctrl+v", "Paste text or an image"),
    EditorKey("expand", "f3", "Expand pasted text"),
    EditorKey("undo", "ctrl+underscore,ctrl+slash,super+z", "Undo"),
    EditorKey("redo", "ctrl+shift+z,alt+underscore", "Redo"),
    EditorKey("kill_to_start", "ctrl+u,super+backspace", "Cut to start of line"),
    EditorKey("kill_to_end", "ctrl+k", "Cut to end of line"),
    EditorKey("kill_word", "ctrl+w", "Cut previous word"),
    EditorKey("yank", "ctrl+y", "Paste the last cut"),
    EditorKey("delete_or_quit", "ctrl+d", "Delete the next character, or quit if the prompt is empty"),
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
    EditorKey("delete_right", "delete"),
    EditorKey("delete_word_left", "ctrl+backspace,alt+backspace"),
    EditorKey("delete_word_right", "alt+delete,alt+d,ctrl+delete"),
)


def bindings() -> list[Binding]:
    return [
        Binding(key.keys, key.action, key.help, id=f"editor.{key.action}" if key.help else None, show=False)
        for key in KEYS
    ]
