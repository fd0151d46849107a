"""Whatever keys come in whatever order: each character that was typed is in the editor, on its way, in the history, or
among what was cut.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kedge.tui.editor.draft import Content
from kedge.tui.editor.history import EditorStore
from tests.tui.editor.harness import EditorApp, Typist, typing

KEYS = ("enter", "up", "down", "escape", "tab", "ctrl+r", "ctrl+j", "ctrl+u", "ctrl+k", "ctrl+w", "ctrl+y", "f3")
MOVES = ("left", "right", "home", "end")
ACTS = ("type", "type", "type", "paste", "long paste", "accept", "refuse")
FIRST = 0x4E00  # characters that are two columns wide, each typed once

steps = st.lists(st.sampled_from((*KEYS, *MOVES, *ACTS)), max_size=25)


@pytest.mark.long
@pytest.mark.timeout(600)
@settings(max_examples=50, deadline=None)
@given(steps)
def test_what_was_typed_is_somewhere(acts: list[str]) -> None:
    asyncio.run(_play(acts))


async def _play(acts: list[str]) -> None:
    store = EditorStore()
    store.history.add(Content("an earlier prompt\nof two lines"))
    store.history.add(Content("another"))
    async with typing(EditorApp(store=store)) as ui:
        typed: list[str] = []
        for act in acts:
            await _do(ui, act, typed)
        await ui.pilot.pause()
        editor = ui.editor
        kept = [*(content.expanded for content in editor.unsaved), *editor.kills]
        kept += [draft.text for draft in editor.outbox.drafts]
        kept += [content.expanded for content in store.history.entries()]
        kept += [chip.text or "" for chip in editor.chips.chips]
        missing = Counter(typed) - Counter(set("".join(kept)))
        assert not missing, f"{acts} lost {missing}"


async def _do(ui: Typist, act: str, typed: list[str]) -> None:
    match act:
        case "type":
            typed.append(chr(FIRST + len(typed)))
            await ui.press(typed[-1])
        case "paste" | "long paste":
            typed.append(chr(FIRST + len(typed)))
            await ui.paste(typed[-1] + "\n" * (act == "long paste") * 12)
        case "accept" | "refuse":
            if ui.editor.outbox.drafts:
                answer = ui.editor.confirm_sent if act == "accept" else ui.editor.put_back_unsent
                answer(ui.editor.outbox.drafts[0])
        case key:
            await ui.press(key)
