"""Servers made with the official SDK, of both major versions, over every HTTP transport that they have."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from kedge.jsonrpc.errors import PeerError
from kedge.jsonrpc.messages import Json
from kedge.mcp.client import Client
from kedge.mcp.http import HttpTransport
from kedge.mcp.messages import InputRequest
from tests.mcp.test_http import Events
from tests.support.pip import install_requirement

SCRIPT = Path(__file__).parent / "sdk_server.py"
OLD, NEW = "mcp==1.30.0", "mcp==2.3.0"
KINDS = [
    (OLD, "stream", "legacy"),
    (OLD, "json", "legacy"),
    (OLD, "stateless", "legacy"),
    (OLD, "sse", "legacy"),
    (NEW, "stream", "modern"),
    (NEW, "json", "modern"),
    (NEW, "sse", "legacy"),
]


class Person:
    """Implements `CallWatcher`: somebody who answers."""

    can_elicit = True

    def __init__(self) -> None:
        self.progress: list[str] = []
        self.has_progress = asyncio.Event()

    def on_progress(self, text: str) -> None:
        self.progress.append(text)
        self.has_progress.set()

    async def elicit(self, request: InputRequest) -> Json:
        assert request.params["message"] == "How old?"
        return {"action": "accept", "content": {"age": 42}}


@contextlib.asynccontextmanager
async def connected(requirement: str, kind: str) -> AsyncGenerator[tuple[Client, Process]]:
    packages = await asyncio.to_thread(install_requirement, requirement)
    env = {**os.environ, "PYTHONPATH": str(packages)}
    process = await asyncio.create_subprocess_exec(sys.executable, str(SCRIPT), kind, env=env, stdout=PIPE)
    assert process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().strip()
        client = Client(HttpTransport(url, {}), Events(), timeout_s=30)
        try:
            await client.connect()
            yield client, process
        finally:
            await client.close()
    finally:
        process.kill()
        await process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(("requirement", "kind", "era"), KINDS)
async def test_tools_prompts_and_resources_of_a_server_made_with_the_sdk(requirement: str, kind: str, era: str) -> None:
    async with connected(requirement, kind) as (client, _):
        assert client.era == era
        assert {"add", "fail", "count"} <= {tool.name for tool in await client.list_tools()}
        person = Person()
        results = await asyncio.gather(
            *(client.call_tool("add", {"a": number, "b": 1}, person) for number in range(10))
        )
        assert [result.content[0].text for result in results] == [str(number + 1) for number in range(10)]
        failed = await client.call_tool("fail", {}, person)
        assert failed.is_error
        assert "fail" in (failed.content[0].text or "")
        (prompt,) = await client.list_prompts()
        greeting = await client.get_prompt(prompt.name, {"name": "Ada"})
        assert greeting.messages[0].content.text == "Greet Ada."
        assert [resource.uri for resource in await client.list_resources()] == ["note://today"]
        assert (await client.read_resource("note://today")).contents[0].text == "sunny"
        (template,) = await client.list_resource_templates()
        assert template.uri_template == "note://{day}/weather"
        with pytest.raises(PeerError):
            await client.read_resource("note://missing")
        if kind != "json":  # a document has no room for news
            await client.call_tool("count", {}, person)
            assert [text.split()[0] for text in person.progress] == ["1/3", "2/3", "3/3"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stream", "sse"])
async def test_a_tool_that_asks_the_person_gets_the_answer(kind: str) -> None:
    async with connected(OLD, kind) as (client, _):
        result = await client.call_tool("ask", {}, Person())
        assert result.content[0].text == "accept 42"


@pytest.mark.slow
@pytest.mark.parametrize(("requirement", "kind"), [(OLD, "stream"), (NEW, "stream")])
async def test_a_canceled_call_ends_in_the_server_too(requirement: str, kind: str) -> None:
    async with connected(requirement, kind) as (client, process):
        assert process.stdout is not None
        person = Person()
        call = asyncio.create_task(client.call_tool("wait", {}, person))
        await person.has_progress.wait()
        call.cancel()
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == b"canceled\n"
        assert (await client.call_tool("add", {"a": 1, "b": 1}, person)).content[0].text == "2"
