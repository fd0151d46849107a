"""Model servers on this machine (Ollama, LM Studio, llama.cpp): find those that answer, and their models."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence

import msgspec

from kedge.models.errors import Refused
from kedge.models.wires.requests import exclude_embeddings, parse_listing

TIMEOUT_S = 0.3  # a server on loopback answers in a few milliseconds
CACHE_S = 30.0  # short, so that a server that was just started is found soon
MAX_RESPONSE_BYTES = 1 << 20


class LocalServer(msgspec.Struct, frozen=True):
    provider: str
    title: str
    port: int
    models: tuple[str, ...] = ()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def reason(self) -> str:
        """Why a run uses this server although no model was named."""
        return f"no API key was found, and {self.title} is running on this machine (port {self.port})"


# In the order of preference.
KNOWN_SERVERS = (
    LocalServer("ollama", "Ollama", 11434),
    LocalServer("lmstudio", "LM Studio", 1234),
    LocalServer("llamacpp", "llama.cpp", 8080),
)


class LocalServers:
    def __init__(
        self,
        servers: Sequence[LocalServer] = KNOWN_SERVERS,
        *,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers = servers
        self._timeout_s = timeout_s
        self._clock = clock
        self._cached: tuple[float, list[LocalServer]] | None = None

    async def find(self) -> list[LocalServer]:
        """Return the servers that answer and have a model. All are asked at once; the result is cached."""
        if self._cached is None or self._clock() - self._cached[0] > CACHE_S:
            models = await asyncio.gather(*(_list_models(server.port, self._timeout_s) for server in self._servers))
            answering = [
                msgspec.structs.replace(server, models=tuple(names))
                for server, names in zip(self._servers, models, strict=True)
                if names
            ]
            self._cached = (self._clock(), answering)
        return self._cached[1]


async def _list_models(port: int, timeout_s: float) -> list[str]:
    try:
        async with asyncio.timeout(timeout_s):
            return exclude_embeddings(parse_listing(await _get(port, "/v1/models")))
    except (OSError, ValueError, Refused):  # no server, or no model server
        return []


async def _get(port: int, path: str) -> bytes:
    """Send a GET request without the HTTP client, whose import is slow and may not be needed otherwise."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=MAX_RESPONSE_BYTES)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if head.split(b" ", 2)[1:2] != [b"200"]:
            raise ValueError("not found")
        length = re.search(
            rb"(?im)^content-length:[ \t]*(\d{1,9})[ \t]*\r$", head
        )  # some servers keep the connection open
        max_bytes = min(MAX_RESPONSE_BYTES, int(length[1])) if length else MAX_RESPONSE_BYTES
        body = b""
        while len(body) < max_bytes and (chunk := await reader.read(65536)):
            body += chunk
        return body
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise ValueError("no HTTP") from error
    finally:
        writer.close()
