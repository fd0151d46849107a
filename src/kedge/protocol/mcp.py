"""MCP servers as clients see them: `GET W/mcp`, and the payload of `mcp_event`."""

from __future__ import annotations

from typing import Literal

import msgspec

# "idle": it is started by the next run. "failed": `error` says why; it is tried again.
McpState = Literal["idle", "starting", "ready", "failed", "needs_login", "disabled"]


class McpTool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str  # as permission rules name it: mcp_SERVER_TOOL
    tool: str  # as the server names it
    title: str | None = None
    description: str | None = None


class McpServer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A configured server. `error`, `stderr`: for people; secrets of its configuration are replaced."""

    name: str
    kind: Literal["stdio", "http"]
    state: McpState
    error: str | None = None
    tools: list[McpTool] = []
    prompts: int = 0
    resources: int = 0
    title: str | None = None  # what the server calls itself
    version: str | None = None
    protocol: str | None = None  # the version of MCP that is spoken
    pid: int | None = None
    stderr: str | None = None  # the end of what it wrote to its standard error
    skipped_lines: int = 0  # of its output: they were no messages


class McpServers(msgspec.Struct, frozen=True):
    servers: list[McpServer]


class McpEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a server changed, or its tools did."""

    name: str
    state: McpState
    error: str | None = None
    tools: int = 0
