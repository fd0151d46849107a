"""The demo's server as a child process, and the frames that a reader gets from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from pathlib import Path
from threading import Timer
from typing import Any, NamedTuple

LIMIT_S = 60.0  # the whole demo takes about a second


class ServerGone(Exception):
    """The server ended while the demo still needed it."""


class Frame(NamedTuple):
    """One SSE frame, as sent (`raw`) and decoded. `seq` is None for events that are not in the log."""

    raw: str
    type: str
    seq: int | None
    change: str | None
    payload: dict[str, Any]


class ServerProcess:
    """Sends calls to the child process, and sorts the lines that it prints into replies, frames and states."""

    def __init__(self, directory: Path, pause_after: int | None = None) -> None:
        self.is_paused = False  # its turn stopped in the middle of a sentence
        self.saved: dict[str, int] = {}  # message ID -> characters of its draft that are stored
        self._frames: dict[str, deque[Frame]] = {}
        self._replies: deque[dict[str, Any]] = deque()
        self._child = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                f"{__package__}.server",
                str(directory),
                *([] if pause_after is None else [str(pause_after)]),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C ends the demo, which then kills the child
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._timer = Timer(LIMIT_S, self._child.kill)
        self._timer.start()

    def call(self, call: str, **args: Any) -> Any:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps({"call": call, "args": args}).encode() + b"\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            raise self._make_gone() from None
        while not self._replies:
            self.read_line()
        reply = self._replies.popleft()
        if "error" in reply:
            raise ServerGone(f"the server refused {call}: {reply['error']['message']}")
        return reply["reply"]

    def next_frame(self, reader: str) -> Frame:
        frames = self._frames.setdefault(reader, deque())
        while not frames:
            self.read_line()
        return frames.popleft()

    def read_line(self) -> None:
        """Wait for one line of the child and store it."""
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line.endswith(b"\n"):  # the child has ended
            raise self._make_gone()
        message = json.loads(line)
        if "chunk" in message:
            self._frames.setdefault(message["reader"], deque()).extend(parse_frames(message["chunk"]))
        elif "paused" in message:
            self.is_paused = True
        elif "saved" in message:
            self.saved[message["saved"]] = self.saved.get(message["saved"], 0) + message["length"]
        else:
            self._replies.append(message)

    def kill(self) -> int:
        """Send SIGKILL; returns the exit code."""
        self._child.kill()
        return self._wait()

    def stop(self) -> int:
        """Close the child's standard input, which shuts it down; returns the exit code."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        return self._wait()

    def _wait(self) -> int:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        if not self._child.stdout.closed:
            self._child.stdout.read()
            self._child.stdout.close()
        try:
            self._child.stdin.close()
        except BrokenPipeError:
            pass  # it did not read the last call
        self._timer.cancel()
        return self._child.wait()

    def _make_gone(self) -> ServerGone:
        self._child.kill()
        return ServerGone(f"the server ended too early, with exit code {self._child.wait()}")


def parse_frames(chunk: str) -> list[Frame]:
    return [parse_frame(raw) for raw in chunk.split("\n\n") if raw]


def parse_frame(raw: str) -> Frame:
    data = json.loads(next(line for line in raw.split("\n") if line.startswith("data: "))[len("data: ") :])
    payload = data["payload"]
    is_event = data["type"] not in ("connected", "caught_up", "heartbeat", "stream_reset")
    return Frame(
        raw,
        data["type"],
        data.get("seq"),
        payload["type"] if is_event else None,
        payload["payload"] if is_event else payload,
    )
