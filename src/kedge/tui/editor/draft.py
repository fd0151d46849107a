"""The editor's content (`Content`), its chips (`Chip`), and the prompt made from them (`Draft`).

A long paste or an attached file is a chip: a label in the text that stands for content kept beside it. No edit splits a
label.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Literal

import msgspec

from kedge.protocol.runs import Attachment

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
                return Draft(text.strip(), kind="command")
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
