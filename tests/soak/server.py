"""The server of a soak over all its lives: started, killed, told to leave, and looked at while it works."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

from tests.e2e.home import Home
from tests.server.process import ROOT, Server
from tests.soak.http import Wire
from tests.soak.plans import LONG_S
from tests.soak.record import Life, Machine, Sample
from tests.support.processes import is_alive

LEAVES_S = 120.0  # until a server that was told to leave is gone: 5 s for its runs (P15), the rest is a busy machine
STARTS_S = 120.0  # until a server is there that a command starts
GONE_S = 60.0  # until a process that was killed is gone
SAMPLE_S = 0.5
STDERR = "stderr"
LAST_WORDS_CHARS = 10_000  # the stacks of its threads, if the interpreter crashed


class ServerDied(AssertionError):
    """Nobody killed it: there is no story to go on with."""


class SoakServer:
    """`up` is set while a server is there; `life` counts them."""

    def __init__(self, home: Home, machine: Machine) -> None:
        self.home = home
        self.machine = machine
        self.up = asyncio.Event()
        self.wire = Wire("")
        self.life = -1
        self.mark = f"{LONG_S}.{secrets.randbelow(10**6):06}"
        self._server: Server | None = None  # unless a command started it
        self._pid: int | None = None
        self._is_leaving = False
        self._began = 0.0
        self._survivors: tuple[str, ...] = ()

    @property
    def host(self) -> str:
        return f"unix://{self.wire.path}"

    async def start(self) -> None:
        """The next server; unless a command, whose server went away, was faster."""
        before = self._nobody_is_here()
        server = await asyncio.to_thread(self._serve)
        if server is None:
            await self._adopt(before)
            return
        self.wire = Wire(server.unix.path)  # the same in each life
        await self._is_up(server, server.process.pid, before)

    async def started_by_command(self) -> None:
        """Once the next server is there, which somebody's `kedge run` starts."""
        await self._adopt(self._nobody_is_here())

    def _serve(self) -> Server | None:
        """What it says goes into a file: a pipe that nobody reads would hold it up once it is full."""
        path = self.home.directory / STDERR
        with path.open("ab") as said:
            where = said.tell()
            process = subprocess.Popen(
                [sys.executable, "-m", "kedge", "serve"],
                cwd=ROOT,
                env={**self.home.env, "PYTHONFAULTHANDLER": "1"},  # a crash of the interpreter leaves its stacks
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        try:
            return Server(self.home, process)
        except AssertionError as error:
            words = path.read_bytes()[where:].decode()
            if "is in use by" in words:
                return None
            raise AssertionError(words) from error

    async def _adopt(self, before: set[str]) -> None:
        async with asyncio.timeout(STARTS_S):
            while True:
                if (await self.wire.ask("GET", "/v1/health")).status == 200:
                    break
                await asyncio.sleep(0.05)
        owner = (self.home.data_dir / "kedge.lock").read_text()
        await self._is_up(None, int(owner.split()[-1]), before)

    def _nobody_is_here(self) -> set[str]:
        assert self._pid is None
        self._began = time.monotonic()
        return set(long_processes(self.mark))

    async def _is_up(self, server: Server | None, pid: int, before: set[str]) -> None:
        """What an earlier server left running must be gone when this one is ready (P13)."""
        self._server, self._pid = server, pid
        self._survivors = tuple(await self.gone(before))
        self.life += 1
        self.up.set()

    async def kill(self) -> None:
        assert self._pid is not None
        self.up.clear()
        os.kill(self._pid, signal.SIGKILL)
        await self._is_gone()
        self._over("killed")

    async def leave(self) -> None:
        """Told to leave, it goes by itself; one that does not is ended, and its exit code tells."""
        assert self._pid is not None
        told_at = time.monotonic()
        self._is_leaving = True
        os.kill(self._pid, signal.SIGTERM)
        await self._is_gone()
        self.up.clear()
        self._is_leaving = False
        self._over("told to leave", told_at)

    async def _is_gone(self) -> None:
        assert self._pid is not None
        until = time.monotonic() + LEAVES_S
        while is_alive(self._pid):
            if time.monotonic() > until:
                os.kill(self._pid, signal.SIGKILL)
            await asyncio.sleep(0.01)

    async def gone(self, numbers: set[str]) -> list[str]:
        """The processes that are still there after a while: one that was killed takes a moment to go."""
        until = time.monotonic() + GONE_S
        while True:
            left = numbers & long_processes(self.mark).keys()
            if not left or time.monotonic() > until:
                return sorted(left)
            await asyncio.sleep(0.05)

    def look(self) -> Sample:
        assert self._pid is not None
        return self._sample(self._pid)

    def clean_up(self) -> None:
        """After a failure: nothing of ours goes on."""
        for pid in (*([self._pid] if self._pid is not None else []), *long_processes(self.mark).values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            if not self.up.is_set() or self._pid is None:
                continue
            if not self._is_leaving and not is_alive(self._pid):
                raise ServerDied(f"server {self.life} died by itself: {self._last_words()}")
            with contextlib.suppress(OSError, LookupError):  # it was killed this very moment
                self.machine.samples.append(self.look())

    def _last_words(self) -> str:
        said = self.home.directory / STDERR
        return said.read_text(errors="replace")[-LAST_WORDS_CHARS:] if said.exists() else ""

    def _over(self, how: Literal["killed", "told to leave"], told_at: float = 0.0) -> None:
        """Of one that a command started nobody knows the exit code but init."""
        ended = time.monotonic()
        code = 0
        if self._server is not None:
            self._server.kill()  # it has ended; this reads its last words
            code = self._server.process.returncode
        self.machine.lives.append(
            Life(
                began=self._began,
                ended=ended,
                how=how,
                exit_code=code,
                survivors=self._survivors,
                told_at=told_at,
            )
        )
        self._server = self._pid = None

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


def long_processes(mark: str) -> dict[str, int]:
    """The numbers that living processes sleep for, of those that begin like this, and who they are."""
    found: dict[str, int] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        try:
            words = Path(entry.path, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == b"sleep" and len(words) > 1 and words[1].startswith(mark.encode()):
            found[words[1].decode()] = int(entry.name)
    return found
