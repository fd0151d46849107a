"""A process that ends the group it is in itself: it is told which, and says who is left of it."""

from __future__ import annotations

import asyncio
import sys

from kedge.engine.processes.process_groups import end_left
from kedge.store.port import ProcessRecord

if __name__ == "__main__":
    pgid, _, started = sys.stdin.readline().strip().partition(" ")
    print(asyncio.run(end_left([ProcessRecord(int(pgid), started)], 0.5, 0.5)), flush=True)
