"""`PromptEditor`: a multi-line prompt, submitted with Enter. Typed text is kept until the server has it."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from textual import events
from textual.app import SuspendNotSupported
from textual.binding import BindingType
from textual.content import Content as PlainText  # not parsed as markup
from textual.message import Message
from textual.widgets import TextArea
from textual.widgets.text_area import Edit, EditResult, Location, Selection

from kedge.protocol.errors import KedgeError
from kedge.protocol.text_safety import pasted_text
from kedge.protocol.validation import check_command, check_prompt
from kedge.tui.editor import attachments
from kedge.tui.editor.attachments import AttachmentRejected
from kedge.tui.editor.clipboard import (
    find_dropped_files,
    is_long,
    line_end,
    line_start,
    program_environ,
    read_image,
    word_start,
)
from kedge.tui.editor.completion import Choice, Completer, Files
from kedge.tui.editor.draft import Chip, ChipRegistry, Content, Draft, Outbox, kind_of
from kedge.tui.editor.history import DraftSaver, EditorStore, HistoryWalk
from kedge.tui.editor.keys import MODIFIED_ENTER, bindings

if TYPE_CHECKING:
    from kedge.protocol.runs import Attachment, OnBusy, QueuedPrompt

MAX_FOUND = 50  # entries of the history in a search
MAX_KILLS = 50
PLACEHOLDER = "Ask anything… (@ files, / commands, ! shell)"


class PromptEditor(TextArea, inherit_bindings=False):
    """`files` completes names after `@`; `commands` are names with descriptions.

    `directory` is the workspace if it is on this machine: then images that a prompt mentions are attached.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings()]

    @dataclasses.dataclass
    class Submitted(Message):
        """Answer with `confirm_sent` or `put_back_unsent`. Until then the draft is set aside, and typing can go on."""

        draft: Draft
        on_busy: OnBusy = "queue"

    @dataclasses.dataclass
    class Promoted(Message):
        """A key that sends a prompt at once was pressed in an empty editor: the first queued prompt is meant."""

        on_busy: Literal["steer", "interrupt"]

    @dataclasses.dataclass
    class Notice(Message):
        """A line for the user: something was rejected or could not be done."""

        text: str

    class Closed(Message):
        """Ctrl+D in an empty prompt: the user quits."""

    def __init__(
        self,
        files: Files,
        commands: Sequence[tuple[str, str]] = (),
        *,
        store: EditorStore | None = None,
        directory: Path | None = None,
    ) -> None:
        self.chips = ChipRegistry()  # first: the text area's constructor calls hooks that use it
        super().__init__(compact=True, highlight_cursor_line=False, placeholder=PLACEHOLDER)
        self.directory = directory
        self.kills: deque[str] = deque(maxlen=MAX_KILLS)  # texts that keys deleted, newest last
        self._store = store or EditorStore()
        self._completer = Completer(self, files, commands, self.recall)
        self._walk = HistoryWalk(self._store.history)
        self.outbox = Outbox()
        self.saver = DraftSaver(self, self._store, lambda: self.unsaved)
        self._is_chord = False  # Ctrl+X was pressed

    @property
    def unsaved(self) -> list[Content]:
        """Everything to save: unconfirmed drafts, changed history entries, the text."""
        return [*self.outbox.contents, *self._walk.changed.values(), self.content]

    def on_mount(self) -> None:
        *older, newest = self._store.take_over_drafts() or [Content()]
        for content in older:
            self._store.history.add(content)
        if not newest.is_blank:
            self.put_back(newest)

    def on_unmount(self) -> None:
        self._completer.close()
        self.saver.close()

    def on_blur(self) -> None:
        self._completer.dismiss()

    def _notify_user(self, text: str) -> None:
        self.post_message(self.Notice(text))

    # content

    @property
    def content(self) -> Content:
        return self.chips.content_of(self.text)

    def set_content(self, content: Content) -> None:
        """Replace everything, as one undoable edit; the cursor goes to the end."""
        self.chips.add(content.chips)
        self.history.checkpoint()
        self.replace(content.text, (0, 0), self.document.end, maintain_selection_offset=False)
        self.history.checkpoint()
        self.move_cursor(self.document.end)

    def insert_text(self, text: str) -> None:
        """Insert at the cursor, or replace the selection."""
        result = self.replace(text, *self.selection, maintain_selection_offset=False)
        self.move_cursor(result.end_location)

    def _insert_chip(self, chip: Chip) -> None:
        self.history.checkpoint()
        self.insert_text(chip.label)
        self.history.checkpoint()

    # hooks of the text area: a label behaves like one character

    def edit(self, edit: Edit) -> EditResult:
        start, end = sorted((edit.from_location, edit.to_location))
        start, end = self._snap(start, towards_end=start == end), self._snap(end, towards_end=True)
        if (start, end) != (edit.from_location, edit.to_location):
            edit = dataclasses.replace(edit, from_location=start, to_location=end)
        return super().edit(edit)

    def validate_selection(self, selection: Selection) -> Selection:
        end = self._snap(selection.end, towards_end=selection.end > self.selection.end)
        return Selection(end if selection.is_empty else selection.start, end)

    def _snap(self, location: Location, *, towards_end: bool) -> Location:
        row, column = location
        if row >= self.document.line_count:
            return location
        return row, self.chips.snap(self.document.get_line(row), column, towards_end=towards_end)

    # The text area looks at the cursor before it has restored the text: it must be where any text has a position.

    def undo(self) -> None:
        if self.history.undo_stack:
            self.move_cursor((0, 0))
            super().undo()

    def redo(self) -> None:
        if self.history.redo_stack:
            self.move_cursor((0, 0))
            super().redo()

    # submitting

    def action_submit(self) -> None:
        if self._completer.accept_on_enter():
            return
        if self._completer.is_searching:
            self._completer.dismiss()
            return
        if self._continue_line():
            return
        self._send("queue")

    def action_steer(self) -> None:
        self._send_now("steer")

    def action_interrupt(self) -> None:
        self._send_now("interrupt")

    def _send_now(self, on_busy: Literal["steer", "interrupt"]) -> None:
        if self.content.is_blank:
            self.post_message(self.Promoted(on_busy))
        else:
            self._send(on_busy)

    def _send(self, on_busy: OnBusy) -> None:
        draft = self.begin_sending(self.content)
        if draft is None:
            return
        self._completer.dismiss()
        unsent, changed = self._walk.finish()
        for entry in changed:
            self._store.history.add(entry)
        self.set_content(unsent or Content())
        self.post_message(self.Submitted(draft, on_busy))

    def begin_sending(self, content: Content) -> Draft | None:
        """Put content into the outbox and the history; return its draft, or None if it cannot be a prompt."""
        draft = content.to_draft(self._read_mentioned(content))
        if content.is_blank or not draft.text.strip():
            return None
        try:
            (check_command if draft.kind == "shell" else check_prompt)(draft.text)
        except KedgeError as error:
            self._notify_user(error.message)
            return None
        self._store.history.add(content)
        self.outbox.add(draft, content)
        self._show_sending()
        return draft

    def confirm_sent(self, draft: Draft) -> None:
        self.outbox.pop(draft)
        self._show_sending()

    def put_back_unsent(self, draft: Draft) -> None:
        """The draft was not sent: put it before the text that was typed meanwhile."""
        content = self.outbox.pop(draft)
        self._show_sending()
        if content is not None:
            self.put_back(content)

    def put_back(self, content: Content | str) -> None:
        """Insert a prompt to be edited, like one from the queue, before the text."""
        content = Content(pasted_text(content)) if isinstance(content, str) else content
        if not self.text.strip():
            self.set_content(content)
        elif content.kind == "prompt" and kind_of(self.text) == "prompt":
            self.chips.add(content.chips)
            self.history.checkpoint()
            self.insert(f"{content.text}\n\n", (0, 0))
        else:  # a command and a prompt cannot be joined
            self._store.history.add(content)
            self._notify_user("The unsent text is in the history. Press Up to get it back.")

    def put_back_run(self, queued: QueuedPrompt) -> None:
        """Insert a prompt that was taken out of the queue."""
        run = queued.run
        if run.prompt.strip() or queued.attachments:
            self.put_back_prompt(f"!{run.prompt}" if run.kind == "shell" else run.prompt, queued.attachments)

    def put_back_prompt(self, text: str, attached: Iterable[Attachment]) -> None:
        """Insert a prompt with its attachments. Those that the text names with `@` are read again when it is sent."""
        mentioned = {Path(match[1] or match[2]).name for match in attachments.MENTION.finditer(text)}
        chips = [self.chips.restore(each, text) for each in attached if each.file_name not in mentioned]
        missing = [chip.label for chip in chips if chip.label not in text]
        self.put_back(Content(" ".join(filter(None, [pasted_text(text), *missing])), tuple(chips)))

    def _show_sending(self) -> None:
        lines = [content.text.strip().partition("\n")[0] for content in self.outbox.contents]
        self.placeholder = PlainText(f"Sending: {lines[-1]}") if lines else PLACEHOLDER
        self.set_class(bool(lines), "-sending")
        self.saver.save_soon()

    def _read_mentioned(self, content: Content) -> list[Attachment]:
        if self.directory is None or content.kind == "shell" or "@" not in content.text:
            return []
        return attachments.read_mentioned(content.text, self.directory, content.attachments)

    # pasting, and the user's own editor

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        self.paste(event.text)

    def paste(self, text: str) -> None:
        """Insert text, a chip for a long text, or attachments for the names of dropped images."""
        text = pasted_text(text)
        try:
            files = find_dropped_files(text)
            if files and all(attachments.is_attachable(path) for path in files):
                for path in files:
                    self._insert_chip(self.chips.add_file(attachments.read_attachment(path), self.content.attachments))
            elif is_long(text):
                self._insert_chip(self.chips.add_paste(text, self.content.attachments))
            else:
                self.insert_text(text)
        except AttachmentRejected as error:
            self._notify_user(f"Not attached: {error}")

    def action_paste(self) -> None:
        self.run_worker(self._paste_clipboard(), group="clipboard", exclusive=True)

    async def _paste_clipboard(self) -> None:
        image = await read_image(program_environ(self.directory))
        try:
            if image is not None:
                attachment = attachments.make_attachment("clipboard.png", "image/png", image)
                self._insert_chip(self.chips.add_file(attachment, self.content.attachments))
            elif self.app.clipboard:
                self.paste(self.app.clipboard)
        except AttachmentRejected as error:
            self._notify_user(f"Not attached: {error}")

    def action_expand(self) -> None:
        found = self.chips.find_paste(self.document.lines, *self.cursor_location)
        if found is None:
            self._notify_user("No pasted text to expand")
            return
        row, label, text = found
        self.history.checkpoint()
        self.replace(text, (row, label.start()), (row, label.end()), maintain_selection_offset=False)

    def action_edit_outside(self) -> None:
        from kedge.tui.editor.external_editor import edit_text  # imports subprocess: on first use only

        text = self.content.expanded
        try:
            with self.app.suspend():
                result = edit_text(text, program_environ(self.directory))
        except SuspendNotSupported:
            self._notify_user("This terminal can't run an external editor")
            return
        if result.problem:
            self._notify_user(result.problem)
        elif result.text != text:
            self.set_content(Content(pasted_text(result.text)))
        self.refresh()

    # lines

    def action_newline(self) -> None:
        self.insert_text("\n")

    def _continue_line(self) -> bool:
        """Replace a backslash at the end of the line with a line break."""
        row, column = self.cursor_location
        line = self.document.get_line(row)
        if column != len(line) or not line.endswith("\\") or line.endswith("\\\\"):
            return False
        self.replace("\n", (row, column - 1), (row, column), maintain_selection_offset=False)
        return True

    def action_kill_to_start(self) -> None:
        self._kill(line_start(self.document, self.cursor_location))

    def action_kill_to_end(self) -> None:
        self._kill(line_end(self.document, self.cursor_location))

    def action_kill_word(self) -> None:
        self._kill(word_start(self.document, self.cursor_location))

    def action_delete_or_quit(self) -> None:
        if self.text:
            self.action_delete_right()
        else:
            self.post_message(self.Closed())

    def clear_prompt(self) -> bool:
        """Clear the prompt, which goes into the history; return whether there was one."""
        content = self.content
        if content.is_blank:
            return False
        self._completer.dismiss()
        self._store.history.add(content)
        unsent, changed = self._walk.finish()
        for entry in [*changed, *filter(None, [unsent])]:
            self._store.history.add(entry)
        self.set_content(Content())
        return True

    def action_yank(self) -> None:
        if self.kills:
            self.insert_text(self.kills[-1])

    def _kill(self, to: Location) -> None:
        """Cut the selection, or from the cursor to `to`."""
        start, end = sorted((self.cursor_location, to) if self.selection.is_empty else self.selection)
        if start != end:
            self.kills.append(self.delete(start, end, maintain_selection_offset=False).replaced_text)

    # history

    def action_older(self) -> None:
        if self._completer.is_open:
            self._completer.move(-1)
        elif self.navigator.is_first_wrapped_line(self.cursor_location) and self.selection.is_empty:
            if (content := self._walk.older(self.content)) is not None:
                self.set_content(content)
        else:
            self.action_cursor_up()

    def action_newer(self) -> None:
        if self._completer.is_open:
            self._completer.move(+1)
        elif self.navigator.is_last_wrapped_line(self.cursor_location) and self.selection.is_empty:
            if (content := self._walk.newer(self.content)) is not None:
                self.set_content(content)
        else:
            self.action_cursor_down()

    def action_search(self) -> None:
        if self._completer.is_searching:
            if self._completer.is_open:
                self._completer.move(+1)
            return
        self._completer.search(self._search_history)
        if not self._completer.is_searching:
            self._notify_user("No matching prompt in the history" if self.text else "The history is empty")

    def recall(self, text: str) -> None:
        """Show an entry chosen from a search. The replaced text can be yanked back."""
        if self.text.strip():
            self.kills.append(self.text)
        entries = {each.text: each for each in self._store.history.entries()}
        self.set_content(entries.get(text, Content(text)))

    def _search_history(self, typed: str) -> list[Choice]:
        entries = self._store.history.search(typed, MAX_FOUND)
        return [Choice(each.text, each.text.strip()[:500]) for each in entries]

    # completion

    def action_complete(self) -> None:
        if self._completer.is_open:
            self._completer.accept()
        else:
            self._completer.ask()

    def set_commands(self, commands: Sequence[tuple[str, str]]) -> None:
        self._completer.commands = commands

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        event.stop()
        self.set_class(kind_of(self.text) == "shell", "-shell")
        self._completer.update()
        self.saver.save_soon()

    def on_text_area_selection_changed(self, event: TextArea.SelectionChanged) -> None:
        event.stop()
        self._completer.update()

    async def _on_key(self, event: events.Key) -> None:
        """Runs before the text area's handler, which would take Enter for a line break."""
        is_chord, self._is_chord = self._is_chord, False
        match event.key:
            case "enter" | "tab":
                event.prevent_default()
                return
            case "escape" if self._completer.is_open or self._completer.is_searching:
                self._completer.dismiss()
            case key if key in MODIFIED_ENTER:
                self.action_newline()
            case "ctrl+x":
                self._is_chord = True
            case "ctrl+e" if is_chord:
                self.action_edit_outside()
            case _:
                return
        event.stop()
        event.prevent_default()
