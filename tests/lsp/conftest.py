"""A workspace with language servers, and a context of tools in it; every process is ended with the test."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

import pytest

from kedge.config.schema import AgentConfig, Config, LspServerConfig
from kedge.engine.processes import process_groups
from kedge.lsp.documents import CHANGED
from kedge.lsp.features import LanguageFeatures
from kedge.lsp.manager import LanguageServers
from kedge.lsp.reports import Finding, Reporter
from kedge.store.port import ProcessRecord
from tests.support.npm import install_packages
from tests.tools.harness import ToolHarness

SCRIPTED = Path(__file__).with_name("scripted_server.py")
LIMIT_S = 60.0


class RecordedGroup:
    """Implements `kedge.jsonrpc.stdio.RecordedProcess` without a store."""

    def __init__(self, project: Project, record: ProcessRecord) -> None:
        self.record = record
        self._project = project

    @property
    def mark(self) -> str:
        return process_groups.mark_of(self.record)

    async def memory_bytes(self) -> int:
        return await process_groups.memory_bytes(self.record)

    async def end(self) -> list[str]:
        return await process_groups.end_groups([self.record], term_s=2.0)

    async def forget(self) -> None:
        self._project.groups.remove(self)
        self._project.note_change()


class Project:
    """A workspace and its language servers."""

    def __init__(self, harness: ToolHarness, programs: Sequence[Path]) -> None:
        self.harness = harness
        self.directory = harness.directory
        self.groups: list[RecordedGroup] = []
        self.changes = asyncio.Event()  # set when the state of a server changed
        self._env = {**os.environ, "PATH": os.pathsep.join([*map(str, programs), os.environ["PATH"]])}
        self._managers: list[LanguageServers] = []
        self.open()

    def open(self, *, idle_s: float = 600.0, max_memory_bytes: int = 4 * 1024**3) -> None:
        """Begin with no servers running."""
        self.servers = LanguageServers(
            self.directory,
            self._env,
            self._record,
            self.note_change,
            idle_s=idle_s,
            max_memory_bytes=max_memory_bytes,
        )
        self._managers.append(self.servers)
        self.features = LanguageFeatures(self.servers)
        self.reporter = Reporter(self.servers)
        self.harness.languages = self.features

    async def use(self, *names: str, **configured: LspServerConfig) -> None:
        """Use only these of the known servers, and those that are configured."""
        from kedge.lsp.known_servers import KNOWN_SERVERS

        off = LspServerConfig(enabled=False)
        lsp = {server.name: off for server in KNOWN_SERVERS if server.name not in names} | configured
        await self.servers.configure(Config(lsp=lsp, agent=AgentConfig()), is_trusted=True)

    async def script(self, *behavior: str, file_type: str = "txt") -> None:
        """Use the scripted server with this behavior."""
        args = (str(SCRIPTED), *behavior)
        await self.use(scripted=LspServerConfig(command=sys.executable, args=args, file_types=(file_type,)))

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    async def start(self, path: Path) -> None:
        """Wait until the servers of a file are ready."""
        assert await self.servers.find_ready(path, LIMIT_S), self.servers.list_states()

    async def check(self, *paths: Path, wait_s: float = LIMIT_S) -> list[Finding]:
        return await self.reporter.check(dict.fromkeys(paths, CHANGED), wait_s)

    async def learn(self, path: Path) -> None:
        """Wait until the errors that a file has are known, as after a view."""
        self.reporter.touch(path)
        await self.reporter.wait()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                await self.changes.wait()

    async def close(self) -> None:
        await self.reporter.close()
        for servers in self._managers:
            await servers.close()
        assert not self.groups, "a language server is still on record"

    def note_change(self) -> None:
        self.changes.set()
        self.changes = asyncio.Event()

    async def _record(self, pid: int) -> RecordedGroup:
        record = process_groups.identify(pid)
        group = RecordedGroup(self, record)
        self.groups.append(group)
        async with process_groups.join_cgroup(record):
            pass
        return group


@pytest.fixture(scope="session")
def programs() -> list[Path]:
    """The directories of language servers that are packages: of this environment, and of npm."""
    here = Path(__file__).parent
    modules = install_packages("language-servers", here / "typescript7")
    return [Path(sys.executable).parent, modules / ".bin"]


@pytest.fixture(scope="session")
def old_typescript() -> Path:
    return install_packages("typescript5", Path(__file__).parent / "typescript5")


@pytest.fixture
async def project(harness: ToolHarness, programs: list[Path]) -> AsyncGenerator[Project]:
    project = Project(harness, programs)
    yield project
    await project.close()


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncGenerator[ToolHarness]:
    harness = ToolHarness(tmp_path)
    yield harness
    await harness.end_all()
