"""Keys in the system's keyring: kept there and nowhere else, asked for in time, and its troubles are one line."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import keyring
import keyring.core
import pytest

from kedge.config.schema import Config
from kedge.models.errors import ConfigError
from kedge.models.keys.credentials import Credentials
from kedge.models.keys.stores import INSTALL, KeyFile, KeyRing
from kedge.models.provider_registry import configured_providers
from kedge.models.providers import Provider
from tests.support.keyrings import PLACE, FileKeyring, ForgetfulKeyring, SilentKeyring, TalkativeKeyring

KEY, NEXT = "planted.key.0123456789", "next.planted.key.abcdef"
ENV = {"PATH": os.environ["PATH"]}


@pytest.fixture
def ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A keyring of this test's own; the file that it keeps keys in."""
    monkeypatch.setenv(PLACE, str(tmp_path / "ring.json"))
    choose(monkeypatch, FileKeyring)
    return tmp_path / "ring.json"


def choose(monkeypatch: pytest.MonkeyPatch, backend: type[FileKeyring]) -> None:
    assert backend.priority, "or nobody would take it"
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", f"{backend.__module__}.{backend.__name__}")
    monkeypatch.setattr(keyring.core, "_keyring_backend", None)  # it is chosen anew


def openai() -> Provider:
    return configured_providers(Config())["openai"]


def kept(ring: Path) -> Any:
    return json.loads(ring.read_text())


async def test_a_key_is_in_the_keyring_and_not_in_the_file(ring: Path, tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    credentials = Credentials(path)
    await credentials.store("openai", KEY, "keyring")
    assert kept(ring) == {"kedge/openai": KEY}
    assert KEY not in path.read_text()
    assert KeyFile(path).read()["openai"].last_four == "6789"
    assert await credentials.find_key(openai(), ENV) == KEY
    assert await Credentials(path).find_key(openai(), ENV) == KEY, "also for the next server"
    assert KEY not in repr(vars(credentials))
    assert await credentials.remove("openai")
    assert kept(ring) == {}
    assert await credentials.find_key(openai(), ENV) is None


async def test_a_key_moves_when_the_place_does(ring: Path, tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    credentials = Credentials(path)
    await credentials.store("openai", KEY, "keyring")
    await credentials.store("openai", NEXT, "file")
    assert kept(ring) == {}
    assert await credentials.find_key(openai(), ENV) == NEXT
    await credentials.store("openai", KEY, "keyring")
    assert NEXT not in path.read_text()
    assert await credentials.find_key(openai(), ENV) == KEY


async def test_a_keyring_is_asked_once_and_again_when_its_key_was_refused(ring: Path, tmp_path: Path) -> None:
    credentials = Credentials(tmp_path / "credentials.json")
    await credentials.store("openai", KEY, "keyring")
    assert await credentials.find_key(openai(), ENV) == KEY
    ring.write_text(json.dumps({"kedge/openai": NEXT}))
    assert await credentials.find_key(openai(), ENV) == KEY, "as it is remembered"
    assert await credentials.find_other_key(openai(), ENV, KEY) == NEXT
    assert await credentials.find_key(openai(), ENV) == NEXT


async def test_a_key_that_is_gone_from_the_keyring_is_none(ring: Path, tmp_path: Path) -> None:
    await Credentials(tmp_path / "credentials.json").store("openai", KEY, "keyring")
    ring.unlink()
    assert await Credentials(tmp_path / "credentials.json").find_key(openai(), ENV) is None


@pytest.mark.parametrize(
    ("backend", "hint"),
    [(ForgetfulKeyring, "did not store"), (TalkativeKeyring, r"cannot be used \(RuntimeError\)")],
)
async def test_a_keyring_that_fails_stores_nothing_and_repeats_nothing(
    ring: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: type[FileKeyring], hint: str
) -> None:
    choose(monkeypatch, backend)
    path = tmp_path / "credentials.json"
    await Credentials(path).store("openai", NEXT, "file")
    with pytest.raises(ConfigError, match=hint) as caught:
        await Credentials(path).store("openai", KEY, "keyring")
    assert KEY not in caught.value.text
    assert caught.value.__cause__ is None
    assert not ring.exists()
    assert await Credentials(path).find_key(openai(), ENV) == NEXT


async def test_a_machine_without_a_keyring_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    monkeypatch.setattr(keyring.core, "_keyring_backend", None)
    with pytest.raises(ConfigError, match=r'credentials.store = "file"'):
        await KeyRing().get("openai")


async def test_without_the_extra_the_line_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)  # as if it were not there
    with pytest.raises(ConfigError) as caught:
        await KeyRing().get("openai")
    assert caught.value.text.endswith(INSTALL)


async def test_a_keyring_that_hangs_holds_up_nobody(ring: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, SilentKeyring)
    asked = KeyRing(limit_s=0.5)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"did not answer within 0\.5 s"):
            await asked.get("openai")
    assert not ring.exists()


async def test_who_stops_waiting_for_a_keyring_is_cancelled(ring: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, SilentKeyring)
    waiting = asyncio.create_task(KeyRing().get("openai"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not ring.exists()
