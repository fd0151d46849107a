"""A person's own command: run in the workspace without a model and without leave, recorded for the model to see.

It runs in the same harness as the `bash` tool: on record, bounded, ended with its run, and never a second time (P13).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kedge.agent.tool_context import CallContext, TurnPlace
from kedge.config.schema import Config
from kedge.engine.errors import TurnFailed
from kedge.engine.turn import TurnContext
from kedge.files.environment import drop_invalid_variables
from kedge.tools.builtin import bash
from kedge.tools.errors import ToolError
from kedge.tools.process.jobs import AllJobs

_NOT_STARTED = 126  # what shells say of a command that they could not run


class ShellTurn:
    """A run of kind `shell`. It goes on until the command ends or is cancelled, however long that takes."""

    def __init__(self, data_dir: Path, jobs: AllJobs, environ: Mapping[str, str]) -> None:
        self._data_dir = data_dir
        self._jobs = jobs
        self._environ = environ

    async def __call__(self, ctx: TurnContext) -> None:
        writer = ctx.begin_command()
        if writer is None:
            raise TurnFailed(
                "the server stopped while this command was running; it may have had effects, and was not repeated",
                "interrupted",
            )
        place = TurnPlace(
            ctx,
            env=drop_invalid_variables(self._environ if ctx.env is None else ctx.env),
            config=Config(),  # nothing that is configured stands between a person and their own command
            data_dir=self._data_dir,
            jobs=self._jobs.of(ctx.workspace_id),
            sees_images=False,
        )
        try:
            async with ctx.watch_files(place.env, place.config.files.max_bytes):
                output, code = await bash.attended(CallContext(ctx, place, "", writer, None), ctx.run.prompt)
        except ToolError as error:
            output, code = error.text, _NOT_STARTED
        await writer.finish(output, code)
