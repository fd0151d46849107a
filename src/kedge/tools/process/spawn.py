"""Starting a shell so that no crash leaves it behind unknown (P13).

The process waits at a gate, a pipe, until it is on record, and only then becomes the command. If the server dies
before, the pipe ends, and so does the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from kedge import failpoints
from kedge.files.environment import find_program, safe_path
from kedge.files.safe_open import remove_tree
from kedge.protocol.bounds import MAX_COMMAND_BYTES
from kedge.tools.errors import ToolError
from kedge.tools.port import Process, ToolContext
from kedge.tools.sandbox.launch import launch
from kedge.tools.sandbox.limits import Limits, set_limits
from kedge.tools.sandbox.policy import OUTSIDE_VARIABLES, LaunchSpec, SandboxUnavailable

MARK = "KEDGE_PROCESS"
_WAITING = "waiting"
# The plain shell is the quickest to start: about a millisecond. Its input is the gate, and then nothing.
_GATE = f'IFS= read -r {MARK} || exit 125; export {MARK}; exec "$@" </dev/null'
_SH = "/bin/sh"
BASHES = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash")
PIECE = 64 * 1024  # read at once, of what a command says


class Child(Protocol):
    @property
    def pid(self) -> int: ...
    async def wait(self) -> int: ...


class Started(NamedTuple):
    child: Child
    record: Process
    output: asyncio.StreamReader
    pipe: asyncio.ReadTransport
    temporary: Path | None  # a directory of its own, to be removed after it


async def start(
    ctx: ToolContext,
    command: str,
    directory: Path,
    env: Mapping[str, str],
    launch_spec: LaunchSpec | None = None,
    limits: Limits | None = None,
) -> Started:
    """The command at work in a process group of its own, on record; what it says on both channels comes in order."""
    if len(command.encode("utf-8", "replace")) > MAX_COMMAND_BYTES or "\0" in command:
        raise ToolError(
            f"The command holds a NUL, or more than {MAX_COMMAND_BYTES:,} bytes; write a script with the write tool"
            " and run that."
        )
    if launch_spec is None or launch_spec.with_temporary is None:
        return await _start(ctx, command, directory, env, launch_spec, limits, None)
    temporary = Path(tempfile.mkdtemp(dir=launch_spec.temporary))
    try:
        return await _start(ctx, command, directory, env, launch_spec.with_temporary(str(temporary)), limits, temporary)
    except BaseException:
        remove_tree(temporary)
        raise


async def _start(
    ctx: ToolContext,
    command: str,
    directory: Path,
    env: Mapping[str, str],
    launch_spec: LaunchSpec | None,
    limits: Limits | None,
    temporary: Path | None,
) -> Started:
    with contextlib.ExitStack() as ends:
        said, saying = _pipe(ends)
        gate, opener = _pipe(ends)
        shell = find_shell(env, ctx.directory, ctx.scratch)
        try:
            child = await _started((shell, "-c", command), gate, saying, directory, env, launch_spec)
        except SandboxUnavailable as error:
            raise ToolError(f"The command was not run: its sandbox could not be made ({error.why}).") from error
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ToolError(f"The command could not be started in {directory} ({reason}).") from error
        if limits is not None:
            await _limit(child.pid, limits)
        failpoints.hit("command.spawned")
        record = await ctx.process_started(child.pid)
        failpoints.hit("command.recorded")
        if limits is not None:
            record.limit(processes=limits.processes, memory_bytes=limits.memory_bytes)
        output, pipe = await _reader(os.dup(said))
        with contextlib.suppress(BrokenPipeError):  # it was ended at once
            os.write(opener, f"{record.mark}\n".encode())
        failpoints.hit("command.released")
        return Started(child, record, output, pipe, temporary)


async def _started(
    words: tuple[str, ...],
    gate: int,
    saying: int,
    directory: Path,
    env: Mapping[str, str],
    launch_spec: LaunchSpec | None,
) -> Child:
    waiting = {**env, MARK: _WAITING}
    if launch_spec is not None:
        inside = {name: value for name, value in waiting.items() if name not in OUTSIDE_VARIABLES}
        return await launch(
            (_SH, "-c", _GATE, _SH, *launch_spec.prefix, *words),
            restrict=launch_spec.restrict,
            stdin=gate,
            output=saying,
            directory=directory,
            env={**inside, **launch_spec.env},
        )
    return await asyncio.create_subprocess_exec(
        *(_SH, "-c", _GATE, _SH, *words),
        stdin=gate,
        stdout=saying,
        stderr=saying,
        cwd=directory,
        env=waiting,
        start_new_session=True,
    )


async def _limit(pid: int, limits: Limits) -> None:
    try:
        await asyncio.to_thread(set_limits, pid, limits)
    except OSError as error:  # it ends by itself, at the gate
        raise ToolError(f"The command was not run: its limits could not be set ({error.strerror}).") from error


def _pipe(ends: contextlib.ExitStack) -> tuple[int, int]:
    """Both ends are closed when the command has its own."""
    reading, writing = os.pipe()
    ends.callback(os.close, reading)
    ends.callback(os.close, writing)
    return reading, writing


async def _reader(fd: int) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    """A bounded one: a command that says more than is read has to wait."""
    reader = asyncio.StreamReader(limit=PIECE)
    file = os.fdopen(fd, "rb", buffering=0)
    try:
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    except BaseException:
        file.close()
        raise
    return reader, pipe


def find_shell(env: Mapping[str, str], directory: Path, scratch: Path | None = None) -> str:
    """The bash that runs an agent's commands, or /bin/sh where there is none. Never one of the workspace's."""
    roots = (directory, *((scratch,) if scratch is not None else ()))
    if found := find_program("bash", env, *roots):
        return found
    return next((program for program in BASHES if os.access(program, os.X_OK) and safe_path(program, roots)), _SH)
