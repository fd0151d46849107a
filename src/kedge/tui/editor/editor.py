"""The prompt editor: many lines, sent with Enter. Nothing that was typed is lost before the server has it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.binding import BindingType
from textual.content import Content as Plain  # a text that is not read as markup
from textual.message import Message
from textual.widgets import TextArea

from kedge.protocol.bounds import check_command, check_prompt
from kedge.protocol.errors import KedgeError
from kedge.protocol.text_safety import pasted_text
from kedge.tui.editor import attachments
from kedge.tui.editor.completion import Arguments, Choice, Completer, Files
from kedge.tui.editor.draft import Content, Draft, kind_of
from kedge.tui.editor.history import Memory, Recall
from kedge.tui.editor.keys import MODIFIED_ENTER, bindings
from kedge.tui.editor.outside import OutsideArea

if TYPE_CHECKING:
    from textual.timer import Timer

    from kedge.protocol.runs import Attachment

SAVE_S = 1.0  # what a crash may lose of what was typed
MAX_FOUND = 50  # of the history, in a list
PLACEHOLDER = "Ask for something · @ file · / command · ! shell"


class PromptEditor(OutsideArea, inherit_bindings=False):
    """`files` finds names for what is typed after an `@`; `commands` are names and a word of help.

    `directory` is the workspace if it is on this machine: then images that a prompt names go with it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings()]

    class Submitted(Message):
        """To be answered with `accepted` or `refused`. Until then the draft is aside, and typing can go on."""

        def __init__(self, draft: Draft) -> None:
            super().__init__()
            self.draft = draft

    def __init__(
        self,
        files: Files,
        commands: Sequence[tuple[str, str]] = (),
        *,
        arguments: Arguments | None = None,
        memory: Memory | None = None,
        directory: Path | None = None,
    ) -> None:
        super().__init__(PLACEHOLDER)
        self._memory = memory or Memory()
        self.workspace = directory
        self._completer = Completer(self, files, commands, arguments, self.recall)
        self._recall = Recall(self._memory.history)
        self._sending: list[tuple[Draft, Content]] = []
        self._found: dict[str, Content] = {}
        self._is_chord = False  # Ctrl+X was pressed
        self._version = 0
        self._saving: Timer | None = None

    @property
    def sending(self) -> list[Draft]:
        """What was submitted and not answered yet, oldest first."""
        return [draft for draft, _ in self._sending]

    # its life

    def on_mount(self) -> None:
        *older, newest = self._memory.take_over() or [Content()]
        for content in older:
            self._memory.history.add(content)
        if not newest.is_blank:
            self.put_back(newest)

    def on_unmount(self) -> None:
        self._completer.close()
        if self._saving is not None:
            self._saving.stop()
        self._version += 1
        self._memory.keep(self._kept(), self._version)

    def on_blur(self) -> None:
        self._completer.dismiss()

    # sending

    def action_submit(self) -> None:
        if self._completer.is_open and not self._completer.is_complete():
            self._completer.take()
            return
        if self._completer.is_searching:
            self._completer.dismiss()
            return
        if self._continues_line():
            return
        content = self.content
        draft = content.draft(self._mentioned(content))
        if content.is_blank or not draft.text.strip():
            return
        try:
            (check_command if draft.kind == "shell" else check_prompt)(draft.text)
        except KedgeError as error:
            self.tell(error.message)
            return
        self._completer.dismiss()
        self._memory.history.add(content)
        left = self._recall.leave()
        for changed in left.changed:
            self._memory.history.add(changed)
        self._sending.append((draft, content))
        self.put(left.draft or Content())
        self._show_sending()
        self.post_message(self.Submitted(draft))

    def accepted(self, draft: Draft) -> None:
        """The server has it."""
        self._answered(draft)

    def refused(self, draft: Draft) -> None:
        """It was not sent: it is in the editor again, before what was typed meanwhile."""
        content = self._answered(draft)
        if content is not None:
            self.put_back(content)

    def put_back(self, content: Content | str) -> None:
        """Something to go on with, like a prompt from the queue: before what is there."""
        content = Content(pasted_text(content)) if isinstance(content, str) else content
        if not self.text.strip():
            self.put(content)
        elif content.kind == "prompt" and kind_of(self.text) == "prompt":
            self.know(content)
            self.history.checkpoint()
            self.insert(f"{content.text}\n\n", (0, 0))
        else:  # a command and a prompt in one would be neither
            self._memory.history.add(content)
            self.tell("What was not sent is among the earlier prompts: Up brings it back")

    def _answered(self, draft: Draft) -> Content | None:
        for place, (sent, content) in enumerate(self._sending):
            if sent == draft:
                del self._sending[place]
                self._show_sending()
                return content
        return None

    def _show_sending(self) -> None:
        lines = [content.text.strip().partition("\n")[0] for _, content in self._sending]
        self.placeholder = Plain(f"PromptSender: {lines[-1]}") if lines else PLACEHOLDER
        self.set_class(bool(lines), "-sending")
        self._keep_soon()

    def _mentioned(self, content: Content) -> list[Attachment]:
        if self.workspace is None or content.kind != "prompt" or "@" not in content.text:
            return []
        return attachments.mentioned(content.text, self.workspace, content.attachments)

    # lines

    def action_newline(self) -> None:
        self.insert_text("\n")

    def _continues_line(self) -> bool:
        """A backslash at the end of a line, and Enter: the line goes on below."""
        row, column = self.cursor_location
        line = self.document.get_line(row)
        if column != len(line) or not line.endswith("\\") or line.endswith("\\\\"):
            return False
        self.replace("\n", (row, column - 1), (row, column), maintain_selection_offset=False)
        return True

    # the history

    def action_older(self) -> None:
        if self._completer.is_open:
            self._completer.move(-1)
        elif self.navigator.is_first_wrapped_line(self.cursor_location) and self.selection.is_empty:
            if (content := self._recall.older(self.content)) is not None:
                self.put(content)
        else:
            self.action_cursor_up()

    def action_newer(self) -> None:
        if self._completer.is_open:
            self._completer.move(+1)
        elif self.navigator.is_last_wrapped_line(self.cursor_location) and self.selection.is_empty:
            if (content := self._recall.newer(self.content)) is not None:
                self.put(content)
        else:
            self.action_cursor_down()

    def action_search(self) -> None:
        if self._completer.is_searching:
            if self._completer.is_open:
                self._completer.move(+1)
            return
        self._completer.search(self._in_history)
        if not self._completer.is_searching:
            self.tell("No earlier prompt has these words" if self.text else "There are no earlier prompts")

    def recall(self, text: str) -> None:
        """An entry that was chosen from a search. What it replaces can be yanked back."""
        if self.text.strip():
            self.keep_killed(self.text)
        self.put(self._found.get(text, Content(text)))

    def _in_history(self, typed: str) -> list[Choice]:
        wanted = typed.casefold().strip()
        fitting = [each for each in reversed(self._memory.history.entries()) if wanted in each.text.casefold()]
        self._found = {each.text: each for each in fitting[:MAX_FOUND]}
        return [Choice(each.text, each.text.strip()[:500]) for each in self._found.values()]

    # completion

    def action_complete(self) -> None:
        if self._completer.is_open:
            self._completer.take()
        else:
            self._completer.ask()

    def set_commands(self, commands: Sequence[tuple[str, str]]) -> None:
        """Others than at the start: the user's own were read."""
        self._completer.commands = commands

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        event.stop()
        self.set_class(kind_of(self.text) == "shell", "-shell")
        self._completer.follow()
        self._keep_soon()

    def on_text_area_selection_changed(self, event: TextArea.SelectionChanged) -> None:
        event.stop()
        self._completer.follow()

    async def _on_key(self, event: events.Key) -> None:
        """Runs before the text area's own, which would take Enter for a line and know nothing of a list."""
        is_chord, self._is_chord = self._is_chord, False
        match event.key:
            case "enter" | "tab":
                event.prevent_default()
            case "escape" if self._completer.is_open or self._completer.is_searching:
                self._handled(event)
                self._completer.dismiss()
            case key if key in MODIFIED_ENTER:
                self._handled(event)
                self.action_newline()
            case "ctrl+x":
                self._handled(event)
                self._is_chord = True
            case "ctrl+e" if is_chord:
                self._handled(event)
                self.action_edit_outside()
            case _:
                pass

    @staticmethod
    def _handled(event: events.Key) -> None:
        event.stop()
        event.prevent_default()

    # keeping

    def _kept(self) -> list[Content]:
        return [*(content for _, content in self._sending), *self._recall.held, self.content]

    def _keep_soon(self) -> None:
        if self._saving is None and self.is_mounted:
            self._saving = self.set_timer(SAVE_S, self._keep)

    def _keep(self) -> None:
        self._saving = None
        self._version += 1
        self.run_worker(partial(self._store, self._kept(), self._version), group="keep")

    async def _store(self, kept: list[Content], version: int) -> None:
        await asyncio.to_thread(self._memory.keep, kept, version)
