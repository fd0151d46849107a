"""Reading a stream in a test, and a ring so small that readers fall off it."""

from collections.abc import AsyncIterator

from kedge.protocol.events import Event
from tests.support.bench import read_until
from tests.support.reader import Reader

SMALL_RING = 4_000  # bytes: some twenty events of a session


async def events_of(stream: AsyncIterator[bytes], *, until: str) -> list[Event]:
    reader = Reader()
    await read_until(reader, stream, until)
    return [frame.event for frame in reader.frames]


def seqs(events: list[Event]) -> list[int]:
    return [event.seq for event in events if event.seq is not None]
