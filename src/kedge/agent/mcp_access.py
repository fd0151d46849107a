"""What people do with MCP servers besides running prompts: logins, tests, prompts and resources.

Imports `kedge.mcp` when it is first used.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kedge.agent.mcp_service import McpService
from kedge.config.schema import Configure, McpServerConfig
from kedge.engine.workspace_host import WorkspaceHost
from kedge.models.keys.secrets import McpSecrets
from kedge.protocol.errors import Invalid, NotFound, Unavailable
from kedge.protocol.mcp import McpServers
from kedge.protocol.mcp_requests import (
    McpLoggedOut,
    McpLogin,
    McpLoginAccepted,
    McpLoginState,
    McpPrompt,
    McpPrompts,
    McpPromptText,
    McpResource,
    McpResourceContent,
    McpResources,
    McpTest,
    McpTool,
)

if TYPE_CHECKING:
    from kedge.mcp.oauth.logins import Logins
    from kedge.mcp.port import Transport
    from kedge.mcp.servers import McpServer, WorkspaceServers

T = TypeVar("T")

LIST_S = 5.0  # a slow server costs its own entries
TEST_S = 150.0  # a server that is downloaded first takes its time


class McpAccess:
    def __init__(
        self, service: McpService, configure: Configure, environ: Mapping[str, str], secrets: McpSecrets
    ) -> None:
        self.service = service
        self._configure = configure
        self._environ = environ
        self._secrets = secrets
        self._logins: Logins | None = None
        self._lock = threading.Lock()  # transports are made in threads

    def make_http_transport(self, config: McpServerConfig) -> Transport:
        """Return the transport of a server with an address; its references are expanded."""
        from kedge.mcp.http import HttpTransport

        assert config.url is not None
        return HttpTransport(config.url, config.headers, self._get_logins().get_tokens(config.url))

    async def start(self, directory: Path, host: WorkspaceHost) -> McpServers:
        """Start the configured servers in the background."""
        servers = await self.service.get_servers(host.workspace_id, directory, host)
        if servers.servers:
            servers.start()
        return servers.describe()

    # --- logins

    async def log_in(self, name: str, directory: Path, host: WorkspaceHost) -> McpLogin:
        """Begin a login. Raises `Invalid`, `NotFound` or `Unavailable`."""
        from kedge.mcp.errors import LoginFailed

        server, config = await self._find(name, directory, host)
        if config.url is None:
            raise Invalid(
                "mcp_no_login", f"the MCP server {name} is a program: it needs no login, but perhaps variables in env"
            )
        if any(header.lower() == "authorization" for header in config.headers):
            raise Invalid(
                "mcp_no_login", f"the configuration has an Authorization header for {name}; remove that first"
            )
        settings = await asyncio.to_thread(self._configure, directory, self._environ)
        self._secrets.storage = settings.credentials.store
        needs_login = server.state == "needs_login" or await self._probe(config)
        with _translate_errors(name):
            try:
                return McpLogin(await self._get_logins().begin(config.url, config.oauth))
            except LoginFailed as error:
                if not needs_login:
                    raise Invalid("mcp_no_login", f"the MCP server {name} works without a login") from error
                raise

    async def wait_for_login(self, name: str, directory: Path, host: WorkspaceHost, timeout_s: float) -> McpLoginState:
        from kedge.jsonrpc.errors import PeerError

        _, config = await self._find(name, directory, host)
        if not self._get_logins().is_pending(config.url or ""):
            return McpLoginState("none")
        try:
            is_done = await self._get_logins().wait(config.url or "", timeout_s)
        except PeerError as error:
            return McpLoginState("failed", error.text)
        return McpLoginState("done" if is_done else "waiting")

    async def answer_login(self, name: str, directory: Path, host: WorkspaceHost, url: str) -> McpLoginAccepted:
        _, config = await self._find(name, directory, host)
        return McpLoginAccepted(self._get_logins().answer(config.url or "", url))

    async def log_out(self, name: str, directory: Path, host: WorkspaceHost) -> McpLoggedOut:
        _, config = await self._find(name, directory, host)
        if config.url is None:
            return McpLoggedOut(False)
        return McpLoggedOut(await self._get_logins().log_out(config.url))

    async def close(self) -> None:
        if self._logins is not None:
            await self._logins.close()

    # --- tests

    async def test(self, name: str, directory: Path, host: WorkspaceHost) -> McpTest:
        """Connect to a server anew, and list what it offers."""
        server, _ = await self._find(name, directory, host)
        servers = await self.service.get_servers(host.workspace_id, directory, host)
        if not server.config.enabled:
            return McpTest(name=name, ok=False, error=f"it is disabled; set mcp.{name}.enabled to true")
        began = time.monotonic()
        await server.stop()
        server.start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TEST_S):
                await server.settled.wait()
        connect_ms = _ms_since(began)
        described = next(each for each in servers.describe().servers if each.name == name)
        if described.state != "ready":
            return McpTest(
                name=name,
                ok=False,
                error=described.error or f"it was not ready within {TEST_S:g} s",
                needs_login=described.state == "needs_login",
                stderr=described.stderr,
                connect_ms=connect_ms,
            )
        began = time.monotonic()
        prompts, resources = await asyncio.gather(self._list_prompts(server), self._list_resources(server))
        return McpTest(
            name=name,
            ok=True,
            stderr=described.stderr,
            title=described.title,
            version=described.version,
            protocol=described.protocol,
            connect_ms=connect_ms,
            list_ms=_ms_since(began),
            tools=[McpTool(name=each.name, tool=each.tool, description=each.description) for each in described.tools],
            prompts=prompts,
            resources=resources,
        )

    # --- prompts and resources

    async def list_prompts(self, directory: Path, host: WorkspaceHost) -> McpPrompts:
        servers = await self.service.get_servers(host.workspace_id, directory, host)
        found = await asyncio.gather(*map(self._list_prompts, _list_ready(servers)))
        return McpPrompts([prompt for prompts in found for prompt in prompts])

    async def get_prompt(
        self, name: str, directory: Path, host: WorkspaceHost, prompt: str, arguments: dict[str, str]
    ) -> McpPromptText:
        from kedge.mcp.prompts import make_prompt

        server, _ = await self._find(name, directory, host)
        with _translate_errors(name), server.call() as client:
            return make_prompt(name, await client.get_prompt(prompt, arguments))

    async def list_resources(self, directory: Path, host: WorkspaceHost) -> McpResources:
        servers = await self.service.get_servers(host.workspace_id, directory, host)
        found = await asyncio.gather(*map(self._list_resources, _list_ready(servers)))
        return McpResources([resource for resources in found for resource in resources])

    async def read_resource(self, name: str, directory: Path, host: WorkspaceHost, uri: str) -> McpResourceContent:
        from kedge.mcp.prompts import make_attachments

        server, _ = await self._find(name, directory, host)
        await server.connect(LIST_S)
        with _translate_errors(name), server.call() as client:
            return McpResourceContent(make_attachments(name, uri, await client.read_resource(uri)))

    async def _list_prompts(self, server: McpServer) -> list[McpPrompt]:
        from kedge.mcp.prompts import describe_prompts

        async def list_them() -> list[McpPrompt]:
            with server.call() as client:
                return describe_prompts(server.name, await client.list_prompts())

        return await _within_limits(list_them())

    async def _list_resources(self, server: McpServer) -> list[McpResource]:
        from kedge.mcp.prompts import describe_resources

        async def list_them() -> list[McpResource]:
            with server.call() as client:
                resources = await client.list_resources()
                return describe_resources(server.name, resources, await client.list_resource_templates())

        return await _within_limits(list_them())

    # --- helpers

    async def _find(self, name: str, directory: Path, host: WorkspaceHost) -> tuple[McpServer, McpServerConfig]:
        """Return a configured server, and its configuration with references expanded."""
        from kedge.config.mcp import InvalidServer, expand_server

        servers = await self.service.get_servers(host.workspace_id, directory, host)
        if (server := servers.servers.get(name)) is None:
            raise NotFound("mcp_server", name)
        try:
            return server, expand_server(server.config, self._environ)
        except InvalidServer as error:
            raise Invalid("bad_config", f"mcp.{name}.{error}") from error

    async def _probe(self, config: McpServerConfig) -> bool:
        """Connect once to learn how the server asks for a login; return whether it does."""
        from kedge.jsonrpc.errors import PeerError
        from kedge.mcp.client import Client
        from kedge.mcp.errors import LoginRequired

        client = Client(self.make_http_transport(config), _NoEvents())
        try:
            async with asyncio.timeout(LIST_S * 4):
                await client.connect()
                await client.list_tools()
        except LoginRequired:
            return True
        except (PeerError, TimeoutError):
            return True  # what is wrong is told by the login itself
        finally:
            await client.close()
        return False

    def _get_logins(self) -> Logins:
        with self._lock:
            if self._logins is None:
                from kedge.mcp.oauth.logins import Logins

                self._logins = Logins(self._secrets, self._reconnect)
            return self._logins

    def _reconnect(self, resource: str) -> None:
        """Connect again to the servers whose login changed."""
        from kedge.config.mcp import InvalidServer, expand_server
        from kedge.mcp.oauth.metadata import canonical_resource

        def has_changed(server: McpServer) -> bool:
            try:
                url = expand_server(server.config, self._environ).url
            except InvalidServer:
                return False
            return url is not None and server.config.enabled and canonical_resource(url) == resource

        self.service.restart_where(has_changed)


class _NoEvents:
    def on_change(self, what: str) -> None:
        pass

    def on_closed(self, error: Exception) -> None:
        pass


def _list_ready(servers: WorkspaceServers) -> list[McpServer]:
    return [server for server in servers.servers.values() if server.client is not None]


async def _within_limits(work: Awaitable[list[T]]) -> list[T]:
    """Return what a server offers; nothing if it fails or is slow."""
    from kedge.jsonrpc.errors import PeerError

    try:
        async with asyncio.timeout(LIST_S):
            return await work
    except (PeerError, TimeoutError):
        return []


@contextlib.contextmanager
def _translate_errors(name: str) -> Generator[None]:
    from kedge.jsonrpc.errors import InvalidAnswer, PeerError, RpcError
    from kedge.mcp.errors import LoginFailed, LoginRequired

    try:
        yield
    except (LoginRequired, LoginFailed) as error:
        raise Invalid("mcp_login", f"the MCP server {name}: {error.text}") from error
    except (RpcError, InvalidAnswer) as error:
        raise Invalid("mcp_refused", f"the MCP server {name}: {error.text}") from error
    except PeerError as error:
        raise Unavailable("mcp_unavailable", f"the MCP server {name}: {error.text}") from error


def _ms_since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
