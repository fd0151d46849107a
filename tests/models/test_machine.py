"""What a run gets on a machine where nothing is configured."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from kedge.config.schema import Config
from kedge.models.choose import Chooser
from kedge.models.embedded.models import Embedded
from kedge.models.embedded.starter import Tell
from kedge.models.errors import ConfigError
from kedge.models.keys.credentials import Credentials
from kedge.models.machine import Machine
from kedge.models.selection.local_servers import LocalServer, LocalServers
from kedge.models.values import Endpoint, ModelInfo

DIRECTORY = Path("/somewhere")


class Installed:
    """An embedded model that is there at once; it remembers what it was asked for."""

    def __init__(self, *, is_available: bool = True) -> None:
        self.asked: list[tuple[str, Path]] = []
        self._is_available = is_available

    def is_available(self) -> bool:
        return self._is_available

    async def endpoint(self, name: str, *, directory: Path, env: Mapping[str, str], tell: Tell) -> Endpoint:
        self.asked.append((name, directory))
        return Endpoint(provider="local", model=name, base_url="local://x/v1", info=ModelInfo(is_tiny=True))


async def tell(text: str, details: dict[str, Any]) -> None:
    raise AssertionError


@contextlib.asynccontextmanager
async def serving(*models: str) -> AsyncGenerator[LocalServer, None]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps({"data": [{"id": model} for model in models]}).encode()
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield LocalServer("ollama", "Ollama", server.sockets[0].getsockname()[1])


def nobody() -> LocalServer:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return LocalServer("lmstudio", "LM Studio", taken.getsockname()[1])


def machine(embedded: Installed, *servers: LocalServer) -> Machine:
    return Machine(cast("Embedded", embedded), LocalServers(servers, ask_s=10.0))


async def test_a_server_that_answers_comes_before_the_starter() -> None:
    embedded = Installed()
    async with serving("qwen3:8b", "other") as server:
        local = machine(embedded, nobody(), server).local(DIRECTORY, {}, tell)
        chosen = await Chooser(Credentials()).large(None, {}, Config(), local)
    assert (chosen.endpoint.name, chosen.endpoint.base_url) == ("ollama/qwen3:8b", server.base_url)
    assert chosen.why.startswith("ollama/qwen3:8b: ")
    assert "Ollama answers" in chosen.why
    assert embedded.asked == []


async def test_without_a_server_it_is_the_starter_and_that_is_said_honestly() -> None:
    embedded = Installed()
    chosen = await machine(embedded, nobody()).local(DIRECTORY, {}, tell)("")
    assert embedded.asked == [("starter", DIRECTORY)]
    assert "knows very little" in chosen.why


async def test_an_embedded_model_that_was_named_is_that_one_whatever_answers() -> None:
    embedded = Installed()
    async with serving("qwen3:8b") as server:
        local = machine(embedded, server).local(DIRECTORY, {}, tell)
        chosen = await Chooser(Credentials()).large("local/a.gguf", {}, Config(), local)
    assert embedded.asked == [("a.gguf", DIRECTORY)]
    assert chosen.endpoint.name == "local/a.gguf"


async def test_with_nothing_at_all_one_line_names_every_way_out() -> None:
    with pytest.raises(ConfigError) as caught:
        await machine(Installed(is_available=False), nobody()).local(DIRECTORY, {}, tell)("")
    assert caught.value.code == "no_model"
    for way in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "pip install 'kedge[local]'"):
        assert way in caught.value.text
    assert "\n" not in caught.value.text
