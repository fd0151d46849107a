"""The system's keyring: asked in a thread of its own and for a bounded time, because it may ask a person, or hang.

What a keyring says of its troubles is not passed on: others wrote it, and it might hold what it was given.
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
KEYRING_S = 60.0  # a person may have to unlock it
INSTALL = "pip install 'kedge[keyring]'"

T = TypeVar("T")


class KeyRing:
    def __init__(self, limit_s: float = KEYRING_S) -> None:
        self._limit_s = limit_s
        self._one_by_one = asyncio.Lock()
        self._answered = threading.Event()  # the one that was asked last
        self._answered.set()

    async def get(self, provider_id: str) -> str | None:
        return await self._ask(lambda ring: ring.get_password(SERVICE, provider_id))

    async def set(self, provider_id: str, key: str) -> None:
        def store(ring: ModuleType) -> bool:
            ring.set_password(SERVICE, provider_id, key)
            return ring.get_password(SERVICE, provider_id) == key  # some take everything and keep nothing

        if not await self._ask(store):
            raise ConfigError("bad_config", 'the keyring did not keep the key; set credentials.store = "file"')

    async def delete(self, provider_id: str) -> None:
        def remove(ring: ModuleType) -> None:
            if ring.get_password(SERVICE, provider_id) is not None:
                ring.delete_password(SERVICE, provider_id)

        await self._ask(remove)

    async def _ask(self, work: Callable[[ModuleType], T]) -> T:
        try:
            async with asyncio.timeout(self._limit_s), self._one_by_one:
                if not self._answered.is_set():
                    raise TimeoutError  # it did not even answer the one before
                return await self._in_a_thread(work)
        except TimeoutError:
            problem = f"the keyring did not answer within {self._limit_s:g} s; unlock it, then try again"
            raise ConfigError("bad_config", problem) from None

    async def _in_a_thread(self, work: Callable[[ModuleType], T]) -> T:
        """Not one of the pool: a thread that never ends would be waited for when the server leaves."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: ConfigError | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # pyright: ignore[reportArgumentType] - of `work`, where it did not fail

        answered = self._answered = threading.Event()

        def run() -> None:
            result, error = _answered(work)
            answered.set()  # before anybody who waits can ask again
            with contextlib.suppress(RuntimeError):  # nobody waits any more: the loop is closed
                loop.call_soon_threadsafe(settle, result, error)

        threading.Thread(target=run, name="kedge-keyring", daemon=True).start()
        return await answer


def _answered(work: Callable[[ModuleType], T]) -> tuple[T | None, ConfigError | None]:
    """The boundary: behind it are programs of others."""
    try:
        import keyring
        import keyring.errors
    except ImportError:
        problem = f"the keys are in the keyring, which needs an extra; install it: {INSTALL}"
        return None, ConfigError("bad_config", problem)
    try:
        return work(keyring), None
    except keyring.errors.NoKeyringError:
        why = "this machine has none that can be used"
    except keyring.errors.KeyringLocked:
        why = "it is locked"
    except Exception as error:  # noqa: BLE001 - whatever a backend raises, a run or a login has to say so
        why = type(error).__name__
    return None, ConfigError(
        "bad_config", f'the keyring cannot be used ({why}); mend that, or set credentials.store = "file"'
    )
