"""Signals that whoever started the tests ignores: what the tests start must not inherit that."""

from __future__ import annotations

import signal
from types import FrameType

_PYTHONS_OWN = {signal.SIGPIPE, signal.SIGXFSZ}  # Python ignores these itself, and `subprocess` restores them


def stop_children_inheriting_ignored_signals() -> None:
    """Ignore with a handler what is ignored now: SIGHUP under `nohup`, SIGINT in the background of a script. The tests
    go on ignoring it, and the programs that they start have the default, because handlers end with `exec`."""
    for number in signal.valid_signals() - _PYTHONS_OWN:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _ignore)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    pass
