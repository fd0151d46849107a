"""Child processes of embedded models: started on demand, shared by all sessions, stopped when idle, restarted if they
die."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from kedge.models.embedded.gguf import Settings
from kedge.models.errors import ConfigError, ModelError, Transient
from kedge.protocol.address import AddressError, UnixAddress, make_private_dir

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

MAX_CHILDREN = 2  # models in memory; a third waits until one is unused
MAX_SOCKET_BYTES = 100  # of a path: the limit of all kernels


class _Model:
    """One model: its child process if it is loaded, and the number of users."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.users = 0
        self.child: Child | None = None
        self.lock = asyncio.Lock()  # one start for all who wait
        self.unloading: asyncio.TimerHandle | None = None


class Pool:
    """`address` is the server's socket: those of the models are beside it, in a private directory (P16)."""

    def __init__(self, address: UnixAddress, idle_s: float) -> None:
        self._directory = Path(address.path).with_suffix(".models")
        self._idle_s = idle_s
        self._models: dict[Settings, _Model] = {}
        self._freed = asyncio.Event()  # a model became unused
        self._numbers = itertools.count(1)
        self._has_directory = False
        self._ending: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def use_model(self, settings: Settings, name: str) -> AsyncGenerator[str, None]:
        """Yield the socket of a running child, which is not stopped while it is in use; it may still crash."""
        model = self._models.setdefault(settings, _Model(name))
        model.users += 1
        if model.unloading is not None:
            model.unloading.cancel()
            model.unloading = None
        try:
            async with model.lock:
                child = await self._load(model, settings)
            yield child.settings.socket
        finally:
            model.users -= 1
            if model.users == 0:
                model.unloading = asyncio.get_running_loop().call_later(self._idle_s, self._start_unloading, model)
                self._freed.set()

    async def close(self) -> None:
        for model in self._models.values():
            if model.unloading is not None:
                model.unloading.cancel()
        children = [model.child for model in self._models.values() if model.child is not None]
        await asyncio.gather(*(child.stop() for child in children), *self._ending, return_exceptions=True)
        self._models.clear()
        if self._has_directory:
            shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def children(self) -> list[Child]:
        """The running ones."""
        return [model.child for model in self._models.values() if model.child is not None and model.child.is_alive]

    def is_loaded(self, settings: Settings) -> bool:
        model = self._models.get(settings)
        return model is not None and model.child is not None and model.child.is_alive

    async def _load(self, model: _Model, settings: Settings) -> Child:
        if model.child is not None:
            if model.child.is_alive:
                return model.child
            await _take(model).stop()  # it died: clean up
        await self._make_room()
        self._make_directory()
        child = Child(
            msgspec.structs.replace(settings, socket=str(self._directory / f"{next(self._numbers)}.sock")), model.name
        )
        model.child = child  # counts for `MAX_CHILDREN` from now on
        try:
            await child.start()
        except BaseException:
            model.child = None
            raise
        return child

    async def _make_room(self) -> None:
        while len(loaded := [model for model in self._models.values() if model.child]) >= MAX_CHILDREN:
            self._freed.clear()
            if idle := next((model for model in loaded if model.users == 0), None):
                await _take(idle).stop()
            else:
                await self._freed.wait()

    def _start_unloading(self, model: _Model) -> None:
        if model.users:
            return
        self._models = {settings: other for settings, other in self._models.items() if other is not model}
        if model.child is not None:
            task = asyncio.get_running_loop().create_task(_take(model).stop())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _make_directory(self) -> None:
        """Make it once, and remove leftovers: one server owns the data directory, so they are of a dead one."""
        if self._has_directory:
            return
        if len(os.fsencode(self._directory / "99999.sock")) > MAX_SOCKET_BYTES:
            self._directory = Path(tempfile.mkdtemp(prefix="kedge-"))  # also private
        else:
            self._make_beside_server()
        self._has_directory = True

    def _make_beside_server(self) -> None:
        try:
            make_private_dir(str(self._directory.parent))
            shutil.rmtree(self._directory, ignore_errors=True)
            make_private_dir(str(self._directory))
        except AddressError as error:
            raise ConfigError("bad_config", str(error)) from error


def _take(model: _Model) -> Child:
    """Remove and return the child of a model."""
    child, model.child = model.child, None
    assert child is not None
    return child


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
