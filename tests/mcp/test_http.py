"""The HTTP transport against servers that answer in every way: what arrives, what is sent, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from kedge.jsonrpc.errors import CannotConnect, Disconnected, InvalidAnswer, PeerError, RpcError
from kedge.jsonrpc.messages import Json
from kedge.mcp import http as transport_module
from kedge.mcp.client import Client
from kedge.mcp.errors import HttpRefused
from kedge.mcp.http import HttpTransport
from kedge.mcp.messages import InputRequest, ToolInfo
from tests.mcp.raw_server import DISCOVERED, INITIALIZED, STREAM, Answer, Got, RawServer, document, event, head, result

MODERN = "2026-07-28"


class Events:
    def __init__(self) -> None:
        self.changes: asyncio.Queue[str] = asyncio.Queue()
        self.closed: asyncio.Future[PeerError] = asyncio.get_running_loop().create_future()

    def on_change(self, what: str) -> None:
        self.changes.put_nowait(what)

    def on_closed(self, error: PeerError) -> None:
        self.closed.set_result(error)


class Watcher:
    can_elicit = False

    def __init__(self) -> None:
        self.progress: list[str] = []

    def on_progress(self, text: str) -> None:
        self.progress.append(text)

    async def elicit(self, request: InputRequest) -> Json:
        raise AssertionError


@contextlib.asynccontextmanager
async def connected(
    answer: Answer, headers: dict[str, str] | None = None
) -> AsyncGenerator[tuple[Client, RawServer, Events]]:
    async with RawServer(answer).run() as server:
        events = Events()
        client = Client(HttpTransport(server.url, headers or {}), events, timeout_s=20)
        try:
            await client.connect()
            yield client, server, events
        finally:
            await client.close()


def modern(on_call: Answer) -> Answer:
    """A server of the modern era that answers calls of tools as `on_call` does."""

    async def answer(got: Got, writer: asyncio.StreamWriter) -> None:
        if got.message["method"] == "server/discover":
            writer.write(document(result(got, DISCOVERED)))
        else:
            await on_call(got, writer)

    return answer


def legacy(on_call: Answer, on_stream: Answer | None = None) -> Answer:
    async def answer(got: Got, writer: asyncio.StreamWriter) -> None:
        if got.method == "GET":
            await on_stream(got, writer) if on_stream else writer.write(document({}, "405 Method Not Allowed"))
        elif got.method == "DELETE":
            writer.write(document({}))
        elif got.message.get("method") == "initialize":
            writer.write(document(result(got, INITIALIZED), Mcp_Session_Id="s-1"))
        elif got.message.get("method") == "server/discover":
            writer.write(document({"error": "what is this"}, "400 Bad Request"))
        elif "id" not in got.message or "method" not in got.message:
            if got.message.get("method") != "notifications/initialized":
                await on_call(got, writer)
            writer.write(head("202 Accepted", Content_Length="0"))
        else:
            await on_call(got, writer)

    return answer


DONE: dict[str, Any] = {"resultType": "complete", "content": [{"type": "text", "text": "done"}]}


async def test_an_answer_comes_as_a_document_or_as_a_stream_with_news_of_progress() -> None:
    async def on_call(got: Got, writer: asyncio.StreamWriter) -> None:
        if got.message["params"]["arguments"]["how"] == "document":
            writer.write(document(result(got, DONE)))
            return
        progress = {"progressToken": got.message["params"]["_meta"]["progressToken"], "progress": 1, "total": 2}
        news = {"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}
        writer.write(STREAM + b": a comment\r\n\r\n" + event({"x": 1}, "ping") + b"data: no message\n\n" + event(news))
        for byte in event(result(got, DONE)):
            writer.write(bytes([byte]))
            await writer.drain()
        writer.close()

    async with connected(modern(on_call)) as (client, server, _):
        watcher = Watcher()
        for how in ("document", "stream"):
            answer = await client.call_tool("a/b", {"how": how}, watcher)
            assert answer.content[0].text == "done"
        assert watcher.progress == ["1/2"]
        sent = server.got[-1].headers
        assert (sent["mcp-protocol-version"], sent["mcp-method"], sent["mcp-name"]) == (MODERN, "tools/call", "a/b")
        assert "mcp-session-id" not in sent


async def test_names_and_parameters_are_encoded_so_that_no_header_can_be_injected() -> None:
    async def on_call(got: Got, writer: asyncio.StreamWriter) -> None:
        if got.message["method"] == "tools/list":
            schema = {"type": "object", "properties": {"p": {"type": "string", "x-mcp-header": "P"}}}
            bad = {"type": "object", "properties": {"p": {"type": "string", "x-mcp-header": "P\r\nX: y"}}}
            tools = [{"name": "n\r\nEvil: 1", "inputSchema": schema}, {"name": "bad", "inputSchema": bad}]
            writer.write(document(result(got, {"resultType": "complete", "tools": tools})))
        else:
            writer.write(document(result(got, DONE)))

    async with connected(modern(on_call)) as (client, server, _):
        tools = await client.list_tools()
        assert [tool.name for tool in tools] == ["n\r\nEvil: 1"]
        await client.call_tool(tools[0].name, {"p": "ü\r\nEvil: 2"}, Watcher())
        sent = server.got[-1].headers
        assert "evil" not in sent
        assert sent["mcp-name"] == "=?base64?bg0KRXZpbDogMQ==?="
        assert sent["mcp-param-p"] == "=?base64?w7wNCkV2aWw6IDI=?="


async def test_a_call_refused_for_its_headers_is_sent_once_more_after_the_tools_were_listed_again() -> None:
    refused = {"code": -32020, "message": "header mismatch"}

    async def on_call(got: Got, writer: asyncio.StreamWriter) -> None:
        if got.message["method"] == "tools/list":
            schema = {"type": "object", "properties": {"p": {"type": "string", "x-mcp-header": "P"}}}
            writer.write(
                document(result(got, {"resultType": "complete", "tools": [{"name": "n", "inputSchema": schema}]}))
            )
        elif got.headers.get("mcp-param-p") == "right":
            writer.write(document(result(got, DONE)))
        else:
            writer.write(document({"jsonrpc": "2.0", "id": got.message["id"], "error": refused}, "400 Bad Request"))

    async with connected(modern(on_call)) as (client, server, _):
        await client.call_tool("n", {"p": "right"}, Watcher())
        assert [got.message["method"] for got in server.got[-3:]] == ["tools/call", "tools/list", "tools/call"]
        sent = len(server.got)
        with pytest.raises(RpcError):
            await client.call_tool("n", {"p": "wrong"}, Watcher())
        assert len(server.got) == sent + 3


async def test_a_call_whose_answer_is_lost_is_not_sent_again() -> None:
    async def on_call(got: Got, writer: asyncio.StreamWriter) -> None:
        if got.message["params"]["arguments"]["when"] == "in the stream":
            writer.write(STREAM + event({"jsonrpc": "2.0", "method": "notifications/message", "params": {}}))
            await writer.drain()
        writer.transport.abort()

    async with connected(modern(on_call)) as (client, server, _):
        for when in ("at once", "in the stream"):
            with pytest.raises(Disconnected):
                await client.call_tool("x", {"when": when}, Watcher())
        calls = [each for each in server.got if each.headers.get("mcp-method") == "tools/call"]
        assert len(calls) == 2


async def test_a_canceled_call_closes_its_stream() -> None:
    has_begun, has_ended = asyncio.Event(), asyncio.Event()

    async def on_call(got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM)
        has_begun.set()
        with contextlib.suppress(OSError):
            while not writer.transport.is_closing():
                writer.write(b": still here\n\n")
                await writer.drain()
                await asyncio.sleep(0)
        has_ended.set()

    async with connected(modern(on_call)) as (client, server, _):
        call = asyncio.create_task(client.call_tool("x", {}, Watcher()))
        await has_begun.wait()
        call.cancel()
        async with asyncio.timeout(20):
            await has_ended.wait()
        assert all(each.message.get("method") != "notifications/cancelled" for each in server.got)


async def test_a_legacy_server_is_told_that_a_call_was_canceled_and_that_the_session_ends() -> None:
    has_begun, is_told = asyncio.Event(), asyncio.Event()

    async def on_call(got: Got, writer: asyncio.StreamWriter) -> None:
        if got.message.get("method") == "notifications/cancelled":
            is_told.set()
        else:
            writer.write(STREAM)
            has_begun.set()
            await is_told.wait()

    async with connected(legacy(on_call)) as (client, server, _):
        call = asyncio.create_task(client.call_tool("x", {}, Watcher()))
        await has_begun.wait()
        call.cancel()
        async with asyncio.timeout(20):
            await is_told.wait()
    ends = [each for each in server.got if each.method == "DELETE"]
    assert [each.headers["mcp-session-id"] for each in ends] == ["s-1"]
    posts = [each for each in server.got if each.method == "POST" and each.message.get("method") == "tools/call"]
    assert posts[0].headers["mcp-session-id"] == "s-1"
    assert posts[0].headers["mcp-protocol-version"] == "2025-11-25"


async def test_requests_of_a_legacy_server_are_answered_or_refused() -> None:
    answers: dict[str, Any] = {}
    all_answered = asyncio.Event()

    async def on_call(got: Got, writer: asyncio.StreamWriter) -> None:
        message = got.message
        if message.get("method") == "tools/call":
            wanted = {"ping": "a", "roots/list": "b", "sampling/createMessage": "c", "elicitation/create": "d"}
            asks: list[dict[str, Any]] = [
                {"jsonrpc": "2.0", "id": id, "method": method, "params": {}} for method, id in wanted.items()
            ]
            writer.write(STREAM + b"".join(map(event, asks)))
            await writer.drain()
            await all_answered.wait()
            writer.write(event(result(got, DONE)))
            writer.close()
        else:
            answers[message["id"]] = message
            if len(answers) == 4:
                all_answered.set()

    async with connected(legacy(on_call)) as (client, _, _):
        await client.call_tool("x", {}, Watcher())
    assert answers["a"]["result"] == {}
    assert answers["b"]["error"]["code"] == answers["c"]["error"]["code"] == -32601
    assert answers["d"]["result"] == {"action": "decline"}


async def test_a_legacy_server_reports_changes_on_a_stream_of_its_own() -> None:
    async def on_stream(got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM + event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}))
        await writer.drain()
        await asyncio.Event().wait()

    async def on_call(got: Got, writer: asyncio.StreamWriter) -> None:
        raise AssertionError

    async with connected(legacy(on_call, on_stream)) as (_, _, events):
        async with asyncio.timeout(20):
            assert await events.changes.get() == "tools"


async def test_a_session_that_the_server_has_ended_is_reported_and_the_call_was_not_executed() -> None:
    async def on_call(got: Got, writer: asyncio.StreamWriter) -> None:
        error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "Session not found"}}
        writer.write(document(error, "404 Not Found"))

    async with connected(legacy(on_call)) as (client, _, events):
        with pytest.raises(CannotConnect, match="not executed"):
            await client.call_tool("x", {}, Watcher())
        assert isinstance(await events.closed, Disconnected)


async def test_a_redirect_within_the_origin_is_followed_and_another_origin_sees_nothing() -> None:
    async def steal(got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(document({}))

    async with RawServer(steal).run() as thief:
        redirect = {"to": ""}

        async def answer(got: Got, writer: asyncio.StreamWriter) -> None:
            if got.path == "/mcp":
                writer.write(head("307 Temporary Redirect", Location="/mcp/", Content_Length="0"))
            elif got.message["method"] == "server/discover":
                writer.write(document(result(got, DISCOVERED)))
            else:
                writer.write(head("307 Temporary Redirect", Location=redirect["to"], Content_Length="0"))

        async with connected(answer, {"Authorization": "Bearer s3cret"}) as (client, server, _):
            assert [each.path for each in server.got] == ["/mcp", "/mcp/"]
            for other in (thief.url, "http://169.254.169.254/latest", "//evil.example/", "https://127.0.0.1/mcp"):
                redirect["to"] = other
                with pytest.raises(HttpRefused, match="redirects to"):
                    await client.call_tool("x", {}, Watcher())
            for other in ("file:///etc/passwd", "http://[", "javascript:alert(1)", "http://"):
                redirect["to"] = other
                with pytest.raises(PeerError):
                    await client.call_tool("x", {}, Watcher())
            redirect["to"] = "/mcp/"
            with pytest.raises(HttpRefused, match="without end"):
                await client.call_tool("x", {}, Watcher())
        assert thief.got == []


async def write_without_end(writer: asyncio.StreamWriter, piece: bytes) -> None:
    with contextlib.suppress(OSError):
        while not writer.transport.is_closing():
            writer.write(piece)
            await writer.drain()


FLOODS = {
    "a line without end": (STREAM, b"data: " + b"x" * 65_536),
    "an event without end": (STREAM, b"data: " + b"x" * 1000 + b"\n"),
    "events without end": (STREAM, event({"jsonrpc": "2.0", "method": "notifications/message", "params": {}}) * 50),
    "comments without end": (STREAM, b": " + b"x" * 1000 + b"\n\n"),
    "a document without end": (head(Content_Type="application/json", Connection="close"), b" " * 65_536),
    "an error without end": (head("500 Broken", Content_Type="text/plain", Connection="close"), b"x" * 65_536),
    "a head without end": (b"HTTP/1.1 200 OK\r\n", b"X-Y: " + b"z" * 1000 + b"\r\n"),
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_flood_ends_the_call_and_nothing_else(flood: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "MAX_MESSAGE_BYTES", 1_000_000)
    monkeypatch.setattr(transport_module, "MAX_STREAM_BYTES", 4_000_000)
    start, piece = FLOODS[flood]

    async def on_call(got: Got, writer: asyncio.StreamWriter) -> None:
        if got.message["params"]["name"] == "good":
            writer.write(document(result(got, DONE)))
            return
        writer.write(start)
        await write_without_end(writer, piece)

    async with connected(modern(on_call)) as (client, _, _):
        async with asyncio.timeout(60):
            with pytest.raises((InvalidAnswer, Disconnected, HttpRefused)):
                await client.call_tool("bad", {}, Watcher())
        answer = await client.call_tool("good", {}, Watcher())
        assert answer.content[0].text == "done"


BROKEN = {
    "no type": head(Content_Length="2") + b"{}",
    "a page": head(Content_Type="text/html", Content_Length="4") + b"<h1>",
    "no JSON": head(Content_Type="application/json", Content_Length="1") + b"{",
    "nested": head(Content_Type="application/json", Content_Length="100000") + b"[" * 100_000,
    "of another request": document({"jsonrpc": "2.0", "id": 99, "result": {}}),
    "nothing": head("202 Accepted", Content_Length="0"),
    "no HTTP": b"SSH-2.0-OpenSSH\r\n\r\n",
    "an unknown type of result": b"",
}


@pytest.mark.parametrize("broken", BROKEN)
async def test_a_broken_answer_is_one_line(broken: str) -> None:
    async def on_call(got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(BROKEN[broken] or document(result(got, {"resultType": "surprise"})))

    async with connected(modern(on_call)) as (client, _, _):
        with pytest.raises(PeerError) as raised:
            await client.call_tool("x", {}, Watcher())
        assert "\n" not in raised.value.text
        assert 10 < len(raised.value.text) < 300


async def test_an_address_where_nobody_listens_is_one_line() -> None:
    async def on_call(got: Got, writer: asyncio.StreamWriter) -> None:
        raise AssertionError

    async with RawServer(on_call).run() as server:
        url = server.url
    client = Client(HttpTransport(url, {}), Events())
    with pytest.raises(CannotConnect, match="cannot be reached"):
        await client.connect()


async def test_configured_headers_are_sent_and_what_the_protocol_needs_wins() -> None:
    async def on_call(got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(document(result(got, DONE)))

    headers = {"X-Team": "tools", "mcp-method": "evil", "ACCEPT": "text/html", "content-length": "3", "Host": "other"}
    async with connected(modern(on_call), headers) as (client, server, _):
        await client.call_tool("x", {}, Watcher())
        sent = server.got[-1].headers
        assert (sent["x-team"], sent["mcp-method"]) == ("tools", "tools/call")
        assert sent["accept"] == "application/json, text/event-stream"
        assert sent["host"] == "other"


def test_a_tool_with_a_schema_of_any_depth_is_judged_in_bounded_time() -> None:
    schema: dict[str, Any] = {"type": "string", "x-mcp-header": "deep"}
    for _ in range(5_000):
        schema = {"type": "object", "properties": {"p": schema}}

    async def judge() -> list[ToolInfo]:
        transport = HttpTransport("http://127.0.0.1:1/", {})
        return transport.filter_tools([ToolInfo(name="deep", input_schema=schema)])

    assert len(asyncio.run(judge())) == 1


async def test_the_transport_of_2024_is_found_and_its_messages_stay_on_their_server() -> None:
    streams: list[asyncio.StreamWriter] = []
    endpoint = "/messages?session=1"

    async def answer(got: Got, writer: asyncio.StreamWriter) -> None:
        if got.method == "GET":
            streams.append(writer)
            writer.write(STREAM + f"event: endpoint\ndata: {endpoint}\n\n".encode())
            await writer.drain()
            await asyncio.Event().wait()
        elif got.path == "/mcp":
            writer.write(document({}, "405 Method Not Allowed"))
        else:
            writer.write(head("202 Accepted", Content_Length="0"))
            if "id" in got.message:
                is_first = got.message["method"] == "initialize"
                streams[0].write(event(result(got, INITIALIZED if is_first else DONE)))

    async with connected(answer) as (client, _, _):
        assert (await client.call_tool("x", {}, Watcher())).content[0].text == "done"
    endpoint = "http://evil.example/messages"
    with pytest.raises(PeerError):
        async with connected(answer):
            pass
