"""What does the agent add to a model: at the end of a step, over 500 prompts, and over 50 tool rounds of one turn?

Goals: the model's last byte to `run_complete` at the client p50 <= 5 ms; prompt to end flat over 500 prompts in one
session; the time of a round flat over 50 rounds of one turn; memory after 500 prompts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

from _home import Home, Server, new_home
from measure import MIB, Samples, noise_told, print_latencies, print_table, wait_quiet

from kedge.client.transport import RECEIVE_BYTES
from kedge.http.http1 import ResponseParser, build_request

PROMPTS = 500
SPAN = 100  # prompts that are compared: the first so many, and the last
ROUNDS = 50
TURNS = 5
TEN = 10  # rounds that are compared
WARM = 20
FORGET_EVERY = 25  # prompts, after which the model forgets its calls: it must not be what becomes slower


class Desk:
    """One client with a session: a kept connection for requests, another for the story."""

    def __init__(self, home: Home, server: Server) -> None:
        self._wire = server.transport()
        self._path = server.join(home.workspace)
        self._session_id: str = self._wire.request("POST", f"{self._path}/sessions", {"title": "named"})["id"]
        self._heard = b""
        self._pieces: Iterator[bytes] = server.transport().stream(f"{self._path}/events?session_id={self._session_id}")
        self._hear(b'"caught_up"')

    def ask(self, prompt: str) -> float:
        """Returns when the end was read: the time of the monotonic clock, which the model's process shares."""
        body = {"session_id": self._session_id, "prompt": prompt, "permissions": "allow"}
        self._wire.request("POST", f"{self._path}/agent", body)
        self._hear(b'"run_complete"')
        return time.monotonic()

    def _hear(self, word: bytes) -> None:
        while word not in self._heard:
            self._heard = self._heard[-len(word) :] + next(self._pieces)
        self._heard = self._heard.partition(word)[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--turns", type=int, default=TURNS)
    options = parser.parse_args()
    wait_quiet()
    with noise_told(), new_home() as home, home.serve() as server:
        prompts(home, server, options.prompts)
        rounds(home, server, options.rounds, options.turns)


def prompts(home: Home, server: Server, count: int) -> None:
    """One after the other in one session, each with the model called directly before it, for comparison."""
    warm, model = Desk(home, server), home.model()
    for _ in range(WARM):
        warm.ask("Hello.")
    alone, ended = Samples("the model, called directly (baseline)"), Samples("run_complete at a client")
    whole, sizes = Samples("prompt to end"), {0: server.rss_bytes}
    desk = Desk(home, server)
    for place in range(0, count, FORGET_EVERY):
        model.request("POST", "/_fake/reset")
        read: list[float] = []
        for _ in range(min(FORGET_EVERY, count - place)):
            read.append(ask_directly(home))
            with whole.timed():
                read.append(desk.ask("Hello."))
        sent = [call["last"] for call in calls(home)]
        waits = [after - before for before, after in zip(sent, read, strict=True)]
        alone.seconds += waits[::2]
        ended.seconds += waits[1::2]
        sizes[len(whole.seconds)] = server.rss_bytes
    print_latencies(f"the model's last byte to …, {count:,} prompts in one session", [alone, ended])
    span = min(SPAN, count // 2)
    print_latencies(
        "prompt to end",
        [
            Samples(f"prompts 1 to {span} (baseline)", whole.seconds[:span]),
            Samples(f"prompts {count - span + 1} to {count}", whole.seconds[-span:]),
        ],
    )
    stops = sorted({0, min(SPAN, count), count} & sizes.keys())
    rows = [[f"after {stop}", f"{sizes[stop] / MIB:.1f}", f"{sizes[stop] / sizes[0]:.2f}"] for stop in stops]
    print_table("memory of the server", ["prompts", "MiB", "x the first"], rows)


def ask_directly(home: Home) -> float:
    """The same question without Kedge; returns when the last byte was read."""
    body = {"model": "fake-model", "stream": True, "messages": [{"role": "user", "content": "Hello."}]}
    parser = ResponseParser()
    with socket.create_connection((home.model_address.host, home.model_address.port)) as sock:
        sock.sendall(build_request("POST", "/v1/chat/completions", {"Host": "localhost"}, json.dumps(body).encode()))
        while not parser.is_complete:
            parser.feed(sock.recv(RECEIVE_BYTES))
    return time.monotonic()


def rounds(home: Home, server: Server, count: int, turns: int) -> None:
    """A round is from one call of the model to the next; each reads another line of a file."""
    (home.workspace / "lines.txt").write_text("".join(f"line {i}\n" for i in range(1, count + 1)))
    spans: list[Samples] = [Samples(f"rounds 1 to {TEN} (baseline)"), Samples(f"rounds {count - TEN + 1} to {count}")]
    ended = Samples("the last byte to run_complete")
    model = home.model()
    for _ in range(turns):
        prompt = f"Read it. {secrets.token_hex(4)}"
        model.request("POST", "/_fake/reset")
        plans = [{"text": "", "tool_calls": [view(i)]} for i in range(1, count + 1)]
        model.request("POST", "/_fake/on", {"plans": [*plans, {"text": "Read."}], "prompt": prompt})
        end = Desk(home, server).ask(prompt)
        made = calls(home)
        assert len(made) == count + 1, f"{len(made)} calls"
        took = [after["arrived"] - before["last"] for before, after in itertools.pairwise(made)]
        spans[0].seconds += took[:TEN]
        spans[1].seconds += took[-TEN:]
        ended.seconds.append(end - made[-1]["last"])
    print_latencies(f"the model's last byte to its next call, {turns} turns of {count} rounds", spans)
    print_latencies("the end of those turns", [ended])


def view(line: int) -> dict[str, Any]:
    return {"name": "view", "input": {"path": "lines.txt", "offset": line, "limit": 1}}


def calls(home: Home) -> Sequence[dict[str, Any]]:
    """Those of the work, without the ones that name sessions."""
    return home.model().request("GET", "/_fake/stats")["calls"]


if __name__ == "__main__":
    main()
