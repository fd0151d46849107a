"""The MCP servers of a workspace: one connection each, shared by all its sessions, kept alive and described to people.

A server is started when the first run needs it, and started again with growing pauses when it ends by itself. It costs
nobody anything but its tools: no method here raises because a server is broken, except the requests to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from kedge.config.change import SECRET_NAME
from kedge.config.environment import has_references
from kedge.config.mcp import InvalidServer, expand_server
from kedge.config.schema import McpServerConfig
from kedge.files.environment import drop_invalid_variables
from kedge.jsonrpc.errors import CannotConnect, PeerError
from kedge.jsonrpc.stdio import Command, RecordedProcess
from kedge.mcp.client import Client
from kedge.mcp.errors import LoginRequired
from kedge.mcp.listing import OfferedTool, offer_tools
from kedge.mcp.messages import ToolInfo
from kedge.mcp.port import Transport
from kedge.mcp.stdio import StdioTransport
from kedge.mcp.tool_lists import ToolLists
from kedge.protocol import mcp as seen
from kedge.protocol.mcp import McpEvent, McpState
from kedge.protocol.text_safety import one_line, program_output

log = logging.getLogger(__name__)

RETRY_S = (1.0, 5.0, 20.0, 60.0)  # pauses before a server is started again by itself; then it waits for the next run
STABLE_S = 60.0  # a connection that lasted so long was no failure
IDLE_S = 30 * 60.0  # without a run in the workspace: servers keep state that a session may come back to
TICK_S = 10.0  # how often memory and idleness are looked at
MAX_MEMORY_BYTES = 4 * 1024 * 1024 * 1024  # of a server with all its processes
MAX_ERROR_CHARS = 500
RELIST_S = 300.0  # a list is looked at again so long after it came, if the server tells no changes and no other time
MIN_RELIST_S = 30.0
LIST_WAIT_S = 2.0  # a search waits no longer for a list that changed
_MIN_SECRET_CHARS = 6
# They give access to Kedge's server, or are about its own process.
_HIDDEN_VARIABLES = frozenset({"KEDGE_TOKEN", "KEDGE_FAILPOINT"})


class Host(Protocol):
    """What the servers of a workspace need of the engine."""

    async def record_process(self, pid: int) -> RecordedProcess: ...
    def publish(self, event: McpEvent) -> None: ...


# Returns the transport of a server with an address; the configuration has its references expanded.
MakeHttpTransport = Callable[[McpServerConfig], Transport]


class McpServer:
    """Implements `kedge.mcp.client.ClientEvents`."""

    def __init__(
        self,
        name: str,
        config: McpServerConfig,
        directory: Path,
        environ: Mapping[str, str],
        get_host: Callable[[], Host],
        make_http_transport: MakeHttpTransport,
        lists: ToolLists,
    ) -> None:
        self.name = name
        self.config = config
        self.state: McpState = "idle" if config.enabled else "disabled"
        self.error: str | None = None
        self.tools: list[ToolInfo] = []
        self.revision = 0  # of the tools; 0: nobody knows them yet
        self.client: Client | None = None  # while it is ready
        self.settled = asyncio.Event()  # set after the first attempt to connect
        self.ready = asyncio.Event()
        self.settled.set()
        self.started_at = 0.0
        self.calls = 0  # in flight
        self._directory = directory
        self._environ = environ
        self._get_host = get_host
        self._make_http_transport = make_http_transport
        self._lists = lists
        self._transport: Transport | None = None
        self._process: RecordedProcess | None = None
        self._secrets: list[str] = []
        self._relisting: asyncio.Task[None] | None = None
        self._must_relist = False
        self._listed_at = 0.0
        self._running: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self._end: PeerError | None = None
        self._counts = (0, 0)  # prompts, resources

    def start(self) -> None:
        """Connect in the background, unless it is connected, connecting or disabled."""
        if self.config.enabled and (self._running is None or self._running.done()):
            self.settled.clear()
            self.started_at = asyncio.get_running_loop().time()
            self._running = asyncio.create_task(self._run())

    async def connect(self, timeout_s: float) -> None:
        """Start the server if needed, and wait until it is ready or was given up, for a limited time."""
        self.start()
        running = self._running
        if self.ready.is_set() or running is None:
            return
        ready = asyncio.ensure_future(self.ready.wait())
        await asyncio.wait([ready, running], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()

    async def wait_for_end(self, client: Client) -> None:
        """Wait until a connection that takes no requests any more is given up."""
        while self.client is client:
            await self._ended.wait()

    async def stop(self, state: McpState = "idle", error: str | None = None) -> None:
        """End the connection and the process. Bounded in time."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.wait([running])
        self._set_state("disabled" if not self.config.enabled else state, error)
        self.settled.set()

    async def load_tools(self) -> None:
        """Know the tools that the server offered last, before it is connected."""
        if self.revision:
            return
        tools = await asyncio.to_thread(self._lists.read, self.config)
        if tools is not None and not self.revision:  # it did not connect meanwhile
            self._set_tools(tools)

    @property
    def is_known(self) -> bool:
        """Whether its tools can be offered: it told them, now or some time ago, and is not waiting for a login."""
        return self.config.enabled and self.revision > 0 and self.state != "needs_login"

    @property
    def awaited_since(self) -> float | None:
        """When its first attempt to connect began, if that goes on and nobody knows its tools yet."""
        return None if self.settled.is_set() or self.revision else self.started_at

    def relist_if_old(self) -> None:
        """List the tools again in the background, if the server would not tell that they changed."""
        client = self.client
        if client is None or client.capabilities.tools is None or client.capabilities.tools.list_changed:
            return
        told_s = client.tools_ttl_s
        after_s = RELIST_S if told_s is None else max(told_s, MIN_RELIST_S)
        if asyncio.get_running_loop().time() - self._listed_at > after_s:
            self._relist()

    async def wait_for_list(self) -> None:
        """Until a list that is on its way is here, or cannot be had."""
        if self._relisting is not None:
            await asyncio.wait([self._relisting])

    @contextlib.contextmanager
    def call(self) -> Generator[Client]:
        """The client for one call. Raises `CannotConnect`."""
        if self.client is None:
            why = f": {self.error}" if self.error else ""
            raise CannotConnect(f"the MCP server {self.name} is not connected ({self.state}{why})")
        self.calls += 1
        try:
            yield self.client
        finally:
            self.calls -= 1

    async def check_memory(self) -> None:
        if self._process is None:
            return
        used = await self._process.memory_bytes()
        if used > MAX_MEMORY_BYTES:
            error = f"it used {used >> 20} MiB of memory and was ended"
            log.warning("the MCP server %s: %s", self.name, error)
            await self.stop("failed", error)

    def describe(self, offered: Sequence[OfferedTool]) -> seen.McpServer:
        transport, client = self._transport, self.client
        stdio = transport if isinstance(transport, StdioTransport) else None
        stderr = self.redact(program_output(stdio.stderr_tail)) if stdio is not None else ""
        return seen.McpServer(
            name=self.name,
            kind="stdio" if self.config.url is None else "http",
            state=self.state,
            error=self.error,
            tools=[
                seen.McpTool(name=each.name, tool=each.tool, title=each.title, description=each.description or None)
                for each in offered
            ],
            prompts=self._counts[0],
            resources=self._counts[1],
            title=None if client is None else one_line(client.server.title or client.server.name, 80) or None,
            version=None if client is None else one_line(client.server.version, 40) or None,
            protocol=None if client is None else client.version,
            pid=None if stdio is None or client is None else stdio.pid,
            stderr=stderr or None,
            skipped_lines=0 if stdio is None else stdio.skipped_messages,
        )

    def redact(self, text: str) -> str:
        """Replace the secrets of the configuration, which a server may repeat."""
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return text

    def on_change(self, what: str) -> None:
        if what == "tools":
            self._relist()
        self._set_state(self.state, self.error)

    def on_closed(self, error: PeerError) -> None:
        self._end = error
        self.client = None  # no call begins on it any more
        self.ready.clear()
        self._ended.set()

    def _relist(self) -> None:
        self._must_relist = True
        if self._relisting is None or self._relisting.done():
            self._relisting = asyncio.create_task(self._list_again())

    async def _list_again(self) -> None:
        """Follow changes of the tools in the background: no step waits for a server's list."""
        while self._must_relist and (client := self.client) is not None:
            self._must_relist = False
            self._listed_at = asyncio.get_running_loop().time()
            try:
                tools = await client.list_tools()
            except PeerError as error:
                log.info("the tools of the MCP server %s could not be listed again: %s", self.name, error)
                return
            if client is not self.client:
                return
            if tools != self.tools:
                self._set_tools(tools)
                self._set_state(self.state, self.error)
                await asyncio.to_thread(self._lists.write, self.config, tools)

    async def _run(self) -> None:
        """Connect, and again when the connection ends by itself, until there is no pause left."""
        loop = asyncio.get_running_loop()
        pauses = iter(RETRY_S)
        while True:
            self._set_state("starting")
            began = loop.time()
            try:
                await self._connect_and_wait()
            except LoginRequired as error:
                self._set_state("needs_login", error.text)
                return
            except PeerError as error:
                self._set_state("failed", error.text)
            except Exception as error:  # boundary: a bug must not leave a server that seems to start for ever
                log.exception("the connection to the MCP server %s failed", self.name)
                self._set_state("failed", f"internal error ({type(error).__name__})")
            finally:
                self.settled.set()
            if loop.time() - began > STABLE_S:
                pauses = iter(RETRY_S)
            pause_s = next(pauses, None)
            if pause_s is None:
                return
            await asyncio.sleep(pause_s)

    async def _connect_and_wait(self) -> None:
        """Returns never; raises `PeerError` when the connection failed or ended."""
        self._ended.clear()
        self._transport = transport = await asyncio.to_thread(self._make_transport)
        client = Client(transport, self, timeout_s=self.config.timeout_s)
        try:
            await client.connect()
            self._must_relist = False
            tools = await client.list_tools()
            self._listed_at = asyncio.get_running_loop().time()
            was_known = self.revision > 0 and tools == self.tools
            if not was_known:
                self._set_tools(tools)
            self.client = client
            self._set_state("ready")
            self.settled.set()
            self.ready.set()
            if self._must_relist:  # they changed meanwhile
                self._relist()
            if not was_known:
                await asyncio.to_thread(self._lists.write, self.config, tools)
            self._counts = await _count(client)
            if any(self._counts):
                self._set_state("ready")
            await self._ended.wait()
            raise self._end or CannotConnect("the connection ended")
        finally:
            self.client = None
            self.ready.clear()
            if self._relisting is not None:
                self._relisting.cancel()
            await client.close()
            self._process = None

    def _make_transport(self) -> Transport:
        try:
            config = expand_server(self.config, self._environ)
        except InvalidServer as error:
            raise CannotConnect(str(error)) from error
        self._secrets = _find_secrets(self.config, config)
        if config.command is None:
            return self._make_http_transport(config)
        env = {name: value for name, value in self._environ.items() if name not in _HIDDEN_VARIABLES}
        cwd = self._directory / Path(config.cwd or ".").expanduser()
        argv = (config.command, *config.args)
        command = Command(argv, drop_invalid_variables({**env, **config.env}), cwd, self._directory)
        return StdioTransport(command, self._record_process)

    async def _record_process(self, pid: int) -> RecordedProcess:
        self._process = await self._get_host().record_process(pid)
        return self._process

    def _set_tools(self, tools: list[ToolInfo]) -> None:
        self.tools = tools
        self.revision += 1

    def _set_state(self, state: McpState, error: str | None = None) -> None:
        self.state = state
        self.error = None if error is None else one_line(self.redact(error), MAX_ERROR_CHARS)
        self._get_host().publish(McpEvent(name=self.name, state=state, error=self.error, tools=len(self.tools)))


class WorkspaceServers:
    """All servers of one workspace."""

    def __init__(
        self,
        directory: Path,
        environ: Mapping[str, str],
        host: Host,
        make_http_transport: MakeHttpTransport,
        lists: ToolLists,
    ) -> None:
        self.servers: dict[str, McpServer] = {}
        self.host = host
        self._directory = directory
        self._environ = environ
        self._make_http_transport = make_http_transport
        self._lists = lists
        self._ending: set[asyncio.Task[None]] = set()
        self._ticking: asyncio.Task[None] | None = None
        self._used_at = asyncio.get_running_loop().time()
        self._offered: tuple[object, dict[str, OfferedTool]] = (None, {})

    async def apply(self, configs: Mapping[str, McpServerConfig]) -> None:
        """Follow the configuration: servers that changed or are gone are ended, the others keep running."""
        for name in [name for name, server in self.servers.items() if configs.get(name) != server.config]:
            self._end_later(self.servers.pop(name).stop())
        for name, config in configs.items():
            if name not in self.servers:
                self.servers[name] = self._make_server(name, config)
        await asyncio.gather(*(server.load_tools() for server in self.servers.values()))

    def _make_server(self, name: str, config: McpServerConfig) -> McpServer:
        return McpServer(
            name, config, self._directory, self._environ, lambda: self.host, self._make_http_transport, self._lists
        )

    def start(self) -> None:
        """Start all servers that are not running; returns at once."""
        self.touch()
        for server in self.servers.values():
            server.start()
            server.relist_if_old()
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.create_task(self._tick())

    def touch(self) -> None:
        """A run uses the workspace: its servers stay."""
        self._used_at = asyncio.get_running_loop().time()

    def is_starting(self, within_s: float) -> bool:
        """Whether a server whose tools nobody knows connects for the first time, since less than so long."""
        began = [server.awaited_since for server in self.servers.values()]
        now = asyncio.get_running_loop().time()
        return any(since is not None and now - since < within_s for since in began)

    async def wait_for_lists(self, timeout_s: float) -> None:
        """Wait for lists that are on their way: those of new servers at most for so long after their start."""
        now = asyncio.get_running_loop().time()
        waits: list[Coroutine[Any, Any, Any]] = []
        left_s = LIST_WAIT_S
        for server in self.servers.values():
            if (since := server.awaited_since) is not None:
                waits.append(server.settled.wait())
                left_s = max(left_s, since + timeout_s - now)
            else:
                waits.append(server.wait_for_list())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await asyncio.gather(*waits)

    def offered(self) -> dict[str, OfferedTool]:
        """Return the tools of all servers that told theirs once, by name."""
        lists = {name: server.tools for name, server in self.servers.items() if server.config.enabled}
        key = [(id(self.servers[name]), self.servers[name].revision) for name in lists]
        if self._offered[0] != key:
            choices = {name: self.servers[name].config.tools for name in lists}
            self._offered = (key, offer_tools(lists, choices))
        return self._offered[1]

    def describe(self) -> seen.McpServers:
        by_server: dict[str, list[OfferedTool]] = {}
        for each in self.offered().values():
            by_server.setdefault(each.server, []).append(each)
        return seen.McpServers(
            [server.describe(by_server.get(name, ())) for name, server in sorted(self.servers.items())]
        )

    async def restart(self, name: str) -> None:
        """End a server and connect again. Raises `KeyError`."""
        server = self.servers[name]
        await server.stop()
        server.start()
        self.start()

    async def close(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        await asyncio.gather(*(server.stop() for server in self.servers.values()), *self._ending)

    def _end_later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _tick(self) -> None:
        """Look after the servers until they are idle."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK_S)
            servers = list(self.servers.values())
            if any(server.calls for server in servers):
                self.touch()
            if loop.time() - self._used_at > IDLE_S:
                await asyncio.gather(*(server.stop() for server in servers))
                return
            for server in servers:
                await server.check_memory()


async def _count(client: Client) -> tuple[int, int]:
    try:
        return len(await client.list_prompts()), len(await client.list_resources())
    except PeerError:
        return 0, 0


def _find_secrets(written: McpServerConfig, expanded: McpServerConfig) -> list[str]:
    """Return the values of variables and headers that are secret by their name, or come from the environment."""
    pairs = [
        (name, raw, value)
        for raws, values in ((written.env, expanded.env), (written.headers, expanded.headers))
        for (name, raw), value in zip(raws.items(), values.values(), strict=False)
    ]
    secrets = [value for name, raw, value in pairs if SECRET_NAME.search(name) or has_references(raw)]
    words = [re.sub(r"^(Bearer|Basic) ", "", value) for value in secrets]
    return sorted({word for word in words if len(word) >= _MIN_SECRET_CHARS}, key=len, reverse=True)
