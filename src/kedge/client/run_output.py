"""What of a run may be printed, and where: never twice, never out of order, whatever the order of arrival.

A teller is asked for news after each event, and once more at the end. Both kinds end with exactly the answer of
`run_complete`: of what was told already, only the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from kedge.client.message_assembly import RunMessage, RunMessages
from kedge.client.run_view import is_passing, progress_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal, Protocol

    # answer: what the assistant says; break: a line break of ours in it
    # aside: what was said on the way; note: a word of ours about what happened
    Told = tuple[Literal["answer", "break", "aside", "note"], str]

    class Teller(Protocol):
        def news(self) -> Iterator[Told]: ...
        def finish(self, end: dict[str, Any]) -> Iterator[Told]: ...

    from typing import Literal

    from kedge.client.event_cursor import Event

    Happening = tuple[Literal["call", "note"], str]

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
            for text in message.take_new_text():
                yield from self._say(message.id, text)
            if message.reason is None:
                return
            self._current += 1
            yield from self._end_line()
            if message.reason == "interrupted" and message.printed_chars:
                yield "note", RESTARTED
                self._is_restart = True

    def finish(self, end: dict[str, Any]) -> Iterator[Told]:
        yield from self.news()
        message = self._messages.get(end["message_id"])
        rest: str = end["text"][message.printed_chars if message else 0 :]
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

    def _aside(self, message: RunMessage) -> Iterator[Told]:
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


# What says most about a call, first.
_SUBJECTS = ("command", "path", "file_path", "pattern", "url", "query", "prompt", "question", "title", "name", "id")


class Activity:
    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._inputs: dict[str, str] = {}  # of calls that have not started yet, by their id
        self._told: set[str] = set()

    def take(self, event: Event) -> list[Happening]:
        payload: dict[str, Any] = event["payload"].get("payload", {})
        if payload.get("run_id") != self._run_id or event.get("seq") is None:
            return []
        if event["type"] == "message":
            return self._take_message(payload)
        if event["type"] == "agent_event" and payload["type"] in ("notice", "summarize"):
            return self._take_notice(payload)
        return []

    def _take_message(self, message: dict[str, Any]) -> list[Happening]:
        happened: list[Happening] = []
        for part in message["parts"]:
            if part["type"] == "tool_call" and part["finished"]:
                self._inputs[part["id"]] = part["input"]
            elif part["type"] == "tool_result" and (call_id := part["tool_call_id"]) in self._inputs:
                happened.append(("call", f"{part['name']} {subject_of(self._inputs.pop(call_id))}".rstrip()))
        return happened

    def _take_notice(self, notice: dict[str, Any]) -> list[Happening]:
        text = notice.get("message")
        if not text or progress_of(notice) is not None or is_passing(notice) or text in self._told:
            return []
        self._told.add(text)
        details: dict[str, Any] = notice.get("details") or {}
        return [("call" if details.get("is_detail") else "note", text)]  # a detail is for who watches, like a call


def subject_of(call_input: str) -> str:
    """What a call is about, in one line: its command, its path, …"""
    try:
        given: dict[str, Any] = json.loads(call_input)
        texts = {name: value for name, value in given.items() if isinstance(value, str) and value.strip()}
    except (ValueError, AttributeError, RecursionError):  # no JSON, or no object
        return " ".join(call_input.split())
    subject = next((texts[name] for name in _SUBJECTS if name in texts), next(iter(texts.values()), ""))
    return " ".join(subject.split())
