"""Waiting, within bounds, for others to leave the machine alone; a sample that was taken all the same says how many
CPUs they used."""

from __future__ import annotations

import time

from bench.measure import busy_cpu_s

_LIMIT_CPUS = 0.15
_WINDOW_S = 0.3  # shorter ones see the kernel's ticks rather than the machine
_EACH_S = 15.0  # for one sample; who is busy for longer will be so for the next, too


class Quiet:
    """All samples together wait for no longer than `patience_s`."""

    def __init__(self, patience_s: float) -> None:
        self._left_s = patience_s

    def wait(self) -> None:
        began = time.monotonic()
        until = began + min(self._left_s, _EACH_S)
        while (now := time.monotonic()) < until:
            busy_s = busy_cpu_s()
            time.sleep(_WINDOW_S)
            if (busy_cpu_s() - busy_s) / (time.monotonic() - now) < _LIMIT_CPUS:
                break
        self._left_s -= max(0.0, time.monotonic() - began - _WINDOW_S)
