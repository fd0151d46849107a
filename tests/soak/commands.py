"""`kedge run` as scripts use it: answered, refused, failing, interrupted, out of time, left alone, and killed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import sys
import time
from collections.abc import Coroutine
from random import Random
from typing import NamedTuple

from kedge.protocol.runs import OnBusy, Permissions
from tests.soak import plans
from tests.soak.api import WorkspaceApi
from tests.soak.plans import Deed, Deeds, Maker
from tests.soak.record import Asked, Body, Cancel, Command, Sent
from tests.soak.server import SoakServer

AT_ONCE = 2  # processes at a time: each costs more than the run that it sends
HANGS = 1000  # stands for an exit code that never came
CONNECT_S = 600  # how long it looks for a server: a busy machine may take a while to start the next one
KNOWN_S = 90.0  # until its run is accepted


class Case(NamedTuple):
    make: Maker
    args: tuple[str, ...] = ()
    signum: signal.Signals | None = None
    timeout_s: float | None = None
    is_plain: bool = True
    on_busy: OnBusy = "queue"


CASES = [
    Case(plans.answered),
    Case(plans.long_answer),
    Case(plans.slow_answer, ("--stream",), is_plain=False),
    Case(plans.answered, ("--json",), is_plain=False),
    Case(plans.marking, ("-y",)),
    Case(plans.marking),  # nobody may be asked: refused
    Case(plans.refused),
    Case(plans.dropped),
    Case(plans.answered, ("--on-busy", "reject"), on_busy="reject"),
    Case(plans.slow_answer, ("--on-busy", "steer"), on_busy="steer"),
    Case(plans.answered, ("--detach",), is_plain=False),
    Case(plans.long_command, ("-y",), signum=signal.SIGINT),
    Case(plans.gated, signum=signal.SIGTERM),
    Case(plans.slow_answer, signum=signal.SIGKILL),
    Case(plans.long_command, ("-y", "--timeout", "2"), timeout_s=2.0),
]


class Commands:
    """Whatever they are, a few at a time. A dead server is waited for, and the soak starts the next one; or one of them
    does it, as it would for its user."""

    def __init__(self, server: SoakServer) -> None:
        self._server = server
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._ids = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = False

    @property
    def is_done(self) -> bool:
        return not self._tasks

    def begin(self, api: WorkspaceApi, deeds: Deeds, rng: Random, session_id: str | None) -> asyncio.Task[None]:
        return self._task(self._in_turn(api, deeds, rng, session_id))

    def begin_with_server(self, api: WorkspaceApi, deeds: Deeds, rng: Random, session_id: str) -> None:
        """One that finds no server, and starts it."""
        self._task(self._run(Case(plans.answered), api, deeds.make(plans.answered, rng), session_id, ()))

    def stop(self) -> None:
        """None begins any more."""
        self._is_over = True

    async def close(self) -> None:
        """Those that still run are ended; it shows in their codes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _task(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _in_turn(self, api: WorkspaceApi, deeds: Deeds, rng: Random, session_id: str | None) -> None:
        async with self._turn:
            if self._is_over:
                return
            case = rng.choice(CASES)
            session_id = session_id or await api.new_session("for a command")
            host = ("--host", self._server.host, "--connect-timeout", str(CONNECT_S))
            await self._run(case, api, deeds.make(case.make, rng), session_id, host)

    async def _run(self, case: Case, api: WorkspaceApi, deed: Deed, session_id: str, host: tuple[str, ...]) -> None:
        run_id = f"{api.record.name}-c{next(self._ids)}"
        permissions: Permissions = "allow" if "-y" in case.args else "deny"
        api.expect(run_id, _expected(deed, case))
        args = ("run", *case.args, "-q", *host, "--run-id", run_id, "-s", session_id, deed.prompt)
        body = Body(session_id, deed.prompt, on_busy=case.on_busy, permissions=permissions)
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kedge", *args),
            cwd=api.record.path,
            env=self._server.home.env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        talking = asyncio.ensure_future(process.communicate())
        if case.signum is not None:
            await api.known(run_id, KNOWN_S)
            with contextlib.suppress(ProcessLookupError):  # it was faster
                process.send_signal(case.signum)
        is_hanging = False
        try:
            out, err = await asyncio.shield(talking)
        except asyncio.CancelledError:  # by `close`, which waits for us
            process.kill()
            out, err = await talking
            is_hanging = True
        asked = Asked(began, time.monotonic(), None)
        api.record.sent.append(Sent(run_id, body, asked, by_command=True))
        if case.signum in (signal.SIGINT, signal.SIGTERM) or case.timeout_s is not None:
            api.record.cancels.append(Cancel("command", run_id, asked))
        code = HANGS if is_hanging else process.returncode
        assert code is not None
        api.record.commands.append(
            Command(
                *(run_id, session_id, args, code, out.decode(), err.decode()),
                signum=case.signum,
                timeout_s=case.timeout_s,
                is_plain=case.is_plain,
                is_rejecting=case.on_busy == "reject",
            )
        )


def _expected(deed: Deed, case: Case) -> Deed:
    is_ended = case.signum is not None or case.timeout_s is not None
    is_refused = case.make is plans.marking and "-y" not in case.args  # the model may say something else then
    return deed._replace(ending="any" if is_ended else deed.ending, answer=None if is_refused else deed.answer)
