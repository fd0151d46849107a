"""`view`: lines with numbers within their bounds, images, and nothing that blocks."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kedge.tools.errors import ToolError
from kedge.tools.port import Output
from kedge.tools.text import paging
from tests.tools.harness import ToolHarness

LIMIT_S = 20.0
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 100


async def view(harness: ToolHarness, data: bytes | str, **params: object) -> Output:
    (harness.directory / "file").write_bytes(data if isinstance(data, bytes) else data.encode())
    return await harness.call("view", path="file", **params)


async def test_lines_have_their_numbers(harness: ToolHarness) -> None:
    assert (await view(harness, "one\n\tzwei\n\nvier")).content == "     1\tone\n     2\t\tzwei\n     3\t\n     4\tvier"


async def test_what_was_read_is_known_by_its_digest(harness: ToolHarness) -> None:
    result = await view(harness, "one\n", limit=1)
    digest = hashlib.sha256(b"one\n").hexdigest()
    assert result.metadata == {"files": {str(harness.directory / "file"): digest}}


async def test_a_page_is_shown_and_how_to_go_on(harness: ToolHarness) -> None:
    text = "".join(f"line {number}\n" for number in range(1, 5001))
    first = await view(harness, text)
    lines = first.content.splitlines()
    assert lines[1999] == "  2000\tline 2000"
    assert lines[-1] == "[Lines 1 to 2,000 of 5,000 are shown. Go on with offset=2001.]"
    assert first.metadata is not None, "the whole file was read, although a part is shown"
    last = await view(harness, text, offset=4999)
    assert last.content == "  4999\tline 4999\n  5000\tline 5000"
    middle = await view(harness, text, offset=10, limit=2)
    assert middle.content.startswith("    10\tline 10\n    11\tline 11\n\n[Lines 10 to 11 of 5,000")


async def test_an_offset_behind_the_end_says_where_the_end_is(harness: ToolHarness) -> None:
    with pytest.raises(ToolError, match="1 line; offset 2"):
        await view(harness, "one\n", offset=2)


async def test_an_empty_file_is_empty(harness: ToolHarness) -> None:
    result = await view(harness, "")
    assert result.content == "file is empty."
    assert result.metadata is not None


async def test_a_page_is_bounded_in_bytes(harness: ToolHarness) -> None:
    result = await view(harness, "".join("€" * 500 + "\n" for _ in range(2000)))
    assert len(result.content.encode()) < 210_000
    shown = result.content.count("€€\n") + 1
    assert f"[Lines 1 to {shown - 1} of 2,000 are shown. Go on with offset={shown}.]" in result.content


async def test_a_long_line_is_cut_and_says_so(harness: ToolHarness) -> None:
    result = await view(harness, "x" * 5000 + "\nnext\n")
    first, second = result.content.splitlines()
    assert first == "     1\t" + "x" * 2000 + "… [this line has 5,000 characters; 3,000 are not shown]"
    assert second == "     2\tnext"


async def test_a_line_of_just_the_bound_is_whole(harness: ToolHarness) -> None:
    assert (await view(harness, "x" * 2000 + "\r\n")).content == "     1\t" + "x" * 2000


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(text=st.text(alphabet="ab\n\r€\U0001f600", max_size=80), offset=st.integers(1, 20), limit=st.integers(1, 10))
def test_every_page_is_what_splitting_the_text_gives(
    tmp_path_factory: pytest.TempPathFactory, text: str, offset: int, limit: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "page"
    path.write_bytes(text.encode())
    expected = text.removesuffix("\n").split("\n") if text else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paging, "_PIECE", 7)  # characters and line ends fall on the border of two pieces
        page = paging.read(path, offset, limit, paging.MAX_PAGE_BYTES, paging.threading.Event())
    assert isinstance(page, paging.Page)
    assert page.total == len(expected)
    assert page.lines == [line.removesuffix("\r") for line in expected[offset - 1 : offset - 1 + limit]]
    assert page.goes_on == (bool(expected) and offset - 1 + len(page.lines) < len(expected))
    assert page.digest == hashlib.sha256(text.encode()).hexdigest()


async def test_a_huge_file_costs_neither_memory_nor_a_whole_reading(harness: ToolHarness) -> None:
    with (harness.directory / "huge").open("wb") as file:
        file.write(b"first\nsecond\n" + b"x" * 1000)
        file.truncate(5_000_000_000)
    (harness.directory / "head").write_text("x")
    tracemalloc.start()
    try:
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(ToolError, match="binary"):
                await harness.call("view", path="huge")  # holes are zeros
    finally:
        tracemalloc.stop()
    with (harness.directory / "lines").open("wb") as file:
        for _ in range(700):
            file.write(b"a line of text\n" * 7000)
    tracemalloc.start()
    try:
        async with asyncio.timeout(LIMIT_S):
            result = await harness.call("view", path="lines", offset=3)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        (harness.directory / "lines").unlink()
    assert peak < 8_000_000
    assert "of a file of 73,500,000 bytes are shown. Go on with offset=2003.]" in result.content
    assert result.metadata is None, "nobody knows all of it"


async def test_one_endless_line_costs_no_memory(harness: ToolHarness) -> None:
    with (harness.directory / "line").open("wb") as file:
        for _ in range(60):
            file.write(b"x" * 1_000_000)
    tracemalloc.start()
    try:
        result = await harness.call("view", path="line")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        (harness.directory / "line").unlink()
    assert peak < 4_000_000
    assert "this line has 60,000,000 characters" in result.content


@pytest.mark.parametrize(
    ("data", "shown", "note"),
    [
        ("\ufeffbom\n".encode(), "bom", None),
        ("größe €\n".encode("utf-16"), "größe €", "utf-16"),
        (b"\xfe\xff" + "größe\n".encode("utf-16-be"), "größe", "utf-16"),
        ("größe\n".encode("latin-1"), "größe", "latin-1"),
        ("größe ".encode() + b"\xff\n", "größe \ufffd", "replaced"),
    ],
)
async def test_text_in_other_encodings_is_text(harness: ToolHarness, data: bytes, shown: str, note: str | None) -> None:
    result = await view(harness, data)
    assert result.content.splitlines()[0] == f"     1\t{shown}"
    assert (note is None) == (len(result.content.splitlines()) == 1)
    assert note is None or note in result.content


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x7fELF\x02\x01\x01" + b"\0" * 50, "ELF"),
        (b"%PDF-1.7\n1 0 obj\n", "PDF"),
        (b"PK\x03\x04" + b"\0" * 50, "ZIP"),
        (b"\x1f\x8b\x08\0\0\0", "gzip"),
        (b"SQLite format 3\0" + b"\0" * 50, "SQLite"),
        (b"text\0more", "binary"),
        (bytes(range(1, 256)) * 10, "binary"),
    ],
)
async def test_a_binary_file_is_named_not_shown(harness: ToolHarness, data: bytes, what: str) -> None:
    with pytest.raises(ToolError, match=what):
        await view(harness, data)


@pytest.mark.parametrize(
    ("data", "mime_type"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0" + b"\0" * 50, "image/jpeg"),
        (b"GIF89a" + b"\0" * 50, "image/gif"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "image/webp"),
    ],
)
async def test_an_image_is_shown_to_a_model_that_sees(harness: ToolHarness, data: bytes, mime_type: str) -> None:
    result = await view(harness, data)
    assert [(image.mime_type, image.data) for image in result.images] == [(mime_type, data)]
    harness.sees_images = False
    blind = await view(harness, data)
    assert not blind.images
    assert "cannot see images" in blind.content


async def test_an_image_that_no_provider_takes_is_refused(harness: ToolHarness) -> None:
    with pytest.raises(ToolError, match="make a smaller copy"):
        await view(harness, PNG + b"\0" * paging.MAX_IMAGE_BYTES)


async def test_a_missing_file_brings_similar_names(harness: ToolHarness) -> None:
    deep = harness.directory / "src" / "deep"
    deep.mkdir(parents=True)
    for name in ("settings.py", "Settings.toml", "unrelated"):
        (harness.directory / "src" / name).touch()
    (deep / "config.py").touch()
    with pytest.raises(ToolError, match=r"There is no file src/setting\.py\. Did you mean src/settings\.py"):
        await harness.call("view", path="src/setting.py")
    with pytest.raises(ToolError, match=r"Did you mean src/deep/config\.py\?"):
        await harness.call("view", path="config.py")
    with pytest.raises(ToolError, match=r"Did you mean src/unrelated\?"):
        await harness.call("view", path="/src/unrelated")
    with pytest.raises(ToolError, match="Use ls or glob"):
        await harness.call("view", path="qqqqqqqq")


@pytest.mark.timeout(15)
async def test_names_that_are_made_to_be_slow_to_compare_do_not_hold_up_the_answer(harness: ToolHarness) -> None:
    for i in range(2_000):
        (harness.directory / ("ab" * 100 + f"{i:04}")).touch()
    with pytest.raises(ToolError, match="There is no file"):
        await harness.call("view", path="ba" * 100 + "9999")


async def test_a_directory_is_for_ls(harness: ToolHarness) -> None:
    with pytest.raises(ToolError, match="is a directory; use ls"):
        await harness.call("view", path=".")


async def test_nothing_that_could_wait_for_ever_is_opened_to_wait(harness: ToolHarness) -> None:
    os.mkfifo(harness.directory / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(harness.directory / "socket"))
        async with asyncio.timeout(LIMIT_S):
            for path in ("pipe", "/dev/zero", "/dev/tty", "socket"):
                with pytest.raises(ToolError):
                    await harness.call("view", path=path)


async def test_files_of_the_kernel_are_read_without_waiting(harness: ToolHarness) -> None:
    async with asyncio.timeout(LIMIT_S):
        assert "Name:" in (await harness.call("view", path="/proc/self/status")).content


async def test_a_file_that_may_not_be_read_says_why(harness: ToolHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(paging.os, "open", denied)
    with pytest.raises(ToolError, match="Permission denied"):
        await view(harness, "x")


async def test_it_tells_what_is_read_wherever_the_path_seems_to_lead(harness: ToolHarness, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("secret")
    (harness.directory / "link").symlink_to(outside)
    (harness.directory / "inside").touch()
    (harness.directory / "sub").mkdir()
    for path in (str(outside), "../outside.txt", "link", "sub/../../outside.txt", "~/../outside.txt"):
        [access] = await harness.list_access("view", path=path)
        assert (access.kind, access.subject) == ("read", str(outside))
    for path in ("inside", "sub/../inside", str(harness.directory / "inside")):
        [access] = await harness.list_access("view", path=path)
        assert (access.kind, access.subject) == ("read", str(harness.directory / "inside"))


async def test_the_home_is_the_callers(harness: ToolHarness, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "notes").write_text("mine\n")
    assert (await harness.call("view", path="~/notes")).content == "     1\tmine"


@pytest.mark.parametrize(
    "path", ["", "  ", "a\0b", "x" * 300, "y/" * 3000, "\ud800", "~nobody-has-this-name/x", "loop"]
)
async def test_paths_that_cannot_be_are_told(harness: ToolHarness, path: str) -> None:
    (harness.directory / "loop").symlink_to("loop")
    with pytest.raises(ToolError):
        await harness.call("view", path=path)


async def test_a_cancelled_view_stops_reading(harness: ToolHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    began = asyncio.Event()

    def endless(fd: int, head: bytes, stop: paging.threading.Event) -> object:
        loop.call_soon_threadsafe(began.set)
        while not stop.wait(0.01):
            yield b"more\n"
        loop.call_soon_threadsafe(stopped.set)

    monkeypatch.setattr(paging, "_read_pieces", endless)
    call = asyncio.create_task(view(harness, "x"))
    async with asyncio.timeout(LIMIT_S):
        await began.wait()
        call.cancel()
        await stopped.wait()
