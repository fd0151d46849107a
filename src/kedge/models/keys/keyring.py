"""The system's keyring, called in its own thread and with a timeout: it may ask for a password, or hang.

Error messages of the keyring are not shown: they might contain the key.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

from kedge.models.errors import ConfigError

SERVICE = "kedge"
KEYRING_S = 60.0  # the user may have to unlock it
INSTALL = "pip install 'kedge[keyring]'"

T = TypeVar("T")


class KeyRing:
    def __init__(self, limit_s: float = KEYRING_S) -> None:
        self._limit_s = limit_s
        self._lock = asyncio.Lock()
        self._is_idle = threading.Event()  # the last call has returned
        self._is_idle.set()

    async def get(self, provider_id: str) -> str | None:
        return await self._call(lambda ring: ring.get_password(SERVICE, provider_id))

    async def set(self, provider_id: str, key: str) -> None:
        def store(ring: ModuleType) -> bool:
            ring.set_password(SERVICE, provider_id, key)
            return ring.get_password(SERVICE, provider_id) == key  # some backends drop the value silently

        if not await self._call(store):
            raise ConfigError("bad_config", 'The keyring did not store the API key; set credentials.store = "file"')

    async def delete(self, provider_id: str) -> None:
        def remove(ring: ModuleType) -> None:
            if ring.get_password(SERVICE, provider_id) is not None:
                ring.delete_password(SERVICE, provider_id)

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
