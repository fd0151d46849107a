# type: ignore - its packages are not in the environment of the checks
"""A server made with the official SDK, of either major version, over standard streams. Run in a child process."""

from __future__ import annotations

try:
    from mcp.server.mcpserver import MCPServer
except ImportError:
    from mcp.server.fastmcp import FastMCP as MCPServer

server = MCPServer("sdk")


@server.tool()
def add(a: int, b: int) -> int:
    return a + b


if __name__ == "__main__":
    server.run()
