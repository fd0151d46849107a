"""Where API keys are stored: a file, or the system's keyring. Errors never quote what these contain: it may be a key.

The file has mode 0600 and is replaced atomically under a lock that all processes share. Its content is
{"version": 1, "providers": {ID: {"api_key": KEY}}, "mcp": {NAME: {"api_key": SECRET}}}, with only "last_four" of a key
in the keyring; unknown fields stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

import msgspec

from kedge.models.errors import ConfigError
from kedge.protocol.errors import StoreUnavailable

VERSION = 1
MAX_BYTES = 1024 * 1024
LOCK_S = 10.0  # another process writes for a few milliseconds


Section = Literal["providers", "mcp"]


class Entry(msgspec.Struct, frozen=True):
    api_key: str = ""
    keyring: bool = False
    last_four: str | None = None  # only of a key in the keyring

    @property
    def has_key(self) -> bool:
        return self.keyring or bool(self.api_key.strip())

    def __repr__(self) -> str:
        return "Entry()"


class _Document(msgspec.Struct):
    providers: dict[str, Entry] = {}
    mcp: dict[str, Entry] = {}  # tokens of MCP servers
    version: int = VERSION


_decode_document = msgspec.json.Decoder(
    _Document
).decode  # built once: two threads may be the first (see `config.load`)


class KeyFile:
    """All methods block: call them in a thread."""

    def __init__(self, path: Path, section: Section = "providers") -> None:
        self.path = path
        self._section: Section = section

    def read(self) -> dict[str, Entry]:
        content = self._read_file()
        return {} if content is None else self._select(self._decode(content))

    def put(self, name: str, entry: Mapping[str, Any] | None) -> Entry | None:
        """Store an entry, or remove it (None); return the previous one. If it raises, the file is unchanged."""
        try:
            target = Path(os.path.realpath(self.path))  # keep a symbolic link
            with _lock(target.with_name(f"{target.name}.lock")):
                content = self._read_file()
                known = {} if content is None else self._select(self._decode(content))
                if entry is not None or name in known:
                    self._replace(target, _edit(content, self._section, name, entry))
                return known.get(name)
        except OSError as error:
            raise StoreUnavailable(f"{self.path} cannot be written: {error.strerror}") from error

    def _select(self, document: _Document) -> dict[str, Entry]:
        return document.providers if self._section == "providers" else document.mcp

    def _read_file(self) -> bytes | None:
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                content = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError("bad_config", f"{self.path} cannot be read: {error.strerror}") from error
        if status.st_mode & 0o077 or status.st_uid != os.geteuid():
            problem = f"{self.path} is readable by other users, so it is not used; run: chmod 600 {self.path}"
            raise ConfigError("bad_config", problem)
        return content

    def _decode(self, content: bytes) -> _Document:
        try:
            document = _decode_document(content)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # No `from`: the decoder's message may quote a key.
            problem = f"{self.path} is damaged; repair it, or remove it and log in again"
            raise ConfigError("bad_config", problem) from None
        if document.version > VERSION:
            raise ConfigError("bad_config", f"{self.path} was written by a newer version of Kedge; use that version")
        return document

    def _replace(self, target: Path, content: bytes) -> None:
        new = target.with_name(f"{target.name}.new")  # no other writer: the lock is held
        try:
            with contextlib.suppress(FileNotFoundError):
                new.unlink()  # of a process that was killed here
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(fd)
            new.replace(target)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink()
            raise
        _sync_directory(target.parent)


def _edit(content: bytes | None, section: Section, name: str, entry: Mapping[str, Any] | None) -> bytes:
    """Return the document with the entry changed and everything else kept."""
    document: dict[str, Any] = msgspec.json.decode(content) if content else {"version": VERSION}
    entries: dict[str, Any] = document.setdefault(section, {})
    if entry is None:
        del entries[name]
    else:
        unknown = {k: v for k, v in entries.get(name, {}).items() if k not in Entry.__struct_fields__}
        entries[name] = {**entry, **unknown}
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


@contextlib.contextmanager
def _lock(path: Path) -> Generator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + LOCK_S
        while not _try_to_lock(fd):
            if time.monotonic() > deadline:
                raise StoreUnavailable(f"{path} is locked by another process")
            time.sleep(0.01)
        yield
    finally:
        os.close(fd)


def _try_to_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


SERVICE = "kedge"
KEYRING_S = 60.0  # the user may have to unlock it
INSTALL = "pip install 'kedge[keyring]'"

T = TypeVar("T")


class KeyRing:
    """The system's keyring, called in its own thread and with a timeout: it may ask for a password, or hang."""

    def __init__(self, limit_s: float = KEYRING_S) -> None:
        self._limit_s = limit_s
        self._lock = asyncio.Lock()
        self._is_idle = threading.Event()  # the last call has returned
        self._is_idle.set()

    async def get(self, name: str) -> str | None:
        return await self._call(lambda ring: ring.get_password(SERVICE, name))

    async def set(self, name: str, key: str) -> None:
        def store(ring: ModuleType) -> bool:
            ring.set_password(SERVICE, name, key)
            return ring.get_password(SERVICE, name) == key  # some backends drop the value silently

        if not await self._call(store):
            raise ConfigError("bad_config", 'The keyring did not store the API key; set credentials.store = "file"')

    async def delete(self, name: str) -> None:
        def remove(ring: ModuleType) -> None:
            if ring.get_password(SERVICE, name) is not None:
                ring.delete_password(SERVICE, name)

        await self._call(remove)

    async def _call(self, work: Callable[[ModuleType], T]) -> T:
        try:
            async with asyncio.timeout(self._limit_s), self._lock:
                if not self._is_idle.is_set():
                    raise TimeoutError  # the previous call still hangs
                return await self._run_in_thread(work)
        except TimeoutError:
            problem = f"The keyring did not answer within {self._limit_s:g} s; unlock it, then try again"
            raise ConfigError("bad_config", problem) from None

    async def _run_in_thread(self, work: Callable[[ModuleType], T]) -> T:
        """Use a daemon thread: a pool thread that never ends would block the server's exit."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: ConfigError | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # pyright: ignore[reportArgumentType] - set if `work` did not fail

        is_idle = self._is_idle = threading.Event()

        def run() -> None:
            result, error = _run(work)
            is_idle.set()  # before the waiting task can call again
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, result, error)

        threading.Thread(target=run, name="kedge-keyring", daemon=True).start()
        return await answer


def _run(work: Callable[[ModuleType], T]) -> tuple[T | None, ConfigError | None]:
    """Call the keyring library and turn its exceptions into a `ConfigError`."""
    try:
        import keyring
        import keyring.errors
    except ImportError:
        problem = f"The API keys are in the keyring, which needs an extra package: {INSTALL}"
        return None, ConfigError("bad_config", problem)
    try:
        return work(keyring), None
    except keyring.errors.NoKeyringError:
        reason = "this machine has no usable one"
    except keyring.errors.KeyringLocked:
        reason = "it is locked"
    except Exception as error:  # noqa: BLE001 - backends raise anything
        reason = type(error).__name__
    return None, ConfigError(
        "bad_config", f'The keyring cannot be used ({reason}); fix that, or set credentials.store = "file"'
    )
