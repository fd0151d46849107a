"""The key for a provider: configured, from the environment, of a login, or printed by a command, in this order. It is
given to whoever sends it, and is in no message, log or representation (P16).

A key that was refused is passed over, so that a login helps also where an old variable comes before it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

from kedge.models.errors import ConfigError
from kedge.models.keys.command import COMMAND_S, KeyCommands
from kedge.models.keys.file import Entry, KeyFile
from kedge.models.keys.keyring import KeyRing
from kedge.models.providers import Provider, find_env_key

CREDENTIALS_FILE = "credentials.json"  # in the data directory, 0600
SHOWN_CHARS = 4
MIN_SHOWN = 12  # of a shorter one the end would be too much of it

Place = Literal["file", "keyring"]


class Credentials:
    def __init__(
        self, path: Path | None = None, *, keyring: KeyRing | None = None, command_s: float = COMMAND_S
    ) -> None:
        self._file = None if path is None else KeyFile(path)
        self._keyring = keyring or KeyRing()
        self._commands = KeyCommands(command_s)
        self._remembered = _Remembered()  # of the keyring, which is slow and may ask a person
        self._logins: dict[str, int] = {}  # how often somebody logged in here
        self._news = asyncio.Event()

    async def key(self, provider: Provider, env: Mapping[str, str], refused: Collection[str] = ()) -> str | None:
        """The key, or None where nobody gave one that is not among the `refused`; `env` is the run's."""
        key, _ = await self._look_up(provider, env, refused)
        return key

    async def refreshed(
        self, provider: Provider, env: Mapping[str, str], refused: str | None, before: Collection[str] = ()
    ) -> str | None:
        """The key to try once more after `refused`, and those refused `before`; None where there is no other. A command
        that was run again counts, whatever it prints: it may have renewed what stands behind the key."""
        key, is_new = await self._look_up(provider, env, {*before, *([refused] if refused else [])}, refused)
        return key if is_new or key != refused else None

    async def stored(self) -> dict[str, Entry]:
        """What people logged in with, by provider."""
        entries = {} if self._file is None else await asyncio.to_thread(self._file.read)
        return {name: entry for name, entry in entries.items() if entry.has_key}

    async def store(self, provider_id: str, key: str, place: Place) -> None:
        """Keep a key, in place of the one before; whoever waits for a login there goes on."""
        key = checked(key, "the key")
        assert self._file is not None
        entry: dict[str, object] = {"api_key": key}
        if place == "keyring":
            await self._keyring.set(provider_id, key)
            entry = {"keyring": True, "last_four": last_four(key)}
        before = await asyncio.to_thread(self._file.put, provider_id, entry)
        self._remembered.forget(provider_id)
        if before is not None and before.keyring and place != "keyring":
            with contextlib.suppress(ConfigError):  # the key there is not used any more
                await self._keyring.delete(provider_id)
        self._logins[provider_id] = self.logins(provider_id) + 1
        self._news.set()
        self._news = asyncio.Event()

    async def remove(self, provider_id: str) -> bool:
        """Whether there was one."""
        entry = (await self.stored()).get(provider_id)
        if entry is None or self._file is None:
            return False
        if entry.keyring:
            await self._keyring.delete(provider_id)
        await asyncio.to_thread(self._file.put, provider_id, None)
        self._remembered.forget(provider_id)
        return True

    def logins(self, provider_id: str) -> int:
        """How often somebody has logged in there since the server started."""
        return self._logins.get(provider_id, 0)

    def all_logins(self) -> dict[str, int]:
        """The same for all providers, as it is now."""
        return dict(self._logins)

    async def login_after(self, provider_id: str, count: int) -> str | None:
        """Wait until somebody has logged in more often than that; their key."""
        while self.logins(provider_id) <= count:
            await self._news.wait()
        return await self._of_login(provider_id)

    async def _look_up(
        self, provider: Provider, env: Mapping[str, str], refused: Collection[str] = (), last: str | None = None
    ) -> tuple[str | None, bool]:
        """The key, and whether a command printed it just now."""
        configured = (provider.config.api_key or "").strip()
        if configured and configured not in refused:
            return checked(configured, f"providers.{provider.id}.api_key"), False
        if (found := find_env_key(provider, env)) and found[1] not in refused:
            return checked(found[1], found[0]), False
        if (stored := await self._of_login(provider.id, refused)) and stored not in refused:
            return checked(stored, f"the stored key of {provider.id}"), False
        if command := (provider.config.api_key_command or "").strip():
            key, is_new = await self._commands.key(provider.id, command, env, last)
            return checked(key, f"what the api_key_command of {provider.id} prints"), is_new
        return None, False

    async def _of_login(self, provider_id: str, refused: Collection[str] = ()) -> str | None:
        entry = (await self.stored()).get(provider_id)
        if entry is None:
            return None
        if not entry.keyring:
            return entry.api_key.strip()
        known = self._remembered.get(provider_id)
        if known is None or known in refused:  # another process may have put another one there
            known = await self._keyring.get(provider_id)
            self._remembered.keep(provider_id, known)
        return known


class _Remembered:
    """Keys in memory, which show themselves to nobody."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}

    def get(self, provider_id: str) -> str | None:
        return self._keys.get(provider_id)

    def keep(self, provider_id: str, key: str | None) -> None:
        if key is not None:
            self._keys[provider_id] = key

    def forget(self, provider_id: str) -> None:
        self._keys.pop(provider_id, None)


def checked(key: str, source: str) -> str:
    """An HTTP header takes no more than this, and the client's own complaint would repeat the key."""
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError("bad_config", f"{source} holds characters that no key has; copy it again")
    return key


def last_four(key: str) -> str | None:
    """As much of a key as anybody is shown."""
    return key[-SHOWN_CHARS:] if len(key) >= MIN_SHOWN else None
