"""The client against a real server on a real socket: what it sends, and what it makes of what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import math
import re
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable

import msgspec
import pytest

from kedge.config.schema import WireName
from kedge.models.client import MAX_PAGES, ModelClient
from kedge.models.errors import ConfigError, ModelError, Refused, Transient
from kedge.models.values import (
    Delta,
    Endpoint,
    ReasoningDelta,
    StepEnd,
    StepRequest,
    TextDelta,
    ToolCallDelta,
    ToolSpec,
    UsageReport,
)
from kedge.models.wires import registry
from kedge.protocol.messages import Message, Part, Text, ToolCall, ToolResult
from tests.support.model_plan import AT_ONCE, Plan, PlannedCall
from tests.support.model_server import HOST, ModelServer
from tests.support.wires import WAYS, WIRES, url_of

Answerer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LIMIT_S = 30.0
KEY = "sk-of-a-test"
PROMPT = Message(id="m", session_id="s", run_id="r", role="user", parts=[Text("hello")], created_at=0.0)


@pytest.fixture
async def models() -> AsyncGenerator[ModelClient]:
    async with asyncio.timeout(LIMIT_S):
        models = ModelClient()
        yield models
        await models.close()


@pytest.fixture(params=WIRES)
def target(request: pytest.FixtureRequest, model_server: ModelServer) -> Endpoint:
    """The same server, spoken to on each wire."""
    wire: WireName = request.param
    url = url_of(wire, model_server)
    way = WAYS[wire]
    return Endpoint(
        provider=way.provider, model="m", base_url=url, api_key=KEY, wire=wire, url_variable=way.url_variable
    )


def endpoint(server: ModelServer, model: str = "m") -> Endpoint:
    return Endpoint(provider="openai", model=model, base_url=server.base_url, api_key=KEY)


async def ask(models: ModelClient, target: Endpoint, heard: list[Delta] | None = None) -> list[Delta]:
    """All deltas; `heard` has those that came before an error too."""
    heard = [] if heard is None else heard
    async with contextlib.aclosing(models.stream(target, StepRequest(system="be brief", history=[PROMPT]))) as groups:
        async for deltas in groups:
            heard += deltas
    return heard


def _until_gone(answer: Answerer) -> Answerer:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await answer(reader, writer)
        writer.close()

    return serve


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


async def test_an_answer_comes_with_its_end_and_its_usage(models: ModelClient, model_server: ModelServer) -> None:
    model_server.plan = Plan(text="yes", chunks=3)
    deltas = await ask(models, endpoint(model_server))
    assert text(deltas) == "w0 w1 yes"
    assert StepEnd("end_turn") in deltas
    assert UsageReport(input_tokens=10, output_tokens=3, cache_read_tokens=0) in deltas
    [call] = model_server.calls
    assert call.headers["authorization"] == f"Bearer {KEY}"
    assert [message["role"] for message in call.body["messages"]] == ["system", "user"]
    await model_server.until(lambda calls: calls[0].done is not None)
    assert call.arrived <= (call.first or 0) <= (call.done or 0)


async def test_a_step_with_thoughts_and_calls_comes_over_every_wire(
    models: ModelClient, model_server: ModelServer, target: Endpoint
) -> None:
    calls = (PlannedCall("view", {"path": "a"}), PlannedCall("bash", {"command": "ls"}))
    model_server.plan = Plan(
        text="so",
        reasoning="hm",
        tool_calls=calls,
        input_piece=3,
        interleave=True,
        cache_read_tokens=7,
        output_tokens=9,
        unknown=True,
    )
    deltas = await ask(models, target)
    assert text(deltas) == "so"
    assert "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)) == "hm"
    inputs: dict[str, str] = {}
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            inputs[delta.block] = inputs.get(delta.block, "") + delta.input
    assert [json.loads(given) for given in inputs.values()] == [call.input for call in calls]
    assert StepEnd("tool_use") in deltas
    reports = [delta for delta in deltas if isinstance(delta, UsageReport)]
    assert reports[0].input_tokens == 10
    assert reports[0].cache_read_tokens == 7
    assert reports[-1].output_tokens == 9


async def test_a_body_says_the_same_when_a_conversation_is_remembered(
    models: ModelClient, model_server: ModelServer, target: Endpoint
) -> None:
    """The first answers are not encoded again, and the provider sees what it saw before."""
    tools = [ToolSpec("view", "Reads.", {"type": "object"})]
    history = [PROMPT]
    for i in range(6):
        parts: list[Part] = [ToolCall(f"c{i}", "view", "{}", True)]
        result: list[Part] = [ToolResult(f"c{i}", "view", f"content {i}", False)]
        history.append(msgspec.structs.replace(PROMPT, id=f"a{i}", role="assistant", parts=parts))
        history.append(msgspec.structs.replace(PROMPT, id=f"t{i}", role="tool", parts=result))
        request = StepRequest(system="be brief", history=history, tools=tools)
        async with contextlib.aclosing(models.stream(target, request)) as groups:
            async for _ in groups:
                pass
        fresh = json.loads(registry.WIRES[target.wire].prepare_request(target, request, None).body)
        assert model_server.calls[-1].body == fresh


@pytest.mark.parametrize("joined", [False, True])
async def test_what_came_with_an_error_is_told_before_it(
    models: ModelClient, model_server: ModelServer, target: Endpoint, joined: bool
) -> None:
    model_server.plan = Plan(text="half an ans", malformed="error", error="overloaded_error", joined=joined)
    heard: list[Delta] = []
    with pytest.raises(Transient) as caught:
        await ask(models, target, heard)
    assert caught.value.code == "provider_error"
    assert text(heard) == "half an ans"


@pytest.mark.parametrize(
    ("status", "error"), [(529, "overloaded_error"), (500, "api_error"), (429, "rate_limit_error")]
)
async def test_a_provider_that_is_busy_may_be_asked_again(
    models: ModelClient, model_server: ModelServer, target: Endpoint, status: int, error: str
) -> None:
    model_server.plan = Plan(status=status, error=error, retry_after="3")
    with pytest.raises(Transient) as caught:
        await ask(models, target)
    assert caught.value.retry_after_s == 3


async def test_steps_share_a_connection(models: ModelClient, model_server: ModelServer, target: Endpoint) -> None:
    connections: set[str] = set()
    for _ in range(3):
        await ask(models, target)
        connections |= {call.peer for call in model_server.calls}
    assert len(connections) == 1


class ClosingServer:
    """Answers `answered` requests of each connection, and hangs up on the next one without a word of an answer."""

    def __init__(self, answered: int = 1, word: bytes = b"", *, is_reset: bool = False) -> None:
        self.connections = 0
        self._answered = answered
        self._word = word  # said before it hangs up
        self._is_reset = is_reset

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        for _ in range(self._answered):
            await self._read_request(reader)
            delta = {"choices": [{"delta": {"content": "hello"}, "finish_reason": "stop"}]}
            body = b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(delta).encode()
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body)
            writer.write(head + body)
            await writer.drain()
        await self._read_request(reader)
        writer.write(self._word)
        if self._is_reset:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    async def _read_request(self, reader: asyncio.StreamReader) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(re.findall(rb"content-length: (\d+)", head)[0]))


@contextlib.asynccontextmanager
async def served(answer: Answerer) -> AsyncGenerator[Endpoint]:
    server = await asyncio.start_server(_until_gone(answer), HOST, 0)
    async with server:
        url = f"http://{HOST}:{server.sockets[0].getsockname()[1]}/v1"
        yield Endpoint(provider="openai", model="m", base_url=url, api_key=KEY)


@pytest.mark.parametrize("is_reset", [False, True], ids=["closed", "reset"])
async def test_a_kept_connection_that_is_closed_as_it_is_used_is_replaced_at_once(
    models: ModelClient, *, is_reset: bool
) -> None:
    closing = ClosingServer(is_reset=is_reset)
    async with served(closing) as target:
        for _ in range(3):
            assert text(await ask(models, target)) == "hello"
        await models.close()
    assert closing.connections == 3


async def test_all_kept_connections_may_be_closed_as_they_are_used(models: ModelClient) -> None:
    closing = ClosingServer()
    async with served(closing) as target:
        both = await asyncio.gather(ask(models, target), ask(models, target))
        assert [text(deltas) for deltas in both] == ["hello"] * 2
        assert closing.connections == 2
        assert text(await ask(models, target)) == "hello"
        await models.close()


async def test_a_new_connection_that_is_closed_is_a_fault(models: ModelClient) -> None:
    closing = ClosingServer(answered=0)
    async with served(closing) as target:
        with pytest.raises(Transient) as caught:
            await ask(models, target)
        await models.close()
    assert (caught.value.code, closing.connections) == ("dropped", 1)


async def test_a_kept_connection_that_broke_off_in_an_answer_is_a_fault(models: ModelClient) -> None:
    closing = ClosingServer(word=b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nda")
    async with served(closing) as target:
        await ask(models, target)
        with pytest.raises(Transient) as caught:
            await ask(models, target)
        await models.close()
    assert (caught.value.code, closing.connections) == ("dropped", 1)


@pytest.mark.parametrize("malformed", ["", "no_done", "rest"])
async def test_an_answer_is_over_when_the_model_says_so(
    models: ModelClient, model_server: ModelServer, target: Endpoint, malformed: str
) -> None:
    model_server.plan = Plan(malformed=malformed, usage=False, comments=True, crlf=True)
    assert text(await ask(models, target)) == "FAKE-ANSWER-OK"


@pytest.mark.parametrize("malformed", ["no_finish", "empty", "done", "cut"])
async def test_an_answer_that_nobody_ended_was_dropped(
    models: ModelClient, model_server: ModelServer, target: Endpoint, malformed: str
) -> None:
    model_server.plan = Plan(malformed=malformed)
    with pytest.raises(Transient) as caught:
        await ask(models, target)
    assert caught.value.code == "dropped"


@pytest.mark.parametrize("place", [AT_ONCE, 0, 1])
async def test_a_cut_connection_is_told_as_dropped(
    models: ModelClient, model_server: ModelServer, target: Endpoint, place: int
) -> None:
    model_server.plan = Plan(drop_after=place, chunks=3)
    with pytest.raises(Transient) as caught:
        await ask(models, target)
    assert caught.value.code == "dropped"


@pytest.mark.parametrize("place", [AT_ONCE, 0, 1])
async def test_silence_is_bounded(model_server: ModelServer, target: Endpoint, place: int) -> None:
    models = ModelClient()
    model_server.plan = Plan(hang_after=place, chunks=3)
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(Transient, match=r"sent nothing for 0\.2 s") as caught:
            await ask(models, msgspec.structs.replace(target, max_silence_s=0.2))
    assert caught.value.code == "stalled"
    await models.close()


@pytest.mark.parametrize(("url", "silence_s"), [("http://models.example", 300.0), ("http://127.0.0.1:9", math.inf)])
def test_a_model_of_this_machine_may_always_be_silent_unless_its_user_says_otherwise(
    url: str, silence_s: float
) -> None:
    endpoint = Endpoint(provider="p", model="m", base_url=url)
    assert endpoint.silence_s == silence_s
    for configured_s, expected_s in ((7.0, 7.0), (0.0, math.inf)):
        assert msgspec.structs.replace(endpoint, max_silence_s=configured_s).silence_s == expected_s


PINGS_S = 1800  # of nothing but comments


@pytest.mark.parametrize(
    ("silence_s", "step_s", "is_stalled"), [(5.0, 2000, True), (5.0, 100, False), (0.0, 2000, False)]
)
async def test_comments_are_life_for_half_an_hour(
    model_server: ModelServer, target: Endpoint, silence_s: float, step_s: int, is_stalled: bool
) -> None:
    ticks = itertools.count(0, step_s)
    models = ModelClient(clock=lambda: float(next(ticks)))
    model_server.plan = Plan(malformed="comments")
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(Transient) as caught:
            await ask(models, msgspec.structs.replace(target, max_silence_s=silence_s))
    assert (caught.value.code == "stalled") == is_stalled
    assert (f"nothing but pings for {PINGS_S} s" in caught.value.text) == is_stalled
    await models.close()


async def test_a_page_is_no_answer(models: ModelClient, model_server: ModelServer, target: Endpoint) -> None:
    model_server.plan = Plan(malformed="html")
    with pytest.raises(Refused, match=WAYS[target.wire].url_variable):
        await ask(models, target)


async def test_a_server_that_is_not_there_is_unreachable(models: ModelClient, model_server: ModelServer) -> None:
    async with ModelServer() as gone:
        pass
    with pytest.raises(Transient) as caught:
        await ask(models, endpoint(gone))
    assert caught.value.code == "unreachable"
    assert HOST in caught.value.text


@pytest.mark.parametrize("proxy", ["nonsense://me:secret@host", "http://host:port"])
async def test_a_proxy_that_cannot_be_used_is_told_at_the_first_call(
    model_server: ModelServer, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    models = ModelClient()
    away = msgspec.structs.replace(endpoint(model_server), base_url="http://models.test/v1")
    with pytest.raises(ConfigError, match="ALL_PROXY") as caught:
        await ask(models, away)
    assert "secret" not in caught.value.text
    assert await ask(models, endpoint(model_server)), "what is on this machine needs none"
    await models.close()


async def test_a_proxy_is_used_where_the_environment_says_so(
    model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://{HOST}:{model_server.port}")
    models = ModelClient()
    target = Endpoint(provider="openai", model="m", base_url="http://models.test/v1")
    assert text(await ask(models, target)) == "FAKE-ANSWER-OK"
    assert model_server.calls[0].headers["host"] == "models.test"
    await models.close()


async def test_leaving_early_closes_the_connection(
    models: ModelClient, model_server: ModelServer, target: Endpoint
) -> None:
    model_server.plan = Plan(hang_after=1, chunks=3)
    async with contextlib.aclosing(models.stream(target, StepRequest(system="", history=[PROMPT]))) as groups:
        async for deltas in groups:
            if text(deltas):
                break
    await model_server.until(lambda calls: calls[0].is_gone)


async def test_where_no_model_was_chosen_the_first_one_offered_is_taken(
    models: ModelClient, model_server: ModelServer
) -> None:
    model_server.models = ("text-embedding-nomic", "first", "second")  # one that only measures texts does not count
    for _ in range(2):
        assert (await models.resolve_model(endpoint(model_server, ""))).name == "openai/first"
    assert model_server.listings == 1
    other = Endpoint(provider="anthropic", model="", base_url=model_server.anthropic_url, wire="anthropic")
    assert (await models.resolve_model(other)).name == "anthropic/first"
    assert (await models.resolve_model(endpoint(model_server, "mine"))).name == "openai/mine"


async def test_a_long_list_of_models_is_read_to_its_end(models: ModelClient, model_server: ModelServer) -> None:
    """A gateway's has hundreds of them, each with its description."""
    model_server.models = tuple(f"{'maker' * 200}/model-{i}" for i in range(1_000))
    assert await models.list_models(endpoint(model_server, "")) == list(model_server.models)


@pytest.mark.parametrize("pages", [1, 3, 1000])
async def test_a_list_of_models_is_read_page_by_page_and_not_for_ever(models: ModelClient, pages: int) -> None:
    asked: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := (await reader.readuntil(b"\r\n\r\n")).decode():
            asked.append(request.split()[1])
            told = {"models": [{"name": f"models/m{len(asked)}"}]}
            more = {"nextPageToken": f"p{len(asked)}"} if len(asked) < pages else {}
            body = json.dumps({**told, **more}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            await writer.drain()

    server = await asyncio.start_server(_until_gone(answer), HOST, 0)
    async with server:
        url = f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
        target = Endpoint(provider="gemini", model="", base_url=url, api_key=KEY, wire="gemini")
        names = await models.list_models(target)
        await models.close()
    assert names == [f"m{i + 1}" for i in range(min(pages, MAX_PAGES))]
    assert [page.partition("pageToken=")[2] for page in asked] == ["", *(f"p{i + 1}" for i in range(len(names) - 1))]
    assert KEY not in "".join(asked)


@pytest.mark.parametrize("is_closed", [True, False], ids=["broken off", "without end"])
async def test_an_error_is_what_its_status_says_whatever_becomes_of_its_body(
    models: ModelClient, monkeypatch: pytest.MonkeyPatch, *, is_closed: bool
) -> None:
    monkeypatch.setattr("kedge.models.client.REST_S", 0.05)

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 401 No\r\ncontent-length: 1000\r\n\r\n{")
        await writer.drain()
        if not is_closed:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(refuse, HOST, 0)
    async with server:
        url = f"http://{HOST}:{server.sockets[0].getsockname()[1]}/v1"
        with pytest.raises(Refused) as caught:
            await ask(models, Endpoint(provider="openai", model="m", base_url=url, api_key=KEY))
        assert caught.value.code == "auth"


async def test_what_is_known_of_a_model_holds_also_where_the_server_chose_it(
    models: ModelClient, model_server: ModelServer
) -> None:
    model_server.models = ("gpt-5",)
    found = await models.resolve_model(endpoint(model_server, ""))
    assert found.info.context_window == 400_000
    assert found.info.input_price is not None


async def test_a_server_that_offers_nothing_is_told(models: ModelClient, model_server: ModelServer) -> None:
    model_server.models = ()
    with pytest.raises(ConfigError) as caught:
        await models.resolve_model(endpoint(model_server, ""))
    assert caught.value.code == "no_model"


async def test_the_log_holds_neither_key_nor_address(
    models: ModelClient, model_server: ModelServer, target: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await ask(models, target)
    model_server.plan = Plan(status=401, message=f"no such key: {KEY}")
    with pytest.raises(ModelError):
        await ask(models, target)
    assert KEY not in caplog.text
    assert "HTTP Request" not in caplog.text
