"""Secrets of MCP servers, stored where API keys are: in the file, or in the keyring if that is configured."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from pathlib import Path

from kedge.models.errors import ConfigError
from kedge.models.keys.credentials import Storage
from kedge.models.keys.stores import KeyFile, KeyRing
from kedge.protocol.errors import StoreUnavailable


class McpSecrets:
    """All methods raise `StoreUnavailable` if the file or the keyring cannot be used."""

    def __init__(self, path: Path) -> None:
        self.storage: Storage = "file"  # where new secrets go
        self._file = KeyFile(path, "mcp")
        self._keyring = KeyRing()

    async def list_names(self) -> list[str]:
        with _translate_errors():
            entries = await asyncio.to_thread(self._file.read)
        return [name for name, entry in entries.items() if entry.has_key]

    async def read(self, name: str) -> str | None:
        with _translate_errors():
            entry = (await asyncio.to_thread(self._file.read)).get(name)
            if entry is None:
                return None
            return await self._keyring.get(_ring_name(name)) if entry.keyring else entry.api_key

    async def write(self, name: str, secret: str | None) -> None:
        """Store a secret, or remove it (None)."""
        with _translate_errors():
            in_keyring = secret is not None and self.storage == "keyring"
            if secret is not None and in_keyring:
                await self._keyring.set(_ring_name(name), secret)
            entry = None if secret is None else {"keyring": True} if in_keyring else {"api_key": secret}
            before = await asyncio.to_thread(self._file.put, name, entry)
            if before is not None and before.keyring and not in_keyring:
                with contextlib.suppress(ConfigError):  # what is there is not used any more
                    await self._keyring.delete(_ring_name(name))


@contextlib.contextmanager
def _translate_errors() -> Generator[None]:
    try:
        yield
    except ConfigError as error:
        raise StoreUnavailable(error.text) from error


def _ring_name(name: str) -> str:
    return f"mcp {name}"
