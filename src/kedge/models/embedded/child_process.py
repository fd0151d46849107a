"""Start, watch and stop the child process of an embedded model. A crash of the child does not affect the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from kedge.models.embedded.settings import Settings
from kedge.models.errors import ConfigError, ModelError, Transient

log = logging.getLogger(__name__)

LOAD_S = 600.0  # for the largest file on the slowest disk
END_S = 2.0
LOGGED_LINES = 200  # for each child
LINE_CHARS = 500
_TAIL_LINES = 50
_REASONS = (
    re.compile(r"error loading model: (?!llama_model_loader: failed to load)(.+)"),
    re.compile(r"\bE (?:gguf_init\w*|read): (.+)"),
    re.compile(r"\bE \S+ +\S+ ?: (.+)"),
)


class Child:
    """`await start()` returns when it answers on `settings.socket`."""

    def __init__(self, settings: Settings, name: str) -> None:
        self.settings = settings
        self._name = name
        self._process: Process | None = None
        self._log_reader: asyncio.Task[None] | None = None
        self._log_tail: deque[str] = deque(maxlen=_TAIL_LINES)

    @property
    def is_alive(self) -> bool:
        """Ask the system: the event loop may not have noticed the exit yet."""
        if self._process is None or self._process.returncode is not None:
            return False
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return True
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                f"{__package__}.child_main",
                msgspec.json.encode(self.settings).decode(),
                stdin=PIPE,  # the child exits when it is closed
                stdout=PIPE,
                stderr=PIPE,
                cwd="/",
                start_new_session=True,  # Ctrl-C goes only to the server, which lets answers finish
            )
        except OSError as error:
            raise Transient("provider_error", f"Cannot start {self._name} ({error.strerror})") from error
        self._log_reader = asyncio.create_task(self._read_log(self._process))
        try:
            await self._await_ready(self._process)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Terminate it, and kill it if that takes too long."""
        process, log_reader = self._process, self._log_reader
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(END_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        finally:
            if process.stdin is not None:
                process.stdin.close()
            if log_reader is not None:
                await asyncio.wait({log_reader}, timeout=END_S)
                log_reader.cancel()
            _remove(self.settings.socket)

    async def _await_ready(self, process: Process) -> None:
        assert process.stdout is not None
        try:
            async with asyncio.timeout(LOAD_S):
                line = await process.stdout.readline()
                if line == b"ready\n":
                    return
                await process.wait()
                if self._log_reader is not None:
                    await asyncio.wait({self._log_reader}, timeout=END_S)
        except TimeoutError as error:
            raise Transient("stalled", f"{self._name} was not loaded after {LOAD_S:.0f} s") from error
        raise self._explain_exit(process.returncode or 0)

    def _explain_exit(self, code: int) -> ModelError:
        if code in (-signal.SIGKILL, -signal.SIGTERM):
            problem = f"{self._name} was killed while loading; is there enough memory?"
            return Transient("provider_error", problem)
        reason = next(filter(None, (_find_match(pattern, self._log_tail) for pattern in _REASONS)), "")
        reason = reason or (f"llama.cpp ended with signal {-code}" if code < 0 else "llama.cpp cannot read it")
        return ConfigError("bad_config", f"{self._name} cannot be loaded: {reason}")

    async def _read_log(self, process: Process) -> None:
        """Log the first lines of standard error. All of it is read, so that the child never blocks."""
        assert process.stderr is not None
        count = 0
        async for line in _read_lines(process.stderr):
            self._log_tail.append(line)
            count += 1
            if count <= LOGGED_LINES:
                log.info("%s: %s", self._name, line)
        code = await process.wait()
        log.info("%s (process %d) ended with %d", self._name, process.pid, code)


def _remove(socket: str) -> None:
    Path(socket).unlink(missing_ok=True)


async def _read_lines(stream: asyncio.StreamReader) -> AsyncGenerator[str, None]:
    """Yield lines, cut to a maximum length."""
    rest = b""
    while chunk := await stream.read(65536):
        *whole, rest = (rest + chunk).split(b"\n")
        rest = rest[: LINE_CHARS * 4]
        for line in whole:
            yield line.decode("utf-8", "replace")[:LINE_CHARS].rstrip()
    if rest:
        yield rest.decode("utf-8", "replace")[:LINE_CHARS].rstrip()


def _find_match(pattern: re.Pattern[str], lines: deque[str]) -> str | None:
    return next((match.group(1) for line in lines if (match := pattern.search(line))), None)
