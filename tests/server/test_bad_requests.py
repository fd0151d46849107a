"""A user's mistake is a clear error with a status that fits, and never a 500."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from kedge.protocol.bounds import MAX_BODY_BYTES, MAX_PROMPT_BYTES, MAX_TITLE_CHARS
from tests.server.client import Client, connect, done

ODD_TEXTS = {
    "nul": "a\0b",
    "line separators": "a\u2028b\u2029c\x85d",
    "astral": "\U0001f469\u200d\U0001f680 \U0001f1e9",
    "controls": "".join(map(chr, range(1, 32))) + "\x7f",
    "direction": "\u202eabc\ufeff",
    "not a character": "\uffff\U0010ffff",
}


@pytest.fixture
def session_id(client: Client, workspace: str) -> str:
    return client.session(workspace)


@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS)
def test_odd_text_comes_back_as_it_was_sent(client: Client, workspace: str, session_id: str, text: str) -> None:
    renamed = done(client.ask("PATCH", f"{workspace}/sessions/{session_id}", {"title": text}))
    assert renamed["title"] == text
    run_id = client.submit(workspace, session_id, f"fail {text}")
    assert client.ended(workspace, run_id)["prompt"] == f"fail {text}"
    assert done(client.get(f"{workspace}/sessions", q=text))["sessions"] == [renamed | any_time(client, workspace)]
    with client.events(workspace, after=0) as events:
        prompts: list[Any] = [event.payload for event in events.until("caught_up") if event.type == "run"]
    assert {run.prompt for run in prompts} == {f"fail {text}"}


def any_time(client: Client, workspace: str) -> dict[str, Any]:
    (session,) = done(client.get(f"{workspace}/sessions"))["sessions"]
    return {"updated_at": session["updated_at"]}


@pytest.mark.parametrize("half", [r"\ud800", r"\udc00", r"a\ud83db", r"\ude00\ud83d"])
def test_half_a_surrogate_pair_is_refused_everywhere(
    client: Client, workspace: str, session_id: str, half: str, tmp_path: Path
) -> None:
    requests = {
        ("POST", "/v1/workspaces"): f'{{"path": "{tmp_path}/{half}"}}',
        ("POST", f"{workspace}/sessions"): f'{{"title": "{half}"}}',
        ("PATCH", f"{workspace}/sessions/{session_id}"): f'{{"title": "{half}"}}',
        ("POST", f"{workspace}/agent"): f'{{"session_id": "{session_id}", "prompt": "{half}"}}',
        ("POST", f"{workspace}/questions/answer"): f'{{"id": "x", "answers": ["{half}"]}}',
    }
    for (method, path), body in requests.items():
        answer = client.ask(method, path, body.encode(), raw=True)
        assert answer.status in (400, 422), (path, answer.body)
        assert answer.code in ("malformed", "invalid_text")


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
@pytest.mark.parametrize("field", ["answers", "unknown"])
def test_nesting_without_end_is_malformed(client: Client, workspace: str, opening: bytes, field: str) -> None:
    closing = b"]" if opening == b"[" else b"}"
    deep = opening * 200_000 + b"1" + closing * 200_000
    answer = client.ask(
        "POST", f"{workspace}/questions/answer", b'{"id": "x", "%b": %b}' % (field.encode(), deep), raw=True
    )
    assert answer.status in (400, 422)


def test_answers_may_be_nested_and_large_up_to_a_limit_and_never_break_anything(
    client: Client, workspace: str, session_id: str
) -> None:
    """Whatever is taken must be stored, shown, and shown again to a late answer."""
    for depth in (10, 100, 400, 700, 800, 900, 930, 950, 960, 970, 980, 990, 1000, 2000):
        with client.events(workspace, session_id=session_id) as events:
            events.until("caught_up")
            run_id = client.submit(workspace, session_id, "question how deep?")
            request: Any = events.until("question_request")[-1].payload
        body = b'{"id": "%b", "answers": %b}' % (request.id.encode(), b"[" * depth + b"]" * depth)
        answer = client.ask("POST", f"{workspace}/questions/answer", body, raw=True)
        assert answer.status in (200, 400, 422), (depth, answer.body)
        late = client.post(f"{workspace}/questions/answer", {"id": request.id, "answers": ["late"]})
        assert done(late)["resolved"] is (answer.status != 200), depth
        assert client.ended(workspace, run_id)["state"] == "completed", depth
    with client.events(workspace, after=0) as events:
        events.until("caught_up")


@pytest.mark.parametrize(
    "number", ["1" + "0" * 30, "9" * 400, "9" * 5000, "1e400", "-1e400", "0.1e-400", "1" + "0" * 400 + ".5"]
)
def test_numbers_of_any_size_are_no_accident(client: Client, workspace: str, session_id: str, number: str) -> None:
    with client.events(workspace, session_id=session_id) as events:
        events.until("caught_up")
        run_id = client.submit(workspace, session_id, "question how much?")
        request: Any = events.until("question_request")[-1].payload
    body = f'{{"id": "{request.id}", "answers": [{number}]}}'.encode()
    answer = client.ask("POST", f"{workspace}/questions/answer", body, raw=True)
    assert answer.status in (200, 400, 422), answer.body
    if answer.status != 200:
        done(client.post(f"{workspace}/questions/cancel", {"id": request.id}))
    assert client.ended(workspace, run_id)["state"] == "completed"
    done(client.get(f"{workspace}/log"))


QUERIES = {
    "/runs/RUN?wait=": ["", "nan", "inf", "-inf", "-1", "601", "1e400", "abc", "1;2", "9" * 5000],
    "/log?after=": ["", "-1", "abc", "1.5", "9223372036854775808", "9" * 5000, "%ff", "0x10", "1e99"],
    "/log?limit=": ["0", "-1", "1001", "abc", "9" * 50],
    "/runs?state=": ["running%00", "open", "COMPLETED"],
    "/runs?limit=": ["0", "x"],
    "/sessions?limit=": ["0", "1.5"],
    "/events?after=": ["-1", "x", "1e99", "9" * 30],
    "/sessions/SESSION/messages?limit=": ["0", "1e3000"],
}


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_that_makes_no_sense_is_422(client: Client, workspace: str, session_id: str, query: str) -> None:
    run_id = client.submit(workspace, session_id, "say hello")
    path = query.replace("RUN", run_id).replace("SESSION", session_id)
    for value in QUERIES[query]:
        answer = client.get(f"{workspace}{path}{value}")
        assert (answer.status, answer.code) == (422, "invalid_request"), value


@pytest.mark.parametrize("value", ["-1", "x", "1.0", "9" * 19, "1 2", "²"])
def test_a_last_event_id_that_is_none_is_422(client: Client, workspace: str, value: str) -> None:
    answer = client.ask("GET", f"{workspace}/events", headers={"Last-Event-ID": value})
    assert (answer.status, answer.code) == (422, "invalid_request")


def test_of_a_query_given_twice_the_last_counts_and_unknown_ones_do_not(client: Client, workspace: str) -> None:
    for title in ("one", "two"):
        client.session(workspace, title)
    sessions = done(client.get(f"{workspace}/sessions?limit=2&limit=1&future=x&q="))["sessions"]
    assert [session["title"] for session in sessions] == ["two"]


@pytest.mark.parametrize(
    "query", ["%", "%zz", "&&&", "=", "q", "q=%", "q=%ff%fe", "?", "q=%00", "q=a%26b%3Dc", "%00=%00"]
)
def test_a_query_of_nonsense_finds_nothing_wrong(client: Client, workspace: str, query: str) -> None:
    assert client.get(f"{workspace}/sessions?{query}").status == 200


@pytest.mark.parametrize(
    "sid", ["%00", "%ff", "%2e%2e", "a%2fb", "%F0%9F%91%BB", "'; DROP TABLE runs; --", "x" * 5000, "%25"]
)
def test_ids_of_nonsense_are_not_found(client: Client, workspace: str, sid: str) -> None:
    for path in (f"/sessions/{sid}", f"/runs/{sid}", f"/agent/sessions/{sid}", f"/sessions/{sid}/messages"):
        answer = client.get(workspace + quote(path, safe="/%"))
        assert (answer.status, answer.code.endswith("_not_found")) == (404, True), path


@pytest.mark.parametrize(
    "path", ["/", "", "*", "/v1", "/v1/", "//v1/health", "/v1/workspaces//sessions", "/V1/health", "/v1/health%2f"]
)
def test_paths_of_nonsense_are_not_found(client: Client, path: str) -> None:
    said = client.said(f"GET {path or '/'} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert said.startswith(b"HTTP/1.1 404 "), said
    assert json.loads(said.partition(b"\r\n\r\n")[2])["code"] == "route_not_found"


@pytest.mark.parametrize(
    "request_line",
    [b"nonsense", b"GET", b"GET /\xff HTTP/1.1", b"GET / HTTP/9.9", b"CONNECT a:1 HTTP/1.1", b"\x16\x03\x01"],
)
def test_what_is_not_http_is_malformed(client: Client, request_line: bytes) -> None:
    said = client.said(request_line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 400 "), said
    assert json.loads(said.partition(b"\r\n\r\n")[2])["code"] == "malformed"


def test_headers_without_end_are_cut_off(client: Client) -> None:
    with connect(client.address) as sock:
        try:
            sock.sendall(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nX: ")
            for _ in range(1000):
                sock.sendall(b"x" * 65536)
        except ConnectionError:
            pass
        else:
            raise AssertionError("64 MiB of a header were taken")


def test_a_protocol_upgrade_is_declined_and_the_request_answered(client: Client) -> None:
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "eA==",
    }
    assert client.ask("GET", "/v1/health", headers=headers).status == 200


@pytest.mark.parametrize(
    "path", ["", "relative", "./here", "~", "/nowhere/at/all", "\0", "/\0", "file", "/" + "x" * 300, "/x" * 3000]
)
def test_what_is_no_directory_is_no_workspace(client: Client, tmp_path: Path, path: str) -> None:
    if path == "file":
        (tmp_path / "file").write_text("")
        path = str(tmp_path / "file")
    answer = client.post("/v1/workspaces", {"path": path})
    assert (answer.status, answer.code) == (422, "invalid_request"), answer.body


def test_a_directory_that_links_to_itself_is_no_workspace(client: Client, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    answer = client.post("/v1/workspaces", {"path": str(tmp_path / "loop")})
    assert (answer.status, answer.code) == (422, "invalid_request")


SUBMISSIONS = {
    "empty_prompt": {"prompt": " \n\t\u2003"},
    "invalid_run_id": {"prompt": "say x", "run_id": "../x"},
    "invalid_model": {"prompt": "say x", "model": "no slash"},
    "invalid_request": {
        "prompt": "say x",
        "attachments": [{"file_name": "a", "mime_type": "text/plain", "content": "%"}],
    },
    "session_not_found": {"prompt": "say x", "session_id": "another"},
}


@pytest.mark.parametrize("code", SUBMISSIONS)
def test_a_submission_that_cannot_be_is_refused_without_a_trace(
    client: Client, workspace: str, session_id: str, code: str
) -> None:
    before = done(client.get(f"{workspace}/log"))
    answer = client.post(f"{workspace}/agent", {"session_id": session_id, **SUBMISSIONS[code]})
    assert (answer.status, answer.code) == (404 if code.endswith("found") else 422, code)
    assert done(client.get(f"{workspace}/log")) == before


def test_a_title_and_a_prompt_have_their_limits(client: Client, workspace: str, session_id: str) -> None:
    longest = "x" * MAX_TITLE_CHARS
    assert done(client.post(f"{workspace}/sessions", {"title": longest}))["title"] == longest
    assert client.post(f"{workspace}/sessions", {"title": longest + "x"}).status == 422
    prompt = "x" * MAX_PROMPT_BYTES
    client.submit(workspace, session_id, prompt)
    answer = client.post(f"{workspace}/agent", {"session_id": session_id, "prompt": prompt + "x"})
    assert (answer.status, answer.code) == (413, "prompt_too_large")


def test_a_search_for_more_than_anybody_remembers_is_refused(client: Client, workspace: str) -> None:
    """Its limit holds for every character: the ones that a search takes literally, and the longest ones."""
    for character in ("x", "%25", "_", "!", "%F0%9F%9A%A2"):
        assert done(client.get(f"{workspace}/sessions?q={character * 1_000}"))["sessions"] == []
        answer = client.get(f"{workspace}/sessions?q={character * 1_001}")
        assert (answer.status, answer.code) == (422, "invalid_request")


def test_a_body_that_is_announced_too_large_is_refused_before_it_is_sent(client: Client, workspace: str) -> None:
    head = f"POST {workspace}/agent HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with connect(client.address) as sock:
        sock.sendall(f"{head}Content-Length: {MAX_BODY_BYTES + 1}\r\nExpect: 100-continue\r\n\r\n".encode())
        assert sock.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_a_client_that_sends_too_much_all_the_same_learns_why(client: Client, workspace: str) -> None:
    answer = client.ask("POST", f"{workspace}/agent", b" " * (MAX_BODY_BYTES + 1), raw=True)
    assert (answer.status, answer.code, answer.headers["connection"]) == (413, "body_too_large", "close")


def test_a_body_of_unknown_length_is_cut_off_at_the_limit(client: Client, workspace: str) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b" " * 65536

    try:
        assert client.ask("POST", f"{workspace}/agent", endless(), raw=True).status == 413
    except ConnectionError:
        pass  # we never stopped sending, and were hung up on
    assert client.get("/v1/health").status == 200


def test_the_largest_body_is_taken(client: Client, workspace: str) -> None:
    body = json.dumps({"title": "fits"}).encode()
    answer = client.ask("POST", f"{workspace}/sessions", body + b" " * (MAX_BODY_BYTES - len(body)), raw=True)
    assert done(answer)["title"] == "fits"


def test_a_request_that_is_cut_off_leaves_nothing(client: Client, workspace: str) -> None:
    head = f"POST {workspace}/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with connect(client.address) as sock:
        sock.sendall(f'{head}Content-Length: 20\r\n\r\n{{"title": '.encode())
    assert done(client.get(f"{workspace}/sessions")) == {"sessions": []}
