"""Who answers on this machine is found quickly, whatever the others there do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from kedge.models.selection.selector import CACHE_S, LocalServer, LocalServers

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OLLAMA = b'{"object":"list","data":[{"id":"nomic-embed-text"},{"id":"qwen3:8b","object":"model"},{"id":"llama3"}]}'


def says(body: bytes, status: str = "200 OK") -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        writer.close()

    return answer


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


@contextlib.asynccontextmanager
async def listening(*answers: Answer) -> AsyncGenerator[list[LocalServer], None]:
    async with contextlib.AsyncExitStack() as stack:
        servers: list[LocalServer] = []
        for number, answer in enumerate(answers):
            server = await stack.enter_async_context(await asyncio.start_server(answer, "127.0.0.1", 0))
            servers.append(LocalServer(f"p{number}", f"Server {number}", server.sockets[0].getsockname()[1]))
        yield servers


async def test_those_that_answer_are_found_in_their_order() -> None:
    async with listening(says(b'{"data":[{"id":"one"}]}'), says(OLLAMA)) as servers:
        found = await LocalServers(servers).find()
    assert [(each.provider, each.models) for each in found] == [("p0", ("one",)), ("p1", ("qwen3:8b", "llama3"))]
    assert found[0].base_url == f"http://127.0.0.1:{servers[0].port}/v1"
    assert "Server 0" in found[0].reason


@pytest.mark.parametrize(
    "body", [b"", b"<html>hello</html>", b"[]", b'{"data":null}', b'{"data":[]}', b'{"data":[{"id":5}]}', b"\xff{"]
)
async def test_what_is_no_model_server_is_left_alone(body: bytes) -> None:
    async with listening(says(body), says(OLLAMA, "404 Not Found"), says(OLLAMA)) as servers:
        found = await LocalServers(servers).find()
    assert [each.provider for each in found] == ["p2"]


async def test_a_silent_one_costs_no_more_than_the_limit() -> None:
    loop = asyncio.get_running_loop()
    async with listening(silent, says(OLLAMA), silent) as servers:
        began = loop.time()
        found = await LocalServers(servers, timeout_s=0.5).find()
        took_s = loop.time() - began
    assert [each.provider for each in found] == ["p1"]
    assert took_s < 5  # and not one after the other, nor for ever


async def test_nobody_is_asked_again_for_a_while() -> None:
    now = 100.0
    async with listening(says(OLLAMA)) as servers:
        finder = LocalServers(servers, clock=lambda: now)
        assert len(await finder.find()) == 1
    assert len(await finder.find()) == 1  # it is gone, and remembered
    now += CACHE_S + 1
    assert await finder.find() == []
