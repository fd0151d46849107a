"""What happens in a run beside its words, one line for each: calls as they start, notices, summaries.

Each is told once, whatever is heard again; what other runs do is not looked at.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    from kedge.client.story import Event

    Happening = tuple[Literal["call", "note"], str]

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


def is_passing(notice: dict[str, Any]) -> bool:
    """Whether it says what is being done now, and is of no interest afterwards."""
    details: dict[str, Any] = notice.get("details") or {}
    return bool(details.get("is_passing"))


def progress_of(notice: dict[str, Any]) -> int | None:
    """In percent, if it is a notice that moves."""
    details: dict[str, Any] = notice.get("details") or {}
    done, total = details.get("done_bytes"), details.get("total_bytes")
    if not isinstance(done, int) or not isinstance(total, int) or total <= 0:
        return None if done is None else 0
    return min(100, done * 100 // total)
