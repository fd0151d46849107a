"""What each route answers when it is asked as it should be."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kedge.engine.engine import MAX_TURNS
from kedge.protocol.api import MAX_WAIT_S, AgentState, Version
from kedge.protocol.bounds import MAX_BODY_BYTES, MAX_ERROR_CHARS, MAX_OPEN_RUNS, MAX_PROMPT_BYTES, MAX_TITLE_CHARS
from kedge.store.port import Retention
from kedge.version import VERSION
from tests.server.client import Client, done

NO_USAGE = {
    "input_tokens": 0,
    "output_tokens": 0,
    "cache_read_tokens": 0,
    "cache_write_tokens": 0,
    "cost": 0.0,
    "estimated": False,
}


@pytest.fixture
def session_id(client: Client, workspace: str) -> str:
    return client.session(workspace, "a title")


def waiting_run(client: Client, workspace: str, session_id: str, run_id: str = "waiting") -> str:
    """A run that works until its permission request (whose id is returned) is answered."""
    with client.events(workspace, session_id=session_id) as events:
        events.until("caught_up")
        client.submit(workspace, session_id, "ask tool done;say finished", run_id=run_id)
        payload: Any = events.until("permission_request")[-1].payload
        return payload.id


def test_health_says_ok(client: Client) -> None:
    assert done(client.get("/v1/health")) == {"status": "ok"}


def test_version_lists_the_bounds(client: Client) -> None:
    answer = msgspec.convert(done(client.get("/v1/version")), Version)
    assert (answer.version, answer.api) == (VERSION, "v1")
    listed, retention = answer.bounds, Retention()
    assert (listed.body_bytes, listed.prompt_bytes) == (MAX_BODY_BYTES, MAX_PROMPT_BYTES)
    assert (listed.open_runs_per_session, listed.turns) == (MAX_OPEN_RUNS, MAX_TURNS)
    assert (listed.title_chars, listed.error_chars) == (MAX_TITLE_CHARS, MAX_ERROR_CHARS)
    assert (listed.page, listed.wait_seconds) == (1000, MAX_WAIT_S)
    assert (listed.log_age_seconds, listed.log_bytes) == (retention.max_age_s, retention.max_bytes)
    assert listed.receipts_after_deletion_seconds == retention.receipts_s


def test_the_agent_says_whether_it_is_ready(client: Client, workspace: str) -> None:
    state = msgspec.convert(done(client.get(f"{workspace}/agent")), AgentState)
    assert (state.is_busy, state.is_ready, state.model) == (False, True, "scripted/any")


def test_a_workspace_is_joined_by_its_resolved_path(client: Client, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    first = done(client.post("/v1/workspaces", {"path": str(tmp_path / "real")}))
    assert first["path"] == str((tmp_path / "real").resolve())
    for same in ("real/", "link", "./link/.", "link/../real", "real/../link"):
        assert done(client.post("/v1/workspaces", {"path": f"{tmp_path}/{same}"})) == first
    assert done(client.get(f"/v1/workspaces/{first['id']}")) == first
    assert first in done(client.get("/v1/workspaces"))["workspaces"]


def test_a_forgotten_workspace_is_gone_and_its_files_are_not(client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    workspace = client.workspace(tmp_path)
    with client.events(workspace) as events:
        events.until("caught_up")
        assert done(client.ask("DELETE", workspace)) == {"deleted": True}
        assert list(events) == []  # its streams end
    assert client.get(workspace).code == "workspace_not_found"
    assert (tmp_path / "file").read_text() == "precious"
    assert client.workspace(tmp_path) != workspace


def test_a_workspace_with_open_runs_is_not_forgotten(client: Client, workspace: str, session_id: str) -> None:
    request = waiting_run(client, workspace, session_id)
    answer = client.ask("DELETE", workspace)
    assert (answer.status, answer.code) == (409, "workspace_busy")
    done(client.post(f"{workspace}/permissions/grant", {"id": request, "action": "allow"}))
    client.ended(workspace, "waiting")
    assert done(client.ask("DELETE", workspace)) == {"deleted": True}


def test_sessions_are_made_found_renamed_and_deleted(client: Client, workspace: str) -> None:
    first = done(client.post(f"{workspace}/sessions", {"title": "the first"}))
    second = done(client.post(f"{workspace}/sessions", {}))
    assert (first["title"], second["title"]) == ("the first", "")
    assert done(client.get(f"{workspace}/sessions"))["sessions"] == [second, first]
    assert done(client.get(f"{workspace}/sessions", q="FIRST"))["sessions"] == [first]
    assert done(client.get(f"{workspace}/sessions", limit=1))["sessions"] == [second]
    renamed = done(client.ask("PATCH", f"{workspace}/sessions/{first['id']}", {"title": "zeroth"}))
    assert renamed["title"] == "zeroth"
    assert done(client.get(f"{workspace}/sessions/{first['id']}")) == {**renamed, "usage": NO_USAGE}
    assert done(client.ask("DELETE", f"{workspace}/sessions/{first['id']}")) == {"deleted": True}
    assert client.get(f"{workspace}/sessions/{first['id']}").code == "session_not_found"
    assert client.ask("DELETE", f"{workspace}/sessions/{first['id']}").code == "session_not_found"


def test_a_prompt_becomes_a_run_with_messages(client: Client, workspace: str, session_id: str) -> None:
    body = {"session_id": session_id, "prompt": "say hello you", "run_id": "mine", "model": "scripted/any"}
    answer = client.post(f"{workspace}/agent", body)
    receipt = done(answer, 202)
    assert answer.headers["location"] == f"{workspace}/runs/mine"
    assert receipt == {"run_id": "mine", "session_id": session_id, "state": "queued", "seq": 2, "replayed": False}
    run = client.ended(workspace, "mine")
    assert (run["state"], run["kind"], run["attempt"], run["model"]) == ("completed", "prompt", 1, "scripted/any")
    replay = done(client.post(f"{workspace}/agent", body), 202)
    assert replay == {**receipt, "state": "completed", "replayed": True}
    messages = done(client.get(f"{workspace}/sessions/{session_id}/messages"))
    assert [message["role"] for message in messages["messages"]] == ["user", "assistant"]
    assert messages["messages"][1]["parts"][0] == {"type": "text", "text": "hello you"}
    log = done(client.get(f"{workspace}/log"))
    assert messages["as_of_seq"] == log["head"]
    after = messages["messages"][0]["id"]
    assert done(client.get(f"{workspace}/sessions/{session_id}/messages", after=after))["messages"] == [
        messages["messages"][1]
    ]


def test_the_log_is_read_in_pages_without_gap(client: Client, workspace: str, session_id: str) -> None:
    client.ended(workspace, client.submit(workspace, session_id, "say hello"))
    whole = done(client.get(f"{workspace}/log"))
    assert [event["seq"] for event in whole["events"]] == list(range(1, whole["head"] + 1))
    paged: list[Any] = []
    while page := done(client.get(f"{workspace}/log", after=len(paged), limit=3))["events"]:
        assert len(page) <= 3
        paged += page
    assert paged == whole["events"]
    assert paged[-1]["type"] == "run_complete"


def test_a_queued_prompt_is_read_with_its_attachments(client: Client, workspace: str, session_id: str) -> None:
    agent = f"{workspace}/agent/sessions/{session_id}"
    waiting_run(client, workspace, session_id)
    attached = [{"file_name": "a.txt", "mime_type": "text/plain", "content": "aGk="}]
    client.submit(workspace, session_id, "say never", run_id="second", attachments=attached)
    found = done(client.get(f"{agent}/prompts/second"))
    assert (found["run"]["prompt"], found["attachments"]) == ("say never", attached)
    assert client.get(f"{agent}/prompts/waiting").code == "not_queued"
    assert client.get(f"{agent}/prompts/none").status == 404
    assert client.get(f"{agent}/prompts/move").status == 405
    client.submit(workspace, session_id, "say never", run_id="move", attachments=attached)  # the name of a route
    assert done(client.get(f"{agent}/prompts/move"))["attachments"] == attached
    done(client.post(f"{agent}/cancel"))


def test_the_queue_is_listed_dropped_from_and_cleared(client: Client, workspace: str, session_id: str) -> None:
    agent = f"{workspace}/agent/sessions/{session_id}"
    request = waiting_run(client, workspace, session_id)
    for name in ("list", "clear", "third", "fourth"):
        client.submit(workspace, session_id, "say never", run_id=name)
    queue = done(client.get(f"{agent}/prompts/list"))["prompts"]
    assert [run["run_id"] for run in queue] == ["list", "clear", "third", "fourth"]
    status = done(client.get(agent))
    assert (status["id"], status["is_busy"], status["active"]["run_id"]) == (session_id, True, "waiting")
    assert status["queue"] == queue
    assert done(client.get(f"{workspace}/agent")) == {"is_busy": True, "is_ready": True, "model": "scripted/any"}
    for name in ("list", "clear"):  # names of routes are names of runs too
        assert done(client.ask("DELETE", f"{agent}/prompts/{name}")) == {"cancelled": [name]}
    answer = client.ask("DELETE", f"{agent}/prompts/waiting")
    assert (answer.status, answer.code) == (409, "not_queued")
    assert done(client.post(f"{agent}/prompts/clear")) == {"cancelled": ["third", "fourth"]}
    assert done(client.post(f"{agent}/prompts/clear")) == {"cancelled": []}
    done(client.post(f"{workspace}/permissions/grant", {"id": request, "action": "allow"}))
    assert client.ended(workspace, "waiting")["state"] == "completed"
    runs = done(client.get(f"{workspace}/runs", state="cancelled"))["runs"]
    assert [run["run_id"] for run in runs] == ["list", "clear", "third", "fourth"]
    assert [run["run_id"] for run in done(client.get(f"{workspace}/runs", limit=2))["runs"]] == ["third", "fourth"]
    assert done(client.get(f"{workspace}/agent"))["is_busy"] is False


def test_a_cancel_names_what_it_hit(client: Client, workspace: str, session_id: str) -> None:
    agent = f"{workspace}/agent/sessions/{session_id}"
    assert done(client.post(f"{agent}/cancel")) == {"cancelled": []}
    waiting_run(client, workspace, session_id)
    client.submit(workspace, session_id, "say never", run_id="queued")
    assert done(client.post(f"{workspace}/runs/queued/cancel"))["state"] == "cancelled"
    assert done(client.post(f"{agent}/cancel")) == {"cancelled": ["waiting"]}
    assert client.ended(workspace, "waiting")["state"] == "cancelled"
    assert done(client.post(f"{workspace}/runs/waiting/cancel"))["state"] == "cancelled"


def test_a_busy_session_can_be_refused(client: Client, workspace: str, session_id: str) -> None:
    waiting_run(client, workspace, session_id)
    answer = client.post(f"{workspace}/agent", {"session_id": session_id, "prompt": "say no", "on_busy": "reject"})
    assert (answer.status, answer.code) == (409, "session_busy")
    assert "waiting" in answer.json["message"]
    done(client.post(f"{workspace}/agent/sessions/{session_id}/cancel"))


def test_the_same_run_id_with_another_body_is_a_conflict(client: Client, workspace: str, session_id: str) -> None:
    client.submit(workspace, session_id, "say one", run_id="mine")
    answer = client.post(f"{workspace}/agent", {"session_id": session_id, "prompt": "say two", "run_id": "mine"})
    assert (answer.status, answer.code) == (409, "run_id_conflict")


def test_too_many_open_runs_are_429_with_a_time_to_come_back(client: Client, workspace: str, session_id: str) -> None:
    waiting_run(client, workspace, session_id)
    for _ in range(MAX_OPEN_RUNS - 1):
        client.submit(workspace, session_id, "say never")
    answer = client.post(f"{workspace}/agent", {"session_id": session_id, "prompt": "say no", "run_id": "refused"})
    assert (answer.status, answer.code) == (429, "too_many_runs")
    assert int(answer.headers["retry-after"]) > 0
    assert client.get(f"{workspace}/runs/refused").status == 404
    assert len(done(client.post(f"{workspace}/agent/sessions/{session_id}/cancel"))["cancelled"]) == MAX_OPEN_RUNS


def test_a_permission_is_asked_once_and_the_first_answer_wins(client: Client, workspace: str, session_id: str) -> None:
    request = waiting_run(client, workspace, session_id)
    (pending,) = done(client.get(f"{workspace}/permissions"))["permissions"]
    assert (pending["id"], pending["run_id"], pending["tool"]) == (request, "waiting", "tool")
    body = {"id": request, "action": "deny"}
    first = done(client.post(f"{workspace}/permissions/grant", body, Kedge_Client="laptop"))
    assert first == {"resolved": True, "by": "laptop", "action": "deny"}
    late = done(client.post(f"{workspace}/permissions/grant", {**body, "action": "allow"}, Kedge_Client="phone"))
    assert late == {"resolved": False, "by": "laptop", "action": "deny"}
    client.ended(workspace, "waiting")
    assert done(client.get(f"{workspace}/permissions")) == {"permissions": []}
    assert client.post(f"{workspace}/questions/answer", {"id": request, "answers": []}).code == "request_not_found"


@pytest.mark.parametrize("name", ["mode", "run", "server"])
def test_a_client_cannot_take_the_name_of_an_answer_without_a_person(
    client: Client, workspace: str, session_id: str, name: str
) -> None:
    request = waiting_run(client, workspace, session_id)
    body = {"id": request, "action": "deny"}
    answer = done(client.post(f"{workspace}/permissions/grant", body, Kedge_Client=name))
    assert answer == {"resolved": True, "by": "unknown", "action": "deny"}


@pytest.mark.parametrize(("how", "body"), [("answer", {"answers": [["blue", 1, None]]}), ("cancel", {})])
def test_a_question_is_answered_or_cancelled(
    client: Client, workspace: str, session_id: str, how: str, body: dict[str, Any]
) -> None:
    with client.events(workspace) as events:
        events.until("caught_up")
        run_id = client.submit(workspace, session_id, "question which colour?")
        request: Any = events.until("question_request")[-1].payload
    assert done(client.get(f"{workspace}/questions"))["questions"][0]["questions"] == [{"question": "which colour?"}]
    missing = client.post(f"{workspace}/questions/answer", {"id": request.id, "answers": []})
    assert (missing.status, missing.code) == (422, "invalid_answers")
    assert done(client.post(f"{workspace}/questions/{how}", {"id": request.id, **body}))["resolved"] is True
    client.ended(workspace, run_id)
    messages = done(client.get(f"{workspace}/sessions/{session_id}/messages"))["messages"]
    said = messages[-1]["parts"][0]["content"]
    assert said == ("answer: [['blue', 1, None]]" if how == "answer" else "cancel: None")


def test_deleting_a_session_cancels_its_runs_and_waits_for_their_ends(
    client: Client, workspace: str, session_id: str
) -> None:
    waiting_run(client, workspace, session_id)
    assert done(client.ask("DELETE", f"{workspace}/sessions/{session_id}")) == {"deleted": True}
    types = [event["type"] for event in done(client.get(f"{workspace}/log"))["events"]]
    assert types[-2:] == ["run_complete", "session"]


def test_a_run_without_end_is_shown_as_it_is_when_the_time_is_up(
    client: Client, workspace: str, session_id: str
) -> None:
    waiting_run(client, workspace, session_id)
    assert done(client.get(f"{workspace}/runs/waiting", wait=0.01))["state"] == "running"
    done(client.post(f"{workspace}/agent/sessions/{session_id}/cancel"))


def test_attachments_and_environment_are_taken_and_the_environment_is_never_shown(
    client: Client, workspace: str, session_id: str
) -> None:
    attachment = {"file_name": "a.txt", "mime_type": "text/plain", "content": base64.b64encode(b"text").decode()}
    fields = {"attachments": [attachment], "env": {"SECRET": "hunter2"}}
    client.ended(workspace, client.submit(workspace, session_id, "say hello", **fields))
    everything = b"".join(
        client.get(workspace + path).body for path in ("/log", "/runs", "/sessions", f"/sessions/{session_id}/messages")
    )
    assert b'"name":"a.txt"' in everything
    assert b"hunter2" not in everything


def test_asking_nobody_is_switched_on_and_off_for_one_workspace(client: Client, workspace: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = client.workspace(tmp_path / "other")
    assert done(client.get(f"{workspace}/permissions/skip")) == {"skip": False}
    assert done(client.post(f"{workspace}/permissions/skip", {"skip": True})) == {"skip": True}
    assert done(client.get(f"{workspace}/permissions/skip")) == {"skip": True}
    assert done(client.get(f"{other}/permissions/skip")) == {"skip": False}
    assert done(client.post(f"{workspace}/permissions/skip", {"skip": False})) == {"skip": False}


def test_a_session_is_summarized_as_a_run_of_another_kind(client: Client, workspace: str, session_id: str) -> None:
    target = f"{workspace}/agent/sessions/{session_id}/summarize"
    answer = client.post(target, {"run_id": "sum", "model": "scripted/any"})
    receipt = done(answer, 202)
    assert answer.headers["location"] == f"{workspace}/runs/sum"
    assert (receipt["run_id"], receipt["session_id"], receipt["replayed"]) == ("sum", session_id, False)
    run = client.ended(workspace, "sum")
    assert (run["kind"], run["state"], run["model"], run["prompt"]) == ("summarize", "completed", "scripted/any", "")
    assert done(client.post(target, {"run_id": "sum", "model": "scripted/any"}), 202)["replayed"] is True
    assert client.post(target, {"run_id": "sum"}).code == "run_id_conflict"
    waiting_run(client, workspace, session_id)
    assert client.post(target, {"on_busy": "reject"}).code == "session_busy"
    assert done(client.post(target, {"on_busy": "steer"}), 202)["state"] == "queued"
    done(client.post(f"{workspace}/agent/sessions/{session_id}/cancel"))


def test_what_a_run_and_a_session_used_is_in_their_status(client: Client, workspace: str, session_id: str) -> None:
    client.ended(workspace, client.submit(workspace, session_id, "say one; say two", run_id="r1"))
    client.ended(workspace, client.submit(workspace, session_id, "use 40; fail no paper", run_id="r2"))
    runs = {run["run_id"]: run for run in done(client.get(f"{workspace}/runs"))["runs"]}
    assert runs["r1"]["usage"]["output_tokens"] == 2
    assert not {"error", "code"} & runs["r1"].keys()
    assert runs["r2"] == done(client.get(f"{workspace}/runs/r2"))
    assert (runs["r2"]["error"], runs["r2"]["code"]) == ("no paper", "scripted")
    for target in (f"{workspace}/sessions/{session_id}", f"{workspace}/agent/sessions/{session_id}"):
        assert done(client.get(target))["usage"] == {**NO_USAGE, "output_tokens": 42}
    log = done(client.get(f"{workspace}/log"))["events"]
    told = [event["payload"]["payload"] for event in log if event["type"] in ("run", "session")]
    assert not any("usage" in payload for payload in told)  # what an event tells of never changes


def test_options_of_a_run_are_taken_and_are_part_of_its_body(client: Client, workspace: str, session_id: str) -> None:
    options = {"system": "be brief", "max_steps": 3, "max_cost": 1.5, "mode": "plan", "allow": ["bash(ls)"]}
    client.ended(workspace, client.submit(workspace, session_id, "say x", run_id="r", options=options))
    body = {"session_id": session_id, "prompt": "say x", "run_id": "r"}
    assert done(client.post(f"{workspace}/agent", {**body, "options": {**options, "deny": []}}), 202)["replayed"]
    assert client.post(f"{workspace}/agent", body).code == "run_id_conflict"


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"options": {"max_steps": 0}}, 422, "invalid_request"),
        ({"options": {"max_cost": 0}}, 422, "invalid_request"),
        ({"options": {"mode": "reckless"}}, 422, "invalid_request"),
        ({"options": {"output_schema": "a string"}}, 422, "invalid_request"),
        ({"options": {"system": "x" * (MAX_PROMPT_BYTES + 1)}}, 413, "system_too_large"),
        (
            {"attachments": [{"file_name": "a", "mime_type": "text/plain", "content": "no base64!"}]},
            422,
            "invalid_request",
        ),
        ({"attachments": [{"file_name": "a", "mime_type": "nonsense", "content": ""}]}, 422, "invalid_attachment"),
        (
            {"attachments": [{"file_name": "a.png", "mime_type": "image/png", "content": "eA=="}]},
            422,
            "invalid_attachment",
        ),
    ],
)
def test_wrong_options_and_attachments_are_a_clear_error_and_no_run(
    client: Client, workspace: str, session_id: str, fields: dict[str, Any], status: int, code: str
) -> None:
    body = {"session_id": session_id, "prompt": "say x", "run_id": "r", **fields}
    answer = client.post(f"{workspace}/agent", body)
    assert (answer.status, answer.code) == (status, code), answer.body
    assert answer.json["message"]
    assert client.get(f"{workspace}/runs/r").status == 404
