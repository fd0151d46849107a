"""How soon does a warm server accept, show the first word, and end a run; and is it as fast after a thousand prompts?

Goals: POST to `202` p50 <= 3 ms and p99 <= 15 ms, the same after 1,000 prompts in the session; the model's first byte
to the client's p50 <= 5 ms; prompt to end p50 <= 25 ms, flat over 500 prompts. All is compared to a bare
`GET /v1/health` on the same connection.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from collections.abc import Iterator

from _home import Home, Server, new_home
from measure import Samples, noise_told, print_latencies, wait_quiet

from kedge.client.transport import RECEIVE_BYTES
from kedge.http.http1 import ResponseParser, build_request

PROMPTS = 1_000
FIRST_BYTES = 200
SPAN = 100  # prompts that are compared: the first so many, and as many later
WARM = 20
FORGET_EVERY = 20  # prompts, after which the model forgets its calls: it must not be what becomes slower
# Long enough between the first word and the second for the first to be seen alone.
TWO_WORDS = "[[fake chunks=2 delay_ms=20]]"


class Desk:
    """One client with a session: a kept connection for requests, another for the story."""

    def __init__(self, home: Home, server: Server) -> None:
        self.wire = server.transport()
        self._path = server.join(home.workspace)
        self._session_id: str = self.wire.request("POST", f"{self._path}/sessions", {})["id"]
        self._heard = b""
        self._pieces: Iterator[bytes] = server.transport().stream(f"{self._path}/events?session_id={self._session_id}")
        self.hear(b'"caught_up"')

    def submit(self, prompt: str) -> None:
        """Returns with the 202. An own environment, as `kedge run` sends it, would be the same for each prompt."""
        self.wire.request("POST", f"{self._path}/agent", {"session_id": self._session_id, "prompt": prompt})

    def hear(self, word: bytes) -> None:
        """Read the story up to `word`."""
        while word not in self._heard:
            self._heard = self._heard[-len(word) :] + next(self._pieces)
        self._heard = self._heard.partition(word)[2]

    def health(self) -> None:
        self.wire.request("GET", "/v1/health")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--first-bytes", type=int, default=FIRST_BYTES)
    options = parser.parse_args()
    wait_quiet()
    with noise_told(), new_home() as home, home.serve() as server:
        prompts(home, server, options.prompts)
        first_bytes(home, server, options.first_bytes)


def prompts(home: Home, server: Server, count: int) -> None:
    """One after the other in one session, whose whole history goes to the model each time."""
    warm = Desk(home, server)
    for _ in range(WARM):
        warm.submit("Hello.")
        warm.hear(b'"run_complete"')
    health, accepted, ended = Samples("GET /v1/health (baseline)"), Samples("POST to 202"), Samples("prompt to end")
    desk, model = Desk(home, server), home.model()
    for i in range(count):
        if i % FORGET_EVERY == 0:
            model.request("POST", "/_fake/reset")
        with health.timed():
            desk.health()
        with ended.timed():
            with accepted.timed():
                desk.submit("Hello.")
            desk.hear(b'"run_complete"')
    print_latencies(f"{count:,} prompts in one session", [health, accepted, ended])
    for samples in (accepted, ended):
        print_latencies(f"{samples.name}, prompt by prompt", [part(samples, at) for at in places(count)])

    print_latencies(
        "the model alone, asked with that history",
        [ask_model(home, length, f"{length:,} prompts") for length in (1, *(at + SPAN for at in places(count)))],
    )


def ask_model(home: Home, prompts: int, name: str) -> Samples:
    """What it takes to read a history and to answer, which is part of every prompt's time and not ours to shorten."""
    samples = Samples(name)
    said = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "FAKE-ANSWER-OK"}] * prompts
    body = json.dumps({"model": "fake-model", "stream": True, "messages": said}).encode()
    with socket.create_connection((home.model_address.host, home.model_address.port)) as sock:
        for _ in range(SPAN):
            parser = ResponseParser()
            with samples.timed():
                sock.sendall(build_request("POST", "/v1/chat/completions", {"Host": "localhost"}, body))
                while not parser.is_complete:
                    parser.feed(sock.recv(RECEIVE_BYTES))
    return samples


def places(count: int) -> list[int]:
    """Where to look: at the start, in the middle and at the end."""
    return sorted({0, max(0, count // 2 - SPAN), max(0, count - SPAN)})


def part(samples: Samples, at: int) -> Samples:
    seconds = samples.seconds[at : at + SPAN]
    return Samples(f"prompts {at + 1:,} to {at + len(seconds):,}{'' if at else ' (baseline)'}", seconds)


def first_bytes(home: Home, server: Server, count: int) -> None:
    """From the model's first delta on its wire to the first at the client: processes share the monotonic clock."""
    model = home.model()
    model.request("POST", "/_fake/reset")
    health, shown = Samples("GET /v1/health (baseline)"), Samples("the model's first byte to the client's")
    desk = Desk(home, server)
    seen: list[float] = []
    for _ in range(count):
        with health.timed():
            desk.health()
        desk.submit(TWO_WORDS)
        desk.hear(b'"message_delta"')
        seen.append(time.monotonic())
        desk.hear(b'"run_complete"')
    calls = model.request("GET", "/_fake/stats")["calls"]
    shown.seconds = [at - call["first"] for at, call in zip(seen, calls, strict=True)]
    print_latencies(f"the first word of {count:,} answers", [health, shown])


if __name__ == "__main__":
    main()
