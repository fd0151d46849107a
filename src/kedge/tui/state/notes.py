"""What the agent reported of a run beside its messages: retries, waits, downloads; each in its place in the story.

Reports of the same kind that follow each other are one line that counts. The last one is pending until the run goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from kedge.client.run_view import describe_waiting, is_passing, progress_percent
from kedge.protocol.events import AgentEvent
from kedge.protocol.runs import Waiting
from kedge.protocol.text_safety import describe_period
from kedge.tui.state.blocks import NoteBlock


class _Noted(NamedTuple):
    key: str
    event: AgentEvent
    after: str | None  # id of the last message that had content by then
    arrived_at: float  # of a monotonic clock


class RunNotes:
    def __init__(self) -> None:
        self._noted: list[_Noted] = []
        self._keys: set[str] = set()
        self._pending: _Noted | None = None
        self.summary_reason = ""  # why the last summary was made

    def __iter__(self) -> Iterator[AgentEvent]:
        return (noted.event for noted in self._noted)

    def add(self, key: str, event: AgentEvent, after: str | None, now: float) -> None:
        """Add a report; one that was replayed has the same key."""
        if key in self._keys:
            return
        self._keys.add(key)
        noted = _Noted(key, event, after, now)
        self._noted.append(noted)
        if event.type == "summarize":
            self.summary_reason = str((event.details or {}).get("why", ""))
        if event.type in ("retry", "re_authenticate") or _is_progress(event):
            self._pending = noted
        elif event.type != "notice":
            self._pending = None

    def proceed(self) -> None:
        """Called when the run goes on: nothing is pending any more."""
        self._pending = None

    @property
    def provider(self) -> str | None:
        """The provider of the last error."""
        return next((event.provider_id for event in reversed(list(self)) if event.type == "retry"), None)

    @property
    def rejected_provider(self) -> str | None:
        """The provider whose API key was rejected, while the run waits for another."""
        event = self._pending.event if self._pending else None
        return (event.provider_id or "the provider") if event and event.type == "re_authenticate" else None

    def describe_pending(self, now: float) -> str | None:
        """Return what the run waits for at this moment, with the time that is left."""
        if self._pending is None:
            return None
        event, details = self._pending.event, self._pending.event.details or {}
        match event.type:
            case "retry" if "attempt" in details:
                left_s = self._pending.arrived_at + float(details.get("delay_s", 0)) - now
                when = f" in {describe_period(left_s)}" if left_s >= 1 else ""
                return f"Retrying{when}, {details['attempt']} of {details.get('of', '?')}"
            case "notice":
                percent = progress_percent({"details": details})
                text = (event.message or "Working").rstrip(".")
                return text if percent is None else f"{text}: {percent} %"
            case _:
                return None

    def build(self, after: Iterable[str | None], *, has_summary: bool) -> list[NoteBlock]:
        """Build the notes that stand behind one of these messages."""
        places = set(after)
        here = [each for each in self._noted if each.after in places and self._is_shown(each, has_summary=has_summary)]
        blocks: list[NoteBlock] = []
        for _, group in groupby(here, _identify_kind):
            noted = list(group)
            blocks.append(_build_note(noted, is_pending=self._pending in noted))
        return blocks

    def _is_shown(self, noted: _Noted, *, has_summary: bool) -> bool:
        event = noted.event
        match event.type:
            case "error":
                return False  # it is shown at the end of the run
            case "summarize":
                return bool(event.message) and not has_summary
            case "notice" if is_passing({"details": event.details}):
                return noted is self._pending
            case "notice":
                return bool(event.message)
            case _:
                return True


def describe_wait(waiting: Waiting, provider: str | None, time_s: float) -> str:
    """Return what a run waits for, and how long it will."""
    line = describe_waiting(waiting.reason, waiting.until, provider)
    left_s = waiting.until - time_s
    if left_s < 1:
        left = ""
    else:
        left = (
            f", next try in {describe_period(left_s)}"
            if waiting.reason == "network"
            else f" ({describe_period(left_s)})"
        )
    return f"{line[0].upper()}{line[1:]}{left}"


def _is_progress(event: AgentEvent) -> bool:
    notice: dict[str, Any] = {"details": event.details}
    return event.type == "notice" and (progress_percent(notice) is not None or is_passing(notice))


def _identify_kind(noted: _Noted) -> object:
    """Reports with the same value that follow each other are shown in one line."""
    event = noted.event
    if event.type == "retry":
        return "retry"
    return (event.type, event.message) if _is_progress(event) else noted.key


def _build_note(group: list[_Noted], *, is_pending: bool) -> NoteBlock:
    event, details = group[-1].event, group[-1].event.details or {}
    key, revision = group[0].key, len(group) * 2 + is_pending
    match event.type:
        case "retry":
            errors = [each.event.message or each.event.error or "The model did not answer" for each in group]
            last = errors[-1].rstrip(".")
            others = list(dict.fromkeys(error for error in errors if error != errors[-1]))
            text = f"{last[0].upper()}{last[1:]} · {_describe_retry(len(group), details, is_pending=is_pending)}"
            return NoteBlock(key=key, revision=revision, kind="warning", text=text, details="\n\n".join(others))
        case "re_authenticate":
            text = _describe_rejection(event) + (" Run /login to continue." if is_pending else "")
            return NoteBlock(key=key, revision=revision, kind="warning", text=text, details=event.error or "")
        case "fallback":
            text = event.message or "Going on with another model"
            return NoteBlock(key=key, revision=revision, kind="warning", text=text)
        case _:
            percent = progress_percent({"details": details}) if is_pending else None
            text = event.message or ""
            text = text if percent is None else f"{text.rstrip('.')}: {percent} %"
            return NoteBlock(key=key, revision=revision, kind="info", text=text)


def _describe_retry(count: int, details: dict[str, Any], *, is_pending: bool) -> str:
    if is_pending and "attempt" in details:
        delay_s = float(details.get("delay_s", 0))
        when = f" in {describe_period(delay_s)}" if delay_s >= 1 else ""
        return f"retrying{when}, {details['attempt']} of {details.get('of', '?')}"
    if is_pending:
        return "waiting"
    return "retried once" if count == 1 else f"retried {count} times"


def _describe_rejection(event: AgentEvent) -> str:
    return f"The API key for {event.provider_id or 'the provider'} was rejected."
