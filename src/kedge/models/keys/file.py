"""The file of stored API keys: mode 0600, replaced atomically under a lock that all processes share.

{"version": 1, "providers": {ID: {"api_key": KEY}}}; for a key in the system's keyring it has only "last_four".
Unknown fields are kept. Errors never quote the file's content: it may be a key.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kedge.models.errors import ConfigError
from kedge.protocol.errors import StoreUnavailable

VERSION = 1
MAX_BYTES = 1024 * 1024
LOCK_S = 10.0  # another process writes for a few milliseconds


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
    version: int = VERSION


_decode_document = msgspec.json.Decoder(
    _Document
).decode  # built once: two threads may be the first (see `config.load`)


class KeyFile:
    """All methods block: call them in a thread."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Entry]:
        content = self._read_file()
        return {} if content is None else self._decode(content).providers

    def put(self, provider_id: str, entry: Mapping[str, Any] | None) -> Entry | None:
        """Store an entry, or remove it (None); return the previous one. If it raises, the file is unchanged."""
        try:
            target = Path(os.path.realpath(self.path))  # keep a symbolic link
            with _lock(target.with_name(f"{target.name}.lock")):
                content = self._read_file()
                known = {} if content is None else self._decode(content).providers
                if entry is not None or provider_id in known:
                    self._replace(target, _edit(content, provider_id, entry))
                return known.get(provider_id)
        except OSError as error:
            raise StoreUnavailable(f"{self.path} cannot be written: {error.strerror}") from error

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


def _edit(content: bytes | None, provider_id: str, entry: Mapping[str, Any] | None) -> bytes:
    """Return the document with the entry changed and everything else kept."""
    document: dict[str, Any] = msgspec.json.decode(content) if content else {"version": VERSION}
    entries: dict[str, Any] = document.setdefault("providers", {})
    if entry is None:
        del entries[provider_id]
    else:
        unknown = {k: v for k, v in entries.get(provider_id, {}).items() if k not in Entry.__struct_fields__}
        entries[provider_id] = {**entry, **unknown}
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
