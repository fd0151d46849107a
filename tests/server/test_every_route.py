"""What is true of every route, whatever it does: taken from the table, so that a new one is held to it too."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.protocol import errors as protocol_errors
from kedge.protocol.api import ModeBody, MoveBody, PromoteBody
from kedge.protocol.errors import KedgeError
from kedge.protocol.files import ForkBody, RedoBody, UndoBody
from kedge.server import errors as server_errors
from kedge.server.errors import status_of
from kedge.server.http import Route
from kedge.server.routes import ROUTES
from kedge.version import VERSION
from tests.server.client import Client, done
from tests.server.process import Server
from tests.server.route_examples import ALL, GETTING, HARMLESS, OF_WORKSPACE, WITH_BODY, WITH_TOKEN, body_of, path_of

METHODS = {"GET", "POST", "PATCH", "DELETE", "PUT", "OPTIONS", "TRACE"}
PATHS = sorted({route.path for route in ROUTES})


@pytest.mark.parametrize("route", OF_WORKSPACE)
def test_an_unknown_workspace_is_not_found(client: Client, route: Route) -> None:
    path = path_of(route, workspace_id="nowhere")
    answer = client.ask(route.method, path, body_of(route))
    assert answer.status == 404
    assert answer.code in ("workspace_not_found", "session_not_found", "run_not_found", "request_not_found")


@pytest.mark.parametrize("path", PATHS)
def test_a_method_that_is_not_there_is_405_and_says_which_are(client: Client, path: str) -> None:
    offered = {route.method for route in ROUTES if route.path == path}
    filled = path_of(next(route for route in ROUTES if route.path == path))
    for method in METHODS - offered:
        answer = client.ask(method, filled)
        assert (answer.status, answer.code) == (405, "method_not_allowed"), method
        allowed = set(answer.headers["allow"].split(", "))
        assert allowed == offered | ({"HEAD"} if "GET" in offered else set())


@pytest.mark.parametrize("route", ALL)
def test_a_slash_too_many_is_not_found(client: Client, route: Route) -> None:
    path = path_of(route)
    for wrong in (f"{path}/", f"/{path}", path.replace("/v1/", "/v1//")):
        answer = client.ask(route.method, wrong, body_of(route))
        assert (answer.status, answer.code) == (404, "route_not_found"), wrong


@pytest.mark.parametrize("route", WITH_BODY)
def test_a_body_that_is_not_declared_as_json_is_415(client: Client, route: Route) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx", ""):
        answer = client.ask(route.method, path_of(route), b"{}", headers={"Content-Type": kind}, raw=True)
        assert (answer.status, answer.code) == (415, "not_json"), kind


@pytest.mark.parametrize(
    "kind", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/merge-patch+json"]
)
def test_json_may_be_declared_in_any_of_its_ways(client: Client, workspace: str, kind: str) -> None:
    answer = client.ask("POST", f"{workspace}/sessions", {"title": "x"}, headers={"Content-Type": kind})
    assert done(answer)["title"] == "x"


@pytest.mark.parametrize("route", WITH_BODY)
def test_a_body_that_is_not_json_is_400(client: Client, route: Route) -> None:
    for body in (b"", b"{", b'{"x" 1}', b"\xff", b'{"x": NaN}', b"nul", b"\xef\xbb\xbf{}"):
        answer = client.ask(route.method, path_of(route), body, raw=True)
        assert (answer.status, answer.code) == (400, "malformed"), body


@pytest.mark.parametrize("route", WITH_BODY)
def test_a_body_of_another_type_is_422(client: Client, route: Route) -> None:
    for body in (b"null", b"[]", b'"text"', b"1", b"true"):
        answer = client.ask(route.method, path_of(route), body, raw=True)
        assert (answer.status, answer.code) == (422, "invalid_request"), body


@pytest.mark.parametrize("route", WITH_BODY)
def test_a_field_of_another_type_is_422_and_named(client: Client, route: Route) -> None:
    example = body_of(route) or {}
    for name in example:
        answer = client.ask(route.method, path_of(route), {**example, name: {"not": "this"}})
        assert (answer.status, answer.code) == (422, "invalid_request")
        assert f"$.{name}" in answer.json["message"]


@pytest.mark.parametrize("route", HARMLESS)
def test_unknown_fields_are_ignored(client: Client, route: Route, tmp_path: Path) -> None:
    workspace = client.workspace(tmp_path)
    session_id = client.session(workspace)
    ids = {"workspace_id": workspace.rpartition("/")[2], "session_id": session_id, "SESSION": session_id}
    body = {**(body_of(route, **ids) or {}), "from_the_future": {"a": [1, None]}}
    answer = client.ask(route.method, path_of(route, **ids), body)
    expected = 404 if "id" in body else route.status  # there is no such request
    expected = 404 if route.body in (ModeBody, MoveBody, PromoteBody) else expected  # there is no such run
    expected = 404 if "{name}" in route.path else expected  # there is no such MCP server
    expected = 409 if route.body in (UndoBody, RedoBody, ForkBody) else expected  # nothing was said in it yet
    assert answer.status == expected, answer.body


@pytest.mark.parametrize("route", GETTING)
def test_head_has_the_headers_of_get_and_no_body(client: Client, route: Route, tmp_path: Path) -> None:
    workspace = client.workspace(tmp_path)
    session_id = client.session(workspace)
    run_id = client.submit(workspace, session_id, "say hello")
    client.ended(workspace, run_id)
    path = path_of(route, workspace_id=workspace.rpartition("/")[2], session_id=session_id, run_id=run_id)
    head = client.ask("HEAD", path)
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-type"] == route.media_type
    assert head.headers["kedge-version"] == VERSION


@pytest.mark.parametrize("route", WITH_TOKEN)
def test_over_tcp_nothing_is_answered_without_the_token(server: Server, route: Route) -> None:
    token = server.token
    for given in (
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Bearer {token}x",
        f"Bearer {token[:-1]}",
        f"Basic {token}",
        token,
    ):
        headers = {"Authorization": given} if given else {}
        answer = Client(server.tcp).ask(route.method, path_of(route), body_of(route), headers=headers)
        assert (answer.status, answer.code) == (401, "unauthorized"), given
        assert answer.headers["www-authenticate"] == "Bearer"
        assert token not in answer.body.decode()


def test_every_error_has_a_status() -> None:
    def families(error: type[KedgeError]) -> set[type[KedgeError]]:
        return {error}.union(*(families(each) for each in error.__subclasses__()))

    modules = (protocol_errors.__name__, server_errors.__name__)
    for family in families(KedgeError) - {KedgeError}:
        if family.__module__ in modules:
            assert 400 <= status_of(family.__new__(family)) < 600
