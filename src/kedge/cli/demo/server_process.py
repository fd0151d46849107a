"""The demo's server as a child process, and the frames that a reader gets from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable
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
        command = [sys.executable, "-P", "-m", f"{__package__}.server", str(directory)]
        self._child = subprocess.Popen(
            command if pause_after is None else [*command, str(pause_after)],
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
            frames = [parse_frame(raw) for raw in message["chunk"].split("\n\n") if raw]
            self._frames.setdefault(message["reader"], deque()).extend(frames)
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


def parse_frame(raw: str) -> Frame:
    data = json.loads(next(line for line in raw.split("\n") if line.startswith("data: "))[len("data: ") :])
    payload = data["payload"]
    is_event = data["type"] not in ("connected", "caught_up", "heartbeat", "stream_reset")
    change, content = (payload["type"], payload["payload"]) if is_event else (None, payload)
    return Frame(raw, data["type"], data.get("seq"), change, content)


WIDTH = 118  # longer lines are cut


class Reader:
    def __init__(self, name: str, print_line: Callable[[str], None]) -> None:
        self.name = name
        self.cursor: int | None = 0  # seq of the last event that was read; 0: from the beginning
        self.log_id: str | None = None
        self.events: list[Frame] = []  # events of the log, over all connections
        self.texts: dict[str, str] = {}  # message -> its text, as streamed
        self.reminders: list[Frame] = []  # open requests and messages, sent again when connecting
        self._print = print_line
        self._server: ServerProcess | None = None
        self._states: dict[str, str] = {}
        self._titles: dict[str, str] = {}
        self._streaming: tuple[str, list[str]] | None = None

    def connect(self, server: ServerProcess) -> None:
        self._server = server
        self.reminders = []
        server.call("subscribe", reader=self.name, after=self.cursor, log_id=self.log_id)

    def read_until(self, is_enough: Callable[[Frame], bool]) -> Frame:
        """Read frames up to the first for which `is_enough` is true, and return that one."""
        assert self._server is not None
        while True:
            frame = self._server.next_frame(self.name)
            self._take(frame)
            if is_enough(frame):
                self._print_stream()
                return frame

    def read_until_end(self, run_id: str) -> dict[str, Any]:
        return self.read_until(lambda f: f.type == "run_complete" and f.payload["run_id"] == run_id).payload

    def read_until_text(self, run_id: str, text: str) -> str:
        """Read until a message of the run has this text, not yet finished; returns the message's ID."""
        return self.read_until(
            lambda f: (
                f.type == "message_delta"
                and f.payload["run_id"] == run_id
                and self.texts[f.payload["message_id"]].strip() == text
            )
        ).payload["message_id"]

    def find(self, type: str, **fields: Any) -> list[Frame]:
        """Events of a type that were read and have these fields."""
        return [f for f in self.events if f.type == type and fields.items() <= f.payload.items()]

    def _take(self, frame: Frame) -> None:
        if frame.type == "message_delta":
            self._stream(frame.payload)
            return
        self._print_stream()
        if frame.seq is not None:
            self.events.append(frame)
            self.cursor = frame.seq
            self._print(cut(f"{f'#{frame.seq}':>4}  {self._describe(frame)}"))
        elif frame.type == "connected":
            self.log_id = frame.payload["log_id"]
            where = f"after #{frame.payload['after']}" if frame.payload["after"] else "from the beginning"
            self._print(f"   ~  {self.name} is connected, {where}; the log ends at #{frame.payload['head']}")
        elif frame.type == "caught_up":
            self._print(f"   ~  caught up: everything up to #{frame.payload['seq']} was delivered")
        elif frame.change is not None:
            self.reminders.append(frame)
            if frame.type == "message":
                self.texts[frame.payload["id"]] = join_text(frame.payload)
            self._print(cut(f"   ~  still open: {self._describe(frame)}"))

    def _stream(self, delta: dict[str, Any]) -> None:
        known = self.texts.get(delta["message_id"], "")
        assert delta["offset"] <= len(known), "a piece of text is missing"
        fresh = delta["text"][len(known) - delta["offset"] :]
        self.texts[delta["message_id"]] = known + fresh
        if self._streaming is None or self._streaming[0] != delta["run_id"]:
            self._print_stream()
            self._streaming = (delta["run_id"], [])
        self._streaming[1].append(fresh.strip())

    def _print_stream(self) -> None:
        if self._streaming is not None:
            run_id, pieces = self._streaming
            self._streaming = None
            self._print(cut(f"   ~  {run_id} streams  {'|'.join(pieces)}"))

    def _describe(self, frame: Frame) -> str:
        payload = frame.payload
        match frame.type:
            case "session":
                self._titles[payload["id"]] = payload["title"]
                return f"session  {payload['title']} {frame.change}"
            case "run":
                return f"run  {self._describe_run(payload)}"
            case "message":
                parts = ", ".join(map(describe_part, payload["parts"])) or "started"
                return f"message  {payload['run_id']} {payload['role']}: {parts}"
            case "permission_request":
                return f"permission_request  {payload['run_id']} asks for permission: {payload['description']}"
            case "permission_notification":
                return f"permission_notification  {payload['run_id']}: {payload['action']} by {payload['by']}"
            case "run_complete":
                how = "cancelled" if payload.get("cancelled") else "failed" if payload.get("error") else "completed"
                return f"run_complete  {payload['run_id']} {how}: {quote(payload['text'])}"
            case other:
                return other

    def _describe_run(self, run: dict[str, Any]) -> str:
        before, self._states[run["run_id"]] = self._states.get(run["run_id"]), run["state"]
        if before is None:
            return f"{run['run_id']} in {self._titles[run['session_id']]}: {run['state']}, {quote(run['prompt'])}"
        if run["state"] != "running":
            return f"{run['run_id']} {before} → {run['state']}"
        if run["cancel_requested"]:
            return f"{run['run_id']} running, to be canceled"
        if "merged_into" in run:
            return f"{run['run_id']} {before} → running, joined to {run['merged_into']}"
        if before == "running":
            return f"{run['run_id']} resumed, attempt {run['attempt']}"
        return f"{run['run_id']} {before} → running, attempt {run['attempt']}"


def join_text(message: dict[str, Any]) -> str:
    fields = {"text": "text", "tool_result": "content", "tool_call": "input"}
    return "".join(part[fields[part["type"]]] for part in message["parts"] if part["type"] in fields)


def describe_part(part: dict[str, Any]) -> str:
    match part["type"]:
        case "text":
            return quote(part["text"])
        case "tool_call":
            return f"calls {part['name']}"
        case "tool_result":
            return f"{part['name']} returned {quote(part['content'])}" if part["content"] else f"{part['name']} started"
        case _:
            return f"({part['reason']})"


def quote(text: str) -> str:
    return f'"{" / ".join(line.strip() for line in text.splitlines())}"'


def cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"
