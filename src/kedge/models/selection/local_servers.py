"""Model servers on this machine: which of the usual ones answers, and with which models. Asked all at once, briefly."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence

import msgspec

from kedge.models.errors import Refused
from kedge.models.wires.requests import parse_listing, writers

ASK_S = 0.3  # loopback answers in a few milliseconds, or is busy with something else
REMEMBER_S = 30.0  # a server that is started is found soon, and a run does not wait for the same answer again
MAX_ANSWER_BYTES = 1 << 20


class LocalServer(msgspec.Struct, frozen=True):
    provider: str
    title: str
    port: int
    models: tuple[str, ...] = ()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def why(self) -> str:
        """For a run that got it without asking for it."""
        return f"no key was found, and {self.title} answers on this machine (port {self.port})"


# In the order in which they are taken.
USUAL = (
    LocalServer("ollama", "Ollama", 11434),
    LocalServer("lmstudio", "LM Studio", 1234),
    LocalServer("llamacpp", "llama.cpp", 8080),
)


class LocalServers:
    def __init__(
        self,
        usual: Sequence[LocalServer] = USUAL,
        *,
        ask_s: float = ASK_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._usual = usual
        self._ask_s = ask_s
        self._clock = clock
        self._found: tuple[float, list[LocalServer]] | None = None

    async def find(self) -> list[LocalServer]:
        """Those that answer and have a model, in their order."""
        if self._found is None or self._clock() - self._found[0] > REMEMBER_S:
            models = await asyncio.gather(*(self._models(server.port) for server in self._usual))
            answering = [
                msgspec.structs.replace(server, models=tuple(names))
                for server, names in zip(self._usual, models, strict=True)
                if names
            ]
            self._found = (self._clock(), answering)
        return self._found[1]

    async def _models(self, port: int) -> list[str]:
        try:
            async with asyncio.timeout(self._ask_s):
                return writers(parse_listing(await _get(port, "/v1/models")))
        except (OSError, ValueError, Refused):  # nobody, or somebody else
            return []


async def _get(port: int, path: str) -> bytes:
    """Without a proxy, and without the HTTP client, which is not needed otherwise."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=MAX_ANSWER_BYTES)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if head.split(b" ", 2)[1:2] != [b"200"]:
            raise ValueError("not found")
        told = re.search(rb"(?im)^content-length:[ \t]*(\d{1,9})[ \t]*\r$", head)  # some keep the connection open
        most = min(MAX_ANSWER_BYTES, int(told[1])) if told else MAX_ANSWER_BYTES
        body = b""
        while len(body) < most and (chunk := await reader.read(65536)):
            body += chunk
        return body
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise ValueError("no HTTP") from error
    finally:
        writer.close()
