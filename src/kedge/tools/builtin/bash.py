"""`bash`: runs a command in the workspace. Its output is bounded, and after a minute it continues as a job."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from kedge.files.environment import LIST_PROGRAMS, disable_programs
from kedge.protocol.text_safety import has_control, one_line
from kedge.protocol.tools import BUILT_IN_TOOLS
from kedge.tools.errors import ToolError
from kedge.tools.permissions.git import may_run_programs
from kedge.tools.port import Access, Output, Tool, ToolContext, ToolScope, display_path, resolve_path
from kedge.tools.process.command import LONG_S, Command, Job
from kedge.tools.process.environment import (
    command_environment,
    contained_environment,
    unapproved_environment,
    user_environment,
)
from kedge.tools.sandbox.policy import UNAPPROVED, LaunchSpec, Limits, SandboxUnavailable

BACKGROUND_AFTER_S = 60.0
MAX_TIMEOUT_S = 24 * 3600
MAX_LIVE_CHARS = 100_000  # streamed to clients; the file has the rest
# A person who is asked could not see what such a command does.
_CONTROL = (
    "The command was not run: there is a control character in it (like ESC, CR or NUL).",
    "Write it as an escape, like $'\\x1b' or printf '\\033', or put the text into a file with write and use that.",
)
_LIST_PROGRAMS_S = 5.0

# Errors that programs print because of the sandbox, even if a pipeline hides their exit code.
_REFUSED_BY_KERNEL = re.compile(
    r"(?:Permission denied|Operation not permitted|Read-only file system|Network is unreachable)$|not resolve host",
    re.MULTILINE,
)

Seconds = Annotated[
    float, msgspec.Meta(gt=0, le=MAX_TIMEOUT_S, description="end it after that many seconds (default: never)")
]


class BashParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    command: Annotated[str, msgspec.Meta(description="the command to run")]
    description: Annotated[str, msgspec.Meta(description="what it does, in a few words, for the user")] = ""
    timeout: Seconds | None = None
    run_in_background: Annotated[bool, msgspec.Meta(description="run it as a job without waiting")] = False
    working_dir: Annotated[str, msgspec.Meta(description="a directory of the workspace (default: its root)")] = ""
    unsandboxed: Annotated[
        bool, msgspec.Meta(description="run without the read-only sandbox of unapproved commands; the user is asked")
    ] = False


async def list_access(scope: ToolScope, params: BashParams) -> Sequence[Access]:
    directory = await asyncio.to_thread(_resolve_directory, scope, params.working_dir)
    _check_command(params)
    shown: dict[str, object] = {"command": params.command, "working_dir": display_path(scope, directory)}
    if params.description:
        shown["description"] = params.description
    if params.unsandboxed:
        shown["unsandboxed"] = True
    description = f"run {params.command}"
    can_sandbox = await asyncio.to_thread(_can_sandbox, scope)
    is_sandboxed, sandbox_problem = False, ""
    try:
        is_sandboxed = await _prepare_sandbox(scope) is not None
    except SandboxUnavailable as error:
        sandbox_problem = error.why
        shown["without_sandbox"] = sandbox_problem
        description = f"WITHOUT the sandbox ({sandbox_problem}): {description}"
    return (
        Access(
            kind="execute",
            subject=params.command,
            description=one_line(description, 200),
            params=shown,
            is_preapproved=is_sandboxed and not scope.sandbox.asks_user,
            can_sandbox=can_sandbox,
            unsandboxed=params.unsandboxed,
            sandbox_problem=sandbox_problem,
        ),
    )


async def run(ctx: ToolContext, params: BashParams) -> Output:
    directory = await asyncio.to_thread(_resolve_directory, ctx, params.working_dir)
    _check_command(params)
    if params.run_in_background:
        ctx.jobs.check_room()
    live = _Live(ctx.write)
    launch_spec, env, limits = await _confine(ctx, params.command, directory)
    command = await Command.start(ctx, params.command, directory, env, live.write, params.timeout, launch_spec, limits)
    async with _abandon_on_error(command):
        if not params.run_in_background and not await _wait_for_exit(command):
            ctx.jobs.check_room()
        if command.finished.is_set() or (command.shell_exited.is_set() and not command.left_running):
            return _report_end(command)
        return _report_job(await ctx.jobs.add(ctx, command, params.command, params.description), params)


async def run_user_command(ctx: ToolContext, command_line: str) -> tuple[str, int]:
    """Run a command that a person typed, without time limit; return its output and the exit code of a shell."""
    live = _Live(ctx.write)
    command = await Command.start(ctx, command_line, ctx.directory, user_environment(ctx.env), live.write, None)
    async with _abandon_on_error(command):
        await command.shell_exited.wait()
        code = 0 if command.exit_code is None else command.exit_code
        code = code if code >= 0 else 128 - code
        if command.finished.is_set() or not command.left_running:
            return command.take_output().rstrip("\n"), code
        ctx.jobs.check_room()
        job = await ctx.jobs.add(ctx, command, command_line, "")
        note = f"still running in the background: {', '.join(command.left_running)}; it is job {job.id}"
        return _with_notes(command.take_output(), [note]), code


@contextlib.asynccontextmanager
async def _abandon_on_error(command: Command) -> AsyncGenerator[None]:
    """End a command that cannot become a job: nobody could find it again. The engine ends a canceled one."""
    try:
        yield
    except ToolError:
        await command.end()
        await command.abandon()
        raise
    except BaseException:
        await command.abandon()
        raise


async def _prepare_sandbox(scope: ToolScope) -> LaunchSpec | None:
    """Raises SandboxUnavailable: a sandbox is wanted, and there is none."""
    return await asyncio.to_thread(scope.sandbox.prepare) if scope.sandbox.is_enabled else None


def _can_sandbox(scope: ToolScope) -> bool:
    try:
        scope.sandbox.prepare_read_only()
    except SandboxUnavailable:
        return False
    return True


async def _confine(
    ctx: ToolContext, command: str, directory: Path
) -> tuple[LaunchSpec | None, dict[str, str], Limits | None]:
    """Return the sandbox, the variables and the limits of a command, depending on its approval."""
    if ctx.run_as == "approved" and not ctx.sandbox.is_planning:
        return await _prepare_sandbox_or_ask(ctx), command_environment(ctx.env, directory), None
    if ctx.run_as == "contained":
        return await _prepare_contained(ctx), contained_environment(ctx.env, directory), None
    env = {**unapproved_environment(ctx.env, ctx.directory, ctx.scratch), "PWD": str(directory)}
    if "git" in command:
        env = await _disable_repository_programs(env, directory)
    if ctx.run_as == "unapproved":
        return None, env, UNAPPROVED
    try:
        launch_spec = await asyncio.to_thread(ctx.sandbox.prepare_read_only, ctx.readable_paths)
    except SandboxUnavailable as error:
        raise ToolError(f"The command was not run: the read-only sandbox failed ({error.why}).") from error
    return launch_spec, env, None


async def _disable_repository_programs(env: dict[str, str], directory: Path) -> dict[str, str]:
    """Add variables that disable the filters and diff programs that the repository configures."""
    if not await asyncio.to_thread(may_run_programs, str(directory)):
        return env
    process = await asyncio.create_subprocess_exec(
        *("git", *LIST_PROGRAMS),
        cwd=directory,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(_LIST_PROGRAMS_S):
            listed, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        return env
    return disable_programs(env, listed.decode("utf-8", "replace"))


async def _prepare_sandbox_or_ask(ctx: ToolContext) -> LaunchSpec | None:
    """None where no sandbox is wanted, or where a person let this one command run without."""
    try:
        return await _prepare_sandbox(ctx)
    except SandboxUnavailable as error:
        if ctx.may_run_unsandboxed and not ctx.sandbox.is_planning:
            return None
        raise ToolError(f"The command was not run: the sandbox it needs cannot be had here ({error.why}).") from error


async def _prepare_contained(ctx: ToolContext) -> LaunchSpec:
    try:
        return await asyncio.to_thread(ctx.sandbox.prepare_contained)
    except SandboxUnavailable as error:
        raise ToolError(f"The command was not run: its sandbox failed ({error.why}).") from error


async def _wait_for_exit(command: Command) -> bool:
    """Wait for the shell's end; return whether it ended within `BACKGROUND_AFTER_S`."""
    try:
        async with asyncio.timeout(BACKGROUND_AFTER_S):
            await command.shell_exited.wait()
    except TimeoutError:
        return False
    return True


def _report_end(command: Command) -> Output:
    text = command.take_output()
    notes: list[str] = []
    if command.exit_code != 0 or command.timed_out or command.duration_s >= LONG_S:
        notes.append(command.outcome_with_duration)
    if command.survivors:
        notes.append(f"could not be ended: {', '.join(command.survivors)}")
    if not command.sandbox or (command.exit_code == 0 and not _REFUSED_BY_KERNEL.search(text)):
        return Output(content=_with_notes(text, notes), metadata=_metadata(command))
    return _advise(text, notes, command.sandbox, {**_metadata(command), "sandboxed": True})


def _report_job(job: Job, params: BashParams) -> Output:
    command = job.command
    text = command.take_output()
    if command.shell_exited.is_set():
        why = (
            f"{command.outcome}; still running in the background: {', '.join(command.left_running)}. It is job {job.id}"
        )
    elif params.run_in_background:
        why = f"running in the background as job {job.id}"
    else:
        why = f"still running after {command.duration_s:.0f} s; it continues in the background as job {job.id}"
    note = f"{why}: job_output shows its output and waits for it, job_kill ends it"
    return _advise(text, [], note, {**_metadata(command), "job_id": job.id})


def _advise(text: str, notes: list[str], advice: str, metadata: dict[str, object]) -> Output:
    """Return the output, notes for everybody and advice for the model, one below the other."""
    content = _with_notes(text, notes) if text.strip("\n") or notes else ""
    return Output(content=content, advice=f"\n[{advice}]" if content else f"[{advice}]", metadata=metadata)


def _metadata(command: Command) -> dict[str, object]:
    return {
        "exit_code": command.exit_code,
        "duration_s": round(command.duration_s, 3),
        **({"timed_out": True} if command.timed_out else {}),
    }


def _with_notes(text: str, notes: list[str]) -> str:
    text = text.rstrip("\n")
    if not notes:
        return text or "(no output)"
    return "\n".join([*([text] if text else []), *(f"[{note}]" for note in notes)])


def _resolve_directory(scope: ToolScope, given: str) -> Path:
    if not given:
        return scope.directory
    directory = resolve_path(scope, given)
    if not directory.is_relative_to(scope.directory):
        raise ToolError(f"{given} is outside the workspace;", "leave working_dir out and name the path in the command.")
    if not directory.is_dir():
        raise ToolError(f"{given} is not a directory of the workspace;", "use ls to find the right one.")
    return directory


def _check_command(params: BashParams) -> None:
    if not params.command.strip():
        raise ToolError("The command is empty;", "give one to run.")
    if has_control(params.command):
        raise ToolError(*_CONTROL)


class _Live:
    """Live output for clients, up to a limit."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._left = MAX_LIVE_CHARS

    def write(self, text: str) -> None:
        if self._left <= 0:
            return
        self._write(text[: self._left])
        self._left -= len(text)
        if self._left <= 0:
            self._write("\n[… more output is not shown while it runs …]\n")


TOOL = Tool(facts=BUILT_IN_TOOLS["bash"], params=BashParams, run=run, list_access=list_access)
