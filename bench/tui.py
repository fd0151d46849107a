"""What does the terminal interface cost: to the first picture, for a key under a stream, and with a long session?

Goals: first paint <= 30x `python -c pass`; a key is on the screen in 50 ms (p95) while 500 or 2,000 deltas a second
arrive; a session of 2,000 messages opens in under a second of CPU beyond start-up; memory after it; "Canceled" in a
second on a terminal that reads 20 kB/s. On a real pty, as a terminal sees it.
"""

from __future__ import annotations

import argparse
import fcntl
import math
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
from measure import MIB, Samples, cpu_s_of, noise_told, percentile, print_latencies, print_table, rss_of, wait_quiet

ROUNDS = 15
KEYS = 60
MESSAGES = 2000
DELTAS_PER_S = (500, 2000)
SLOW_BYTES_PER_S = 20_000
CANCELS = 5
POSITION = {b"\x1b[6n": b"\x1b[1;1R"}
ANSWERS = {b"\x1b[c": b"\x1b[?62;22c", b"\x1b]11;?": b"\x1b]11;rgb:0000/0000/0000\x1b\\"}
READY = b"F1 help"
SIZE = (120, 40)


class Screen:
    """A pty that answers as a terminal does, and remembers the last of what was written to it.

    It reads at most `bytes_per_s`, and says where the cursor is only if it `answers`.
    """

    def __init__(
        self, home: Home, *args: str, bytes_per_s: float = math.inf, answers: bool = True, size: tuple[int, int] = SIZE
    ) -> None:
        columns, lines = size
        self._bytes_per_s = bytes_per_s
        self._answers = ANSWERS | POSITION if answers else ANSWERS
        self._read_until = time.monotonic()  # when all that was read will have been read at that pace
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
            self._read(left_s)
        self.heard = b""

    def _read(self, wait_s: float) -> None:
        began = time.monotonic()
        if self._read_until > began:
            time.sleep(min(wait_s, self._read_until - began))
            return
        if not select.select([self._master], [], [], wait_s)[0]:
            return
        piece = os.read(self._master, 1 << 20 if self._bytes_per_s == math.inf else 400)
        self._read_until = time.monotonic() + len(piece) / self._bytes_per_s
        for question, answer in self._answers.items():
            for _ in range(piece.count(question)):
                os.write(self._master, answer)
        self.heard = self.heard[-100_000:] + piece

    def shows(self, text: bytes) -> None:
        self.until(lambda heard: text in heard)

    def read_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            self._read(left_s)
        self.heard = b""

    def close(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(LIMIT_S)
        os.close(self._master)


@contextmanager
def opened(home: Home, *args: str, bytes_per_s: float = math.inf, answers: bool = True) -> Generator[Screen]:
    screen = Screen(home, *args, bytes_per_s=bytes_per_s, answers=answers)
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
        cancel_on_slow_terminals(home)
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
    quiet = Samples("a key, nothing streams (baseline)")
    cases, cpu = [quiet], list[float]()
    for deltas_per_s in DELTAS_PER_S:
        with opened(home) as screen:
            screen.shows(READY)
            screen.read_for(2.0)
            if not quiet.seconds:
                _press(screen, quiet)
                screen.type("\x15")
            busy = Samples(f"a key, {deltas_per_s} deltas/s stream")
            cases.append(busy)
            _stream(screen, deltas_per_s)
            before, began = cpu_s_of(screen.pid), time.monotonic()
            _press(screen, busy)
            cpu.append((cpu_s_of(screen.pid) - before) / (time.monotonic() - began))
            _cancel(screen)
    print_latencies("keypress to screen", cases)
    for samples, share in zip(cases[1:], cpu, strict=True):
        p95_ms = percentile(samples.seconds, 95) * 1e3
        print(f"{samples.name}: p95 {p95_ms:.0f} ms (goal: 50), CPU of the interface {share:.0%} of a core")


def cancel_on_slow_terminals(home: Home) -> None:
    """Esc Esc while an answer streams, until "Canceled" was read."""
    slow = f"{SLOW_BYTES_PER_S // 1000} kB/s"
    cases = [
        ("reads at once (baseline)", math.inf, True),
        (f"reads {slow}, and says where its cursor is", SLOW_BYTES_PER_S, True),
        (f"reads {slow}, and says nothing", SLOW_BYTES_PER_S, False),
    ]
    samples: list[Samples] = []
    for name, bytes_per_s, answers in cases:
        case = Samples(name)
        samples.append(case)
        with opened(home, bytes_per_s=bytes_per_s, answers=answers) as screen:
            screen.shows(READY)
            for _ in range(CANCELS):
                _stream(screen, 2000)
                screen.read_for(4.0)
                case.seconds.append(_cancel(screen))
                screen.read_for(1.0)
    print_latencies("Esc Esc to “Canceled” (goal: a second)", samples)


def _stream(screen: Screen, deltas_per_s: int) -> None:
    """Have an answer of that pace streamed, and wait for its beginning."""
    screen.read_for(0.5)
    screen.type(f"\x1b[200~[[fake chunks=100000 delay_ms={1000 / deltas_per_s}]]\x1b[201~")
    screen.read_for(0.5)
    screen.type("\r")
    screen.until(lambda heard: re.search(rb"w[1-9][0-9]{2}", heard) is not None)


def _cancel(screen: Screen) -> float:
    """Return the seconds from the second Esc to its effect."""
    screen.type("\x1b")
    screen.read_for(0.4)
    began = time.perf_counter()
    screen.type("\x1b")
    screen.shows(b"Canceled")
    return time.perf_counter() - began


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
