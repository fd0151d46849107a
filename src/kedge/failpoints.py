"""Named places between two effects, where a test can crash, stall or fail a process. They cost nothing when off.

A test arms one by name, in process with `arm()`, or from outside with `KEDGE_FAILPOINT="accept.committed=kill"`
(`kill@3` kills at the third hit). Every transaction NAME of the store has four of them: `NAME.begin`, `NAME.done` (its
statements ran), `NAME.committed` and `NAME.published`; other places name themselves where they stand. `watch()` tells
which ones a process passes, so that none can be forgotten.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

armed: dict[str, Callable[[], None]] = {}
_watchers: list[Callable[[str], None]] = []


def hit(*words: str) -> None:
    """Pass the place named by these words, joined by dots; only if anybody cares is the name made at all."""
    if not armed and not _watchers:
        return
    name = ".".join(words)
    for watcher in _watchers:
        watcher(name)
    if action := armed.get(name):
        action()


def arm(name: str, action: Callable[[], None]) -> None:
    armed[name] = action


def watch(watcher: Callable[[str], None]) -> None:
    _watchers.append(watcher)


def disarm() -> None:
    armed.clear()
    _watchers.clear()


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _arm_from_environment(value: str) -> None:
    name, _, spec = value.partition("=")
    action, _, count = spec.partition("@")
    if not name or action != "kill" or (count and not (count.isascii() and count.isdigit() and int(count) > 0)):
        raise ValueError(f"KEDGE_FAILPOINT: {value!r} is not NAME=kill or NAME=kill@COUNT")
    left = int(count or 1)

    def countdown() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            kill_self()

    arm(name, countdown)


if _setting := os.environ.get("KEDGE_FAILPOINT"):
    _arm_from_environment(_setting)
