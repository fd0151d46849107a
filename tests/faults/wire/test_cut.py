"""The connection of a real `kedge run` is cut, anywhere and as often as one likes; it prints the same (P9, P12).

`tests/client/test_cuts.py` does this at every byte, in one process and without a network.
"""

from __future__ import annotations

import asyncio
import random
from typing import ClassVar

import pytest

from tests.client.command import Done, Kedge, finish
from tests.e2e.home import answer_of, asking, log_of
from tests.faults.wire.conftest import ProxyOf
from tests.faults.wire.cuts import Cut, Pool, Spot, Walk
from tests.faults.wire.proxy import Fate, is_stream
from tests.server.process import Server
from tests.support.invariants import check_all_ended, check_log, runs_of
from tests.support.model_control import ModelControl

MODES = ["--stream", "--no-stream"]
NEVER = 1 << 62
NOT_LOGGED = ("head", "connected", "snapshot", "caught_up")


# A client that gets nowhere comes back less and less often; a test has no time for that.
EAGER = "import kedge.client.reconnect as p; p.MOST_S = 0.05"


async def ran(kedge: Kedge, *args: str) -> Done:
    """`kedge run` beside the test's loop, on which its network lives."""
    return await asyncio.to_thread(finish, kedge.start("run", "-q", *args, before=EAGER))


def brief(done: Done) -> tuple[int, str, str]:
    return done.code, done.out, done.err


class TestAtTheEdgesOfFrames:
    PLAN: ClassVar[dict[str, object]] = {"chunks": 9, "reasoning": "hm"}

    async def labels(self, kedge: Kedge, proxy_of: ProxyOf) -> list[str]:
        """Of the frames that a run hears which nobody disturbs."""
        heard: list[str] = []
        listening = Cut(NEVER, lambda _: None, passed=heard.append)
        async with proxy_of(lambda request: Fate(listening) if is_stream(request) else Fate()) as proxy:
            assert (await ran(kedge, asking(**self.PLAN), "--host", proxy.host)).code == 0
        return list(dict.fromkeys(heard))

    def spots(self, labels: list[str], offset: int) -> list[Spot]:
        """All edges in the order in which they can be met. A frame of the log that came whole does not come again."""
        logged = [label for label in labels if label not in (*NOT_LOGGED, "message_delta")]
        first = logged.index("assistant message") + 1
        around = [Spot(label, at) for label in NOT_LOGGED for at in (-1, 0, 1)]
        once = {label: [Spot(label, -1), *([Spot(label, offset)] if offset >= 0 else [])] for label in logged}
        before = [spot for label in logged[:first] for spot in once[label]]
        after = [spot for label in logged[first:] for spot in once[label]]
        walk = [*around[:6], *before, *around[6:], Spot("message_delta", offset), *after]
        return [spot for spot in walk if spot != Spot("run_complete", 1)]  # nobody is there any more to be cut off

    @pytest.mark.parametrize("offset", [-1, 0, 1])
    @pytest.mark.parametrize("mode", MODES)
    async def test_nothing_is_printed_twice_or_lost(
        self, kedge: Kedge, proxy_of: ProxyOf, models: ModelControl, gate: str, mode: str, offset: int
    ) -> None:
        spots = self.spots(await self.labels(kedge, proxy_of), offset)
        assert {"run queued", "run running", "user message", "run_complete"} <= {spot.label for spot in spots}

        def passed(spot: Spot, label: str) -> None:
            if (spot.label, label) == ("message_delta", "caught_up"):
                models.release(gate)  # the client hears it live now

        walk = Walk(spots, passed=passed)

        def fate_of(request: bytes) -> Fate:
            cut = walk.take() if is_stream(request) else None
            return Fate(cut) if cut else Fate()

        async with proxy_of(fate_of) as proxy:
            prompt = asking(**self.PLAN, gate=gate, gate_after=4)
            done = await ran(kedge, prompt, mode, "--host", proxy.host)
        assert brief(done) == (0, answer_of(**self.PLAN) + "\n", "")
        # A client that has received the end may disconnect before it is cut off.
        assert walk.left in ([], [Spot("run_complete", 0)])
        assert proxy.cuts == len(spots)


class TestAnywhere:
    CUTS = 200
    BYTES = 6000  # the head, a large snapshot, and about twenty deltas
    PLAN: ClassVar[dict[str, object]] = {"chunks": 500, "delay_ms": 4}
    ROUNDS = 10

    @pytest.mark.parametrize("is_tcp", [False, True])
    async def test_two_hundred_cuts_change_nothing(
        self, kedge: Kedge, proxy_of: ProxyOf, rng: random.Random, is_tcp: bool
    ) -> None:
        pool = Pool([rng.randrange(self.BYTES) for _ in range(self.CUTS)])

        def fate_of(request: bytes) -> Fate:
            cut = pool.take() if is_stream(request) else None
            return Fate(cut) if cut else Fate()

        async with proxy_of(fate_of, is_tcp=is_tcp) as proxy:
            for _ in range(self.ROUNDS):
                runs = [ran(kedge, asking(**self.PLAN), mode, "--host", proxy.host) for mode in MODES * 2]
                ends = await asyncio.gather(*runs)
                assert [brief(end) for end in ends] == [(0, answer_of(**self.PLAN) + "\n", "")] * len(ends)
                if not len(pool):
                    break
        assert pool.made == proxy.cuts == self.CUTS


class TestRequests:
    """Answers to requests are cut, too; the request is sent again, and is the same run (P3)."""

    RUNS = 8
    CUTS = 3  # of each request
    BYTES = 400  # about an answer

    async def test_a_cut_answer_is_asked_for_again_and_no_run_is_doubled(
        self, kedge: Kedge, server: Server, proxy_of: ProxyOf, rng: random.Random
    ) -> None:
        times: dict[bytes, int] = {}

        def fate_of(request: bytes) -> Fate:
            if is_stream(request):
                return Fate()
            # The body names the run, the rest does not: those are cut as often as there are runs.
            what = request.split(b" HTTP/1.1", 1)[0] + request.partition(b'"run_id"')[2][:12]
            times[what] = times.get(what, 0) + 1
            if times[what] > self.CUTS:
                return Fate()
            return Fate(Cut(rng.randrange(self.BYTES), lambda _: None), is_refused=rng.random() < 0.2)

        async with proxy_of(fate_of) as proxy:
            runs = [
                ran(kedge, asking(text=f"answer {n}"), "--run-id", f"run-{n}", "--host", proxy.host)
                for n in range(self.RUNS)
            ]
            ends = await asyncio.gather(*runs)
        assert [brief(end) for end in ends] == [(0, f"answer {n}\n", "") for n in range(self.RUNS)]
        assert proxy.cuts > self.RUNS
        client = server.client
        log = log_of(client, client.workspace(kedge.workspace))
        check_log(log)
        check_all_ended(log)
        assert runs_of(log) == {f"run-{n}" for n in range(self.RUNS)}
