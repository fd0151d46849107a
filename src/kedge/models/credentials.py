"""The key for a provider: configured, from the environment, stored, or printed by a command, in this order. A key is
given to whoever sends it, and is in no message, log or representation.

The file of stored keys: {"version": 1, "providers": {ID: {"api_key": KEY}}}.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from kedge.models.errors import ConfigError
from kedge.models.key_command import COMMAND_S, KeyCommands
from kedge.models.providers import Provider, key_in

CREDENTIALS_FILE = "credentials.json"  # in the data directory, 0600
MAX_FILE_BYTES = 1024 * 1024


class _Stored(msgspec.Struct):
    api_key: str = ""

    def __repr__(self) -> str:
        return "_Stored()"


class _File(msgspec.Struct):
    providers: dict[str, _Stored] = {}


class Credentials:
    def __init__(self, path: Path | None = None, *, command_s: float = COMMAND_S) -> None:
        self._path = path
        self._commands = KeyCommands(command_s)

    async def key(self, provider: Provider, env: Mapping[str, str]) -> str | None:
        """The key, or None where nobody gave one; `env` is the run's."""
        key, _ = await self._look_up(provider, env)
        return key

    async def refreshed(self, provider: Provider, env: Mapping[str, str], refused: str | None) -> str | None:
        """The key to try once more after `refused`; None where there is no other. A command that was run again counts,
        whatever it prints: it may have renewed what stands behind the key."""
        key, is_new = await self._look_up(provider, env, refused)
        return key if is_new or key != refused else None

    async def stored(self) -> list[str]:
        """The providers with a stored key."""
        return [name for name, entry in (await self._file()).items() if entry.api_key]

    async def _look_up(
        self, provider: Provider, env: Mapping[str, str], refused: str | None = None
    ) -> tuple[str | None, bool]:
        """The key, and whether a command printed it just now."""
        if configured := (provider.config.api_key or "").strip():
            return _checked(configured, f"providers.{provider.id}.api_key"), False
        if found := key_in(provider, env):
            return _checked(found[1], found[0]), False
        entry = (await self._file()).get(provider.id)
        if entry is not None and (stored := entry.api_key.strip()):
            return _checked(stored, f"the stored key of {provider.id}"), False
        if command := (provider.config.api_key_command or "").strip():
            key, is_new = await self._commands.key(provider.id, command, env, refused)
            return _checked(key, f"what the api_key_command of {provider.id} prints"), is_new
        return None, False

    async def _file(self) -> dict[str, _Stored]:
        return {} if self._path is None else await asyncio.to_thread(_read, self._path)


def _read(path: Path) -> dict[str, _Stored]:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(MAX_FILE_BYTES)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError("bad_config", f"{path} cannot be read: {error.strerror}") from error
    if status.st_mode & 0o077 or status.st_uid != os.geteuid():
        raise ConfigError("bad_config", f"{path} is open to others, so it is not read; run: chmod 600 {path}")
    try:
        return msgspec.json.decode(content, type=_File).providers
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # Not even the complaint is passed on: it may quote what it stumbled over.
        raise ConfigError("bad_config", f"{path} is damaged; remove it and store the keys again") from None


def _checked(key: str, source: str) -> str:
    """An HTTP header takes no more than this, and the client's own complaint would repeat the key."""
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError("bad_config", f"{source} holds characters that no key has; copy it again")
    return key
