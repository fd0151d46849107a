"""Start of a shell that no crash can leave behind unrecorded (P13).

The process first waits for a line on a pipe (the gate), and becomes the command only when it is recorded. If the server
dies before, the pipe is closed and the process exits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from kedge import failpoints
from kedge.files.environment import find_program, safe_path
from kedge.files.safe_open import remove_tree
from kedge.protocol.bounds import MAX_COMMAND_BYTES
from kedge.tools.errors import ToolError
from kedge.tools.sandbox.launch import launch
from kedge.tools.sandbox.policy import OUTSIDE_VARIABLES, LaunchSpec, Limits, SandboxUnavailable, set_limits

MARK = "KEDGE_PROCESS"
_WAITING = "waiting"
# /bin/sh starts in about a millisecond. Its standard input is the gate, then /dev/null.
_GATE = f'IFS= read -r {MARK} || exit 125; export {MARK}; exec "$@" </dev/null'
# Here the rest of what comes through the gate is the command's input: the shell reads no byte behind the line.
_GATE_WITH_INPUT = f'IFS= read -r {MARK} || exit 125; export {MARK}; exec "$@"'
_SH = "/bin/sh"
BASHES = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash")
PIECE = 64 * 1024  # bytes of output read at once


class Process(Protocol):
    """A recorded process group with all its descendants. It ends with its turn, or with the next server (P6, P13)."""

    @property
    def mark(self) -> str: ...  # value of `KEDGE_PROCESS` in the environment of every descendant
    async def members(self) -> list[str]: ...  # living processes, by name and pid
    def limit(self, *, processes: int, memory_bytes: int) -> None: ...  # for the group, where cgroups allow it
    async def end(self) -> list[str]: ...  # SIGTERM, then SIGKILL; returns the survivors
    async def keep(self) -> None: ...  # let it outlive the turn: it ends with its workspace or the server
    async def forget(self) -> None: ...  # remove the record of an ended group; works after the turn, too


class ProcessRecorder(Protocol):
    async def record_process(self, pid: int) -> Process: ...


class CommandContext(ProcessRecorder, Protocol):
    """The parts of a `ToolContext` that commands and jobs use."""

    @property
    def directory(self) -> Path: ...
    @property
    def scratch(self) -> Path: ...
    @property
    def session_id(self) -> str: ...
    @property
    def run_id(self) -> str: ...


class Child(Protocol):
    @property
    def pid(self) -> int: ...
    async def wait(self) -> int: ...


class SpawnedCommand(NamedTuple):
    child: Child
    record: Process
    output: asyncio.StreamReader
    pipe: asyncio.ReadTransport
    temporary: Path | None  # the command's own directory, removed after it


async def start(
    ctx: CommandContext,
    command: str,
    directory: Path,
    env: Mapping[str, str],
    launch_spec: LaunchSpec | None = None,
    limits: Limits | None = None,
) -> SpawnedCommand:
    """Start a command in its own recorded process group. Its stdout and stderr share one pipe. Raises ToolError."""
    if len(command.encode("utf-8", "replace")) > MAX_COMMAND_BYTES or "\0" in command:
        raise ToolError(
            f"The command contains a NUL, or more than {MAX_COMMAND_BYTES:,} bytes;",
            "write a script with the write tool and run that.",
        )
    if launch_spec is None or launch_spec.with_temporary is None:
        return await _start(ctx, command, directory, env, launch_spec, limits, None)
    import tempfile  # late: few commands run here

    temporary = Path(tempfile.mkdtemp(dir=launch_spec.temporary))
    try:
        return await _start(ctx, command, directory, env, launch_spec.with_temporary(str(temporary)), limits, temporary)
    except BaseException:
        remove_tree(temporary)
        raise


async def _start(
    ctx: CommandContext,
    command: str,
    directory: Path,
    env: Mapping[str, str],
    launch_spec: LaunchSpec | None,
    limits: Limits | None,
    temporary: Path | None,
) -> SpawnedCommand:
    with contextlib.ExitStack() as ends:
        output_r, output_w = _make_pipe(ends)
        gate_r, gate_w = _make_pipe(ends)
        shell = find_shell(env, ctx.directory, ctx.scratch)
        try:
            child = await _start_waiting((shell, "-c", command), gate_r, output_w, directory, env, launch_spec)
        except SandboxUnavailable as error:
            raise ToolError(f"The command was not run: its sandbox could not be created ({error.why}).") from error
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ToolError(f"The command could not be started in {directory} ({reason}).") from error
        if limits is not None:
            await _set_limits(child.pid, limits)
        failpoints.hit("command.spawned")
        record = await ctx.record_process(child.pid)
        failpoints.hit("command.recorded")
        if limits is not None:
            record.limit(processes=limits.processes, memory_bytes=limits.memory_bytes)
        output, pipe = await _make_reader(os.dup(output_r))
        with contextlib.suppress(BrokenPipeError):  # it was killed already
            os.write(gate_w, f"{record.mark}\n".encode())
        failpoints.hit("command.released")
        return SpawnedCommand(child, record, output, pipe, temporary)


class CommandWithInput(NamedTuple):
    child: Child
    record: Process
    outputs: tuple[asyncio.StreamReader, asyncio.StreamReader]  # standard output and standard error
    pipes: tuple[asyncio.ReadTransport, asyncio.ReadTransport]
    writer: _Writer

    def close(self) -> None:
        """Close the pipes, also if the command has not read its input."""
        for pipe in self.pipes:
            pipe.close()
        self.writer.abort()


class _Writer(asyncio.BaseProtocol):
    _transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def start_with_input(
    ctx: ProcessRecorder, command: str, directory: Path, env: Mapping[str, str], data: bytes
) -> CommandWithInput:
    """Start a command of the user in its own recorded process group, with `data` as its input. Raises ToolError."""
    with contextlib.ExitStack() as ends:
        input_r, input_w = _make_pipe(ends)
        (stdout_r, stdout_w), (stderr_r, stderr_w) = _make_pipe(ends), _make_pipe(ends)
        try:
            child = await asyncio.create_subprocess_exec(
                *(_SH, "-c", _GATE_WITH_INPUT, _SH, find_shell(env, directory), "-c", command),
                stdin=input_r,
                stdout=stdout_w,
                stderr=stderr_w,
                cwd=directory,
                env={**env, MARK: _WAITING},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ToolError(f"The command could not be started in {directory} ({error}).") from error
        failpoints.hit("hook.spawned")
        record = await ctx.record_process(child.pid)
        failpoints.hit("hook.recorded")
        (stdout, out_pipe), (stderr, err_pipe) = [await _make_reader(os.dup(each)) for each in (stdout_r, stderr_r)]
        file = os.fdopen(os.dup(input_w), "wb", buffering=0)
        transport, writer = await asyncio.get_running_loop().connect_write_pipe(_Writer, file)
        transport.write(f"{record.mark}\n".encode() + data)
        transport.close()  # after the data
        return CommandWithInput(child, record, (stdout, stderr), (out_pipe, err_pipe), writer)


async def _start_waiting(
    argv: tuple[str, ...],
    gate_r: int,
    output_w: int,
    directory: Path,
    env: Mapping[str, str],
    launch_spec: LaunchSpec | None,
) -> Child:
    waiting = {**env, MARK: _WAITING}
    if launch_spec is not None:
        inside = {name: value for name, value in waiting.items() if name not in OUTSIDE_VARIABLES}
        return await launch(
            (_SH, "-c", _GATE, _SH, *launch_spec.prefix, *argv),
            restrict=launch_spec.restrict,
            stdin=gate_r,
            output=output_w,
            directory=directory,
            env={**inside, **launch_spec.env},
        )
    return await asyncio.create_subprocess_exec(
        *(_SH, "-c", _GATE, _SH, *argv),
        stdin=gate_r,
        stdout=output_w,
        stderr=output_w,
        cwd=directory,
        env=waiting,
        start_new_session=True,
    )


async def _set_limits(pid: int, limits: Limits) -> None:
    try:
        await asyncio.to_thread(set_limits, pid, limits)
    except OSError as error:  # the process exits when the gate is closed
        raise ToolError(f"The command was not run: its limits could not be set ({error.strerror}).") from error


def _make_pipe(ends: contextlib.ExitStack) -> tuple[int, int]:
    """Return a pipe whose ends `ends` closes: the child has its own copies."""
    read_fd, write_fd = os.pipe()
    ends.callback(os.close, read_fd)
    ends.callback(os.close, write_fd)
    return read_fd, write_fd


async def _make_reader(fd: int) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    """Return a bounded reader: a command that prints faster than it is read has to wait."""
    reader = asyncio.StreamReader(limit=PIECE)
    file = os.fdopen(fd, "rb", buffering=0)
    try:
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    except BaseException:
        file.close()
        raise
    return reader, pipe


def find_shell(env: Mapping[str, str], directory: Path, scratch: Path | None = None) -> str:
    """Return the bash for an agent's commands, never one in the workspace; /bin/sh if there is none."""
    roots = (directory, *((scratch,) if scratch is not None else ()))
    if found := find_program("bash", env, *roots):
        return found
    return next((program for program in BASHES if os.access(program, os.X_OK) and safe_path(program, roots)), _SH)
