"""One run as a client sees it: its state, its text, its end. Everything of other runs is ignored.

Pure: `RunView` is what is known of the run, `RunCore` what a transport has to do next to know more.
"""

from __future__ import annotations

from collections.abc import Callable

from kedge.client.event_cursor import Story
from kedge.client.http1 import escape, query
from kedge.client.message_assembly import RunMessages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kedge.client.event_cursor import Event
    from kedge.client.message_assembly import Growth

PAGE = 200  # messages in one answer

_ENDED = ("completed", "failed", "cancelled")


class RunView:
    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.messages = RunMessages(run_id)
        self.end: dict[str, Any] | None = None  # the payload of run_complete
        self.requests = Requests()
        self._doing = "waiting"

    @property
    def doing(self) -> str:
        """A word or two for people."""
        asked = self.requests.waiting_for
        return self._doing if asked is None else f"waiting for a person: {asked}"

    def is_about(self, event: Event) -> bool:
        return event["payload"].get("payload", {}).get("run_id") == self.run_id

    def take(self, event: Event) -> list[Growth]:
        """Take an event in; returns how its text grew."""
        payload: dict[str, Any] = event["payload"].get("payload", {})
        if payload.get("run_id") != self.run_id or self.end is not None:
            return []
        match event["type"]:
            case "message_delta":
                self._doing = _DELTAS.get(payload["kind"], self._doing)
                return self.messages.take_delta(payload)
            case "message":
                return self._take_message(payload, is_snapshot=event.get("seq") is None)
            case "run":
                self._doing = "waiting in the queue" if payload["state"] == "queued" else "thinking"
                if payload.get("cancel_requested"):
                    self._doing = "cancelling"
            case "agent_event":
                self._take_agent_event(payload)
            case "permission_request" | "permission_notification" | "question_request" | "question_notification":
                self.requests.take(event)
            case "run_complete":
                self.end = payload
            case _:
                pass
        return []

    def reread(self, run: dict[str, Any], messages: list[dict[str, Any]]) -> None:
        """After a reset: the run and the messages of its session as the server has them stored."""
        for message in messages:
            if message["run_id"] == self.run_id:
                self._take_message(message, is_snapshot=False)
        if run["state"] in _ENDED and self.end is None:
            self.end = self._told_by(run)

    def _take_message(self, payload: dict[str, Any], *, is_snapshot: bool) -> list[Growth]:
        grown = self.messages.take_message(payload, is_snapshot=is_snapshot)
        if payload["role"] == "assistant" and (
            tools := [p["name"] for p in payload["parts"] if p["type"] == "tool_call"]
        ):
            self._doing = f"running {', '.join(tools)}"
        return grown

    def _take_agent_event(self, payload: dict[str, Any]) -> None:
        if payload["type"] == "retry":
            self._doing = f"trying again: {payload.get('error') or 'the model did not answer'}"
        elif payload["type"] == "re_authenticate":
            self._doing = f"waiting for a login at {payload.get('provider_id')}"
        elif payload["type"] == "summarize":
            self._doing = "summarizing"
        elif payload["type"] == "notice" and (percent := progress_of(payload)) is not None:
            self._doing = f"{payload.get('message') or 'working'}, {percent} %"
        elif payload["type"] == "notice" and is_passing(payload):
            self._doing = payload.get("message") or "working"

    def _told_by(self, run: dict[str, Any]) -> dict[str, Any]:
        """The end of a run whose `run_complete` is not in the log any more, from its last message."""
        last = next((m for m in reversed(self.messages.answers) if m.reason != "interrupted"), None)
        end: dict[str, Any] = {
            "session_id": run["session_id"],
            "run_id": self.run_id,
            "message_id": last.id if last else None,
            "text": last.text if last else "",
            "usage": run.get("usage", {}),
        }
        if run["state"] == "cancelled":
            end["cancelled"] = True
        if run["state"] == "failed":
            end["error"] = run.get("error") or (last and last.explanation) or "the run failed"
            if code := run.get("code"):
                end["code"] = code
        return end


_DELTAS = {
    "text": "answering",
    "reasoning": "thinking",
    "tool_input": "preparing a tool call",
    "tool_output": "running a tool",
}


class RunCore:
    """The order of things: subscribe, then send; after a reset, read again what the stream did not tell."""

    def __init__(self, workspace: str, submission: dict[str, Any]) -> None:
        self.workspace = workspace  # the path of its routes
        self.submission = submission
        self.view = RunView(submission["run_id"])
        self.story = Story(session_id=submission["session_id"])
        self.receipt: dict[str, Any] | None = None
        self.listen: Callable[[Event, bytes, list[Growth]], None] | None = None  # hears every event of the run
        self._is_reset = False

    @property
    def wants_to_submit(self) -> bool:
        return self.receipt is None and self.story.seq is not None

    @property
    def wants_to_reread(self) -> bool:
        return self._is_reset and self.receipt is not None

    @property
    def run_target(self) -> str:
        return f"{self.workspace}/runs/{escape(self.view.run_id)}"

    def messages_target(self, after: str | None) -> str:
        session_id = escape(self.submission["session_id"])
        return f"{self.workspace}/sessions/{session_id}/messages{query(after=after, limit=PAGE)}"

    def accepted(self, receipt: dict[str, Any]) -> None:
        self.receipt = receipt
        if self.story.seq is not None and receipt["seq"] <= self.story.seq:
            # The run is older than our subscription: hear its story from the beginning.
            self.story.rewind(receipt["seq"] - 1)

    def take(self, event: Event, data: bytes) -> None:
        if event["type"] == "stream_reset":
            self._is_reset = True
        elif self.view.end is None and self.view.is_about(event):
            grown = self.view.take(event)
            if self.listen:
                self.listen(event, data, grown)

    def reread(self, run: dict[str, Any], messages: list[dict[str, Any]]) -> None:
        self._is_reset = False
        self.view.reread(run, messages)


class Refusal:
    def __init__(self, description: str, rules: list[str]) -> None:
        self.description = description  # what was asked for, in one line
        self.rules = rules  # all of them together would have allowed it; none: no rule does


class Requests:
    def __init__(self) -> None:
        self.refused: list[Refusal] = []
        self._open: dict[str, dict[str, Any]] = {}  # requests without an answer, by their id, oldest first

    @property
    def waiting_for(self) -> str | None:
        """What a person has to say something to, if there is anything."""
        return next((_description(request) for request in self._open.values()), None)

    def take(self, event: Event) -> None:
        told: dict[str, Any] = event["payload"]["payload"]
        match event["type"]:
            case "permission_request" | "question_request":
                self._open[told["id"]] = told
            case "permission_notification" | "question_notification":
                request = self._open.pop(told["id"], {})
                if told["action"] == "deny":
                    params: dict[str, Any] = request.get("params") or {}
                    self.refused.append(Refusal(_description(request), params.get("rules") or []))
            case _:
                pass


def _description(request: dict[str, Any]) -> str:
    if "questions" in request:
        return next((str(each["question"]) for each in request["questions"] if each.get("question")), "a question")
    return request.get("description") or request.get("tool") or "what was asked before"


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
