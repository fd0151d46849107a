"""What does it cost to show one long answer to many readers, and does each of them get all of it?"""

from __future__ import annotations

import selectors
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass

from bench.peers.servers.port import Adapter
from bench.peers.servers.running import Running, View, play
from bench.peers.servers.stream import LIMIT_S, Ended, Silent, Stream
from bench.peers.table import Row
from tests.support.model_control import ModelControl

TEXT = "the-end"  # the answer's last word


def row(readers: int, deltas: int) -> Row:
    title = f"Server: CPU for {deltas:,} deltas to {readers} reader{'s' if readers > 1 else ''}"
    return Row(title, "s", "Of all its processes; one answer at full speed")


@dataclass(frozen=True)
class Shown:
    cpu_s: float
    wall_s: float  # from the prompt until everybody had the end
    missing: int  # deltas, of the reader that had the fewest
    doubled: int
    thrown_out: int  # readers to which the server closed the connection


def answer(deltas: int) -> str:
    """What the model says."""
    return "".join([*(f"w{i} " for i in range(deltas - 1)), TEXT])


def losses(text: str, deltas: int) -> tuple[int, int]:
    """Of the answer's words, each of which was one delta: how many are missing, and how many are there twice."""
    said, wanted = Counter(text.split()), answer(deltas).split()
    return sum(not said[word] for word in wanted), sum(max(0, said[word] - 1) for word in wanted)


def show(server: Running, model: ModelControl, readers: int, deltas: int) -> Shown:
    adapter = server.adapter
    model.reset()
    with ExitStack() as opened:
        desk = adapter.open()
        opened.callback(desk.close)
        play(adapter, desk, "Hello.")  # some cannot be joined before
        streams = [desk.stream]
        while len(streams) < readers:
            streams.append(adapter.join(desk.session_id))
            opened.callback(streams[-1].close)
        model.plan(chunks=deltas, text=TEXT)
        cpu_s, began = server.process.cpu_s(), time.monotonic()
        desk.submit("Tell me all.")
        thrown_out = _hear(adapter, streams)
        wall_s, cpu_s = time.monotonic() - began, server.process.cpu_s() - cpu_s
        lost = [losses(_heard(adapter, stream, desk.session_id), deltas) for stream in streams]
    return Shown(cpu_s, wall_s, max(missing for missing, _ in lost), max(doubled for _, doubled in lost), thrown_out)


def _hear(adapter: Adapter, streams: list[Stream]) -> int:
    """Until all have the end, or are thrown out; how many that were. What comes is looked at later: a slow reader must
    not look like a slow server."""
    tails, thrown_out = dict.fromkeys(streams, b""), 0
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            if not stream.has(adapter.end_mark):
                stream.is_raw = True
                selector.register(stream.sock, selectors.EVENT_READ, stream)
        while selector.get_map():
            ready = selector.select(LIMIT_S)
            if not ready:
                raise Silent(f"{len(selector.get_map())} of {len(streams)} readers were not told of the end")
            for key, _ in ready:
                stream: Stream = key.data
                try:
                    seen = tails[stream] + stream.receive()
                except Ended:
                    thrown_out += 1
                    selector.unregister(stream.sock)
                    continue
                tails[stream] = seen[-len(adapter.end_mark) :]
                if adapter.end_mark in seen:
                    selector.unregister(stream.sock)
    return thrown_out


def _heard(adapter: Adapter, stream: Stream, session_id: str) -> str:
    view = View()
    for frame in stream.parsed():
        for told in adapter.read(frame, session_id):
            view.take(told)
    return view.text
