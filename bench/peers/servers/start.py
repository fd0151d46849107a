"""How soon does a server answer after its start, and how large is it when nothing happens?"""

from __future__ import annotations

import time

from bench.peers.servers.counts import Counts
from bench.peers.servers.running import running
from bench.peers.setting import Contender
from bench.peers.table import Cell, Row

READY = Row("Server: ready after its start", "ms", "From spawn to the first answered request")
IDLE = Row("Server: idle memory", "MiB", "PSS of all its processes, a few seconds after the start")


def measure(contender: Contender, ready: Cell, idle: Cell, counts: Counts) -> None:
    """One round."""
    with running(contender) as server:
        ready.values.append(server.ready_s * 1e3)
        time.sleep(counts.settle_s)
        idle.values.append(server.process.pss_mib())
