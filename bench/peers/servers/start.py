"""How soon does a server answer after its start, and how large is it when nothing happens?"""

from __future__ import annotations

import time

from bench.peers.servers.counts import Counts
from bench.peers.servers.running import running
from bench.peers.setting import Contender
from bench.peers.table import Row

READY = Row("Server: ready after its start", "ms", "From spawn to the first answered request")
IDLE = Row("Server: idle memory", "MiB", "Of all its processes, what they share once; a few seconds after the start")


def measure(contender: Contender, counts: Counts) -> tuple[float, float]:
    """One start: milliseconds, and MiB."""
    with running(contender) as server:
        time.sleep(counts.settle_s)
        return server.ready_s * 1e3, server.process.held_mib()
