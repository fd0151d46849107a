"""A reader of the story: it follows the feed with a cursor, remembers what it read, and shows it as lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kedge.cli.demo.server_process import Frame, Server

WIDTH = 118  # of a line; a longer text is clipped


class Reader:
    def __init__(self, name: str, show: Callable[[str], None]) -> None:
        self.name = name
        self.cursor: int | None = 0  # seq of the last event that was read; 0: from the beginning
        self.log_id: str | None = None
        self.events: list[Frame] = []  # all that is in the log and was read, over all connections
        self.texts: dict[str, str] = {}  # message -> its text, as streamed
        self.reminders: list[Frame] = []  # what is still open, told again at the last connection
        self._show = show
        self._server: Server | None = None
        self._states: dict[str, str] = {}
        self._titles: dict[str, str] = {}
        self._streaming: tuple[str, list[str]] | None = None

    def connect(self, server: Server) -> None:
        self._server = server
        self.reminders = []
        server.call("subscribe", reader=self.name, after=self.cursor, log_id=self.log_id)

    def read_until(self, is_enough: Callable[[Frame], bool]) -> Frame:
        """Read on, and stop right after the frame that was waited for: what comes later is not looked at yet."""
        assert self._server is not None
        while True:
            frame = self._server.next_frame(self.name)
            self._take(frame)
            if is_enough(frame):
                self._show_stream()
                return frame

    def read_until_end(self, run_id: str) -> dict[str, Any]:
        return self.read_until(lambda f: f.type == "run_complete" and f.payload["run_id"] == run_id).payload

    def read_until_text(self, run_id: str, text: str) -> str:
        """Read until a message of the run shows this text, streamed but not finished; returns the message's id."""
        return self.read_until(
            lambda f: (
                f.type == "message_delta"
                and f.payload["run_id"] == run_id
                and self.texts[f.payload["message_id"]].strip() == text
            )
        ).payload["message_id"]

    def of(self, type: str, **fields: Any) -> list[Frame]:
        """The events of a type that were read, with these fields."""
        return [f for f in self.events if f.type == type and fields.items() <= f.payload.items()]

    def _take(self, frame: Frame) -> None:
        if frame.type == "message_delta":
            self._stream(frame.payload)
            return
        self._show_stream()
        if frame.seq is not None:
            self.events.append(frame)
            self.cursor = frame.seq
            self._show(clipped(f"{f'#{frame.seq}':>4}  {self._line(frame)}"))
        elif frame.type == "connected":
            self.log_id = frame.payload["log_id"]
            where = f"after #{frame.payload['after']}" if frame.payload["after"] else "from the beginning"
            self._show(f"   ~  {self.name} is connected, {where}; the log's head is #{frame.payload['head']}")
        elif frame.type == "caught_up":
            self._show(f"   ~  caught up: everything up to #{frame.payload['seq']} was delivered")
        elif frame.change is not None:
            self.reminders.append(frame)
            if frame.type == "message":
                self.texts[frame.payload["id"]] = text_of(frame.payload)
            self._show(clipped(f"   ~  still open: {self._line(frame)}"))

    def _stream(self, delta: dict[str, Any]) -> None:
        known = self.texts.get(delta["message_id"], "")
        assert delta["offset"] <= len(known), "a piece of text is missing"
        fresh = delta["text"][len(known) - delta["offset"] :]
        self.texts[delta["message_id"]] = known + fresh
        if self._streaming is None or self._streaming[0] != delta["run_id"]:
            self._show_stream()
            self._streaming = (delta["run_id"], [])
        self._streaming[1].append(fresh.strip())

    def _show_stream(self) -> None:
        if self._streaming is not None:
            run_id, pieces = self._streaming
            self._streaming = None
            self._show(clipped(f"   ~  {run_id} streams  {'|'.join(pieces)}"))

    def _line(self, frame: Frame) -> str:
        told = frame.payload
        match frame.type:
            case "session":
                self._titles[told["id"]] = told["title"]
                return f"session  {told['title']} {frame.change}"
            case "run":
                return f"run  {self._run(told)}"
            case "message":
                return f"message  {told['run_id']} {told['role']}: {shown_parts(told['parts'])}"
            case "permission_request":
                return f"permission_request  {told['run_id']} asks: may I {told['description']}?"
            case "permission_notification":
                return f"permission_notification  {told['run_id']}: {told['action']}, says {told['by']}"
            case "run_complete":
                how = "cancelled" if told.get("cancelled") else "failed" if told.get("error") else "completed"
                return f"run_complete  {told['run_id']} {how}: {quoted(told['text'])}"
            case other:
                return other

    def _run(self, run: dict[str, Any]) -> str:
        before, self._states[run["run_id"]] = self._states.get(run["run_id"]), run["state"]
        if before is None:
            return f"{run['run_id']} in {self._titles[run['session_id']]}: {run['state']}, {quoted(run['prompt'])}"
        if run["state"] != "running":
            return f"{run['run_id']} {before} → {run['state']}"
        if run["cancel_requested"]:
            return f"{run['run_id']} running, to be cancelled"
        if "merged_into" in run:
            return f"{run['run_id']} {before} → running, joined to {run['merged_into']}"
        if before == "running":
            return f"{run['run_id']} resumed, attempt {run['attempt']}"
        return f"{run['run_id']} {before} → running, attempt {run['attempt']}"


def text_of(message: dict[str, Any]) -> str:
    fields = {"text": "text", "tool_result": "content", "tool_call": "input"}
    return "".join(part[fields[part["type"]]] for part in message["parts"] if part["type"] in fields)


def shown_parts(parts: list[dict[str, Any]]) -> str:
    return ", ".join(shown_part(part) for part in parts) or "begun"


def shown_part(part: dict[str, Any]) -> str:
    match part["type"]:
        case "text":
            return quoted(part["text"])
        case "tool_call":
            return f"calls {part['name']}"
        case "tool_result":
            return f"{part['name']} gave {quoted(part['content'])}" if part["content"] else f"{part['name']} begun"
        case _:
            return f"({part['reason']})"


def quoted(text: str) -> str:
    return f'"{" / ".join(line.strip() for line in text.splitlines())}"'


def clipped(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"
