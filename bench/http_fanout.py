"""What does it cost to show 2,000 deltas to 1, 10 and 100 HTTP subscribers, and what do 200 that do not read change?

Goals: at most 0.9 s of the server's CPU for 100, nothing lost on the way; those who stopped reading change nothing.
"""

from __future__ import annotations

import argparse
import selectors
import socket
import time

from _home import LIMIT_S, Case, Home, Server, Spent, new_home, print_cases
from measure import MIB, Samples, noise_told, print_table, wait_quiet

from kedge.http.http1 import ResponseParser
from kedge.protocol.events import decode_event
from kedge.protocol.messages import Delta, MessageOf, text_of

DELTAS = 2_000
SUBSCRIBERS = (1, 10, 100)
STALLED = 200
ROUNDS = 5
FILLING = 3  # runs until the buffers of those who do not read are full
TEXT = "the end"
RECEIVE_BYTES = 1024 * 1024


class Listener:
    """A subscriber that keeps all it hears, while `receive` is called; it has heard all that was before."""

    def __init__(self, server: Server, target: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(LIMIT_S)
        self.sock.connect(server.address.path)
        self.sock.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        self._parser = ResponseParser()
        self._raw: list[bytes] = []
        self._tail = b""
        while b'"caught_up"' not in self._tail:
            self.receive()

    def receive(self) -> bool:
        """Take what is there; whether the run's end was in it."""
        data = self.sock.recv(RECEIVE_BYTES)
        assert data, "the server ended the stream"
        self._raw.append(data)
        self._tail = self._tail[-1024:] + data
        return b'"type":"run_complete"' in self._tail

    def story(self) -> bytes:
        """All that was heard, without HTTP's chunks."""
        return b"".join(self._parser.feed(data) for data in self._raw)


class Stage:
    """A session of its own for each run: what is shown does not depend on what was before."""

    def __init__(self, home: Home, server: Server) -> None:
        self.server = server
        self.wire = server.transport()
        self.path = server.join(home.workspace)

    def listeners(self, count: int) -> list[Listener]:
        return [Listener(self.server, f"{self.path}/events") for _ in range(count)]

    def play(self, listeners: list[Listener], every_ms: float = 0) -> tuple[float, float]:
        """CPU seconds of the server and wall seconds, until all have heard the end."""
        session_id = self.wire.request("POST", f"{self.path}/sessions", {})["id"]
        prompt = f"[[fake chunks={DELTAS} delay_ms={every_ms} text='{TEXT}']]"
        cpu_s, began = self.server.cpu_s, time.perf_counter()
        self.wire.request("POST", f"{self.path}/agent", {"session_id": session_id, "prompt": prompt})
        with selectors.DefaultSelector() as selector:
            for listener in listeners:
                selector.register(listener.sock, selectors.EVENT_READ, listener)
            while selector.get_map():
                ready = selector.select(LIMIT_S)
                assert ready, "nothing comes any more"
                for key, _ in ready:
                    if key.data.receive():
                        selector.unregister(key.fileobj)
        return self.server.cpu_s - cpu_s, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds: int = parser.parse_args().rounds
    for every_ms in (0.0, 1.0):
        wait_quiet()
        with noise_told(), new_home() as home, home.serve() as server:
            fan_out(Stage(home, server), every_ms, rounds)
    wait_quiet()
    with noise_told(), new_home() as home, home.serve() as server, new_home() as other, other.serve() as crowded:
        stall(Stage(home, server), Stage(other, crowded), rounds)


def fan_out(stage: Stage, every_ms: float, rounds: int) -> None:
    cpu = {count: Samples(str(count)) for count in SUBSCRIBERS}
    wall = {count: Samples(str(count)) for count in SUBSCRIBERS}
    sizes: dict[int, int] = {}
    deltas: dict[int, int] = {}
    stage.play(stage.listeners(1))  # the first run of a server loads more
    for _ in range(rounds):
        for count in SUBSCRIBERS:
            listeners = stage.listeners(count)
            cpu_s, wall_s = stage.play(listeners, every_ms)
            cpu[count].seconds.append(cpu_s)
            wall[count].seconds.append(wall_s)
            stories = [listener.story() for listener in listeners]
            deltas[count] = min(map(heard, set(stories)))
            sizes[count] = len(stories[0])
            for listener in listeners:
                listener.sock.close()
    base = cpu[1].p50
    rows = [
        [
            f"{count} subscriber{'s' if count > 1 else ' (baseline)'}",
            f"{sizes[count] / 1024:.0f}",
            f"{deltas[count]:,}",
            f"{wall[count].p50:.2f}",
            f"{cpu[count].best:.2f}",
            f"{cpu[count].p50:.2f}",
            f"{cpu[count].p50 / base:.1f}",
        ]
        for count in SUBSCRIBERS
    ]
    pace = f"one each {every_ms:g} ms" if every_ms else "at full speed"
    header = ["", "KiB each", "deltas each", "wall s", "best CPU s", "p50 CPU s", "x baseline"]
    print_table(f"{DELTAS:,} deltas {pace} over HTTP, {rounds} rounds", header, rows)


def heard(story: bytes) -> int:
    """How many deltas somebody got. Nothing is lost: their text is the answer, or the last message has all of it."""
    whole = "".join([*(f"w{i} " for i in range(DELTAS - 1)), TEXT])
    told, final, count = "", "", 0
    for line in story.splitlines():
        if not line.startswith(b"data: "):
            continue
        match decode_event(line.removeprefix(b"data: ")).payload:
            case Delta() as delta:
                assert delta.offset == len(told), "a delta is missing, or came twice"
                told += delta.text
                count += 1
            case MessageOf(role="assistant") as message:
                final = text_of(message.parts)
            case _:
                pass
    assert final == whole, "the last message is not the answer"
    assert told in ("", whole), "the deltas are not the answer"
    return count


def stall(quiet: Stage, crowded: Stage, rounds: int) -> None:
    """The same run on two servers in turns. Those who do not read are full from earlier runs."""
    idle = crowded.listeners(STALLED)
    names = ("nobody stalled (baseline)", f"{STALLED} stalled")
    cases = [(stage, Case(name)) for stage, name in zip((quiet, crowded), names, strict=True)]
    for i in range(FILLING + rounds * 4):
        for stage, case in cases:
            listeners = stage.listeners(1)
            cpu_s, wall_s = stage.play(listeners)
            listeners[0].sock.close()
            if i >= FILLING:
                case.add(Spent(wall_s, cpu_s))
    print_cases(f"a run of {DELTAS:,} deltas with one subscriber, beside others who do not read", [c for _, c in cases])
    print(f"  memory: {' and '.join(f'{stage.server.rss_bytes / MIB:.1f} MiB' for stage, _ in cases)}")
    for listener in idle:
        listener.sock.close()


if __name__ == "__main__":
    main()
