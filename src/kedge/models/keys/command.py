"""API keys that a command prints (`api_key_command`). The command runs once, and again when its key is rejected.

Its output is never shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
from collections.abc import Mapping

from kedge.models.errors import ConfigError

COMMAND_S = 60.0  # a password manager may ask for a password
KILL_S = 2.0  # for a killed command to end
MAX_KEY_BYTES = 64 * 1024  # longer output is no key
MAX_CACHED = 64  # keys, one for each command and environment

# Variables that differ between the windows of one user, where the command prints the same key.
_WINDOW_VARIABLES = frozenset(
    {"_", "COLUMNS", "LINES", "OLDPWD", "PWD", "SHLVL", "TERM_SESSION_ID", "TMUX_PANE", "WINDOWID"}
)


class _CachedKey:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()  # concurrent callers share one run of the command
        self.key: str | None = None


class KeyCommands:
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
