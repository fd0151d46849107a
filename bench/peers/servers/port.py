"""What the measurements want of a server, whatever it speaks: one adapter a peer, written to that peer's documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.peers.servers.stream import Frame, Stream


@dataclass(frozen=True)
class Delta:
    """Text of the answer, as it comes."""

    text: str
    offset: int | None = None  # where it belongs in the message, where the server says so


@dataclass(frozen=True)
class Whole:
    """All text of a message: so far, or for good."""

    text: str
    is_final: bool


@dataclass(frozen=True)
class Ended:
    """Nothing more comes of this prompt."""

    how: str


Told = Delta | Whole | Ended


@dataclass(frozen=True)
class Rejoined:
    """A reader that came back."""

    stream: Stream
    text: str = ""  # of the answer, as the server told it on the way


@dataclass(frozen=True)
class Recount:
    """What a server knows of a prompt."""

    is_kept: bool
    ends: tuple[str, ...]  # each end that clients are told of


class Desk(Protocol):
    """One client with one session: it asks, and hears."""

    @property
    def session_id(self) -> str: ...

    @property
    def stream(self) -> Stream: ...

    def submit(self, prompt: str) -> float | None:
        """When the server said that it took the prompt; None where nothing says so but the story itself."""
        ...

    def close(self) -> None: ...


class Adapter(Protocol):
    ready_line: str  # on its standard output, before which it is not to be asked; "" where there is none
    accepted: str  # what tells a client that its prompt was taken
    rejoining: str  # what a reader does that was cut off
    no_queue: str  # why a second prompt does not wait for the first; "" where it does
    no_fan_out: str  # why only one client hears; "" where all of a session do
    end_mark: bytes  # is in the frame that ends a prompt, and in no other

    def arguments(self) -> Sequence[str]:
        """Of the peer's program."""
        ...

    def answer(self) -> None:
        """One request, the first that any client sends. Raises while nobody answers."""
        ...

    def open(self) -> Desk:
        """With a new session."""
        ...

    def reopen(self, session_id: str) -> Desk:
        """With one that is there, after a restart of the server."""
        ...

    def join(self, session_id: str) -> Stream:
        """One more reader, which is told of everything from here on."""
        ...

    def rejoin(self, session_id: str, last: str | None) -> Rejoined:
        """The reader that had heard everything up to the frame with the mark `last`."""
        ...

    def read(self, frame: Frame, session_id: str) -> Sequence[Told]:
        """What a frame says of a session."""
        ...

    def recount(self, session_id: str, prompt: str) -> Recount: ...

    def close(self) -> None: ...
