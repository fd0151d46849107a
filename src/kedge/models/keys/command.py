"""Keys that a command prints (`api_key_command`): it is run once, and again when its key was refused. Nothing that it
prints is ever told."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
from collections.abc import Mapping

from kedge.models.errors import ConfigError

COMMAND_S = 60.0  # a password manager may ask a person first
GONE_S = 2.0  # for a killed command to be gone
MAX_KEY_BYTES = 64 * 1024  # a key is shorter; what is longer is not one
MAX_KNOWN = 64  # callers with environments of their own

# Where a shell is, not whose it is: the same command gives the same key in each window of a person.
_PLACE_VARIABLES = frozenset(
    {"_", "COLUMNS", "LINES", "OLDPWD", "PWD", "SHLVL", "TERM_SESSION_ID", "TMUX_PANE", "WINDOWID"}
)


class _Known:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()  # whoever comes second waits for the first one's key
        self.key: str | None = None


class KeyCommands:
    def __init__(self, limit_s: float = COMMAND_S) -> None:
        self._limit_s = limit_s
        self._known: dict[bytes, _Known] = {}

    async def key(
        self, provider_id: str, command: str, env: Mapping[str, str], refused: str | None = None
    ) -> tuple[str, bool]:
        """The key, and whether it was printed just now. A key that was `refused` is not given again unasked."""
        known = self._known_of(command, env)
        async with known.lock:
            is_new = known.key is None or known.key == refused
            if is_new:
                known.key = None
                known.key = await self._printed(provider_id, command, env)
            assert known.key is not None
            return known.key, is_new

    def _known_of(self, command: str, env: Mapping[str, str]) -> _Known:
        """Another caller may have another key; its environment is compared, and not kept."""
        ours = sorted((name, value) for name, value in env.items() if name not in _PLACE_VARIABLES)
        place = hashlib.sha256(repr((command, ours)).encode("utf-8", "surrogateescape")).digest()
        known = self._known.pop(place, None) or _Known()
        self._known[place] = known  # the one that was asked for last is forgotten last
        while len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        return known

    async def _printed(self, provider_id: str, command: str, env: Mapping[str, str]) -> str:
        whose = f"the api_key_command of provider {provider_id!r}"
        try:
            status, output = await _run(command, env, self._limit_s)
        except TimeoutError as error:
            problem = f"{whose} did not end within {self._limit_s:g} s; run it yourself to see why"
            raise ConfigError("bad_config", problem) from error
        except OSError as error:
            raise ConfigError("bad_config", f"{whose} cannot be started: {error.strerror}") from error
        if status != 0:
            ended = f"was ended by signal {-status}" if status < 0 else f"failed with exit code {status}"
            raise ConfigError("bad_config", f"{whose} {ended}; run it yourself to see why")
        key = output.decode("ascii", "replace").strip()
        if not key or len(output) > MAX_KEY_BYTES:
            raise ConfigError("bad_config", f"{whose} printed no key; it must print the key and nothing else")
        return key


async def _run(command: str, env: Mapping[str, str], limit_s: float) -> tuple[int, bytes]:
    """The exit status and what was printed. The command stands alone: no terminal, no workspace, a group of its own."""
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_shell(
            command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=dict(env),
            cwd=_home(env),
            start_new_session=True,
        )
    )
    try:
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:
        # Cancelled in the middle of its start, asyncio would end the shell and leave what the shell started.
        with contextlib.suppress(OSError):
            await _end(await starting)
        raise
    try:
        async with asyncio.timeout(limit_s):
            output = await _short_output(process)
            return (await process.wait() if len(output) <= MAX_KEY_BYTES else 0), output
    finally:
        await _end(process)


async def _short_output(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    output = bytearray()
    while len(output) <= MAX_KEY_BYTES and (chunk := await process.stdout.read(4096)):
        output += chunk
    return bytes(output)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Also what the shell left behind in its group; and its pipe is read to the end, which closes it."""
    assert process.stdout is not None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GONE_S):
            while await process.stdout.read(MAX_KEY_BYTES):
                pass
            await process.wait()


def _home(env: Mapping[str, str]) -> str:
    """Not the workspace, whose files must not be taken for the user's."""
    home = env.get("HOME", "")
    return home if os.path.isdir(home) else "/"  # noqa: PTH112 - a name from an environment, not a path of ours
