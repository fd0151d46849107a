"""The narrator's end of the wire: the server as a child process, and the frames that a reader gets from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from pathlib import Path
from threading import Timer
from typing import Any, NamedTuple

# The whole story takes about a second. A child that is silent for this long will say nothing more.
PATIENCE_S = 60.0


class ServerGone(Exception):
    """The server ended when the story still needed it."""


class Frame(NamedTuple):
    """One SSE frame: `raw` as it was sent, and what it says. `seq` is None for what is not in the log."""

    raw: str
    type: str
    seq: int | None
    change: str | None
    payload: dict[str, Any]


class Server:
    """A child process; every line it says is put where it belongs, and waited for by whoever needs it."""

    def __init__(self, directory: Path, words: int | None = None) -> None:
        self.is_held = False  # its pen stopped in the middle of a sentence
        self.saved: dict[str, int] = {}  # message -> characters of text in flight that are safe
        self._frames: dict[str, deque[Frame]] = {}
        self._replies: deque[dict[str, Any]] = deque()
        self._child = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                f"{__package__}.server",
                str(directory),
                *([] if words is None else [str(words)]),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the narrator, who then ends the child
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._patience = Timer(PATIENCE_S, self._child.kill)
        self._patience.start()

    def call(self, call: str, **args: Any) -> Any:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps({"call": call, "args": args}).encode() + b"\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            raise self._gone() from None
        while not self._replies:
            self.hear()
        reply = self._replies.popleft()
        if "error" in reply:
            raise ServerGone(f"the server refused {call}: {reply['error']['message']}")
        return reply["reply"]

    def next_frame(self, reader: str) -> Frame:
        frames = self._frames.setdefault(reader, deque())
        while not frames:
            self.hear()
        return frames.popleft()

    def hear(self) -> None:
        """Wait for one line, and put it where it belongs."""
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line.endswith(b"\n"):  # nothing, or a line that was cut
            raise self._gone()
        said = json.loads(line)
        if "chunk" in said:
            self._frames.setdefault(said["reader"], deque()).extend(parse_frames(said["chunk"]))
        elif "held" in said:
            self.is_held = True
        elif "saved" in said:
            self.saved[said["saved"]] = self.saved.get(said["saved"], 0) + said["length"]
        else:
            self._replies.append(said)

    def kill(self) -> int:
        """SIGKILL: no word of farewell, no flush, nothing that the server could do about it."""
        self._child.kill()
        return self._leave()

    def stop(self) -> int:
        """Say good-bye: the server ends in order when nobody speaks to it any more."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        return self._leave()

    def _leave(self) -> int:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        if not self._child.stdout.closed:
            self._child.stdout.read()
            self._child.stdout.close()
        try:
            self._child.stdin.close()
        except BrokenPipeError:
            pass  # it did not read our last call
        self._patience.cancel()
        return self._child.wait()

    def _gone(self) -> ServerGone:
        self._child.kill()
        return ServerGone(f"the server ended too early, with {self._child.wait()}")


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
