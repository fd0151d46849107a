"""Servers are killed while a hundred `kedge run` are at work: none is lost or doubled, no exit code lies (P1, P2).

The next server is started by whichever client needs it first.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from pathlib import Path
from typing import NamedTuple

import pytest

from kedge.protocol.runs import RunEnd
from tests.client.command import Done, Kedge
from tests.e2e.home import Home, answer_of, asking, log_of
from tests.server.client import Client as Plain
from tests.server.client import unix
from tests.support.invariants import check_all_ended, check_log, ends_of, run_events, runs_of, state_of

BATCHES = 2
USERS = 5
RUNS = 10  # of each user, one after the other
KILLS = 12  # in a batch; more would only measure how fast servers start
ATTEMPTS = 3  # of a run (P13)
MODES = [["--stream"], ["--no-stream"], ["--no-stream", "--json"]]


class Ran(NamedTuple):
    run_id: str
    mode: list[str]
    answer: str
    done: Done


async def use(kedge: Kedge, user: int) -> list[Ran]:
    ran: list[Ran] = []
    for number in range(RUNS):
        run_id, mode = f"u{user}-{number}", MODES[(user + number) % len(MODES)]
        plan = {"text": f"the answer to {run_id}", "chunks": 12, "delay_ms": 10}
        done = await asyncio.to_thread(kedge.run, "-q", *mode, "--run-id", run_id, asking(**plan))
        ran.append(Ran(run_id, mode, answer_of(**plan), done))
    return ran


class Killer:
    """Kills server after server: some while they start, most while they work."""

    def __init__(self, kedge: Kedge, rng: random.Random) -> None:
        self.kills = 0
        self._kedge = kedge
        self._rng = rng

    def work(self, is_over: threading.Event) -> None:
        killed: int | None = None
        while self.kills < KILLS and not is_over.wait(0.01):
            pid = self._server()
            if pid in (None, killed):
                continue
            assert pid is not None
            is_over.wait(self._rng.choice([0.0, 0.1, 0.5, 1.0]) * self._rng.random())
            if self._server() == pid:
                os.kill(pid, signal.SIGKILL)
                self.kills += 1
            killed = pid

    def _server(self) -> int | None:
        try:
            return self._kedge.server_pid()
        except IndexError:
            return None  # it has not written its name yet


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("_batch", range(BATCHES))
async def test_every_receipt_has_one_end_and_every_exit_code_is_true(
    home: Home, tmp_path: Path, rng: random.Random, _batch: int
) -> None:
    kedge = Kedge(home, tmp_path)
    killer, is_over = Killer(kedge, rng), threading.Event()
    killing = asyncio.create_task(asyncio.to_thread(killer.work, is_over))
    try:
        ran = [each for user in await asyncio.gather(*(use(kedge, n) for n in range(USERS))) for each in user]
    finally:
        is_over.set()
        await killing
    assert killer.kills > KILLS // 2
    assert [each for each in ran if each.done.code not in (0, 1)] == [], "nobody is told that there is no server"

    assert (await asyncio.to_thread(kedge.run, asking(), "--run-id", "last")).code == 0
    plain = Plain(unix(home.socket_path))
    log = log_of(plain, plain.workspace(tmp_path))
    check_log(log)
    check_all_ended(log)
    assert runs_of(log) == {each.run_id for each in ran} | {"last"}
    ends, attempts = ends_of(log), {run.run_id: run.attempt for _, run in run_events(log)}
    for each in ran:
        check(each, ends[each.run_id], attempts[each.run_id])
    finished = [each for each in ran if each.done.code == 0]
    assert len(finished) > len(ran) // 2, "most are answered: a crash here and there is not felt"


def check(ran: Ran, end: RunEnd, attempt: int) -> None:
    done = ran.done
    assert done.code == {"completed": 0, "failed": 1}[state_of(end)], (ran, end)
    if state_of(end) == "failed":
        assert attempt == ATTEMPTS, "only one that was killed with its server each time"
        assert done.err.count("\n") >= 1
        return
    assert end.text == ran.answer
    match ran.mode:
        case ["--stream"]:
            *broken, whole = done.out.splitlines()
            assert whole == ran.answer
            # Each attempt that was cut off was told, as far as it came.
            assert all(ran.answer.startswith(line) for line in broken), ran
            assert done.err.count("\n") == len(broken)
        case ["--no-stream"]:
            assert (done.out, done.err) == (f"{ran.answer}\n", "")
        case _:
            lines = done.out.splitlines()
            assert len(set(lines)) == len(lines), "nothing is told twice"
            assert ran.answer in lines[-1]
            assert '"run_complete"' in lines[-1]
