"""What happens in a run beside its words: one line each, once, and of this run alone."""

from __future__ import annotations

from typing import Any

import pytest

from kedge.client.run_output import Activity, describe_call
from kedge.client.run_view import RunView, format_time, progress_percent

CALL = {"type": "tool_call", "id": "c1", "name": "bash", "input": '{"command": "pytest -q"}', "finished": True}
RESULT = {"type": "tool_result", "tool_call_id": "c1", "name": "bash", "content": "", "is_error": False}
IMAGE = {"type": "image", "mime_type": "image/png", "data": ""}


def event(type: str, payload: dict[str, Any], seq: int | None = 1) -> dict[str, Any]:
    told = {"type": type, "payload": {"type": "created", "payload": {"run_id": "r", **payload}}}
    return told if seq is None else {**told, "seq": seq}


def message(*parts: dict[str, Any], seq: int | None = 1, run_id: str = "r") -> dict[str, Any]:
    role = "tool" if parts[0] is RESULT else "assistant"
    return event("message", {"id": "m", "role": role, "parts": list(parts), "run_id": run_id}, seq)


def test_a_call_is_told_when_it_starts_and_once() -> None:
    activity = Activity("r")
    assert activity.take(message(CALL)) == []
    assert activity.take(message(RESULT)) == [("call", "bash pytest -q")]
    assert activity.take(message(RESULT, IMAGE)) == []


def ended(**metadata: Any) -> dict[str, Any]:
    part = {**RESULT, "content": "Refused.", "is_error": True, "metadata": metadata}
    return event("message", {"id": "m2", "role": "tool", "parts": [part]})


def test_a_refused_call_looks_refused() -> None:
    asked = Activity("r")
    asked.take(message(CALL))
    asked.take(event("permission_notification", {"id": "p", "tool_call_id": "c1", "action": "deny", "by": "run"}))
    assert asked.take(message(RESULT)) == []
    ((_, line),) = asked.take(ended(refused="unattended", allow_rules=["bash(pytest *)"]))
    assert line.startswith("refused")
    assert line.endswith(": bash pytest -q")
    assert asked.take(ended(refused="unattended")) == []
    ruled = Activity("r")
    ruled.take(message(CALL))
    assert ruled.take(message(RESULT)) == [("call", "bash pytest -q")]
    assert "bash(pytest *)" in ruled.take(ended(refused="rule", rule="bash(pytest *)"))[0][1]
    failed = Activity("r")
    failed.take(message(CALL))
    assert failed.take(ended(exit_code=1)) == [("call", "bash pytest -q")]


def test_snapshots_and_other_runs_tell_nothing() -> None:
    activity = Activity("r")
    activity.take(message(CALL))
    assert activity.take(message(RESULT, seq=None)) == []
    assert activity.take(message(RESULT, run_id="other")) == []
    assert activity.take(message(RESULT)) == [("call", "bash pytest -q")]


@pytest.mark.parametrize(
    ("given", "subject"),
    [
        ('{"path": "a b", "command": "ls"}', "ls"),
        ('{"limit": 3, "path": "src/x.py"}', "src/x.py"),
        ('{"limit": 3, "anything": "else"}', "else"),
        ('{"command": "a\\nb"}', "a b"),
        ("{}", ""),
        ("[1]", "[1]"),
        ("no json", "no json"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_a_call_is_about_its_command_or_path(given: str, subject: str) -> None:
    assert describe_call(given) == subject


def test_a_notice_is_told_once_and_one_that_moves_only_in_passing() -> None:
    activity, view = Activity("r"), RunView("r")
    plain = event("agent_event", {"type": "notice", "message": "a small model"})
    moving = event(
        "agent_event",
        {"type": "notice", "message": "fetching", "details": {"done_bytes": 5, "total_bytes": 20}},
    )
    assert activity.take(plain) == [("note", "a small model")]
    assert activity.take(plain) == []
    assert activity.take(moving) == []
    view.take(moving)
    assert view.status == "fetching, 25 %"
    passing = event("agent_event", {"type": "notice", "message": "loading", "details": {"is_passing": True}})
    assert activity.take(passing) == []
    view.take(passing)
    assert view.status == "loading"


@pytest.mark.parametrize(
    ("details", "percent"),
    [
        (None, None),
        ({}, None),
        ({"done_bytes": 3}, 0),
        ({"done_bytes": 3, "total_bytes": 0}, 0),
        ({"done_bytes": 30, "total_bytes": 20}, 100),
    ],
)
def test_progress_is_in_percent(details: dict[str, Any] | None, percent: int | None) -> None:
    assert progress_percent({"details": details}) == percent


def waits(reason: str | None, until: float = 0.0) -> dict[str, Any]:
    run = {"state": "running", "attempt": 1}
    return event("run", run if reason is None else {**run, "waiting": {"reason": reason, "until": until}})


def retries(provider_id: str) -> dict[str, Any]:
    return event("agent_event", {"type": "retry", "error": "h answered 429", "provider_id": provider_id})


def test_a_wait_for_a_limit_is_told_with_its_end_and_that_it_is_over() -> None:
    activity = Activity("r")
    assert activity.take(retries("openai")) == []
    ((kind, line),) = activity.take(waits("rate_limit", 1e9))
    assert (kind, line) == ("note", f"Waiting for the rate limit of openai until {format_time(1e9)}")
    assert activity.take(waits("rate_limit", 1e9)) == []  # of the next server
    assert activity.take(waits(None)) == []
    assert activity.take(message({"type": "finish", "reason": "interrupted"})) == []
    assert activity.take(message({"type": "text", "text": "here"})) == [("note", "Continuing")]
    assert activity.take(message({"type": "text", "text": "here I am"})) == []


def test_many_waits_for_the_network_are_one_line() -> None:
    activity = Activity("r")
    activity.take(retries("openai"))
    lines = [
        line
        for n in range(10)
        for each in (waits("network", 1e9 + 60 * n), waits(None))
        for line in activity.take(each)
    ]
    assert lines == [("note", "Waiting for the network: openai cannot be reached")]


def test_the_status_is_the_wait_until_it_is_over() -> None:
    view = RunView("r")
    view.take(retries("openai"))
    view.take(waits("usage_limit", 1e9))
    assert view.status == f"waiting for the usage limit of openai until {format_time(1e9)}"
    view.take(event("message", {"id": "m", "role": "assistant", "parts": []}, None))  # a snapshot, after a reconnect
    assert view.status.startswith("waiting for the usage limit")
    view.take(waits(None))
    assert view.status == "thinking"
