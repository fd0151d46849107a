"""One run among many: what is heard of it, and what is read again after a reset (P10)."""

from __future__ import annotations

from typing import Any

import pytest

from kedge.client.events import EventCursor
from kedge.client.run_follower import RunTracker
from kedge.client.run_output import LiveOutput
from kedge.client.run_view import RunView
from tests.client.timeline import LOG, RUN, SESSION, Said, Timeline, control

SUBMISSION = {"run_id": RUN, "session_id": SESSION}


def event(kind: str, run_id: str = RUN, /, **payload: Any) -> dict[str, Any]:
    return {"type": kind, "seq": 1, "payload": {"type": "created", "payload": {"run_id": run_id, **payload}}}


def message(text: str, reason: str, message_id: str = "m", **finish: Any) -> dict[str, Any]:
    parts = [{"type": "text", "text": text}, {"type": "finish", "reason": reason, **finish}]
    return {"id": message_id, "session_id": SESSION, "run_id": RUN, "role": "assistant", "parts": parts}


def test_ends_errors_and_refusals_of_other_runs_are_not_ours() -> None:
    view = RunView(RUN)
    view.take(event("run_complete", "other", text="theirs"))
    view.take(event("agent_event", "other", type="error", error="theirs"))
    view.take(event("permission_notification", "other", id="p", action="deny"))
    assert (view.end, view.requests.denied) == (None, [])
    view.take({"type": "session", "seq": 2, "payload": {"type": "created", "payload": {"id": SESSION}}})
    view.take({"type": "heartbeat", "payload": {"head": 3}})


def asked(request_id: str, description: str, **params: Any) -> dict[str, Any]:
    return event("permission_request", id=request_id, description=description, params=params)


def test_a_refused_permission_is_remembered_with_what_would_have_allowed_it() -> None:
    view = RunView(RUN)
    view.take(asked("p1", "write a.txt", rules=["edit(a.txt)"]))
    view.take(event("permission_notification", id="p1", action="deny"))
    view.take(asked("p2", "run make"))
    view.take(event("permission_notification", id="p2", action="allow"))
    view.take(event("permission_notification", id="before the log begins", action="deny"))
    assert [(each.description, each.rules) for each in view.requests.denied] == [
        ("write a.txt", ["edit(a.txt)"]),
        ("an earlier request", []),
    ]


def test_a_run_that_waits_for_a_person_says_for_what() -> None:
    view = RunView(RUN)
    view.take(event("run", state="running"))
    view.take(asked("p", "write a.txt"))
    view.take(asked("p", "write a.txt"))  # a reminder
    view.take(event("agent_event", type="retry", error="a sub-agent's"))
    assert "write a.txt" in view.status
    view.take(event("permission_notification", id="p", action="allow"))
    view.take(event("run", state="running"))
    assert view.status == "thinking"
    view.take(event("question_request", id="q", questions=[{"question": "Which one?"}]))
    assert "Which one?" in view.status
    view.take(event("question_notification", id="q", action="cancel"))
    assert view.status == "thinking"


@pytest.mark.parametrize(
    ("payload", "status"),
    [
        (event("run", state="queued"), "waiting in the queue"),
        (event("run", state="running"), "thinking"),
        (event("run", state="running", cancel_requested=True), "canceling"),
        (event("agent_event", type="retry", error="429"), "retrying: 429"),
        (event("agent_event", type="re_authenticate", provider_id="openai"), "waiting for a login to openai"),
        (event("agent_event", type="summarize"), "summarizing"),
    ],
)
def test_people_are_told_what_is_being_done(payload: dict[str, Any], status: str) -> None:
    view = RunView(RUN)
    view.take(payload)
    assert view.status == status


def step(message_id: str, *names: str, reason: str = "tool_use") -> dict[str, Any]:
    calls = [
        {"type": "tool_call", "id": f"{message_id}-{name}", "name": name, "input": '{"path": "x"}', "finished": True}
        for name in names
    ]
    return {"id": message_id, "role": "assistant", "parts": [*calls, {"type": "finish", "reason": reason}]}


def result(message_id: str, name: str, content: str, **metadata: Any) -> dict[str, Any]:
    part = {"type": "tool_result", "tool_call_id": f"{message_id}-{name}", "name": name, "content": content}
    is_error = bool(metadata)
    return {
        "id": f"{message_id}-{name}-result",
        "session_id": SESSION,
        "run_id": RUN,
        "role": "tool",
        "parts": [{**part, "is_error": is_error, "metadata": metadata}],
    }


def test_the_model_thinks_again_when_its_calls_have_ended() -> None:
    view = RunView(RUN)
    view.take(event("run", state="running"))
    view.take(event("message", **{**step("m", "grep", "view"), "parts": step("m", "grep", "view")["parts"][:1]}))
    assert view.status == "thinking"  # the model still writes the step
    view.take(event("message", **step("m", "grep", "view")))
    assert view.status == "running grep, view"
    view.take(event("message", **result("m", "grep", "")))
    assert view.status == "running grep, view"  # announced: it has only begun
    view.take(event("message", **result("m", "grep", "a:1")))
    assert view.status == "running view"
    view.take(event("message", **result("m", "view", "no such file", is_error=True)))
    assert view.status == "thinking"
    view.take(event("message", **step("m2", "bash", reason="interrupted")))
    assert view.status == "thinking"
    view.take(event("message", **step("m3", "bash")))
    view.take(event("message", id="m4", role="assistant", parts=[]))
    assert view.status == "thinking"


def test_a_denial_is_known_from_the_messages_if_its_events_were_lost() -> None:
    view = RunView(RUN)
    lost = {**step("m", "edit", "bash"), "session_id": SESSION, "run_id": RUN}
    refused = result("m", "edit", "Refused.", refused="unattended", allow_rules=["edit(x)"])
    ruled = result("m", "bash", "Refused.", refused="rule", rule="bash")
    view.reload({"state": "running", "session_id": SESSION}, [lost, refused, ruled])
    assert [(each.description, each.rules, each.by_user) for each in view.requests.denied] == [
        ("edit x", ["edit(x)"], False)
    ]
    view.take(event("permission_notification", id="p", tool_call_id="m-edit", action="deny", by="run"))
    assert len(view.requests.denied) == 1


def test_the_prompt_is_sent_once_the_stream_is_open() -> None:
    tracker = RunTracker("/w", SUBMISSION)
    assert not tracker.needs_submit
    list(tracker.cursor.feed(control("connected", {"log_id": LOG, "head": 4, "after": 4})))
    assert tracker.needs_submit
    tracker.accept({"seq": 5})
    assert not tracker.needs_submit
    assert not tracker.cursor.is_rewound


def test_a_run_that_is_older_than_the_subscription_is_heard_from_its_beginning() -> None:
    tracker = RunTracker("/w", SUBMISSION)
    list(tracker.cursor.feed(control("connected", {"log_id": LOG, "head": 40, "after": 40})))
    tracker.accept({"seq": 5})
    assert tracker.cursor.is_rewound
    assert tracker.cursor.begin_connection() == f"?after=4&log_id={LOG}&session_id={SESSION}"


def reset_core() -> RunTracker:
    """A tracker that heard a reset after its prompt was accept."""
    tracker = RunTracker("/w", SUBMISSION)
    frames = control("connected", {"log_id": LOG, "head": 4, "after": 4})
    frames += control("stream_reset", {"reason": "retention", "head": 90})
    for _, told, data in tracker.cursor.feed(frames):
        tracker.take(told, data)
    assert not tracker.needs_reload, "there is nothing to read before the prompt was accept"
    tracker.accept({"seq": 91})
    assert tracker.needs_reload
    return tracker


def test_after_a_reset_a_run_that_goes_on_is_followed_from_what_is_stored() -> None:
    tracker = reset_core()
    stored = message("half", "tool_use", "m1")
    tracker.reload({"state": "running", "session_id": SESSION}, [stored, {**stored, "id": "x", "run_id": "other"}])
    assert not tracker.needs_reload
    assert tracker.view.end is None
    assert [m.id for m in tracker.view.messages.answers] == ["m1"]


@pytest.mark.parametrize(
    ("state", "finish", "expected"),
    [
        ("completed", {"reason": "end_turn"}, {"text": "last"}),
        ("cancelled", {"reason": "canceled"}, {"text": "last", "cancelled": True}),
        ("failed", {"reason": "error", "message": "no paper"}, {"text": "last", "error": "no paper"}),
    ],
)
def test_after_a_reset_an_end_that_is_gone_is_told_from_what_is_stored(
    state: str, finish: dict[str, Any], expected: dict[str, Any]
) -> None:
    tracker = reset_core()
    interrupted = message("never", "interrupted", "m3")
    tracker.reload({"state": state, "session_id": SESSION}, [message("last", message_id="m2", **finish), interrupted])
    assert tracker.view.end is not None
    common: dict[str, Any] = {"session_id": SESSION, "run_id": RUN, "message_id": "m2", "usage": {}}
    assert tracker.view.end == {**common, **expected}


def test_after_a_reset_the_stored_run_says_why_it_failed_and_what_it_used() -> None:
    """`no_model` and `bad_config` are exit code 2, also for who did not hear the end."""
    tracker = reset_core()
    run = {"state": "failed", "session_id": SESSION, "error": "no key", "code": "no_model", "usage": {"cost": 0.5}}
    tracker.reload(run, [message("", "error", "m2")])
    assert tracker.view.end is not None
    assert {name: tracker.view.end[name] for name in ("error", "code", "usage")} == {
        "error": "no key",
        "code": "no_model",
        "usage": {"cost": 0.5},
    }


def test_a_reset_in_the_middle_of_a_message_repeats_nothing() -> None:
    timeline = Timeline.of(Said([["one ", "two ", "three"]]))
    tracker = RunTracker("/w", SUBMISSION)
    output = LiveOutput(tracker.view.messages)
    printed = ""
    half = b"".join(timeline.frames(0, None)[:7])
    for _, told, data in tracker.cursor.feed(half):
        tracker.take(told, data)
        printed += "".join(text for _, text in output.new_pieces())
    assert printed == "one two "
    tracker.reload({"state": "completed", "session_id": SESSION}, [message("one two three", "end_turn", "message-1")])
    assert tracker.view.end is not None
    assert (
        printed + "".join(text for _, text in [*output.new_pieces(), *output.finish(tracker.view.end)])
        == "one two three\n"
    )


def test_nothing_is_heard_after_the_end() -> None:
    heard: list[str] = []
    tracker = RunTracker("/w", SUBMISSION)
    tracker.listen = lambda told, data, grown: heard.append(told["type"])
    timeline = Timeline.of(Said([["answer"]]))
    timeline.log("run_complete", {"run_id": RUN, "text": "again", "message_id": None})
    for _, told, data in EventCursor(after=0).feed(timeline.heard(0, 0)):
        tracker.take(told, data)
    assert heard.count("run_complete") == 1
