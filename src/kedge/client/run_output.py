"""The text to print for a run, in order and without repetitions, whatever the order of arrival.

`LiveOutput` and `FinalOutput` are asked for `new_pieces` after each event, and to `finish` at the end. Both end with
exactly the answer of `run_complete`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kedge.client.message_assembly import RunMessage, RunMessages, is_complete
from kedge.client.run_view import describe_call, describe_waiting, is_passing, progress_percent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal, Protocol

    from kedge.client.events import Event

    # answer: the assistant's text; break: a line break between messages or at the end
    # aside: text of an earlier message than the answer; note: a line of Kedge's own
    Piece = tuple[Literal["answer", "break", "aside", "note"], str]
    ActivityLine = tuple[Literal["call", "note"], str]

    class RunOutput(Protocol):
        def new_pieces(self) -> Iterator[Piece]: ...
        def finish(self, end: dict[str, Any]) -> Iterator[Piece]: ...


RESTARTED = "The attempt above was interrupted. Starting over:"


class LiveOutput:
    """Every message of the assistant as it is written, with a blank line between two of them."""

    def __init__(self, messages: RunMessages) -> None:
        self._messages = messages
        self._index = 0  # of the current message in `answers`
        self._last_id: str | None = None  # message that was printed last
        self._is_restart = False
        self._is_line_open = False

    def new_pieces(self) -> Iterator[Piece]:
        answers = self._messages.answers
        while self._index < len(answers):
            message = answers[self._index]
            for text in message.take_new_text():
                yield from self._print(message.id, text)
            if message.reason is None:
                return
            self._index += 1
            yield from self._end_line()
            if message.reason == "interrupted" and message.printed_chars:
                yield "note", RESTARTED
                self._is_restart = True

    def finish(self, end: dict[str, Any]) -> Iterator[Piece]:
        yield from self.new_pieces()
        message = self._messages.get(end["message_id"])
        rest: str = end["text"][message.printed_chars if message else 0 :]
        if rest:
            yield from self._print(end["message_id"], rest)
        yield from self._end_line()

    def _print(self, message_id: str, text: str) -> Iterator[Piece]:
        if self._last_id not in (None, message_id):
            yield from self._end_line()
            if not self._is_restart:
                yield "break", "\n"
        self._last_id = message_id
        self._is_restart = False
        self._is_line_open = not text.endswith("\n")
        yield "answer", text

    def _end_line(self) -> Iterator[Piece]:
        if self._is_line_open:
            self._is_line_open = False
            yield "break", "\n"


class FinalOutput:
    """The answer alone, at the end; earlier messages are asides. Interrupted attempts are left out."""

    def __init__(self, messages: RunMessages) -> None:
        self._messages = messages
        self._index = 0

    def new_pieces(self) -> Iterator[Piece]:
        """A message is an aside once a later one shows that it was not the last."""
        answers = self._messages.answers
        while self._index < len(answers) - 1 and answers[self._index].reason is not None:
            yield from self._aside(answers[self._index])
            self._index += 1

    def finish(self, end: dict[str, Any]) -> Iterator[Piece]:
        for message in self._messages.answers[self._index :]:
            if message.id != end["message_id"]:
                yield from self._aside(message)
        if end["text"]:
            yield "answer", end["text"]
            if not end["text"].endswith("\n"):
                yield "break", "\n"

    def _aside(self, message: RunMessage) -> Iterator[Piece]:
        text = message.text
        if text and message.reason != "interrupted":
            yield "aside", text if text.endswith("\n") else f"{text}\n"


class AnswerText:
    """Only the text, for programs: with the breaks between messages, without the final newline for a terminal."""

    def __init__(self) -> None:
        self._breaks = ""

    def take(self, pieces: Iterable[Piece]) -> Iterator[str]:
        for kind, text in pieces:
            if kind == "break":
                self._breaks += text
            elif kind == "answer":
                yield self._breaks + text
                self._breaks = ""


class Activity:
    """One line for each tool call that started or was refused, and each notice, summary and wait of a run."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._calls: dict[str, str] = {}  # calls that have not started or ended yet, by call id: what they do
        self._started: set[str] = set()  # ids of calls
        self._notices: set[str] = set()
        self._provider: str | None = None  # of the last retry
        self._last_wait = ""  # the line of a wait after which nothing was written yet

    def take(self, event: Event) -> list[ActivityLine]:
        payload: dict[str, Any] = event["payload"].get("payload", {})
        if payload.get("run_id") != self._run_id or event.get("seq") is None:
            return []
        if event["type"] == "message":
            return [*self._end_wait(payload), *self._take_message(payload)]
        if event["type"] == "run":
            return self._take_wait(payload.get("waiting"))
        if event["type"] == "agent_event" and payload["type"] == "retry":
            self._provider = payload.get("provider_id")
        if event["type"] == "agent_event" and payload["type"] in ("notice", "summarize", "fallback"):
            return self._take_notice(payload)
        if event["type"] == "permission_notification" and payload["action"] == "deny":
            self._started.add(payload["tool_call_id"])  # it gets one line, at its end
        return []

    def _take_message(self, message: dict[str, Any]) -> list[ActivityLine]:
        lines: list[ActivityLine] = []
        for part in message["parts"]:
            if part["type"] == "tool_call" and part["finished"]:
                self._calls[part["id"]] = f"{part['name']} {describe_call(part['input'], part['name'])}".rstrip()
            elif (
                part["type"] == "tool_result" and (call := self._calls.get(call_id := part["tool_call_id"])) is not None
            ):
                if call_id not in self._started:
                    lines.append(("call", call))
                    self._started.add(call_id)
                if is_complete("tool_result", part["content"], part["is_error"], None):
                    del self._calls[call_id]
                    lines += _tell_refusal(call, part.get("metadata") or {})
        return lines

    def _take_wait(self, waiting: dict[str, Any] | None) -> list[ActivityLine]:
        if waiting is None:
            return []
        line = describe_waiting(waiting["reason"], waiting["until"], self._provider)
        if line == self._last_wait:
            return []
        self._last_wait = line
        return [("note", f"{line[0].upper()}{line[1:]}")]

    def _end_wait(self, message: dict[str, Any]) -> list[ActivityLine]:
        has_content = message["role"] == "assistant" and any(part["type"] != "finish" for part in message["parts"])
        if not self._last_wait or not has_content:
            return []
        self._last_wait = ""
        return [("note", "Continuing")]

    def _take_notice(self, notice: dict[str, Any]) -> list[ActivityLine]:
        text = notice.get("message")
        if not text or progress_percent(notice) is not None or is_passing(notice) or text in self._notices:
            return []
        self._notices.add(text)
        details: dict[str, Any] = notice.get("details") or {}
        return [("call" if details.get("is_detail") else "note", text)]  # details are shown where calls are


_REFUSALS = {
    "mode": "refused (mode plan)",
    "hook": "refused (by a hook)",
    "unattended": "refused (needs a permission)",
    "no_sandbox": "refused (the sandbox is unavailable)",
}


def _tell_refusal(call: str, metadata: dict[str, Any]) -> list[ActivityLine]:
    why = _REFUSALS.get(str(metadata.get("refused")))
    if metadata.get("refused") == "rule":
        why = f"refused (rule {metadata.get('rule')})"
    elif "denied" in metadata:
        why = "denied"
    return [("call", f"{why}: {call}")] if why else []
