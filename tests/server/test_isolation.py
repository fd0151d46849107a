"""Nothing of one workspace is visible in another, whichever route is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kedge.server.http import Route
from tests.server.client import Client, done
from tests.server.route_examples import OF_WORKSPACE, body_of, path_of


class Secrets(NamedTuple):
    """A workspace with one of everything in it."""

    path: str
    ids: dict[str, str]
    names: list[str]


@pytest.fixture
def theirs(client: Client, tmp_path: Path) -> Secrets:
    directory = tmp_path / "theirs"
    directory.mkdir()
    workspace = client.workspace(directory)
    session_id = client.session(workspace, "their title")
    with client.events(workspace) as events:
        client.submit(workspace, session_id, "ask rm their-file", run_id="their-run")
        client.submit(workspace, session_id, "say later", run_id="their-queued-run")
        other = client.session(workspace)
        client.submit(workspace, other, "question their question")
        requests: dict[str, Any] = {}
        while len(requests) < 2:
            (event,) = events.until(lambda event: event.type.endswith("_request"))[-1:]
            requests[event.type] = event.payload
    ids = {
        "session_id": session_id,
        "SESSION": session_id,
        "run_id": "their-queued-run",
        "permission": requests["permission_request"].id,
        "question": requests["question_request"].id,
    }
    return Secrets(workspace, ids, [session_id, other, "their", *ids.values()])


def state_of(client: Client, theirs: Secrets) -> list[Any]:
    queries = ("", "/log", "/sessions", "/runs", "/permissions", "/questions", "/agent")
    return [done(client.get(theirs.path + query)) for query in queries]


@pytest.mark.parametrize("route", OF_WORKSPACE)
def test_what_is_in_one_workspace_cannot_be_reached_from_another(
    client: Client, theirs: Secrets, route: Route, tmp_path: Path
) -> None:
    before = state_of(client, theirs)
    ours = tmp_path / "ours"
    ours.mkdir()
    workspace_id = client.workspace(ours).rpartition("/")[2]
    request = theirs.ids["question" if "/questions/" in route.path else "permission"]
    ids = {**theirs.ids, "workspace_id": workspace_id, "REQUEST": request}
    path, body = path_of(route, **ids), body_of(route, **ids)
    names_theirs = route.path.count("{") > 1 or any(value in theirs.ids.values() for value in (body or {}).values())

    if route.media_type.startswith("text/event-stream"):
        with client.events(f"/v1/workspaces/{workspace_id}", after=0, session_id=theirs.ids["session_id"]) as events:
            assert [event.type for event in events.until("caught_up")] == ["connected", "caught_up"]
    else:
        answer = client.ask(route.method, path, body)
        assert answer.status == (404 if names_theirs else route.status), answer.body
        told = answer.json["code"] if names_theirs else answer.body.decode()
        assert not [name for name in theirs.names if name in told]
    assert state_of(client, theirs) == before


@pytest.mark.parametrize("route", ["/runs", "/events"])
def test_a_session_of_another_workspace_filters_everything_out(
    client: Client, theirs: Secrets, workspace: str, route: str
) -> None:
    if route == "/runs":
        assert done(client.get(workspace + route, session_id=theirs.ids["session_id"])) == {"runs": []}
        return
    with client.events(workspace, session_id=theirs.ids["session_id"]) as events:
        events.until("caught_up")
        client.ended(workspace, client.submit(workspace, client.session(workspace), "say ours"))
        assert done(client.post(f"{theirs.path}/permissions/grant", {"id": theirs.ids["permission"], "action": "deny"}))
        client.ended(theirs.path, "their-queued-run")
    assert [frame.event.type for frame in events.frames] == ["connected", "caught_up"]


def test_the_same_run_id_is_another_run_in_another_workspace(client: Client, theirs: Secrets, workspace: str) -> None:
    session_id = client.session(workspace)
    assert client.submit(workspace, session_id, "say ours", run_id="their-queued-run") == "their-queued-run"
    assert client.ended(workspace, "their-queued-run")["prompt"] == "say ours"
    assert done(client.get(f"{theirs.path}/runs/their-queued-run"))["state"] == "queued"
