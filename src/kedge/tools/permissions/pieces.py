"""What a command line comes down to: simple commands, files that redirections open, and what could not be read."""

from __future__ import annotations

from typing import Literal

import msgspec

from kedge.tools.permissions.ground import Directories
from kedge.tools.permissions.words import Word


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """One simple command. What it runs in turn is in `inner`, which counts instead of it when it is a mere wrapper."""

    words: tuple[Word, ...]
    assigned: tuple[Word, ...] = ()  # NAME=value in front of it
    directories: Directories  # where it may be when it starts
    inner: tuple[Piece, ...] = ()
    is_wrapper: bool = False
    is_function: bool = False  # defined above, for certain: what it does is among the pieces

    @property
    def text(self) -> str:
        return " ".join(word.shown for word in (*self.assigned, *self.words))


class Touch(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a redirection opens: every path that it may be, resolved."""

    kind: Literal["read", "write"]
    paths: tuple[str, ...]
    text: str


class Opaque(msgspec.Struct, frozen=True, kw_only=True):
    """Something that cannot be judged: nobody lets it through but a person, or a rule for all of `bash`."""

    why: str
    text: str


Piece = Command | Touch | Opaque
