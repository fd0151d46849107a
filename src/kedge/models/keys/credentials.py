"""API keys of providers: from the configuration, the environment, a login or a command, in this order.

A key is given only to the code that sends it; no message, log or `repr` contains it (P16). Rejected keys are skipped,
so that a login helps even if an old variable comes before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

from kedge.models.errors import ConfigError
from kedge.models.keys.stores import Entry, KeyFile, KeyRing
from kedge.models.providers import Provider, find_env_key

COMMAND_S = 60.0  # a password manager may ask for a password
KILL_S = 2.0  # for a killed command to end
MAX_KEY_BYTES = 64 * 1024  # longer output is no key
MAX_CACHED = 64  # keys, one for each command and environment

# Variables that differ between the windows of one user, where the command prints the same key.
_WINDOW_VARIABLES = frozenset(
    {"_", "COLUMNS", "LINES", "OLDPWD", "PWD", "SHLVL", "TERM_SESSION_ID", "TMUX_PANE", "WINDOWID"}
)

CREDENTIALS_FILE = "credentials.json"  # in the data directory, 0600
SHOWN_CHARS = 4
MIN_CHARS = 12  # of a shorter key four characters would reveal too much

Storage = Literal["file", "keyring"]


class Credentials:
    def __init__(self, path: Path | None = None, *, command_s: float = COMMAND_S) -> None:
        self._file = None if path is None else KeyFile(path)
        self._keyring = KeyRing()
        self._commands = KeyCommands(command_s)
        self._keyring_cache = _KeyCache()  # the keyring is slow and may ask for a password
        self._logins: dict[str, int] = {}  # logins since the server started
        self._login_event = asyncio.Event()

    async def find_key(self, provider: Provider, env: Mapping[str, str], refused: Collection[str] = ()) -> str | None:
        """Return the API key, or None if there is none besides the `refused` ones; `env` is the run's."""
        key, _ = await self._find(provider, env, refused)
        return key

    async def find_other_key(
        self, provider: Provider, env: Mapping[str, str], refused: str | None, before: Collection[str] = ()
    ) -> str | None:
        """Return the key to try after `refused` and those refused `before`; None if there is no other.

        A command that was run again counts even if it prints the same key: it may have renewed what the key refers to.
        """
        key, is_new = await self._find(provider, env, {*before, *([refused] if refused else [])}, refused)
        return key if is_new or key != refused else None

    async def load_stored(self) -> dict[str, Entry]:
        """Return the stored keys by provider."""
        entries = {} if self._file is None else await asyncio.to_thread(self._file.read)
        return {name: entry for name, entry in entries.items() if entry.has_key}

    async def store(self, provider_id: str, key: str, storage: Storage) -> None:
        """Store a key, replacing an older one, and wake the runs that wait for a login."""
        key = check_characters(key, "the key")
        assert self._file is not None
        entry: dict[str, object] = {"api_key": key}
        if storage == "keyring":
            await self._keyring.set(provider_id, key)
            entry = {"keyring": True, "last_four": last_four(key)}
        before = await asyncio.to_thread(self._file.put, provider_id, entry)
        self._keyring_cache.remove(provider_id)
        if before is not None and before.keyring and storage != "keyring":
            with contextlib.suppress(ConfigError):  # the old key there is not used any more
                await self._keyring.delete(provider_id)
        self._logins[provider_id] = self.count_logins(provider_id) + 1
        self._login_event.set()
        self._login_event = asyncio.Event()

    async def remove(self, provider_id: str) -> bool:
        """Remove a stored key. Returns False if there is none."""
        entry = (await self.load_stored()).get(provider_id)
        if entry is None or self._file is None:
            return False
        if entry.keyring:
            await self._keyring.delete(provider_id)
        await asyncio.to_thread(self._file.put, provider_id, None)
        self._keyring_cache.remove(provider_id)
        return True

    def count_logins(self, provider_id: str) -> int:
        """Return the number of logins since the server started."""
        return self._logins.get(provider_id, 0)

    def count_all_logins(self) -> dict[str, int]:
        """Return a copy of the counts of all providers."""
        return dict(self._logins)

    async def wait_for_login(self, provider_id: str, count: int) -> str | None:
        """Wait until there were more than `count` logins, and return the stored key."""
        while self.count_logins(provider_id) <= count:
            await self._login_event.wait()
        return await self._read_stored(provider_id)

    async def _find(
        self, provider: Provider, env: Mapping[str, str], refused: Collection[str], last: str | None = None
    ) -> tuple[str | None, bool]:
        """Return the key, and whether a command printed it just now."""
        configured = (provider.config.api_key or "").strip()
        if configured and configured not in refused:
            return check_characters(configured, f"providers.{provider.id}.api_key"), False
        if (found := find_env_key(provider, env)) and found[1] not in refused:
            return check_characters(found[1], found[0]), False
        if (stored := await self._read_stored(provider.id, refused)) and stored not in refused:
            return check_characters(stored, f"the stored key of {provider.id}"), False
        if command := (provider.config.api_key_command or "").strip():
            key, is_new = await self._commands.find_key(provider.id, command, env, last)
            return check_characters(key, f"what the api_key_command of {provider.id} prints"), is_new
        return None, False

    async def _read_stored(self, provider_id: str, refused: Collection[str] = ()) -> str | None:
        entry = (await self.load_stored()).get(provider_id)
        if entry is None:
            return None
        if not entry.keyring:
            return entry.api_key.strip()
        known = self._keyring_cache.get(provider_id)
        if known is None or known in refused:  # another process may have stored another one
            known = await self._keyring.get(provider_id)
            self._keyring_cache.put(provider_id, known)
        return known


class _KeyCache:
    """Keys in memory; the `repr` does not show them."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}

    def get(self, provider_id: str) -> str | None:
        return self._keys.get(provider_id)

    def put(self, provider_id: str, key: str | None) -> None:
        if key is not None:
            self._keys[provider_id] = key

    def remove(self, provider_id: str) -> None:
        self._keys.pop(provider_id, None)


def check_characters(key: str, source: str) -> str:
    """Return a key that fits in an HTTP header, or raise `ConfigError`: the HTTP client's error would show the key."""
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError("bad_config", f"{source} contains characters that are not valid in an API key; copy it again")
    return key


def last_four(key: str) -> str | None:
    """Return the part of a key that may be shown, or None if the key is too short."""
    return key[-SHOWN_CHARS:] if len(key) >= MIN_CHARS else None


class _CachedKey:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()  # concurrent callers share one run of the command
        self.key: str | None = None


class KeyCommands:
    """Keys that a command prints (`api_key_command`). It runs once, and again when its key is rejected; its output is
    never shown."""

    def __init__(self, limit_s: float = COMMAND_S) -> None:
        self._limit_s = limit_s
        self._cached: dict[bytes, _CachedKey] = {}

    async def find_key(
        self, provider_id: str, command: str, env: Mapping[str, str], refused: str | None = None
    ) -> tuple[str, bool]:
        """Return the key, and whether it was printed just now. The command runs again if its key was `refused`."""
        cached = self._get_cached(command, env)
        async with cached.lock:
            is_new = cached.key is None or cached.key == refused
            if is_new:
                cached.key = None
                cached.key = await self._run_command(provider_id, command, env)
            assert cached.key is not None
            return cached.key, is_new

    def _get_cached(self, command: str, env: Mapping[str, str]) -> _CachedKey:
        """Key the cache by a digest of command and environment: another caller may have another key."""
        variables = sorted((name, value) for name, value in env.items() if name not in _WINDOW_VARIABLES)
        digest = hashlib.sha256(repr((command, variables)).encode("utf-8", "surrogateescape")).digest()
        cached = self._cached.pop(digest, None) or _CachedKey()
        self._cached[digest] = cached  # least recently used first
        while len(self._cached) > MAX_CACHED:
            del self._cached[next(iter(self._cached))]
        return cached

    async def _run_command(self, provider_id: str, command: str, env: Mapping[str, str]) -> str:
        source = f"The api_key_command of provider {provider_id!r}"
        try:
            status, output = await _run(command, env, self._limit_s)
        except TimeoutError as error:
            problem = f"{source} did not end within {self._limit_s:g} s; run it yourself to see why"
            raise ConfigError("bad_config", problem) from error
        except OSError as error:
            raise ConfigError("bad_config", f"{source} cannot be started: {error.strerror}") from error
        if status != 0:
            outcome = f"was ended by signal {-status}" if status < 0 else f"failed with exit code {status}"
            raise ConfigError("bad_config", f"{source} {outcome}; run it yourself to see why")
        key = output.decode("ascii", "replace").strip()
        if not key or len(output) > MAX_KEY_BYTES:
            raise ConfigError("bad_config", f"{source} printed no API key; it must print the key and nothing else")
        return key


async def _run(command: str, env: Mapping[str, str], limit_s: float) -> tuple[int, bytes]:
    """Return exit status and output. The command gets no terminal, its own process group, and the home directory."""
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_shell(
            command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=dict(env),
            cwd=_find_home(env),
            start_new_session=True,
        )
    )
    try:
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:
        # If asyncio were canceled during the start, it would kill the shell but not its children.
        with contextlib.suppress(OSError):
            await _kill(await starting)
        raise
    try:
        async with asyncio.timeout(limit_s):
            output = await _read_output(process)
            return (await process.wait() if len(output) <= MAX_KEY_BYTES else 0), output
    finally:
        await _kill(process)


async def _read_output(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    output = bytearray()
    while len(output) <= MAX_KEY_BYTES and (chunk := await process.stdout.read(4096)):
        output += chunk
    return bytes(output)


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the whole process group, and read the pipe to its end, which closes it."""
    assert process.stdout is not None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(KILL_S):
            while await process.stdout.read(MAX_KEY_BYTES):
                pass
            await process.wait()


def _find_home(env: Mapping[str, str]) -> str:
    """Return the working directory of the command: not the workspace, whose files are not trusted."""
    home = env.get("HOME", "")
    return home if os.path.isdir(home) else "/"  # noqa: PTH112 - HOME is any string
