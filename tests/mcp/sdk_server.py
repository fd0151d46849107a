# type: ignore - its packages are not in the environment of the checks
"""A server made with the official SDK, of either major version, over HTTP. Run in a child process.

usage: python sdk_server.py stream | json | stateless | sse; prints the address on standard output.
"""

from __future__ import annotations

import asyncio
import socket
import sys

import uvicorn
from pydantic import BaseModel

try:
    from mcp.server.mcpserver import Context, MCPServer
except ImportError:
    from mcp.server.fastmcp import Context
    from mcp.server.fastmcp import FastMCP as MCPServer

server = MCPServer("sdk")


class Age(BaseModel):
    age: int


@server.tool()
def add(a: int, b: int) -> int:
    return a + b


@server.tool()
def fail() -> str:
    raise ValueError("it broke")


@server.tool()
async def count(ctx: Context) -> str:
    for number in range(3):
        await ctx.report_progress(number + 1, 3, "counting")
    return "counted"


@server.tool()
async def wait(ctx: Context) -> str:
    await ctx.report_progress(1, 1, "waiting")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        print("canceled", flush=True)
        raise
    return "never"


@server.tool()
async def ask(ctx: Context) -> str:
    answer = await ctx.elicit("How old?", Age)
    return f"{answer.action} {getattr(getattr(answer, 'data', None), 'age', None)}"


@server.prompt()
def greet(name: str) -> str:
    return f"Greet {name}."


@server.resource("note://today")
def today() -> str:
    return "sunny"


@server.resource("note://{day}/weather")
def weather(day: str) -> str:
    return f"{day}: rain"


async def main(kind: str) -> None:
    options = {"json": {"json_response": True}, "stateless": {"stateless_http": True}}.get(kind, {})
    if kind == "sse":
        app, path = server.sse_app(), "/sse"
    elif "FastMCP" in MCPServer.__name__:
        for name, value in options.items():
            setattr(server.settings, name, value)
        app, path = server.streamable_http_app(), "/mcp"
    else:
        app, path = server.streamable_http_app(**options), "/mcp"
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    print(f"http://127.0.0.1:{sock.getsockname()[1]}{path}", flush=True)
    await uvicorn.Server(uvicorn.Config(app, log_level="error")).serve(sockets=[sock])


asyncio.run(main(sys.argv[1]))
