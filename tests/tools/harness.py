"""A context that runs tools in tests: real files and processes, and a list instead of the store's records."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kedge.config.schema import Config
from kedge.engine.processes import cgroups, process_groups
from kedge.protocol.requests import Answer
from kedge.skills.library import Library
from kedge.store.port import ProcessRecord
from kedge.tools import registry
from kedge.tools.port import Access, LanguageService, Output, RunAs, Tool
from kedge.tools.process.command import Jobs
from kedge.tools.sandbox.sandbox import Sandbox
from tests.support.reaping import reaped

TOOLS: dict[str, Tool] = {tool.name: tool for tool in (*registry.TOOLS, *registry.load_language_tools())}


class Group:
    """A `kedge.tools.process.spawn.Process` that the engine's functions manage."""

    def __init__(self, harness: ToolHarness, record: ProcessRecord) -> None:
        self.record = record
        self._harness = harness

    @property
    def mark(self) -> str:
        return process_groups.mark_of(self.record)

    async def members(self) -> list[str]:
        return await process_groups.members(self.record)

    def limit(self, *, processes: int, memory_bytes: int) -> None:
        cgroups.limit(self.mark, processes=processes, memory_bytes=memory_bytes)

    async def end(self) -> list[str]:
        return await process_groups.end_groups([self.record], term_s=self._harness.term_s)

    async def keep(self) -> None:
        self._harness.of_turn.remove(self.record)
        self._harness.kept.append(self.record)

    async def forget(self) -> None:
        cgroups.remove(self.mark)
        for records in (self._harness.of_turn, self._harness.kept):
            if self.record in records:
                records.remove(self.record)


class ToolHarness:
    """A ToolContext over one directory."""

    def __init__(self, root: Path) -> None:
        self.directory = (root / "workspace").resolve()
        self.directory.mkdir()
        self.scratch = root / "scratch"
        self.approved_path: Path | None = None
        self.approved_paths: frozenset[Path] = frozenset()
        self.languages: LanguageService | None = None
        self.is_hidden: Callable[[str], bool] | None = None
        self.may_run_unsandboxed = False
        self.run_as: RunAs = "approved"
        self.readable_paths: tuple[str, ...] = ()
        self.env: Mapping[str, str] = {**os.environ, "HOME": str(root / "home")}
        self.config = Config()
        self.sandbox = Sandbox(config=self.config.sandbox, directory=self.directory, scratch=self.scratch, env=self.env)
        self.session_id = "session"
        self.run_id = "run"
        self.call_id = "call"
        self.sees_images = True
        self.max_result_chars = 256 * 1024
        self.known_files: dict[str, str] = {}
        self.unviewed_files: set[str] = set()
        self.jobs = Jobs()
        self.of_turn: list[ProcessRecord] = []
        self.kept: list[ProcessRecord] = []
        self.term_s = 2.0
        self.apply_plan: list[str] = []
        self.wrote = asyncio.Event()
        self.answer: Answer | None = None
        self.is_attended = False
        self.is_stopping = False
        self.kept_state: bytes | None = None
        self.changed: list[tuple[Path, bytes | None, tuple[int, int] | None]] = []
        self.report = ""  # of a sub-agent
        self.search_key: str | None = None
        self.costs: list[float] = []
        self.library = Library()

    def write(self, text: str) -> None:
        self.apply_plan.append(text)
        self.wrote.set()

    async def record_process(self, pid: int) -> Group:
        record = process_groups.identify(pid)
        self.of_turn.append(record)
        async with process_groups.join_cgroup(record):
            pass  # there is no store
        return Group(self, record)

    @contextlib.asynccontextmanager
    async def record_change(
        self, path: Path, data: bytes | None = None, counts: tuple[int, int] | None = None
    ) -> AsyncGenerator[None]:
        """There is nobody who keeps versions; that a tool says what it changes can be seen."""
        self.changed.append((path, data, counts))
        yield

    async def find_search_key(self) -> str | None:
        return self.search_key

    async def add_cost(self, dollars: float) -> None:
        self.costs.append(dollars)

    async def run_command(self, line: str) -> str:
        return f"output of {line}"

    async def ask(self, questions: list[dict[str, Any]]) -> Answer:
        raise AssertionError("nobody is there to answer")

    async def state(self) -> bytes | None:
        return self.kept_state

    async def keep_state(self, state: bytes | None) -> None:
        self.kept_state = state

    async def delegate(self, prompt: str, title: str, agent: str = "") -> str:
        return f"{title}: {self.report}"

    # what an agent does

    async def call(self, tool_name: str, **params: object) -> Output:
        tool = TOOLS[tool_name]
        return await tool.run(self, msgspec.convert(params, tool.params))

    async def list_access(self, tool_name: str, **params: object) -> list[Access]:
        tool = TOOLS[tool_name]
        assert tool.list_access is not None
        return list(await tool.list_access(self, msgspec.convert(params, tool.params)))

    async def said(self, words: str) -> None:
        """Until this was shown live."""
        while words not in "".join(self.apply_plan):
            self.wrote.clear()
            await self.wrote.wait()

    async def end_all(self) -> None:
        """As the engine does when a turn or the server ends."""
        await process_groups.end_groups([*self.of_turn, *self.kept], term_s=0.2)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.gather(*(job.command.finished.wait() for job in self.jobs.list()))
        await self.jobs.close()
        await reaped()
