"""A turn that makes tool calls without a model: each line of its prompt is a command for `bash`.

`&COMMAND` runs it in the background. The engine below is the real one, so that what it does with processes is, too.
"""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from kedge.config.schema import Config, SandboxConfig
from kedge.engine.message_writer import ToolWriter
from kedge.engine.processes.registry import ProcessGroup
from kedge.engine.turn import TurnContext
from kedge.protocol.messages import ToolCall
from kedge.protocol.requests import Answer
from kedge.skills.library import Library
from kedge.tools.builtin.bash import TOOL as BASH
from kedge.tools.builtin.bash import BashParams
from kedge.tools.port import RunAs
from kedge.tools.process.command import WorkspaceJobs
from kedge.tools.sandbox.sandbox import Sandbox


class TurnHands:
    """A ToolContext over an engine's turn."""

    def __init__(
        self, ctx: TurnContext, jobs: WorkspaceJobs, writer: ToolWriter, scratch: Path, sandbox: SandboxConfig
    ) -> None:
        self.directory = ctx.directory
        self.scratch = scratch
        self.env = ctx.env or os.environ
        self.config = Config(sandbox=sandbox)
        self.sandbox = Sandbox(config=sandbox, directory=self.directory, scratch=scratch, env=self.env)
        self.session_id = ctx.run.session_id
        self.run_id = ctx.run.run_id
        self.call_id = "call"
        self.sees_images = False
        self.max_result_chars = 256 * 1024
        self.approved_path = None
        self.approved_paths: frozenset[Path] = frozenset()
        self.library = Library()
        self.known_files: dict[str, str] = {}
        self.unviewed_files: set[str] = set()
        self.jobs = jobs.of(ctx.workspace_id)
        self.answer: Answer | None = None
        self.is_attended = False
        self.is_stopping = False
        self.languages = None
        self.is_hidden = None
        self.may_run_unsandboxed = False
        self.run_as: RunAs = "approved"
        self.readable_paths: tuple[str, ...] = ()
        self.write = writer.write
        self._ctx = ctx

    async def record_process(self, pid: int) -> ProcessGroup:
        return await self._ctx.record_process(pid)

    def record_change(
        self, path: Path, data: bytes | None = None, counts: tuple[int, int] | None = None
    ) -> AbstractAsyncContextManager[None]:
        return self._ctx.record_change(path, data, counts)

    async def find_search_key(self) -> str | None:
        return None

    async def add_cost(self, dollars: float) -> None:
        raise AssertionError("nothing here costs anything")

    async def run_command(self, line: str) -> str:
        raise AssertionError("`bash` runs its command itself")

    async def ask(self, questions: list[dict[str, Any]]) -> Answer:
        raise AssertionError("`bash` asks no questions while it runs")

    async def state(self) -> bytes | None:
        return None

    async def keep_state(self, state: bytes | None) -> None:
        raise AssertionError("`bash` does not go on after a crash")

    async def delegate(self, prompt: str, title: str, agent: str = "") -> str:
        raise AssertionError("`bash` starts no sub-agents")


class BashTurn:
    def __init__(self, jobs: WorkspaceJobs, scratch: Path, sandbox: SandboxConfig | None = None) -> None:
        self._jobs = jobs
        self._sandbox = sandbox or SandboxConfig()
        self._scratch = scratch

    async def __call__(self, ctx: TurnContext) -> None:
        if ctx.run.attempt > 1:
            return  # what was begun before a crash is not repeated
        for number, line in enumerate(ctx.run.prompt.splitlines()):
            message = await ctx.begin_message(model="none")
            message.open(ToolCall(f"call-{number}", "bash", "", False))
            await message.finish("tool_use")
            writer = await ctx.begin_tool_result(message.id, f"call-{number}", "bash")
            params = BashParams(command=line.removeprefix("&"), run_in_background=line.startswith("&"))
            output = await BASH.run(TurnHands(ctx, self._jobs, writer, self._scratch, self._sandbox), params)
            await writer.finish(output.text, metadata=output.metadata)
