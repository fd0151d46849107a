"""Frames from bytes: the same ones, wherever the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.protocol.sse import SseParser

TEXT = st.characters(codec="utf-8", exclude_characters="\r\n")
LINE_ENDS = [b"\n", b"\r\n", b"\r"]


def parsed(*chunks: bytes) -> list[tuple[str | None, bytes]]:
    parser = SseParser()
    return [(frame_id, data) for chunk in chunks for frame_id, data, _ in parser.feed(chunk)]


def test_a_frame_has_its_id_and_its_data() -> None:
    assert parsed(b'id: 7\ndata: {"a": 1}\n\n') == [("7", b'{"a": 1}')]


def test_an_id_is_not_inherited_by_the_next_frame() -> None:
    assert parsed(b"id: 7\ndata: a\n\ndata: b\n\n") == [("7", b"a"), (None, b"b")]


@pytest.mark.parametrize("text", ["a\u2028b", "a\u2029b", "a\x85b", "a\x0bb", "a\x0cb", "a\x1cb", "a\x1eb", "a\x00b"])
def test_what_is_no_line_end_is_text(text: str) -> None:
    assert parsed(f"data: {text}\n\n".encode()) == [(None, text.encode())]


@pytest.mark.parametrize("end", LINE_ENDS)
def test_every_line_end_of_the_standard_ends_a_line(end: bytes) -> None:
    stream = end.join([b"id: 1", b"data: a", b"data: b", b"", b"data: c", b"", b""])
    assert parsed(stream) == [("1", b"a\nb"), (None, b"c")]


def test_comments_unknown_fields_and_frames_without_data_are_passed_over() -> None:
    assert parsed(b": ping\n\nevent: x\nretry: 5\nid: 3\n\ndata\n\ndata:x\n\n") == [(None, b""), (None, b"x")]


def test_only_one_space_after_the_colon_is_not_data() -> None:
    assert parsed(b"data:  two\n\n") == [(None, b" two")]


def test_a_byte_order_mark_is_no_part_of_the_first_field() -> None:
    assert parsed(b"\xef\xbb", b"\xbfdata: a\n\n") == [(None, b"a")]


def test_half_a_frame_is_no_frame() -> None:
    assert parsed(b"data: a\n\ndata: b\n") == [(None, b"a")]


def test_the_stream_can_be_cut_at_every_byte() -> None:
    stream = 'id: 1\r\ndata: "ä\u2028😀"\r\n\r\n: note\rdata: 2\r\rdata: 3\n\n'.encode()
    whole = parsed(stream)
    assert len(whole) == 3
    for cut in range(len(stream) + 1):
        assert parsed(stream[:cut], stream[cut:]) == whole
    assert parsed(*(bytes([byte]) for byte in stream)) == whole


@given(
    frames=st.lists(st.tuples(st.none() | st.integers(1, 99), st.text(TEXT))),
    ends=st.lists(st.sampled_from(LINE_ENDS), min_size=1),
    cuts=st.lists(st.integers(0, 400)),
)
def test_any_chunking_gives_the_same_frames(
    frames: list[tuple[int | None, str]], ends: list[bytes], cuts: list[int]
) -> None:
    lines: list[bytes] = []
    for number, text in frames:
        lines += [b"id: %d" % number] if number is not None else []
        lines += [b"data: " + text.encode(), b""]
    stream = b"".join(line + ends[place % len(ends)] for place, line in enumerate(lines))
    expected = [(None if number is None else str(number), text.encode()) for number, text in frames]
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    chunks = [stream[a:b] for a, b in pairwise(places)]
    assert parsed(*chunks) == parsed(stream)
    if len(set(ends)) == 1:  # CR after one line and LF after the next, an empty one, are one CRLF
        assert parsed(*chunks) == expected


def test_a_large_frame_in_small_pieces_costs_its_size() -> None:
    parser = SseParser()
    assert parser.feed(b"data: ") == []
    for _ in range(20_000):
        assert parser.feed(b"x" * 500) == []
    assert parser.feed(b"\n\n") == [(None, b"x" * 10_000_000, "")]
