"""The client that the conformance suite tests: Kedge's, driven as each scenario wants.

usage: python -m tests.mcp.conformance.client URL, started by the suite, which names the scenario in the environment.
The person who logs in is played by a function that follows the redirects of the authorization server.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from kedge.config.schema import McpOAuthConfig
from kedge.jsonrpc.errors import PeerError
from kedge.jsonrpc.messages import Json
from kedge.mcp.client import Client
from kedge.mcp.errors import LoginRequired
from kedge.mcp.http import HttpTransport
from kedge.mcp.messages import InputRequest, ToolInfo
from kedge.mcp.oauth.login import Login
from kedge.mcp.oauth.tokens import ServerTokens
from tests.mcp.oauth_parts import MemoryStore, play_browser

T = TypeVar("T")

DOCUMENT = "https://conformance-test.local/client-metadata.json"
MAX_LOGINS = 3  # a person gives up, too


class Watcher:
    """Implements `CallWatcher`, with a person who accepts everything."""

    can_elicit = True

    def on_progress(self, text: str) -> None:
        pass

    async def elicit(self, request: InputRequest) -> Json:
        properties = request.params.get("requestedSchema", {}).get("properties", {})
        defaults = {name: each["default"] for name, each in properties.items() if "default" in each}
        return {"action": "accept", "content": defaults}


class Events:
    def on_change(self, what: str) -> None:
        pass

    def on_closed(self, error: PeerError) -> None:
        print("closed:", error, file=sys.stderr)


class Session:
    """A client, and the person who logs in when the server wants it."""

    def __init__(self, url: str, context: dict[str, Any]) -> None:
        self._url = url
        document = DOCUMENT if os.environ["MCP_CONFORMANCE_SCENARIO"] in ("auth/basic-cimd",) else None
        self._config = McpOAuthConfig(
            client_id=context.get("client_id", document), client_secret=context.get("client_secret")
        )
        self._tokens = ServerTokens(url, MemoryStore())
        self._logins = 0
        self.client = self._make_client()

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await work()
            except LoginRequired:
                if self._logins == MAX_LOGINS:
                    raise
                self._logins += 1
                await self._log_in()

    async def connect(self) -> None:
        async def attempt() -> None:
            self.client = self._make_client()
            await self.client.connect()

        await self.run(attempt)

    def _make_client(self) -> Client:
        return Client(HttpTransport(self._url, {}, self._tokens), Events(), timeout_s=20)

    async def _log_in(self) -> None:
        login = Login(self._tokens, self._config)
        try:
            await login.start()
            async with asyncio.TaskGroup() as group:
                group.create_task(play_browser(login.url))
                await login.wait()
        finally:
            await login.close()


async def call(session: Session, name: str, arguments: Json) -> None:
    """Call a tool, and give it what it asks for."""
    watcher = Watcher()
    result = await session.run(lambda: session.client.call_tool(name, arguments, watcher))
    if result.result_type == "input_required":
        await session.client.call_tool("test_mrtr_unrelated", {}, watcher)
        responses = {key: {"action": "accept", "content": {"confirmed": True}} for key in result.input_requests}
        again: Json = {"inputResponses": responses}
        if result.request_state is not None:
            again["requestState"] = result.request_state
        await session.client.call_tool(name, arguments, watcher, again=again)


async def main(url: str) -> None:
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    session = Session(url, context)
    await session.connect()
    tools = await session.run(session.client.list_tools)
    try:
        if scenario != "json-schema-ref-no-deref":
            await call_tools(session, scenario, context, tools)
        if scenario == "http-standard-headers":
            for resource in await session.client.list_resources():
                await session.client.read_resource(resource.uri)
            for prompt in await session.client.list_prompts():
                await session.client.get_prompt(prompt.name, {})
    finally:
        await session.client.close()


async def call_tools(session: Session, scenario: str, context: dict[str, Any], tools: list[ToolInfo]) -> None:
    if planned := context.get("toolCalls"):
        for each in planned:
            await call(session, each["name"], each["arguments"])
    elif scenario == "json-schema-2020-12-preservation":
        schema = next(tool.input_schema for tool in tools if tool.name == "json_schema_2020_12_tool")
        await call(session, "json_schema_echo", {"schema": schema})
    else:
        for tool in tools:
            if tool.name != "test_mrtr_unrelated":
                await call(session, tool.name, {"a": 2, "b": 3} if scenario == "tools_call" else {})


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
