"""Runs the command of one hook: in a recorded process group of its own, bounded in time and output."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from kedge.agent.hooks.wire import HookRun
from kedge.config.schema import HookConfig
from kedge.tools.errors import ToolError
from kedge.tools.process.spawn import PIECE, ProcessRecorder, start_with_input

MAX_OUTPUT_BYTES = 256 * 1024  # of each stream; the rest is read and dropped
DRAIN_S = 1.0  # for output after the end: processes in the background may keep the pipe open forever


async def run_command(
    ctx: ProcessRecorder, hook: HookConfig, directory: Path, env: Mapping[str, str], payload: bytes
) -> HookRun:
    """Run the command and return what it did. Its processes that are left end with the turn."""
    try:
        started = await start_with_input(ctx, hook.command, directory, env, payload)
    except ToolError as error:
        return HookRun(None, "", "", error.text)
    printed = (bytearray(), bytearray())
    reads = [asyncio.create_task(_read(*each)) for each in zip(started.outputs, printed, strict=True)]
    try:
        try:
            async with asyncio.timeout(hook.timeout_s):
                code = await started.child.wait()
        except TimeoutError:
            await started.record.end()
            problem = f"it was ended after {hook.timeout_s:g} s"
            return HookRun(None, "", "", problem)
        await asyncio.wait(reads, timeout=DRAIN_S)
        if not await started.record.members():
            await started.record.forget()
        stdout, stderr = (data.decode("utf-8", "replace") for data in printed)
        return HookRun(code, stdout, stderr, f"killed by signal {-code}" if code < 0 else "")
    finally:
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
        started.close()


async def _read(stream: asyncio.StreamReader, data: bytearray) -> None:
    while piece := await stream.read(PIECE):
        data += piece[: MAX_OUTPUT_BYTES - len(data)]
