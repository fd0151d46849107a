"""`fetch` and `download` against real servers on loopback; nothing private is reached unless a person allowed it."""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import os
import ssl
import subprocess
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.config.schema import Config, FetchConfig
from kedge.http.addresses import is_public
from kedge.tools.builtin import download
from kedge.tools.builtin.download import TOOL as DOWNLOAD
from kedge.tools.builtin.fetch import MAX_BYTES
from kedge.tools.builtin.fetch import TOOL as FETCH
from kedge.tools.errors import ToolError
from kedge.tools.port import Output, Tool
from kedge.tools.text import encodings
from kedge.tools.text.encodings import web_encoding
from kedge.tools.web.html import html_to_markdown
from tests.tools.harness import ToolHarness

CHARSET = "punycode"
PAGE = b"""<!DOCTYPE html><html><head><title>A page</title><style>x{}</style></head><body>
<h1>Hello</h1><p>Some <b>bold</b> text and <a href="/other">a link</a>.</p>
<ul><li>one</li><li>two</li></ul><pre>code  here</pre><script>alert(1)</script></body></html>"""


class Pages(BaseHTTPRequestHandler):
    release = threading.Event()

    def do_GET(self) -> None:
        match self.path:
            case "/page":
                self.answer(200, PAGE, "text/html; charset=utf-8")
            case "/away":
                self.answer(302, b"", location="http://169.254.169.254/latest/meta-data")
            case "/loop":
                self.answer(302, b"", location="/loop")
            case "/nowhere":
                self.answer(302, b"", location="http://[::1")
            case "/utf-8":
                self.answer(302, b"", location="/ü".encode().decode("latin-1"))  # the header's bytes are UTF-8
            case "/%C3%BC":
                self.answer(200, b"found")
            case "/hop":
                self.answer(302, b"", location="/page")
            case "/large":
                self.answer(200, b"x" * (6 * 1024 * 1024), "text/plain")
            case "/bomb":
                self.answer(200, gzip.compress(b"x" * (20 * 1024 * 1024), 1), "text/plain", encoding="gzip")
            case "/endless":  # behind what is compressed
                self.send_response(200)
                self.send_header("Content-Encoding", "gzip")
                self.send_header("Content-Type", "text/plain; charset*=x; charset*1=y")
                self.end_headers()
                try:
                    self.wfile.write(gzip.compress(b"all of it"))
                    while not self.release.is_set():
                        self.wfile.write(bytes(65536))
                except OSError:
                    pass  # the client had enough
            case "/cut":
                self.answer(200, gzip.compress(b"x" * 1000)[:-9], encoding="gzip")
            case "/empty":
                self.answer(200, b"", encoding="gzip")
            case "/long":
                self.answer(200, b"".join(b"line %d\n" % i for i in range(20_000)), "text/plain")
            case "/hostile":  # 4 MiB in a codec that takes quadratic time
                self.answer(200, b"a" * (4 * 1024 * 1024) + b"-b", f"text/plain; charset={CHARSET}")
            case "/image":
                self.answer(200, b"\x89PNG", "image/png")
            case "/host":
                self.answer(200, self.headers["Host"].encode(), "text/plain")
            case "/slow":
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"begin")
                self.wfile.flush()
                self.release.wait(30)
            case _:
                self.answer(404, b"nothing here", "text/plain")

    def answer(
        self, status: int, body: bytes, kind: str = "text/plain", location: str = "", encoding: str = ""
    ) -> None:
        self.send_response(status)
        for name, value in [("Content-Type", kind), ("Location", location), ("Content-Encoding", encoding)]:
            if value:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            pass  # the client had enough

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 theirs
        pass


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Generator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    server.daemon_threads = True
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        Pages.release.set()
        server.shutdown()
        thread.join()
        server.server_close()
        Pages.release.clear()


@pytest.fixture
def port() -> Generator[int]:
    with serving() as port:
        yield port


@pytest.fixture
def place(harness: ToolHarness) -> ToolHarness:
    harness.config = Config(fetch=FetchConfig(allow_private=True))
    return harness


async def call(tool: Tool, place: ToolHarness, **params: Any) -> Output:
    return await tool.run(place, msgspec.convert(params, tool.params))


async def test_a_page_is_read_as_markdown(place: ToolHarness, port: int) -> None:
    output = await call(FETCH, place, url=f"http://127.0.0.1:{port}/hop")
    base = f"http://127.0.0.1:{port}"
    assert output.content == (
        f"{base}/page\n\n# A page\n\n# Hello\n\nSome **bold** text and [a link]({base}/other).\n\n"
        "- one\n- two\n\n```\ncode  here\n```"
    )


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "127.1", "2130706433", "[::ffff:127.0.0.1]"]
)
async def test_private_addresses_are_refused_however_they_are_written(place: ToolHarness, port: int, host: str) -> None:
    place.config = Config()
    with pytest.raises(ToolError, match=r"not fetched|could not be looked up"):
        await call(FETCH, place, url=f"http://{host}:{port}/page")


async def test_a_redirect_to_another_host_is_told_and_not_followed(place: ToolHarness, port: int) -> None:
    """Leave was given for one host: a page must not choose another, like a cloud's own metadata server."""
    for tool, params in [(FETCH, {}), (DOWNLOAD, {"path": "f"})]:
        with pytest.raises(ToolError, match=r"http://169.254.169.254/latest/meta-data, on another host"):
            await call(tool, place, url=f"http://127.0.0.1:{port}/away", **params)


@pytest.mark.parametrize(
    ("ip", "public"),
    [
        ("8.8.8.8", True), ("2606:4700::1", True), ("10.0.0.1", False), ("172.16.0.1", False), ("192.168.1.1", False),
        ("100.64.0.1", False), ("169.254.169.254", False), ("127.0.0.1", False), ("0.0.0.0", False),
        ("224.0.0.1", False), ("255.255.255.255", False), ("::1", False), ("::", False), ("fe80::1", False),
        ("fd00::1", False), ("::ffff:10.0.0.1", False), ("64:ff9b::a00:1", False), ("64:ff9b::808:808", True),
        ("64:ff9b:1::7f00:1", False), ("::127.0.0.1", False), ("::ffff:0:7f00:1", False), ("fec0::1", False),
        ("2002:a00:1::", False), ("2001:db8::1", False), ("ff02::1", False),
    ],
)  # fmt: skip
def test_which_addresses_are_public(ip: str, public: bool) -> None:
    assert is_public(ipaddress.ip_address(ip)) is public


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://x/y", "http://", "nothing", "http://u:p@h/", "http://h:x/"]
)
async def test_what_is_no_web_address_is_refused_before_anybody_is_asked(place: ToolHarness, url: str) -> None:
    for tool, params in [(FETCH, {}), (DOWNLOAD, {"path": "f"})]:
        assert tool.list_access is not None
        with pytest.raises(ToolError):
            await tool.list_access(place, msgspec.convert({"url": url, **params}, tool.params))


async def test_size_time_and_redirects_are_bounded(place: ToolHarness, port: int) -> None:
    base = f"http://127.0.0.1:{port}"
    for path, why in [("large", "more than 5 MiB"), ("bomb", "more than 5 MiB"), ("loop", "redirected more than 5")]:
        with pytest.raises(ToolError, match=why):
            await call(FETCH, place, url=f"{base}/{path}")
    with pytest.raises(ToolError, match=r"within 0.2 s"):
        await call(FETCH, place, url=f"{base}/slow", timeout=0.2)
    with pytest.raises(ToolError, match=r"image/png, not text. Use download"):
        await call(FETCH, place, url=f"{base}/image")


NOT_FOR_PAGES = (
    "punycode", "idna", "hex", "bz2", "zlib", "rot13", "base64", "uu", "quopri", "unicode_escape", "raw_unicode_escape",
    "utf-7", "undefined", "mbcs", "oem", "charmap", "iso2022_jp_2", "nonsense", "a" * 10_000, "../x", "a\0b", "",
)  # fmt: skip


@pytest.mark.parametrize("charset", NOT_FOR_PAGES)
def test_a_page_in_a_codec_that_is_not_for_pages_is_read_as_utf_8(charset: str) -> None:
    assert web_encoding(charset) == "utf-8"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("charset", sorted(encodings.WEB_ENCODINGS))
def test_any_bytes_are_decoded_soon_in_what_pages_are_written_in(charset: str) -> None:
    assert web_encoding(charset) == charset
    for data in (b"\xff", b"\x81", b"\x1b$B", b"\xe3\x80", b"~{", bytes(range(256))):
        (data * (1024 * 1024 // len(data))).decode(charset, "replace")


@pytest.mark.timeout(30)
async def test_a_page_that_names_a_quadratic_codec_is_text_all_the_same(place: ToolHarness, port: int) -> None:
    output = await call(FETCH, place, url=f"http://127.0.0.1:{port}/hostile")
    assert "aaaa" in output.content


async def test_a_redirect_may_be_in_utf_8_and_a_broken_one_is_an_error_of_the_page(
    place: ToolHarness, port: int
) -> None:
    base = f"http://127.0.0.1:{port}"
    assert (await call(FETCH, place, url=f"{base}/utf-8")).content == f"{base}/ü\n\nfound"
    with pytest.raises(ToolError, match="which is not a URL"):
        await call(FETCH, place, url=f"{base}/nowhere")


async def test_gzip_ends_where_it_says_and_nothing_behind_it_is_read(place: ToolHarness, port: int) -> None:
    base = f"http://127.0.0.1:{port}"
    assert (await call(FETCH, place, url=f"{base}/endless", timeout=10)).content == f"{base}/endless\n\nall of it"
    assert (await call(FETCH, place, url=f"{base}/empty")).content == f"{base}/empty\n\n"
    with pytest.raises(ToolError, match="in the middle of its gzip data"):
        await call(FETCH, place, url=f"{base}/cut")


async def test_a_long_page_is_cut_and_the_whole_is_in_a_file(place: ToolHarness, port: int) -> None:
    output = await call(FETCH, place, url=f"http://127.0.0.1:{port}/long")
    assert len(output.content) < 32_000
    (saved,) = place.scratch.iterdir()
    assert str(saved) in output.content
    assert saved.read_text().count("\n") == 20_000


async def test_an_error_of_the_server_is_told(place: ToolHarness, port: int) -> None:
    output = await call(FETCH, place, url=f"http://127.0.0.1:{port}/none")
    assert output.is_error
    assert "answered 404" in output.content
    assert "nothing here" in output.content


async def test_the_name_is_sent_although_the_address_is_used(place: ToolHarness, port: int) -> None:
    output = await call(FETCH, place, url=f"http://localhost:{port}/host")
    assert output.content.endswith(f"\n\nlocalhost:{port}")


async def test_a_certificate_is_checked_against_the_name(
    place: ToolHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    files = [
        "-keyout",
        str(tmp_path / "key"),
        "-out",
        str(tmp_path / "cert"),
        "-addext",
        "subjectAltName=DNS:localhost",
    ]
    await asyncio.to_thread(subprocess.run, [*command.split(), *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert"))
    with serving(context) as port:
        output = await call(FETCH, place, url=f"https://localhost:{port}/host")
        assert output.content.endswith(f"localhost:{port}")
        with pytest.raises(ToolError, match=r"(?i)certificate"):
            await call(FETCH, place, url=f"https://127.0.0.1:{port}/host")


async def test_a_download_appears_whole_or_not_at_all(
    place: ToolHarness, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kedge.tools.builtin.download.MAX_BYTES", 8 * 1024 * 1024)
    base = f"http://127.0.0.1:{port}"
    output = await call(DOWNLOAD, place, url=f"{base}/large", path="deep/large.bin")
    assert (place.directory / "deep/large.bin").stat().st_size == 6 * 1024 * 1024
    assert "6,291,456 bytes" in output.content
    for path, why, timeout in [
        ("bomb", "more than 8 MiB", 60),
        ("none", "answered 404", 60),
        ("slow", "within", 0.2),
    ]:
        with pytest.raises(ToolError, match=why):
            await call(DOWNLOAD, place, url=f"{base}/{path}", path=f"new-{path}", timeout=timeout)
    with pytest.raises(ToolError, match=r"large\.bin"):
        await call(DOWNLOAD, place, url=f"{base}/page", path="deep/large.bin")
    assert [each.name for each in place.directory.iterdir()] == ["deep"]
    assert [each.name for each in (place.directory / "deep").iterdir()] == ["large.bin"]


async def test_a_download_that_is_cancelled_while_its_file_is_made_leaves_nothing(
    place: ToolHarness, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    fdopen = os.fdopen

    def slowly(fd: int, mode: str) -> BinaryIO:
        begun.set()
        assert may_go_on.wait(30)
        return cast("BinaryIO", fdopen(fd, mode))

    monkeypatch.setattr(download.os, "fdopen", slowly)
    work = asyncio.create_task(call(DOWNLOAD, place, url=f"http://127.0.0.1:{port}/page", path="page.html"))
    assert await asyncio.to_thread(begun.wait, 30)
    work.cancel()
    asyncio.get_running_loop().call_soon(may_go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await work
    assert list(place.directory.iterdir()) == []


async def test_a_page_comes_as_markdown_as_its_words_or_as_it_is(place: ToolHarness, port: int) -> None:
    url = f"http://127.0.0.1:{port}/page"
    said = {form: (await call(FETCH, place, url=url, format=form)).content for form in ("markdown", "text", "html")}
    assert f"# Hello\n\nSome **bold** text and [a link](http://127.0.0.1:{port}/other)." in said["markdown"]
    assert said["text"] == f"{url}\n\nA page\n\nHello\n\nSome bold text and a link.\n\n- one\n- two\n\ncode  here"
    assert said["html"] == f"{url}\n\n{PAGE.decode()}"


def test_any_markup_comes_out_as_text() -> None:
    title, text = html_to_markdown("<p>a<ul><li>b<ol><li>c</ol></ul></b></a></pre><h9>x<![CDATA[ <title>t", "http://h/")
    assert "- b" in text
    assert "1. c" in text
    assert title in ("", "t")
    deep = "<div>" * 50_000 + "end"
    assert html_to_markdown(deep, "http://h/")[1] == "end"


NEVER_ENDS = [
    "<!--",
    '<a href="',
    "<a x=",
    "</a ",
    "<![CDATA[",
    "<![",
    "<?",
    "<svg></head>",
    "<head></svg>",
    "<",
    "&#9",
]
BOMBS = ["<a>", "<b>x", "<a href=x></a>", "<br>", "<!-->", "<!a>", "<p>&amp;", "<a x='>", "<li>", "</pre><pre>", "&ab "]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "piece", [*NEVER_ENDS, *BOMBS, '<a "b"=c ' * 10_000 + ">", "<a " + "b " * 1_000 + "href=c>d</a>"]
)
def test_no_markup_takes_long(piece: str) -> None:
    began = time.process_time()
    html_to_markdown(piece * (MAX_BYTES // len(piece)), "http://h/" + "a/" * 3_900)
    assert time.process_time() - began < 10  # it was hours for some, and 18 s for others


def test_a_page_with_more_markup_than_is_read_says_that_it_is_cut() -> None:
    text = html_to_markdown("<p>one</p>" * 200_000, "http://h/")[1]
    assert text.startswith("one\n\none")
    assert "rest of the page was left out" in text[-100:]
    assert "left out" not in html_to_markdown("<p>one</p>" * 50_000, "http://h/")[1]


@given(st.text(alphabet="<>/!-?='\" ab&;#9[]\n", max_size=200))
def test_the_words_of_any_text_are_read_without_an_error(html: str) -> None:
    html_to_markdown(html, "http://h/")
    html_to_markdown(html, "http://h/", is_plain=True)


def test_quotes_and_raw_text_hide_markup() -> None:
    html = """<a title="a > b" href='/c?d=1&amp;e=2'>x</a><SCRIPT>"</p>"</Script><p don't>y</p><img alt=z src=/q>"""
    assert html_to_markdown(html, "http://h/")[1] == "[x](http://h/c?d=1&e=2)\n\ny\n\n![z]"


def test_what_was_begun_and_never_ended_is_text() -> None:
    assert html_to_markdown("<p>one &amp; two <a href='x", "http://h/")[1] == "one & two <a href='x"
    assert html_to_markdown("<p>one &amp", "http://h/")[1] == "one &"
