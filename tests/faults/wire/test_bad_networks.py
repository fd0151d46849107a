"""Delays, doubled and replaced connections, black holes: `kedge run` prints the same, or says that nobody is there."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from tests.client.command import Done, Kedge, finish
from tests.e2e.home import answer_of, asking, log_of
from tests.faults.wire.conftest import ProxyOf
from tests.faults.wire.proxy import Fate, is_stream
from tests.server.process import Server
from tests.support.invariants import check_log, runs_of

MODES = ["--stream", "--no-stream"]
PLAN: dict[str, object] = {"chunks": 9, "delay_ms": 10}
ANSWER = (0, answer_of(**PLAN) + "\n", "")
# 25 s of silence are a dropped connection (section 5); a test has no time for that.
IMPATIENT = "import kedge.client.reconnect as p; p.SILENCE_S = 0.5"


class Mute:
    """Lets so many bytes through; then the connection is open, and nothing comes any more."""

    def __init__(self, after_bytes: int) -> None:
        self._left = after_bytes

    def let(self, data: bytes) -> tuple[bytes, bool]:
        through = data[: self._left]
        self._left -= len(through)
        return through, False


async def ran(kedge: Kedge, *args: str) -> Done:
    process = kedge.start("run", "-q", *args, before=IMPATIENT)
    return await asyncio.to_thread(finish, process)


def brief(done: Done) -> tuple[int, str, str]:
    return done.code, done.out, done.err


@pytest.mark.parametrize("mode", MODES)
async def test_a_slow_network_that_delivers_in_crumbs(
    kedge: Kedge, proxy_of: ProxyOf, rng: random.Random, mode: str
) -> None:
    async def pause() -> None:
        await asyncio.sleep(rng.uniform(0, 0.01))

    async with proxy_of(lambda _: Fate(pause=pause, piece_bytes=rng.randrange(1, 100))) as proxy:
        assert brief(await ran(kedge, asking(**PLAN), mode, "--host", proxy.host)) == ANSWER


@pytest.mark.parametrize("mode", MODES)
async def test_every_request_reaches_the_server_twice(
    kedge: Kedge, server: Server, proxy_of: ProxyOf, mode: str
) -> None:
    async with proxy_of(lambda _: Fate(is_doubled=True)) as proxy:
        assert brief(await ran(kedge, asking(**PLAN), mode, "--run-id", "a", "--host", proxy.host)) == ANSWER
    client = server.client
    log = log_of(client, client.workspace(kedge.workspace))
    check_log(log)
    assert runs_of(log) == {"a"}


@pytest.mark.parametrize("mode", MODES)
async def test_every_connection_is_accepted_closed_and_has_to_be_made_anew(
    kedge: Kedge, proxy_of: ProxyOf, mode: str
) -> None:
    asked: set[bytes] = set()

    def fate_of(request: bytes) -> Fate:
        line = request.split(b"\r\n", 1)[0]
        is_first = line not in asked
        asked.add(line)
        return Fate(is_refused=is_first)

    async with proxy_of(fate_of) as proxy:
        assert brief(await ran(kedge, asking(**PLAN), mode, "--host", proxy.host)) == ANSWER
        assert proxy.cuts == len(asked) >= 4


def is_submit(request: bytes) -> bool:
    return request.startswith(b"POST ") and b"/agent HTTP" in request


HOLES: dict[str, tuple[Callable[[bytes], bool], Callable[[], Fate]]] = {
    "the stream is never answered": (is_stream, lambda: Fate(is_lost=True)),
    "the stream falls silent in its head": (is_stream, lambda: Fate(Mute(50))),
    "the stream falls silent after its head": (is_stream, lambda: Fate(Mute(400))),
    "the stream falls silent in the answer": (is_stream, lambda: Fate(Mute(4000))),
    "the prompt never arrives": (is_submit, lambda: Fate(is_lost=True)),
    "the receipt never arrives": (is_submit, lambda: Fate(Mute(0))),
    "half of the receipt arrives": (is_submit, lambda: Fate(Mute(150))),
    "the server is not even found": (lambda _: True, lambda: Fate(is_lost=True)),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("hole", HOLES)
async def test_a_black_hole_is_left_and_the_answer_is_the_same(
    kedge: Kedge, server: Server, proxy_of: ProxyOf, hole: str, mode: str
) -> None:
    is_hit, fate = HOLES[hole]
    tries = 0

    def fate_of(request: bytes) -> Fate:
        nonlocal tries
        tries += is_hit(request)
        return fate() if is_hit(request) and tries == 1 else Fate()

    async with proxy_of(fate_of) as proxy:
        assert brief(await ran(kedge, asking(**PLAN), mode, "--run-id", "a", "--host", proxy.host)) == ANSWER
    assert tries >= 2
    client = server.client
    assert runs_of(log_of(client, client.workspace(kedge.workspace))) == {"a"}


async def test_a_server_that_never_answers_is_one_that_cannot_be_reached(kedge: Kedge, proxy_of: ProxyOf) -> None:
    async with proxy_of(lambda _: Fate(is_lost=True)) as proxy:
        done = await ran(kedge, asking(**PLAN), "--host", proxy.host, "--connect-timeout", "1")
    assert (done.code, done.out, done.err.count("\n")) == (3, "", 1)
    assert "for 1 s" in done.err
