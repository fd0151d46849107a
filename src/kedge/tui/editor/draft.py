"""What is sent (`Draft`), what is in the editor (`Content`), and pieces that are shown in a word (`Chip`).

A long paste or an image is a chip: a label in the text, its content aside. The two are one: no edit splits a label.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Literal

import msgspec

from kedge.protocol.runs import Attachment

DraftKind = Literal["prompt", "shell", "command"]

# `/etc/hosts is wrong` is a prompt; `/modle gpt` is a command that does not exist: who mistypes wants to know.
_COMMAND = re.compile(r"/[A-Za-z][\w:-]*(?=\s|$)")


class Draft(msgspec.Struct, frozen=True):
    """Two with the same fields are the same thing sent twice. Of a command, `text` begins with its slash."""

    text: str
    attachments: tuple[Attachment, ...] = ()
    kind: DraftKind = "prompt"


class Chip(msgspec.Struct, frozen=True):
    label: str
    text: str | None = None  # what stands for the label when it is sent
    attachment: Attachment | None = None  # or goes with it

    @property
    def size_bytes(self) -> int:
        return len(self.attachment.content) if self.attachment else 0


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
        """With what the labels of pasted texts stand for."""
        texts = {chip.label: chip.text for chip in self.chips if chip.text is not None}
        pattern = labels(texts)
        return pattern.sub(lambda found: texts[found[0]], self.text) if pattern else self.text

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        return tuple(chip.attachment for chip in self.chips if chip.attachment is not None)

    def draft(self, mentioned: Iterable[Attachment] = ()) -> Draft:
        text = self.expanded
        match self.kind:
            case "shell":
                return Draft(text.strip()[1:].strip(), kind="shell")
            case "command":
                return Draft(text.strip(), kind="command")
            case "prompt":
                return Draft(text.rstrip(), (*self.attachments, *mentioned))


def kind_of(text: str) -> DraftKind:
    text = text.lstrip()
    if text.startswith("!"):
        return "shell"
    return "command" if _COMMAND.match(text) else "prompt"


def content_of(text: str, known: Iterable[Chip]) -> Content:
    """The text with those of the known chips that it names, in the order of the text."""
    named = [(at, chip) for chip in known if (at := text.find(chip.label)) >= 0]
    return Content(text, tuple(chip for _, chip in sorted(named, key=lambda each: each[0])))


def labels(known: Collection[str]) -> re.Pattern[str] | None:
    """Finds labels in a text; None: there are none to find."""
    return re.compile("|".join(map(re.escape, known))) if known else None


def label_around(line: str, column: int, known: re.Pattern[str]) -> tuple[int, int] | None:
    """The label that has this place in it, and not at one of its ends."""
    for found in known.finditer(line):
        if found.start() < column < found.end():
            return found.span()
    return None
