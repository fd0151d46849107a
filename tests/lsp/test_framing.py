"""Messages with a header, cut at every byte and with garbage between them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.jsonrpc.errors import InvalidAnswer
from kedge.lsp.transport import ContentLengthFraming

BODIES = [b'{"a":1}', b"", "é€".encode() * 10, b"\r\n\r\nContent-Length: 3\r\n\r\n"]


def read(pieces: list[bytes]) -> list[bytes]:
    framing = ContentLengthFraming()
    return [message for piece in pieces for message in framing.feed(piece)]


@given(st.lists(st.sampled_from(BODIES)), st.lists(st.integers(0, 300)))
def test_messages_arrive_whole_wherever_the_stream_is_cut(bodies: list[bytes], cuts: list[int]) -> None:
    framing = ContentLengthFraming()
    stream = b"".join(map(framing.wrap, bodies))
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    assert read([stream[start:end] for start, end in itertools.pairwise(places)]) == bodies


@pytest.mark.parametrize(
    "header",
    [
        b"Content-Length: 2\r\nContent-Type: application/vscode-jsonrpc; charset=utf-8\r\n\r\n",
        b"content-length:2\r\n\r\n",
        b"Loading the project...\nContent-Length: 2\r\n\r\n",
        b"a line with an end\r\n\r\nContent-Length: 2\r\n\r\n",
    ],
)
def test_headers_as_servers_write_them(header: bytes) -> None:
    assert read([header + b"{}"]) == [b"{}"]


@pytest.mark.parametrize("stream", [b"x" * 100_000, b"Content-Length: 99999999999\r\n\r\n"])
def test_a_stream_without_reasonable_messages_is_given_up(stream: bytes) -> None:
    with pytest.raises(InvalidAnswer):
        read([stream])
