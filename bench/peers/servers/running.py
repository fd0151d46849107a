"""A server that runs for a measurement, and one prompt through it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.peers.servers.codex import Codex
from bench.peers.servers.goose import Goose
from bench.peers.servers.kedge import Kedge
from bench.peers.servers.kimi import Kimi
from bench.peers.servers.opencode import Opencode
from bench.peers.servers.port import Adapter, Delta, Desk, Ended, Told, Whole
from bench.peers.servers.process import Process
from bench.peers.servers.qwen import Qwen
from bench.peers.servers.stream import LIMIT_S, Silent
from bench.peers.setting import Contender

ADAPTERS: dict[str, Callable[[Contender], Adapter]] = {
    "kedge": Kedge,
    "codex": Codex,
    "opencode": Opencode,
    "goose": Goose,
    "kimi-code": Kimi,
    "qwen-code": Qwen,
}

# Why the others are not here.
NO_SERVER = {
    "kimi-cli": "not asked: kimi-code follows it",
    "mistral-vibe": "no such thing: vibe-acp and vibe-app-server serve the one process that started them, over stdio",
    "aider": "no such thing",
}


@dataclass
class Running:
    name: str
    adapter: Adapter
    process: Process
    ready_s: float

    def stop(self) -> None:
        self.adapter.close()
        self.process.stop()


def started(contender: Contender, adapter: Adapter) -> Running:
    process = Process(contender, list(adapter.arguments()))
    try:
        return Running(contender.name, adapter, process, process.await_ready(adapter.ready_line, adapter.answer))
    except BaseException:
        process.stop()
        raise


@contextmanager
def running(contender: Contender) -> Generator[Running]:
    server = started(contender, ADAPTERS[contender.name](contender))
    try:
        yield server
    finally:
        server.stop()


class View:
    """What a reader has of an answer: it keeps what it has, and drops what it is told twice where it can see that."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        self.final: str | None = None  # where the server says at the end what the whole is
        self.ends: list[str] = []

    def take(self, told: Told) -> None:
        match told:
            case Delta(text, offset):
                known = len(self.text) - offset if offset is not None else 0
                self.text += text[max(0, known) :]
            case Whole(text, is_final=True):
                self.final = text
            case Whole(text):
                self.adopt(text)
            case Ended(how):
                self.ends.append(how)

    def adopt(self, text: str) -> None:
        """What the server says that the answer is so far."""
        if len(text) >= len(self.text):
            self.text = text


@dataclass(frozen=True)
class Played:
    accepted_s: float
    ended_s: float
    view: View


def play(adapter: Adapter, desk: Desk, prompt: str, limit_s: float = LIMIT_S) -> Played:
    """One prompt, from the request to the end of its story."""
    began = time.monotonic()
    accepted, ended, view = desk.submit(prompt), 0.0, View()
    while not view.ends:
        left_s = began + limit_s - time.monotonic()
        if left_s <= 0:
            raise Silent(f"the prompt did not end within {limit_s:.0f} s")
        frame = desk.stream.next(left_s)
        accepted = accepted or frame.at
        for told in adapter.read(frame, desk.session_id):
            view.take(told)
        ended = frame.at
    assert accepted is not None
    return Played(accepted - began, ended - began, view)
