"""What does the terminal interface cost: to the first picture, for a key under a stream, and with a long session?

Goals: first paint <= 30x `python -c pass`; a key is on the screen soon while 500 deltas a second arrive; a session of
2,000 messages opens in under a second of CPU beyond start-up; memory after it. On a real pty, as a terminal sees it.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from _home import KEDGE, LIMIT_S, PYTHON, Case, Home, Server, Spent, new_home, print_cases, run
from measure import MIB, Samples, cpu_s_of, noise_told, print_latencies, print_table, rss_of, wait_quiet

ROUNDS = 15
KEYS = 60
MESSAGES = 2000
DELTAS_PER_S = 500
ANSWERS = {b"\x1b[c": b"\x1b[?62;22c", b"\x1b]11;?": b"\x1b]11;rgb:0000/0000/0000\x1b\\"}
READY = b"F1 help"


class Screen:
    """A pty that answers as a terminal does, and remembers the last of what was written to it."""

    def __init__(self, home: Home, *args: str, columns: int = 120, lines: int = 40) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process = subprocess.Popen(
            [KEDGE, *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**home.env, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
            cwd=home.workspace,
            start_new_session=True,
        )
        os.close(slave)
        self.heard = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def until(self, is_so: Callable[[bytes], bool]) -> None:
        """Read until it is so of what was written since the last time."""
        until = time.monotonic() + LIMIT_S
        while not is_so(self.heard):
            left_s = until - time.monotonic()
            assert left_s > 0, f"never shown; last was {self.heard[-500:]!r}"
            if select.select([self._master], [], [], left_s)[0]:
                piece = os.read(self._master, 1 << 20)
                for question, answer in ANSWERS.items():
                    if question in piece:
                        os.write(self._master, answer)
                self.heard = self.heard[-100_000:] + piece
        self.heard = b""

    def shows(self, text: bytes) -> None:
        self.until(lambda heard: text in heard)

    def read_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            if select.select([self._master], [], [], left_s)[0]:
                os.read(self._master, 1 << 20)

    def close(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(LIMIT_S)
        os.close(self._master)


@contextmanager
def opened(home: Home, *args: str) -> Generator[Screen]:
    screen = Screen(home, *args)
    try:
        yield screen
    finally:
        screen.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    options = parser.parse_args()
    wait_quiet()
    with noise_told(), new_home() as home, home.serve() as server:
        first_paint(home, options.rounds)
        keys_under_a_stream(home)
        long_session(home, server, options.messages)


def first_paint(home: Home, rounds: int) -> None:
    bare, paint = Case("python -c pass (baseline)"), Case("kedge: first paint")
    for _ in range(rounds):
        bare.add(run([PYTHON, "-c", "pass"], home.env, home.workspace))
        began = time.perf_counter()
        with opened(home) as screen:
            screen.shows(READY)
            paint.add(Spent(time.perf_counter() - began, cpu_s_of(screen.pid)))
    print_cases("first paint (goal: 30x at most), a server runs", [bare, paint])


def keys_under_a_stream(home: Home) -> None:
    """A key at a time, each on the screen before the next; first in peace, then while an answer streams."""
    with opened(home) as screen:
        screen.shows(READY)
        screen.read_for(2.0)
        quiet = Samples("a key, nothing streams (baseline)")
        busy = Samples(f"a key, {DELTAS_PER_S} deltas/s stream")
        _press(screen, quiet)
        prompt = f"[[fake chunks=100000 delay_ms={1000 / DELTAS_PER_S}]]"
        screen.type("\x15")
        screen.read_for(0.5)
        screen.type(f"\x1b[200~{prompt}\x1b[201~")
        screen.read_for(0.5)
        screen.type("\r")
        screen.until(lambda heard: re.search(rb"w[1-9][0-9]{2}", heard) is not None)
        before, began = cpu_s_of(screen.pid), time.monotonic()
        _press(screen, busy)
        cpu = (cpu_s_of(screen.pid) - before) / (time.monotonic() - began)
        screen.type("\x1b")
        screen.read_for(0.3)
        screen.type("\x1b")
        screen.shows(b"cancelled")
    print_latencies("keypress to screen", [quiet, busy])
    print(f"CPU of the interface meanwhile: {cpu:.0%} of a core\n")


def _press(screen: Screen, samples: Samples) -> None:
    for number in range(KEYS):
        key = "qxjz"[number % 4] if number % 20 else "\x15"  # Ctrl+U: begin anew
        began = time.perf_counter()
        screen.type(key)
        if key != "\x15":
            screen.until(lambda heard, key=key: key.encode() in heard)
            samples.seconds.append(time.perf_counter() - began)
        screen.read_for(0.05)


def long_session(home: Home, server: Server, messages: int) -> None:
    """Opened with `--continue`, against an interface with nothing in it."""
    rows: list[list[str]] = []
    with opened(home) as screen:
        screen.shows(READY)
        screen.read_for(3.0)
        base_cpu, base_rss = cpu_s_of(screen.pid), rss_of(screen.pid)
        rows.append(["nothing open (baseline)", f"{base_cpu:.2f}", f"{base_rss / MIB:.0f}", "1.00"])
    _fill(home, server, messages)
    with opened(home, "--continue") as screen:
        screen.shows(b"THE-LAST-ANSWER")
        screen.read_for(3.0)
        cpu, rss = cpu_s_of(screen.pid), rss_of(screen.pid)
        rows.append([f"{messages} messages open", f"{cpu:.2f}", f"{rss / MIB:.0f}", f"{rss / base_rss:.2f}"])
        for _ in range(30):
            screen.type("\x1b[5~")  # page up
            screen.read_for(0.05)
        screen.type("\x1b[1;5H\x1b[1;5F")  # to the beginning, and back
        screen.read_for(2.0)
        rss = rss_of(screen.pid)
        rows.append(
            ["after scrolling through it", f"{cpu_s_of(screen.pid):.2f}", f"{rss / MIB:.0f}", f"{rss / base_rss:.2f}"]
        )
    print_table("a long session", ["", "CPU s", "MiB", "x MiB"], rows)
    print(f"beyond start-up (goal: under 1 s of CPU): {cpu - base_cpu:.2f} s\n")


def _fill(home: Home, server: Server, messages: int) -> None:
    """Prompts and answers, two messages a run: a screenful of Markdown each."""
    wire, path = server.transport(), server.join(home.workspace)
    session_id = wire.request("POST", f"{path}/sessions", {"title": "long"})["id"]
    answer = (
        "# A heading\n\nSome *words* with `code` in them. "
        + "More of it. " * 20
        + "\n\n```python\ndef f(x):\n    return x\n```\n"
    )
    model = home.model()
    for number in range(messages // 2):
        text = answer if number < messages // 2 - 1 else "THE-LAST-ANSWER"
        if number % 50 == 0 or number == messages // 2 - 1:
            model.request("POST", "/_fake/reset")
            model.request("POST", "/_fake/plan", {"text": text})
        body = {"session_id": session_id, "prompt": f"prompt {number}", "permissions": "allow"}
        run_id = wire.request("POST", f"{path}/agent", body)["run_id"]
        wire.request("GET", f"{path}/runs/{run_id}?wait=60")


if __name__ == "__main__":
    main()
