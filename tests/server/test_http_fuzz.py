"""Whatever bytes come, and however they are cut: the same answers, and those of another implementation."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Callable

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from tests.server.wire import Served, Wire, asgi_echo, echo, feed, settle

SEED = random.SystemRandom().randrange(2**32)
GET, POST = b"GET / HTTP/1.1\r\nHost: x\r\n", b"POST / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"

# Refused by both implementations.
HOSTILE = {
    "both lengths": POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both lengths, the other order": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "the same length twice": POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a list of lengths": POST + b"Content-Length: 3, 3\r\n\r\nabc",
    "a signed length": POST + b"Content-Length: +3\r\n\r\nabc",
    "a negative length": POST + b"Content-Length: -3\r\n\r\nabc",
    "a hexadecimal length": POST + b"Content-Length: 0x3\r\n\r\nabc",
    "no length": POST + b"Content-Length:\r\n\r\nabc",
    "an endless length": POST + b"Content-Length: 99999999999999999999999\r\n\r\nabc",
    "chunked twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked is not the last": POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "an unknown coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a control before the coding": POST + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "a chunk size without CR": CHUNKED + b"3\nabc\r\n0\r\n\r\n",
    "a space before a chunk size": CHUNKED + b" 3\r\nabc\r\n0\r\n\r\n",
    "a space behind a chunk size": CHUNKED + b"3 \r\nabc\r\n0\r\n\r\n",
    "a chunk size with 0x": CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
    "a chunk longer than it says": CHUNKED + b"3\r\nabcX\r\n0\r\n\r\n",
    "an endless chunk": CHUNKED + b"ffffffffffffffffff\r\nabc",
    "no chunk size": CHUNKED + b"\r\n",
    "a NUL in an extension": CHUNKED + b'3;a="\0"\r\nabc\r\n0\r\n\r\n',
    "a length as a trailer": CHUNKED + b"0\r\nContent-Length: 5\r\n\r\n",
    "a folded trailer": CHUNKED + b"0\r\nT: u\r\n v\r\n\r\n",
    "a folded header": GET + b"A: b\r\n c\r\n\r\n",
    "a folded length": POST + b"Content-Length: 3\r\n c\r\n\r\nabc",
    "a space before a header": b"GET / HTTP/1.1\r\n A: b\r\n\r\n",
    "a space before a colon": GET + b"A : b\r\n\r\n",
    "no name": GET + b": b\r\n\r\n",
    "no colon": GET + b"A\r\n\r\n",
    "a NUL in a value": GET + b"A: b\0c\r\n\r\n",
    "a NUL in a name": GET + b"A\0: b\r\n\r\n",
    "a NUL in a path": b"GET /a\0b HTTP/1.1\r\n\r\n",
    "a bare LF": GET + b"A: b\nB: c\r\n\r\n",
    "a bare CR": GET + b"A: b\rB: c\r\n\r\n",
    "only LF": b"GET / HTTP/1.1\n\n",
    "a space in a path": b"GET /a b HTTP/1.1\r\n\r\n",
    "a byte that is not ASCII in a path": b"GET /\xff HTTP/1.1\r\n\r\n",
    "a relative path": b"GET a HTTP/1.1\r\n\r\n",
    "an authority": b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    "another version": b"GET / HTTP/1.2\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a small method": b"get / HTTP/1.1\r\n\r\n",
}
# Refused only by ours.
STRICTER = {
    "a coding that nobody decodes": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "HTTP/2.0": b"GET / HTTP/2.0\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "an upgrade with a body": POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 5\r\n\r\nGET /",
    "very many headers": GET + b"A: b\r\n" * 300 + b"\r\n",
}


def make_request(rng: random.Random) -> bytes:
    """A valid request."""
    pick = rng.choice
    method, body = pick([b"GET", b"POST", b"HEAD", b"PUT", b"DELETE", b"OPTIONS"]), rng.randbytes(rng.randrange(40))
    target = pick([b"/", b"/a%20b/%C3%A4?q=%20&x", b"/%zz%ff", b"*", b"http://h/p?q", b"//a", b"/a#b", b"/x?a?b"])
    head = [pick([b"Host", b"hOST"]) + pick([b": ", b":", b":\t "]) + b"x"]
    head += [b"X-%d: %b" % (n, pick([b"", b"v", b"a  b", b"\xe4", b"v" * 200])) for n in range(rng.randrange(4))]
    if method == b"POST":
        head += rng.sample([b"Expect: 100-continue", b"Accept: */*"], rng.randrange(2))
        if rng.random() < 0.5:
            head.append(b"Transfer-Encoding: " + pick([b"chunked", b"CHUNKED"]))
            at = rng.randrange(len(body) + 1)
            chunks = [b"%x%b\r\n%b\r\n" % (len(c), pick([b"", b";a=b"]), c) for c in (body[:at], body[at:]) if c]
            body = b"".join(chunks) + b"0\r\n\r\n"
        else:
            head.append(b"Content-Length: %d" % len(body))
    else:
        body = b""
    if rng.random() < 0.1:
        head.append(b"Connection: close")
    # In HTTP/1.0 chunks are invalid, and an expectation is ignored (RFC 9110), which uvicorn does not do.
    is_old = rng.random() < 0.05 and not re.search(b"Transfer|Expect", b"".join(head))
    version = b"1.0" if is_old else b"1.1"
    rng.shuffle(head)
    return b"%b %b HTTP/%b\r\n%b\r\n\r\n%b" % (method, target, version, b"\r\n".join(head), body)


def damage(rng: random.Random, data: bytes) -> bytes:
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data) + 1)
        odd = rng.choice([b"", b"\0", b"\r", b"\n", b"\r\n", b" ", b":", b"\xff", b"0", b"\r\n\r\n", rng.randbytes(3)])
        data = data[:at] + odd + data[at + rng.randrange(3) :]
    return data


def make_stream(rng: random.Random) -> bytes:
    requests = [make_request(rng) for _ in range(rng.randrange(1, 5))]
    kind = rng.randrange(3)
    if kind == 1:
        requests.insert(rng.randrange(len(requests) + 1), rng.choice([*HOSTILE.values(), *STRICTER.values()]))
    data = b"".join(requests)
    return damage(rng, data) if kind == 2 else data


def cut(data: bytes, positions: list[int]) -> list[bytes]:
    return [data[a:b] for a, b in zip([0, *positions], [*positions, len(data)], strict=True)]


async def answer_of(pieces: list[bytes], *, at_leisure: bool = True) -> tuple[bytes, bool]:
    served = Served(echo)
    await feed(served.wire, pieces, at_leisure=at_leisure)
    result = bytes(served.wire.written), served.wire.is_closed
    served.wire.close()
    await settle(served.wire)
    assert not served.opened.tasks
    return result


@pytest.mark.parametrize("number", range(60))
async def test_the_answers_do_not_depend_on_where_the_data_is_cut(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(f"{SEED} {number}")
    data = make_stream(rng)
    print(f"seed {SEED}, stream {number}: {data!r}")
    whole = await answer_of([data])
    for _ in range(8):
        positions = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(1, 10)))
        assert await answer_of(cut(data, positions), at_leisure=rng.random() < 0.5) == whole, positions
    assert await answer_of(cut(data, list(range(1, len(data)))), at_leisure=False) == whole
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("name", [*HOSTILE, *STRICTER])
async def test_a_hostile_request_is_refused_wherever_it_is_cut_and_after_those_before_it(name: str) -> None:
    data = {**HOSTILE, **STRICTER}[name]
    whole, is_closed = await answer_of([data])
    assert whole.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert b'"code":"malformed"' in whole
    assert is_closed
    for position in range(1, min(len(data), 400)):
        assert await answer_of(cut(data, [position])) == (whole, True), position
    behind, is_closed = await answer_of([GET + b"\r\n" + data + GET + b"\r\n"])
    assert behind.startswith(b"HTTP/1.1 200 ")
    assert behind.endswith(whole)
    assert behind.count(b"HTTP/1.1 ") == 2
    assert is_closed


@pytest.mark.parametrize("number", range(20))
async def test_noise_is_harmless(number: int, caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(f"{SEED} noise {number}")
    print(f"seed {SEED}, noise {number}")
    await answer_of([rng.randbytes(rng.randrange(1, 300)) for _ in range(20)])
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def answer_of_uvicorn(data: bytes) -> bytes:
    config = uvicorn.Config(
        asgi_echo, lifespan="off", log_config=None, access_log=False, server_header=False, date_header=False, ws="none"
    )
    config.load()
    loop = asyncio.get_running_loop()
    connect: Callable[[], asyncio.Protocol] = lambda: HttpToolsProtocol(config, ServerState(), {}, loop)  # noqa: E731
    wire = Wire(connect)
    wire.feed(data)
    await settle(wire)
    wire.close()
    await settle(wire)
    return bytes(wire.written)


@pytest.mark.parametrize("number", range(60))
async def test_valid_requests_are_answered_as_by_uvicorn(number: int) -> None:
    rng = random.Random(f"{SEED} valid {number}")
    data = b"".join(make_request(rng) for _ in range(rng.randrange(1, 6)))
    print(f"seed {SEED}, requests {number}: {data!r}")
    ours, _ = await answer_of([data])
    assert ours == await answer_of_uvicorn(data)


@pytest.mark.parametrize("number", range(60))
async def test_a_damaged_request_that_uvicorn_refuses_is_refused(number: int) -> None:
    rng = random.Random(f"{SEED} damaged {number}")
    data = damage(rng, make_request(rng))
    print(f"seed {SEED}, damaged {number}: {data!r}")
    theirs, (ours, _) = await answer_of_uvicorn(data), await answer_of([data])
    if b"HTTP/1.1 400 " in theirs:
        assert b"HTTP/1.1 400 " in ours or ours.count(b"HTTP/1.1 200 ") >= theirs.count(b"HTTP/1.1 200 ") > 0
    else:
        assert ours == theirs or b"HTTP/1.1 400 " in ours


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_request_that_we_refuse_is_refused_by_uvicorn(name: str) -> None:
    assert b"HTTP/1.1 400 " in await answer_of_uvicorn(HOSTILE[name])
