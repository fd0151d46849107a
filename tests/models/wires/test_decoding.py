"""The reader of event streams gives the same events however the bytes were cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.models.errors import Refused
from kedge.models.wires.decoding import SseEvent, SseReader

STREAM = (
    "\ufeffdata: first\n\n"
    ": a comment\r\n"
    "data: second \u2028 line \u2029 next \x85 \x0b \x0c\r\n\r\n"
    "event: error\rdata:without a space\rid: 7\rretry: 10\rnonsense\r\r"
    "data: two\r\ndata: lines\r\n\r\n"
    "\n\n"
    "event: no data\n\n"
    "data:\n\n"
    'data: {"text": "😀 \U0001f1e9\U0001f1ea"}\r\n\n'
    "data: cut off"
).encode()
EVENTS = [
    SseEvent(b"first"),
    SseEvent("second \u2028 line \u2029 next \x85 \x0b \x0c".encode()),
    SseEvent(b"without a space", "error"),
    SseEvent(b"two\nlines"),
    SseEvent(b""),
    SseEvent('{"text": "😀 \U0001f1e9\U0001f1ea"}'.encode()),
]


def read(*chunks: bytes) -> list[SseEvent]:
    reader = SseReader()
    return [event for chunk in chunks for event in reader.feed(chunk)]


def test_a_whole_stream_is_read_as_the_standard_says() -> None:
    assert read(STREAM) == EVENTS


def test_a_cut_at_any_byte_changes_nothing() -> None:
    for cut in range(len(STREAM) + 1):
        assert read(STREAM[:cut], STREAM[cut:]) == EVENTS, f"cut at byte {cut}"


@given(cuts=st.sets(st.integers(0, len(STREAM))))
def test_any_chunking_gives_the_same_events(cuts: set[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    assert read(*(STREAM[start:end] for start, end in pairwise(edges))) == EVENTS


@given(
    payloads=st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    size=st.integers(1, 9),
)
def test_whatever_was_sent_is_read(payloads: list[str], end: str, size: int) -> None:
    stream = "".join(f"data: {payload}{end}{end}" for payload in payloads).encode()
    chunks = [stream[i : i + size] for i in range(0, len(stream), size)]
    assert read(*chunks) == [SseEvent(payload.encode()) for payload in payloads]


def test_an_event_comes_out_with_the_byte_that_completes_it() -> None:
    reader = SseReader()
    assert reader.feed(b"data: now\r\n\r") == [SseEvent(b"now")]
    assert reader.feed(b"\n") == []


def test_an_event_without_end_is_refused() -> None:
    reader = SseReader(max_event_bytes=95)
    assert reader.feed(b"data: short\n\n" * 20) == [SseEvent(b"short")] * 20
    assert reader.feed(b"data: endless" * 7) == []
    with pytest.raises(Refused):
        reader.feed(b" and on")
