"""HTTP/1.1 answers from bytes: the same ones, wherever they are cut; and nothing is taken for one that is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.http import http1
from kedge.http.http1 import BrokenResponse, ResponseParser

SIZED = b"HTTP/1.1 202 Accepted\r\nContent-Length: 5\r\nKedge-Version: 1.2.3\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\nA;note=1\r\n, world\r\n!\r\n0\r\nTrailer: x\r\n\r\n"
)
INTERIM = b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" + SIZED
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"


def parsed(*chunks: bytes) -> tuple[ResponseParser, bytes]:
    parser = ResponseParser()
    return parser, b"".join([parser.feed(chunk) for chunk in chunks])


@pytest.mark.parametrize(
    ("stream", "status", "body"),
    [(SIZED, 202, b"hello"), (CHUNKED, 200, b"hello, world\r\n!"), (INTERIM, 202, b"hello"), (EMPTY, 204, b"")],
)
def test_an_answer_can_be_cut_at_every_byte(stream: bytes, status: int, body: bytes) -> None:
    for cut in range(len(stream) + 1):
        parser, found = parsed(stream[:cut], stream[cut:])
        assert (parser.status, found, parser.is_complete, parser.is_reusable) == (status, body, True, True)
    parser, found = parsed(*(bytes([byte]) for byte in stream))
    assert (parser.status, found, parser.is_complete) == (status, body, True)


@given(body=st.binary(), sizes=st.lists(st.integers(1, 40), min_size=1), cuts=st.lists(st.integers(1, 60), min_size=1))
def test_any_body_in_any_chunks_comes_out_whole(body: bytes, sizes: list[int], cuts: list[int]) -> None:
    stream = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    for piece in sliced(body, sizes):
        stream += b"%x\r\n%b\r\n" % (len(piece), piece)
    parser, found = parsed(*sliced(stream + b"0\r\n\r\n", cuts))
    assert (found, parser.is_complete) == (body, True)


def test_headers_are_found_by_their_lower_case_name() -> None:
    assert parsed(SIZED)[0].headers == {"content-length": "5", "kedge-version": "1.2.3"}


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    parser, found = parsed(b"HTTP/1.1 200 OK\r\n\r\nhello")
    assert (found, parser.is_complete) == (b"hello", False)
    parser.eof()
    assert (parser.is_complete, parser.is_reusable) == (True, False)


@pytest.mark.parametrize("stream", [b"", b"HTTP/1.1 20", SIZED[:-1], CHUNKED[:-2], CHUNKED[:60]])
def test_an_answer_that_is_cut_off_is_a_drop(stream: bytes) -> None:
    parser, _ = parsed(stream)
    with pytest.raises(BrokenResponse):
        parser.eof()


@pytest.mark.parametrize(
    "stream",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 20\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 000 OK\r\nContent-Length: 0\r\n\r\n",  # 0 stands for no answer
        b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\n" + b"a: 1\r\na: 2\r\n" * 6_000 + b"\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 3_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 12_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 70_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nhello",
    ],
)
def test_what_is_not_http_is_a_drop(stream: bytes) -> None:
    with pytest.raises(BrokenResponse):
        parsed(stream)


@pytest.mark.parametrize(
    ("head", "is_reusable"),
    [
        (b"HTTP/1.1 200 OK", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close", False),
        (b"HTTP/1.0 200 OK", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive", True),
    ],
)
def test_a_connection_is_used_again_only_if_the_server_keeps_it(head: bytes, is_reusable: bool) -> None:
    assert parsed(head + b"\r\nContent-Length: 0\r\n\r\n")[0].is_reusable is is_reusable


@pytest.mark.parametrize("head", [b"HTTP/1.0 200 Connection established", b"HTTP/1.1 200 OK\r\nConnection: close"])
def test_a_tunnel_is_open_whatever_the_proxy_says_of_the_connection(head: bytes) -> None:
    parser = ResponseParser(has_body=False)
    parser.feed(head + b"\r\n\r\n")
    assert (parser.is_complete, parser.is_reusable) == (True, True)
    parser = ResponseParser(has_body=False)
    parser.feed(head + b"\r\n\r\nbytes that belong to no request")
    assert not parser.is_reusable


def test_a_connection_with_bytes_after_the_answer_is_not_used_again() -> None:
    assert not parsed(SIZED + b"HTTP/1.1 408 Request Timeout\r\n\r\n")[0].is_reusable


def test_many_chunks_are_no_flood_of_headers() -> None:
    _, found = parsed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1;note\r\nx\r\n" * 20_000)
    assert len(found) == 20_000


def test_a_request_says_how_long_its_body_is() -> None:
    assert http1.build_request("POST", "/v1/x", {"Host": "h"}, b"{}") == (
        b"POST /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"
    )


@pytest.mark.parametrize("evil", ["a\r\nX: y", "a\nX: y"])
def test_a_header_cannot_smuggle_another_one_in(evil: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        http1.build_request("GET", "/", {"Kedge-Client": evil})


def sliced(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces: list[bytes] = []
    while data:
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(data[:size])
        data = data[size:]
    return pieces
