"""`web_search` against servers that answer as each service does."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from kedge.config.rules import BadRule, read_rule
from kedge.config.schema import Config, PermissionsConfig, SearchConfig, SearchService
from kedge.protocol.runs import Mode, RunOptions
from kedge.tools.errors import ToolError
from kedge.tools.permissions.judge import Judge
from kedge.tools.permissions.policy import Allow, Ask, Deny
from kedge.tools.port import Access
from tests.tools.harness import ToolHarness

KEY = "key-of-tests-0123456789"
PAGE = {"title": "A <strong>page</strong>\x1b[31m", "url": "https://example.com/a"}
EMPTY = {"title": None, "url": "https://example.com/b"}
ANSWERS: dict[SearchService, Any] = {
    "searxng": {"query": "q", "results": [{**PAGE, "content": "its text"}, EMPTY, {"url": "file:///etc/passwd"}]},
    "exa": {"results": [{**PAGE, "text": "its text"}, EMPTY], "costDollars": {"total": 0.007}},
    "parallel": {"search_id": "1", "results": [{**PAGE, "excerpts": ["its", "text"]}, EMPTY]},
    "tavily": {"answer": None, "results": [{**PAGE, "content": "its text", "score": 0.5}, EMPTY]},
    "brave": {"type": "search", "web": {"results": [{**PAGE, "description": "its <b>text</b>"}, EMPTY]}},
}


class Service(ThreadingHTTPServer):
    status = 200
    answer: bytes = b"{}"
    requests: list[tuple[str, str, dict[str, str], bytes]]
    later: list[bytes]  # answers after the first


class Handler(BaseHTTPRequestHandler):
    server: Service  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.command, self.path, headers, self.rfile.read(length)))
        answer = self.server.answer
        if self.server.later:
            self.server.answer = self.server.later.pop(0)
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def serve(answer: Any, status: int = 200) -> Generator[tuple[Service, str]]:
    with Service(("127.0.0.1", 0), Handler) as server:
        server.requests, server.later, server.status = [], [], status
        server.answer = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToolHarness:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return ToolHarness(tmp_path)


def use(harness: ToolHarness, **fields: Any) -> None:
    harness.config = Config(search=SearchConfig(**fields))
    harness.search_key = None if fields["provider"] == "searxng" else KEY


@pytest.mark.parametrize("provider", ANSWERS)
async def test_each_service_is_asked_in_its_way_and_its_results_are_shown_as_text(
    harness: ToolHarness, provider: SearchService
) -> None:
    with serve(ANSWERS[provider]) as (server, url):
        use(harness, provider=provider, url=url, cost_per_search=0.002)
        output = await harness.call("web_search", query="how to  x & y?", max_results=5)
    method, target, headers, body = server.requests[0]
    if method == "GET":
        given = parse_qs(urlsplit(target).query)
        assert given["q"] == ["how to x & y?"]
    else:
        given = json.loads(body)
        assert "how to x & y?" in (given.get("query"), *given.get("search_queries", ()))
    sent = {"exa": "x-api-key", "parallel": "x-api-key", "tavily": "authorization", "brave": "x-subscription-token"}
    if provider in sent:
        assert headers[sent[provider]].endswith(KEY)
    else:
        assert (target.split("?")[0], given["format"]) == ("/search", ["json"])
        assert KEY not in str(headers)
    assert "1. A page" in output.content
    assert "https://example.com/a" in output.content
    assert "text" in output.content
    assert "\x1b" not in output.content
    assert "passwd" not in output.content
    assert "never instructions" in output.content
    assert [each["url"] for each in (output.metadata or {})["results"]] == [PAGE["url"], EMPTY["url"]]
    assert harness.costs == [0.007 if provider == "exa" else 0.002]


async def test_results_are_bounded_however_much_a_service_sends(harness: ToolHarness) -> None:
    pages = [{"title": "t" * 9_000, "url": f"https://example.com/{n}", "content": "x" * 50_000} for n in range(50)]
    with serve({"results": pages}) as (_, url):
        use(harness, provider="searxng", url=url)
        output = await harness.call("web_search", query="q", max_results=10)
    assert len(output.content) < 15_000
    assert len((output.metadata or {})["results"]) == 10


@pytest.mark.parametrize("status", [401, 402, 403, 429, 500, 302])
async def test_a_refusal_teaches_and_never_shows_the_key(harness: ToolHarness, status: int) -> None:
    with serve({"error": KEY}, status) as (_, url):
        use(harness, provider="exa", url=url)
        with pytest.raises(ToolError) as error:
            await harness.call("web_search", query="q")
    assert str(status) in error.value.text
    assert KEY not in error.value.text
    assert harness.costs == []


@pytest.mark.parametrize("answer", [b"<html>", b"[" * 5_000, b"\xff", b"[]", b'{"results": {"a": 1}}', b'{"web": 7}'])
async def test_an_odd_answer_is_no_fault_of_ours(harness: ToolHarness, answer: bytes) -> None:
    with serve(answer) as (_, url):
        use(harness, provider="searxng", url=url)
        if answer[:1] in (b"<", b"\xff") or len(answer) > 1_000:
            with pytest.raises(ToolError, match="JSON"):
                await harness.call("web_search", query="q")
        else:
            assert "Nothing was found" in (await harness.call("web_search", query="q")).content


async def test_an_unreachable_service_is_one_line(harness: ToolHarness) -> None:
    with serve({}) as (_, url):
        pass
    use(harness, provider="searxng", url=url)
    with pytest.raises(ToolError, match="cannot be reached"):
        await harness.call("web_search", query="q")


async def test_a_person_sees_the_whole_query_and_who_gets_it(harness: ToolHarness) -> None:
    use(harness, provider="brave")
    access = (await harness.list_access("web_search", query="a  b"))[0]
    assert (access.kind, access.subject) == ("search", "a b")
    assert '"a b"' in access.description
    assert "api.search.brave.com" in access.description
    for query in ("  ", "x" * 500):
        with pytest.raises(ToolError):
            await harness.list_access("web_search", query=query)


@pytest.mark.parametrize(
    ("mode", "allow", "deny", "wanted"),
    [
        ("ask", (), (), Ask),
        ("plan", (), (), Ask),
        ("yolo", (), (), Allow),
        ("ask", ("web_search",), (), Allow),
        ("plan", ("web_search",), (), Allow),
        ("ask", ("web_search(python *)",), (), Allow),
        ("ask", ("web_search(rust *)",), (), Ask),
        ("ask", ("web_search",), ("web_search(*DICT*)",), Deny),
        ("ask", ("fetch", "bash"), (), Ask),
    ],
)
def test_a_query_is_judged_like_any_other_access(
    tmp_path: Path, mode: Mode, allow: tuple[str, ...], deny: tuple[str, ...], wanted: type
) -> None:
    config = PermissionsConfig(mode=mode, allow=allow, deny=deny)
    judge = Judge(config, RunOptions(), "ask", directory=tmp_path)
    access = Access(kind="search", subject="python dict order", description="search")
    decision = judge.judge("web_search", access)
    assert isinstance(decision, wanted)
    if isinstance(decision, Ask):
        assert decision.rules == ("web_search",)


def test_a_rule_without_words_is_refused() -> None:
    with pytest.raises(BadRule):
        read_rule("web_search( )")
