"""What of a run may be printed, and where: never twice, never out of order, whatever the order of arrival.

A teller is asked for news after each event, and once more at the end. Both kinds end with exactly the answer of
`run_complete`: of what was told already, only the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kedge.client.text import Message, RunMessages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal, Protocol

    # answer: what the assistant says; break: a line break of ours in it
    # aside: what was said on the way; note: a word of ours about what happened
    Told = tuple[Literal["answer", "break", "aside", "note"], str]

    class Teller(Protocol):
        def news(self) -> Iterator[Told]: ...
        def finish(self, end: dict[str, Any]) -> Iterator[Told]: ...


RESTARTED = "the attempt above was interrupted; here is the next one, from its beginning"


class LiveTeller:
    """Every message of the assistant as it is written, a blank line between two of them."""

    def __init__(self, messages: RunMessages) -> None:
        self._messages = messages
        self._current = 0  # place among the answers of the one being told
        self._speaking: str | None = None  # id of the message that was told last
        self._is_restart = False
        self._is_line_open = False

    def news(self) -> Iterator[Told]:
        answers = self._messages.answers
        while self._current < len(answers):
            message = answers[self._current]
            for text in message.untold():
                yield from self._say(message.id, text)
            if message.reason is None:
                return
            self._current += 1
            yield from self._end_line()
            if message.reason == "interrupted" and message.told:
                yield "note", RESTARTED
                self._is_restart = True

    def finish(self, end: dict[str, Any]) -> Iterator[Told]:
        yield from self.news()
        message = self._messages.get(end["message_id"])
        rest: str = end["text"][message.told if message else 0 :]
        if rest:
            yield from self._say(end["message_id"], rest)
        yield from self._end_line()

    def _say(self, message_id: str, text: str) -> Iterator[Told]:
        if self._speaking not in (None, message_id):
            yield from self._end_line()
            if not self._is_restart:
                yield "break", "\n"
        self._speaking = message_id
        self._is_restart = False
        self._is_line_open = not text.endswith("\n")
        yield "answer", text

    def _end_line(self) -> Iterator[Told]:
        if self._is_line_open:
            self._is_line_open = False
            yield "break", "\n"


class FinalTeller:
    """The answer alone, at the end; what was said before it goes aside. Attempts that failed are not mentioned."""

    def __init__(self, messages: RunMessages) -> None:
        self._messages = messages
        self._current = 0

    def news(self) -> Iterator[Told]:
        """A message goes aside when a later one shows that it was not the last."""
        answers = self._messages.answers
        while self._current < len(answers) - 1 and answers[self._current].reason is not None:
            yield from self._aside(answers[self._current])
            self._current += 1

    def finish(self, end: dict[str, Any]) -> Iterator[Told]:
        for message in self._messages.answers[self._current :]:
            if message.id != end["message_id"]:
                yield from self._aside(message)
        if end["text"]:
            yield "answer", end["text"]
            if not end["text"].endswith("\n"):
                yield "break", "\n"

    def _aside(self, message: Message) -> Iterator[Told]:
        text = message.text
        if text and message.reason != "interrupted":
            yield "aside", text if text.endswith("\n") else f"{text}\n"


class Speech:
    """The text alone, for programs: with what separates messages, without the newline that a terminal wants at last."""

    def __init__(self) -> None:
        self._breaks = ""

    def of(self, told: Iterable[Told]) -> Iterator[str]:
        for kind, text in told:
            if kind == "break":
                self._breaks += text
            elif kind == "answer":
                yield self._breaks + text
                self._breaks = ""
