"""The server of a soak over all its lives: started, killed, told to leave, and looked at while it works."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import time
from pathlib import Path

from tests.e2e.home import Home
from tests.server.process import Server
from tests.soak.plans import LONG_S
from tests.soak.record import Life, Machine, Sample
from tests.soak.wire import Wire

LEAVES_S = 120.0  # until a server that was told to leave is gone: 5 s for its runs (P15), the rest is a busy machine
GONE_S = 20.0  # until a process that was killed is gone
SAMPLE_S = 0.5


class House:
    """`up` is set while a server is there; `life` counts them."""

    def __init__(self, home: Home, machine: Machine) -> None:
        self.home = home
        self.machine = machine
        self.up = asyncio.Event()
        self.wire = Wire("")
        self.life = -1
        self.mark = f"{LONG_S}.{secrets.randbelow(10**6):06}"
        self._server: Server | None = None
        self._began = 0.0
        self._survivors: tuple[str, ...] = ()

    @property
    def host(self) -> str:
        return f"unix://{self.wire.path}"

    async def start(self) -> None:
        """The next server. What an earlier one left running must be gone when this one is ready (P13)."""
        assert self._server is None
        before = long_processes(self.mark)
        self._began = time.monotonic()
        self._server = await asyncio.to_thread(self.home.serve)
        self.wire = Wire(self._server.unix.path)  # the same in each life
        self._survivors = tuple(await self.gone(before))
        self.life += 1
        self.up.set()

    async def kill(self) -> None:
        server = self._taken()
        server.signal(signal.SIGKILL)
        await asyncio.to_thread(server.kill)
        self._over(server, "killed")

    async def leave(self) -> None:
        """Told to leave, it goes by itself; one that does not is ended, and its exit code tells."""
        assert self._server is not None
        server, told_at = self._server, time.monotonic()
        server.signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(server.process.wait, LEAVES_S)
        self._taken()
        await asyncio.to_thread(server.kill)
        self._over(server, "told to leave", told_at)

    async def gone(self, numbers: set[str]) -> list[str]:
        """The processes that are still there after a while: one that was killed takes a moment to go."""
        until = time.monotonic() + GONE_S
        while True:
            left = numbers & long_processes(self.mark)
            if not left or time.monotonic() > until:
                return sorted(left)
            await asyncio.sleep(0.05)

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            if (server := self._server) is not None and self.up.is_set():
                with contextlib.suppress(OSError, LookupError):  # it was killed this very moment
                    self.machine.samples.append(self._sample(server.process.pid))

    def _taken(self) -> Server:
        assert self._server is not None
        self.up.clear()
        server, self._server = self._server, None
        return server

    def _over(self, server: Server, how: str, told_at: float = 0.0) -> None:
        self.machine.lives.append(
            Life(
                began=self._began,
                ended=time.monotonic(),
                how="killed" if how == "killed" else "told to leave",
                exit_code=server.process.returncode,
                survivors=self._survivors,
                told_at=told_at,
            )
        )

    def _sample(self, pid: int) -> Sample:
        process = Path(f"/proc/{pid}")
        fields = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        wal = self.home.data_dir / "kedge.db-wal"
        return Sample(
            at=time.monotonic(),
            life=self.life,
            rss_bytes=int(fields["VmRSS"].split()[0]) * 1024,
            descriptors=sum(1 for _ in (process / "fd").iterdir()),
            threads=int(fields["Threads"]),
            wal_bytes=wal.stat().st_size if wal.exists() else 0,
        )


def long_processes(mark: str) -> set[str]:
    """The numbers that living processes sleep for, of those that begin like this."""
    found: set[str] = set()
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        try:
            words = Path(entry.path, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == b"sleep" and len(words) > 1 and words[1].startswith(mark.encode()):
            found.add(words[1].decode())
    return found
