"""The editor's content (`Content`), its chips (`Chip`), and the prompt made from them (`Draft`).

A long paste or an attached file is a chip: a label in the text that stands for content kept beside it. No edit splits a
label.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import msgspec

from kedge.protocol.runs import Attachment
from kedge.tui.editor.attachments import check_room, make_text_attachment

DraftKind = Literal["prompt", "shell", "command"]

# `/etc/hosts is wrong` is a prompt. `/modle gpt` is an unknown command, which is reported as a likely typing error.
_COMMAND = re.compile(r"/[A-Za-z][\w:-]*(?=\s|$)")


class Draft(msgspec.Struct, frozen=True):
    """What is submitted. Drafts with equal fields are the same submission. A command's text starts with its slash."""

    text: str
    attachments: tuple[Attachment, ...] = ()
    kind: DraftKind = "prompt"


class Chip(msgspec.Struct, frozen=True):
    label: str
    text: str | None = None  # replaces the label when submitted
    attachment: Attachment | None = None  # or is attached


class Content(msgspec.Struct, frozen=True):
    """The editor's text with labels, and the chips that they name."""

    text: str = ""
    chips: tuple[Chip, ...] = ()

    @property
    def is_blank(self) -> bool:
        return not self.text.strip()

    @property
    def kind(self) -> DraftKind:
        return kind_of(self.text)

    @property
    def expanded(self) -> str:
        """The text with the labels of pasted texts replaced."""
        texts = {chip.label: chip.text for chip in self.chips if chip.text is not None}
        pattern = label_pattern(texts)
        return pattern.sub(lambda found: texts[found[0]], self.text) if pattern else self.text

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        return tuple(chip.attachment for chip in self.chips if chip.attachment is not None)

    def to_draft(self, mentioned: Iterable[Attachment] = ()) -> Draft:
        """`mentioned` are files that the text names with `@`."""
        text = self.expanded
        match self.kind:
            case "shell":
                return Draft(text.strip()[1:].strip(), kind="shell")
            case "command":
                return Draft(text.strip(), (*self.attachments, *mentioned), kind="command")
            case "prompt":
                return Draft(text.rstrip(), (*self.attachments, *mentioned))


class Outbox:
    """Submitted drafts that are not confirmed yet, oldest first, with the content to restore if they fail."""

    def __init__(self) -> None:
        self._items: list[tuple[Draft, Content]] = []

    @property
    def drafts(self) -> list[Draft]:
        return [draft for draft, _ in self._items]

    @property
    def contents(self) -> list[Content]:
        return [content for _, content in self._items]

    def add(self, draft: Draft, content: Content) -> None:
        self._items.append((draft, content))

    def pop(self, draft: Draft) -> Content | None:
        for index, (sent, content) in enumerate(self._items):
            if sent == draft:
                del self._items[index]
                return content
        return None


def kind_of(text: str) -> DraftKind:
    text = text.lstrip()
    if text.startswith("!"):
        return "shell"
    return "command" if _COMMAND.match(text) else "prompt"


def label_pattern(labels: Collection[str]) -> re.Pattern[str] | None:
    """Return a pattern that finds these labels; None if there are none."""
    return re.compile("|".join(map(re.escape, labels))) if labels else None


ATTACH_CHARS = 100_000  # a longer paste becomes an attached file: it would drown the words around it
_NUMBER = re.compile(r" #(\d+)")
_NAME_CHARS = 40
_PASTED_FILE = re.compile(r"pasted-(\d+)\.txt")


def _label_name(file_name: str) -> str:
    return "".join(char for char in file_name if char.isprintable() and char not in "[]")[-_NAME_CHARS:]


class ChipRegistry:
    """Also keeps chips whose labels were deleted, because an undo may bring a label back."""

    def __init__(self) -> None:
        self._chips: dict[str, Chip] = {}
        self._pattern: re.Pattern[str] | None = None
        self._last_number = 0

    @property
    def chips(self) -> list[Chip]:
        return list(self._chips.values())

    def add(self, chips: Iterable[Chip]) -> None:
        for chip in chips:
            self._chips[chip.label] = chip
            self._last_number = max(self._last_number, *(int(found) for found in _NUMBER.findall(chip.label)), 0)
        self._pattern = label_pattern(self._chips)

    def content_of(self, text: str) -> Content:
        """Return the text with the chips that it names, in the order of the text."""
        named = [(at, chip) for chip in self._chips.values() if (at := text.find(chip.label)) >= 0]
        return Content(text, tuple(chip for _, chip in sorted(named, key=lambda each: each[0])))

    def add_paste(self, text: str, attached: Iterable[Attachment]) -> Chip:
        """Make a chip of a long paste. Raises `AttachmentRejected`."""
        number = self._last_number + 1
        lines = text.removesuffix("\n").count("\n") + 1
        size = f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"
        label = f"[Pasted text #{number}, {size}]"
        if len(text) <= ATTACH_CHARS:
            chip = Chip(label, text)
        else:
            attachment = make_text_attachment(number, text)
            check_room(attached, attachment)
            chip = Chip(label, attachment=attachment)
        self.add([chip])
        return chip

    def add_file(self, attachment: Attachment, attached: Iterable[Attachment]) -> Chip:
        """Make a chip of a file. Raises `AttachmentRejected`."""
        check_room(attached, attachment)
        kind = "Image" if attachment.mime_type.startswith("image/") else "File"
        chip = Chip(f"[{kind} #{self._last_number + 1} {_label_name(attachment.file_name)}]", attachment=attachment)
        self.add([chip])
        return chip

    def restore(self, attachment: Attachment, text: str) -> Chip:
        """Make a chip of a file that was sent with a text, which may still have its label."""
        name, pasted = _label_name(attachment.file_name), _PASTED_FILE.fullmatch(attachment.file_name)
        label = rf"Pasted text #{pasted[1]}, [^\]]*" if pasted else rf"(?:Image|File) #\d+ {re.escape(name)}"
        found = re.search(rf"\[{label}\]", text)
        if found is None:
            return self.add_file(attachment, ())
        chip = Chip(found[0], attachment=attachment)
        self.add([chip])
        return chip

    def snap(self, line: str, column: int, *, towards_end: bool) -> int:
        """Return the column, moved to an end of the label that it is inside of."""
        if self._pattern is not None:
            for found in self._pattern.finditer(line):
                if found.start() < column < found.end():
                    return found.end() if towards_end else found.start()
        return column

    def find_paste(self, lines: Sequence[str], row: int, column: int) -> tuple[int, re.Match[str], str] | None:
        """Find the pasted text to expand: the one at the cursor, else the last. Return its row, label and text."""
        texts = {chip.label: chip.text for chip in self._chips.values() if chip.text and len(chip.text) <= ATTACH_CHARS}
        pattern = label_pattern(texts)
        if pattern is None:
            return None
        labels = [(at, found) for at, line in enumerate(lines) for found in pattern.finditer(line)]
        at_cursor = [(at, found) for at, found in labels if at == row and found.start() <= column <= found.end()]
        if not labels:
            return None
        at, found = (at_cursor or labels)[-1]
        return at, found, texts[found[0]]
