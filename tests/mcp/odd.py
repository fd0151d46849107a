"""The odd server as the agent has it, and what tests of it ask and wait for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import sys
from pathlib import Path
from typing import Any

import msgspec

from kedge.config.schema import McpServerConfig
from kedge.protocol.mcp import McpEvent
from kedge.protocol.messages import ToolResult
from kedge.protocol.requests import PermissionRequest
from kedge.protocol.runs import RunOptions
from tests.agent.driver import Driver
from tests.mcp.waits import FileWatch
from tests.support.processes import is_alive

ODD = Path(__file__).parent / "odd_server.py"
ALLOW = RunOptions(allow=("mcp_*",))


class Odd:
    """A configured odd server, and what it noted."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir()

    def config(self, kind: str = "modern", **fields: Any) -> McpServerConfig:
        fields = {"args": (str(ODD), str(self.place), kind), **fields}
        return McpServerConfig(command=sys.executable, **fields)

    @property
    def requests(self) -> list[str]:
        file = self.place / "requests"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def pid(self) -> int:
        return int((self.place / "pid").read_text())

    def count(self, line: str) -> int:
        return self.requests.count(line)

    async def noted(self, line: str, times: int = 1) -> None:
        await FileWatch(self.place).until(lambda: self.count(line) >= times)


def use(driver: Driver, **configs: McpServerConfig) -> None:
    driver.config = msgspec.structs.replace(driver.config, mcp=configs)


def calling(name: str, text: str = "done", **given: Any) -> str:
    calls = json.dumps([{"name": name, "input": given}])
    return f"[[fake tool_calls='{calls}' text=\"{text}\"]]"


async def result_of(driver: Driver, session_id: str) -> ToolResult:
    return (await driver.kedge.results(session_id))[-1]


async def asked(driver: Driver, kind: type[Any]) -> Any:
    """The newest request of this kind that is pending."""
    await driver.kedge.seen(lambda event: isinstance(event.payload, kind))
    name = "permission" if kind is PermissionRequest else "question"
    (request,) = await driver.kedge.store.pending_requests(driver.kedge.workspace_id, name)
    return request


async def until_ready(driver: Driver, name: str) -> None:
    def is_it(event: Any) -> bool:
        return isinstance(event.payload, McpEvent) and (event.payload.name, event.payload.state) == (name, "ready")

    await driver.kedge.seen(is_it)


def place_of(driver: Driver) -> tuple[Path, Any]:
    kedge = driver.kedge
    return kedge.engine.root_of(kedge.workspace_id), kedge.engine.host_of(kedge.workspace_id)


async def gone(*pids: int) -> None:
    async with asyncio.timeout(20):
        while any(map(is_alive, pids)):
            await asyncio.to_thread(wait_for_exit, [pid for pid in pids if is_alive(pid)])


def wait_for_exit(pids: list[int], limit_ms: int = 1_000) -> None:
    """Until one of them ends, for a limited time."""
    poll = select.poll()
    with contextlib.ExitStack() as ends:
        for pid in pids:
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                return
            ends.callback(os.close, fd)
            poll.register(fd, select.POLLIN)
        poll.poll(limit_ms)
