"""Keyrings for tests, chosen by PYTHON_KEYRING_BACKEND: one that keeps keys in a file, and ones that fail."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from keyring.backend import KeyringBackend

PLACE = "KEDGE_TEST_KEYRING"  # names the file


class FileKeyring(KeyringBackend):
    priority = 1.0  # pyright: ignore[reportAssignmentType] - a property, there

    def get_password(self, service: str, username: str) -> str | None:
        return self._read().get(f"{service}/{username}")

    def set_password(self, service: str, username: str, password: str) -> None:
        self._write({**self._read(), f"{service}/{username}": password})

    def delete_password(self, service: str, username: str) -> None:
        self._write({name: key for name, key in self._read().items() if name != f"{service}/{username}"})

    def _read(self) -> dict[str, str]:
        path = Path(os.environ[PLACE])
        return json.loads(path.read_text()) if path.exists() else {}

    def _write(self, keys: dict[str, str]) -> None:
        Path(os.environ[PLACE]).write_text(json.dumps(keys))


class ForgetfulKeyring(FileKeyring):
    """Takes everything, and keeps nothing."""

    def set_password(self, service: str, username: str, password: str) -> None:
        pass


class TalkativeKeyring(FileKeyring):
    """Says in its error what it was given."""

    def set_password(self, service: str, username: str, password: str) -> None:
        raise RuntimeError(f"cannot keep {password}")


class SilentKeyring(FileKeyring):
    """Waits for a person who does not come."""

    def get_password(self, service: str, username: str) -> str | None:
        threading.Event().wait()
