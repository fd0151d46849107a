"""State of one run as a client sees it: its text, its open requests, its end. Events of other runs are ignored."""

from __future__ import annotations

import time

from kedge.client.message_assembly import RunMessages, is_complete

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kedge.client.events import Event
    from kedge.client.message_assembly import Growth

_END_STATES = ("completed", "failed", "cancelled")
_STATUS_OF_DELTA = {
    "text": "answering",
    "reasoning": "thinking",
    "tool_input": "preparing a tool call",
}


class RunView:
    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.messages = RunMessages(run_id)
        self.end: dict[str, Any] | None = None  # the payload of run_complete
        self.requests = RunRequests()
        self._status = "waiting"
        self._calls: dict[str, dict[str, Any]] = {}  # of the last step, by id
        self._results: set[str] = set()  # ids of the calls that have ended
        self._wait: str | None = None  # what the run waits for, if not for a person
        self._provider: str | None = None  # that the run waits for

    @property
    def status(self) -> str:
        """The current activity of the run, in a few words."""
        waits_for = self.requests.waits_for
        return self._wait or self._status if waits_for is None else f"waiting for an answer: {waits_for}"

    def is_about(self, event: Event) -> bool:
        return event["payload"].get("payload", {}).get("run_id") == self.run_id

    def take(self, event: Event) -> list[Growth]:
        """Apply an event; returns how the run's text grew."""
        payload: dict[str, Any] = event["payload"].get("payload", {})
        if payload.get("run_id") != self.run_id or self.end is not None:
            return []
        match event["type"]:
            case "message_delta":
                self._status = _STATUS_OF_DELTA.get(payload["kind"], self._status)
                return self.messages.take_delta(payload)
            case "message":
                return self._take_message(payload, is_snapshot=event.get("seq") is None)
            case "run":
                self._status = "waiting in the queue" if payload["state"] == "queued" else "thinking"
                waiting = payload.get("waiting")
                self._wait = waiting and describe_waiting(waiting["reason"], waiting["until"], self._provider)
                if payload.get("cancel_requested"):
                    self._status = "canceling"
                    self._wait = None
            case "agent_event":
                self._take_agent_event(payload)
            case "permission_request" | "permission_notification" | "question_request" | "question_notification":
                self.requests.take(event)
            case "run_complete":
                self.end = payload
            case _:
                pass
        return []

    def reload(self, run: dict[str, Any], messages: list[dict[str, Any]]) -> None:
        """Apply the run and its session's messages as the server stores them, after events were lost (P10)."""
        for message in messages:
            if message["run_id"] == self.run_id:
                self._take_message(message, is_snapshot=False)
        if run["state"] in _END_STATES and self.end is None:
            self.end = self._build_end(run)

    def _take_message(self, payload: dict[str, Any], *, is_snapshot: bool) -> list[Growth]:
        grown = self.messages.take_message(payload, is_snapshot=is_snapshot)
        parts: list[dict[str, Any]] = payload["parts"]
        if payload["role"] == "assistant":
            self._take_step(parts)
        elif payload["role"] == "tool" and not is_snapshot:
            self._take_results(parts)
        return grown

    def _take_step(self, parts: list[dict[str, Any]]) -> None:
        """Calls run when the step is complete; those of an interrupted one never do."""
        if not parts:
            self._status = "thinking"
        elif parts[-1]["type"] == "finish":
            is_run = parts[-1]["reason"] != "interrupted"
            self._calls = {part["id"]: part for part in parts if is_run and part["type"] == "tool_call"}
            if self._calls:
                self._show_calls()

    def _take_results(self, parts: list[dict[str, Any]]) -> None:
        for part in parts:
            if part["type"] == "tool_result" and is_complete("tool_result", part["content"], part["is_error"], None):
                call_id = part["tool_call_id"]
                self._results.add(call_id)
                self.requests.take_result(part, self._calls.get(call_id))
        if self._calls:
            self._show_calls()

    def _show_calls(self) -> None:
        names = [call["name"] for call_id, call in self._calls.items() if call_id not in self._results]
        self._status = f"running {', '.join(names)}" if names else "thinking"

    def _take_agent_event(self, payload: dict[str, Any]) -> None:
        if payload["type"] == "retry":
            self._provider = payload.get("provider_id")
            self._status = f"retrying: {payload.get('error') or 'the model did not answer'}"
        elif payload["type"] == "re_authenticate":
            self._status = f"waiting for a login to {payload.get('provider_id')}"
        elif payload["type"] == "summarize":
            self._status = "summarizing"
        elif payload["type"] == "notice" and (percent := progress_percent(payload)) is not None:
            self._status = f"{payload.get('message') or 'working'}, {percent} %"
        elif payload["type"] == "notice" and is_passing(payload):
            self._status = payload.get("message") or "working"

    def _build_end(self, run: dict[str, Any]) -> dict[str, Any]:
        """The payload of a `run_complete` that is no longer in the log, built from the run and its last message."""
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


class Denial:
    """A denied permission. `by_user`: a person denied it; otherwise the run had no person to ask."""

    def __init__(self, description: str, rules: list[str], *, by_user: bool = False, no_sandbox: bool = False) -> None:
        self.description = description  # of the action, in one line
        self.rules = rules  # together they would have allowed it; empty: no narrow rule would
        self.by_user = by_user
        self.no_sandbox = no_sandbox  # the configured sandbox is unavailable, which no rule changes


class RunRequests:
    """The permission requests and questions of a run."""

    def __init__(self) -> None:
        self.denied: list[Denial] = []
        self._denied_calls: set[str] = set()
        self._open: dict[str, dict[str, Any]] = {}  # requests without an answer, by id, oldest first

    @property
    def waits_for(self) -> str | None:
        """Description of the oldest request without an answer."""
        return next((_describe(request) for request in self._open.values()), None)

    def take(self, event: Event) -> None:
        payload: dict[str, Any] = event["payload"]["payload"]
        match event["type"]:
            case "permission_request" | "question_request":
                self._open[payload["id"]] = payload
            case "permission_notification" | "question_notification":
                request = self._open.pop(payload["id"], {})
                call_id = payload.get("tool_call_id")
                if payload["action"] == "deny" and call_id not in self._denied_calls:
                    params: dict[str, Any] = request.get("params") or {}
                    by_user = payload.get("by", "run") != "run"
                    no_sandbox = "without_sandbox" in params
                    rules: list[str] = params.get("rules") or []
                    self.denied.append(Denial(_describe(request), rules, by_user=by_user, no_sandbox=no_sandbox))
                    self._denied_calls |= {call_id} if call_id else set()
            case _:
                pass

    def take_result(self, result: dict[str, Any], call: dict[str, Any] | None) -> None:
        """Take the result of a call, which also tells its denial: the events of it may have been lost."""
        metadata: dict[str, Any] = result.get("metadata") or {}
        by_user = "denied" in metadata
        if result["tool_call_id"] in self._denied_calls or not (by_user or metadata.get("refused") == "unattended"):
            return
        self._denied_calls.add(result["tool_call_id"])
        description = f"{result['name']} {describe_call(call['input'], call['name']) if call else ''}".rstrip()
        self.denied.append(Denial(description, metadata.get("allow_rules") or [], by_user=by_user))


# Fields of a call's input that describe it best, best first.
_SUBJECT_FIELDS = (
    *("command", "path", "file_path", "pattern", "url", "query"),
    *("prompt", "question", "title", "name", "id"),
)


def describe_call(call_input: str, tool: str = "") -> str:
    """The most telling field of a tool call's input, in one line: its command, its path, …"""
    from kedge.protocol.tool_input import correct_params, parse_tool_input  # late: most runs show no calls

    given = parse_tool_input(call_input)
    if given is None:
        return " ".join(call_input.split())
    fields = correct_params(tool, given)
    texts = {name: value for name, value in fields.items() if isinstance(value, str) and value.strip()}
    subject = next((texts[name] for name in _SUBJECT_FIELDS if name in texts), next(iter(texts.values()), ""))
    return " ".join(subject.split())


def _describe(request: dict[str, Any]) -> str:
    if "questions" in request:
        return next((str(each["question"]) for each in request["questions"] if each.get("question")), "a question")
    return request.get("description") or request.get("tool") or "an earlier request"


_WAITS = {"rate_limit": "the rate limit", "usage_limit": "the usage limit", "overload": "capacity"}


def describe_waiting(reason: str, until: float, provider: str | None = None) -> str:
    """What a run waits for, in a few words: "waiting for the rate limit of openai until 14:35"."""
    if reason == "network":  # `until` is only the next try: the end of the outage is unknown
        return f"waiting for the network: {provider or 'the model'} cannot be reached"
    of = f" of {provider}" if provider else ""
    return f"waiting for {_WAITS.get(reason, 'the provider')}{of} until {format_time(until)}"


def format_time(time_s: float) -> str:
    """The time of day, with the date if it is not today."""
    then = time.localtime(time_s)
    is_today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if is_today else "%Y-%m-%d %H:%M", then)


def is_passing(notice: dict[str, Any]) -> bool:
    """Whether a notice is only of interest while it happens."""
    details: dict[str, Any] = notice.get("details") or {}
    return bool(details.get("is_passing"))


def progress_percent(notice: dict[str, Any]) -> int | None:
    """The progress of a download; None for any other notice."""
    details: dict[str, Any] = notice.get("details") or {}
    done, total = details.get("done_bytes"), details.get("total_bytes")
    if not isinstance(done, int) or not isinstance(total, int) or total <= 0:
        return None if done is None else 0
    return min(100, done * 100 // total)
