"""The page about the interface lists all its keys and commands."""

from __future__ import annotations

from typing import cast

from textual.binding import Binding

from kedge.tui.chat.transcript import Transcript
from kedge.tui.commands import Commands
from kedge.tui.dialogs import dialog
from kedge.tui.editor.keys import KEYS as EDITOR_KEYS
from kedge.tui.screen import ChatScreen
from kedge.tui.settings import KEYS, format_keys
from tests.docs.pages import read
from tests.docs.test_codes import rows

PAGE = "docs/terminal.md"


def test_the_keys_are_all_listed_with_the_names_of_their_actions() -> None:
    listed = [row[:2] for row in rows(PAGE, "key") if len(row) == 3]
    assert listed == [[keys_of(key.keys), f"`{key.action}`"] for key in (*KEYS, *EDITOR_KEYS) if key.help]


def test_the_keys_of_the_chat_are_listed() -> None:
    bindings = [cast("Binding", each) for each in Transcript.BINDINGS]
    listed = {row[0] for row in rows(PAGE, "key") if len(row) == 2}
    assert {keys_of(binding.key) for binding in bindings} <= listed


def test_the_commands_are_all_listed() -> None:
    commands = Commands(cast("ChatScreen", None)).all.values()
    listed = [row[0] for row in rows(PAGE, "command")]
    assert listed == [f"`{f'/{each.name} {each.arguments}'.strip()}`" for each in commands]


def test_the_pause_before_an_answer_is_the_one_on_the_page() -> None:
    assert f"{dialog.QUIET_S} s" in read(PAGE)


def keys_of(keys: str) -> str:
    return ", ".join(f"`{key}`" for key in format_keys(keys.split(",")).split(", "))
