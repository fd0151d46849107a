"""The language servers of one workspace: started for the files that the agent touches, ended when idle.

There is one server for each root, shared by all sessions. A server that fails costs its diagnostics, never a call: it
is started again with a growing delay. Its environment is that of Kedge's server with the configured variables.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kedge.config.schema import Config
from kedge.jsonrpc.errors import PeerError
from kedge.jsonrpc.stdio import Command, RecordProcess
from kedge.lsp.documents import Document
from kedge.lsp.known_servers import Installed, KnownServer, find_root, find_servers, list_servers
from kedge.lsp.messages import WARNING
from kedge.lsp.server import LanguageServer
from kedge.lsp.transport import LspTransport
from kedge.protocol.lsp import LspState
from kedge.protocol.text_safety import one_line, program_output

log = logging.getLogger(__name__)

MAX_SERVERS = 8  # of a workspace; the one used longest ago is ended
IDLE_S = 600.0
# A server that failed is started again when it is needed, but not before this; then the next delay counts.
RESTART_AFTER_S = (1.0, 10.0, 60.0, 600.0)
STABLE_S = 120.0  # a server that ran so long begins again with the first delay
MAX_MEMORY_BYTES = 3 * 1024 * 1024 * 1024  # of a server and everything it started
CHECK_MEMORY_S = 15.0
MAX_ERROR_CHARS = 300
FOUND_S = 30.0  # so long a search for installed programs is not repeated
MAX_FOUND = 1_000
MIN_SECRET_CHARS = 6

Key = tuple[str, Path]  # name and root


class ServerState(NamedTuple):
    """For the list of servers."""

    name: str
    root: Path
    state: LspState
    is_busy: bool
    error: str
    pid: int | None
    documents: int
    errors: int
    warnings: int
    stderr: str


class _Slot:
    """A server and its history of failures."""

    def __init__(self, installed: Installed, root: Path) -> None:
        self.installed = installed
        self.root = root
        self.server: LanguageServer | None = None
        self.failures = 0
        self.not_before = 0.0
        self.started_at = 0.0
        self.used_at = 0.0
        self.last_error = ""
        self.counted: LanguageServer | None = None  # whose failure was counted
        self.task: asyncio.Task[None] | None = None

    def redact(self, text: str) -> str:
        """Replace the values of configured variables, which a server may repeat."""
        for secret in self.installed.server.env.values():
            if len(secret) >= MIN_SECRET_CHARS:
                text = text.replace(secret, "…")
        return text


class LanguageServers:
    def __init__(
        self,
        directory: Path,
        env: Mapping[str, str],
        record_process: RecordProcess,
        on_change: Callable[[], None],
        *,
        idle_s: float = IDLE_S,
        max_memory_bytes: int = MAX_MEMORY_BYTES,
    ) -> None:
        self._directory = directory
        self._env = env
        self._record_process = record_process
        self._on_change = on_change
        self._idle_s = idle_s
        self._max_memory_bytes = max_memory_bytes
        self._slots: dict[Key, _Slot] = {}
        self._servers: Sequence[KnownServer] = ()
        self._is_trusted = False
        self._found: dict[tuple[str, Path], tuple[float, list[tuple[Installed, Path]]]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    # --- configuration

    async def configure(self, config: Config, *, is_trusted: bool) -> None:
        """Use this configuration from now on; end the servers that it no longer has."""
        servers = list_servers(config) if config.agent.language_servers else []
        if servers == self._servers and is_trusted == self._is_trusted:
            return
        self._servers, self._is_trusted = servers, is_trusted
        self._found = {}
        known = {server.name: server for server in servers}
        for key, slot in list(self._slots.items()):
            installed = slot.installed
            needs_trust = installed.is_local or installed.server.runs_project_code
            if known.get(installed.server.name) != installed.server or (needs_trust and not is_trusted):
                del self._slots[key]
                self._end(slot)
        self._on_change()

    # --- use

    async def find(self, path: Path) -> list[LanguageServer]:
        """Return the running servers for a file, and start the others in the background."""
        return [slot.server for slot in await self._slots_for(path) if slot.server and slot.server.state == "ready"]

    async def is_starting(self, path: Path) -> bool:
        """Whether a server for a file is not ready yet."""
        return any(slot.server and slot.server.state == "starting" for slot in await self._slots_for(path))

    async def find_ready(self, path: Path, timeout_s: float) -> list[LanguageServer]:
        """Return the servers for a file; wait for those that start, but not longer than `timeout_s`."""
        slots = await self._slots_for(path)
        starting = [slot.server.ready.wait() for slot in slots if slot.server and slot.server.state == "starting"]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*starting)
        return [slot.server for slot in slots if slot.server and slot.server.state == "ready"]

    def running(self) -> list[LanguageServer]:
        return [slot.server for slot in self._slots.values() if slot.server and slot.server.state == "ready"]

    def list_states(self) -> list[ServerState]:
        return [_describe(slot) for slot in self._slots.values()]

    def open_documents(self) -> list[tuple[LanguageServer, Document]]:
        return [(server, document) for server in self.running() for document in server.documents.list()]

    async def restart(self, name: str) -> bool:
        """Start the servers of a name again, now; return whether there is one."""
        slots = [slot for slot in self._slots.values() if slot.installed.server.name == name]
        for slot in slots:
            self._end(slot)
            slot.failures, slot.not_before = 0, 0.0
            self._start(slot)
        return bool(slots)

    async def close(self) -> None:
        """End all servers. No other is started."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for slot in self._slots.values():
            self._end(slot)
        self._slots.clear()
        if self._closing:
            await asyncio.wait(self._closing)

    # --- slots

    async def _slots_for(self, path: Path) -> list[_Slot]:
        found = await self._look_up(path)
        now = asyncio.get_running_loop().time()
        slots: list[_Slot] = []
        for installed, root in found:
            key = (installed.server.name, root)
            slot = self._slots.get(key)
            if slot is None:
                slot = self._slots[key] = _Slot(installed, root)
                self._end_oldest(slot)
            slot.used_at = now
            if (slot.server is None or slot.server.state == "failed") and now >= slot.not_before:
                self._start(slot)
            slots.append(slot)
        return slots

    async def _look_up(self, path: Path) -> list[tuple[Installed, Path]]:
        """Return the installed servers for a file and their roots; remembered for a while."""
        key = (path.suffix.lower(), path.parent)
        while not self._is_closed:
            now = asyncio.get_running_loop().time()
            if (known := self._found.get(key)) is not None and now - known[0] < FOUND_S:
                return known[1]
            servers = [server for server in self._servers if key[0] in server.languages]
            if not servers:
                return []
            remembered = self._found
            found = await asyncio.to_thread(self._search, servers, path)
            if self._found is remembered:  # else the configuration changed meanwhile
                if len(remembered) >= MAX_FOUND:
                    remembered.clear()
                remembered[key] = (now, found)
        return []

    def _search(self, servers: Sequence[KnownServer], path: Path) -> list[tuple[Installed, Path]]:
        levels = [level for level in path.parents if level.is_relative_to(self._directory)]
        roots = [*levels, self._directory] if self._directory not in levels else levels
        installed = find_servers(servers, path, roots, self._env, is_trusted=self._is_trusted)
        return [(each, find_root(each.server, path, self._directory)) for each in installed]

    def _start(self, slot: _Slot) -> None:
        server = slot.installed.server
        command = Command(
            (slot.installed.program, *server.argv[1:]), {**self._env, **server.env}, slot.root, self._directory
        )
        transport = LspTransport(command, self._record_process)
        slot.server = LanguageServer(slot.installed, slot.root, transport, lambda: self._on_server_change(slot))
        slot.started_at = asyncio.get_running_loop().time()
        slot.task = asyncio.get_running_loop().create_task(slot.server.start())
        self._watch()

    def _on_server_change(self, slot: _Slot) -> None:
        server = slot.server
        if server is not None and server.state == "failed" and server is not slot.counted:
            slot.counted = server
            now = asyncio.get_running_loop().time()
            if server.error and server.error != slot.last_error:
                log.warning("language server %s: %s", server.name, one_line(slot.redact(server.error), MAX_ERROR_CHARS))
            slot.last_error = server.error
            slot.failures = 1 if now - slot.started_at > STABLE_S else slot.failures + 1
            slot.not_before = now + RESTART_AFTER_S[min(slot.failures, len(RESTART_AFTER_S)) - 1]
        self._on_change()

    def _end(self, slot: _Slot) -> None:
        server, task = slot.server, slot.task
        slot.server = slot.task = None
        if server is None:
            return

        async def close() -> None:
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait({task})
            with contextlib.suppress(PeerError):
                await server.close()

        closing = asyncio.get_running_loop().create_task(close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _end_oldest(self, new: _Slot) -> None:
        while len(self._slots) > MAX_SERVERS:
            key, oldest = min(
                ((key, slot) for key, slot in self._slots.items() if slot is not new), key=lambda each: each[1].used_at
            )
            del self._slots[key]
            self._end(oldest)

    # --- bounds

    def _watch(self) -> None:
        """Look for idle and growing servers from time to time, while there is one."""
        if self._timer is None and not self._is_closed:
            after_s = min(CHECK_MEMORY_S, self._idle_s)
            self._timer = asyncio.get_running_loop().call_later(after_s, self._check_later)

    def _check_later(self) -> None:
        self._timer = None
        if not self._is_closed and any(slot.server for slot in self._slots.values()):
            task = asyncio.get_running_loop().create_task(self._check())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _check(self) -> None:
        now = asyncio.get_running_loop().time()
        try:
            for slot in list(self._slots.values()):
                server = slot.server
                if server is None or server.state != "ready":
                    continue
                if now - slot.used_at >= self._idle_s:
                    self._end(slot)
                    self._on_change()
                elif (used := await server.read_memory()) > self._max_memory_bytes and slot.server is server:
                    self._end(slot)
                    server.state, server.error = "failed", f"it used {used >> 20:,} MiB of memory and was ended"
                    slot.server = server
                    self._on_server_change(slot)
        finally:
            self._watch()


def _describe(slot: _Slot) -> ServerState:
    server = slot.server
    name, root = slot.installed.server.name, slot.root
    if server is None:
        return ServerState(name, root, "stopped", False, "", None, 0, 0, 0, "")
    redact = slot.redact
    found = [each for document in server.documents.list() for each in document.diagnostics]
    return ServerState(
        name=name,
        root=root,
        state=server.state,
        is_busy=server.is_busy,
        error=one_line(redact(server.error), MAX_ERROR_CHARS),
        pid=server.pid if server.state == "ready" else None,
        documents=len(server.documents),
        errors=sum(each.is_error for each in found),
        warnings=sum(each.severity == WARNING for each in found),
        stderr=redact(program_output(server.stderr_tail)),
    )
