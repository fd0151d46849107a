"""The user's own shell command: runs without a model and without permission requests; the model sees it later.

It uses the code of the `bash` tool: its process is recorded, its output limited, and it never runs twice (P13).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kedge.agent.tool_context import CallContext, TurnScope
from kedge.config.schema import Config
from kedge.engine.errors import TurnFailed
from kedge.engine.turn import TurnContext
from kedge.files.environment import drop_invalid_variables
from kedge.tools.builtin import bash
from kedge.tools.errors import ToolError
from kedge.tools.process.jobs import WorkspaceJobs

_NOT_STARTED = 126  # the exit code of shells for a command that they cannot run


class ShellTurn:
    """The turn of a run of kind `shell`. It lasts until the command exits or is cancelled."""

    def __init__(self, data_dir: Path, jobs: WorkspaceJobs, environ: Mapping[str, str]) -> None:
        self._data_dir = data_dir
        self._jobs = jobs
        self._environ = environ

    async def __call__(self, ctx: TurnContext) -> None:
        writer = ctx.begin_command()
        if writer is None:
            raise TurnFailed(
                "The server stopped while this command was running. It may have had effects and was not run again.",
                "interrupted",
            )
        scope = TurnScope(
            ctx,
            env=drop_invalid_variables(self._environ if ctx.env is None else ctx.env),
            config=Config(),  # the user's own command is not restricted by the configuration
            data_dir=self._data_dir,
            jobs=self._jobs.of(ctx.workspace_id),
            sees_images=False,
        )
        try:
            async with ctx.watch_files(scope.env, scope.config.files.max_bytes):
                output, code = await bash.run_user_command(CallContext(ctx, scope, "", writer, None), ctx.run.prompt)
        except ToolError as error:
            output, code = error.text, _NOT_STARTED
        await writer.finish(output, code)
