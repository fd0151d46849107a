"""Files that `kedge run` reads, and the errors for those it cannot use."""

from __future__ import annotations

import base64
import os
import subprocess
from pathlib import Path

import pytest

from kedge.cli import run_input
from kedge.cli.options import UsageError
from kedge.protocol import bounds, validation
from kedge.protocol.runs import Attachment

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("name", "data", "mime_type"),
    [
        ("a.txt", b"text", "text/plain"),
        ("a.md", b"# text", "text/markdown"),
        ("empty", b"", "text/plain"),
        ("a.bin", "é 😀".encode(), "text/plain"),  # what counts is what is in it
        ("a.txt", PNG, "image/png"),
        ("a", b"\xff\xd8\xff\xe0", "image/jpeg"),
        ("a", b"GIF87a", "image/gif"),
        ("a", b"RIFF0000WEBP", "image/webp"),
        ("a.svg", b"<svg/>", "text/plain"),
    ],
)
def test_a_file_is_what_is_in_it(tmp_path: Path, name: str, data: bytes, mime_type: str) -> None:
    (tmp_path / name).write_bytes(data)
    (made,) = run_input.read_attachments([str(tmp_path / name)])
    assert made["mime_type"] == mime_type
    assert base64.b64decode(made["content"]) == data
    validation.check_attachments([Attachment(made["file_name"], made["mime_type"], data)])


def test_a_pipe_can_be_attached(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"from a process")
    os.close(writing)
    (made,) = run_input.read_attachments([f"/dev/fd/{reading}"])
    os.close(reading)
    assert base64.b64decode(made["content"]) == b"from a process"


def test_a_named_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_input, "WRITER_S", 0.05)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe"):
        run_input.read_attachments([str(tmp_path / "pipe")])


def test_a_named_pipe_is_read_to_its_end_however_slowly_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    parts = 'for word in one two three; do echo $word; sleep 0.1; done > "$1"'
    with subprocess.Popen(["sh", "-c", parts, "sh", str(path)]):
        (made,) = run_input.read_attachments([str(path)])
    assert base64.b64decode(made["content"]) == b"one\ntwo\nthree\n"


@pytest.mark.parametrize("data", [b"\x00\x01", PNG])
def test_a_system_prompt_that_is_no_text_is_told_as_that(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "it").write_bytes(data)
    with pytest.raises(UsageError) as refused:
        run_input.read_system_prompt(str(tmp_path / "it"))
    assert "UTF-8" in str(refused.value)


def test_a_name_that_is_long_or_no_text_is_made_fit(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 200) / ("y" * 200)
    deep.mkdir(parents=True)
    path = os.fsencode(deep) + b"/a\xff.txt"
    try:
        Path(os.fsdecode(path)).write_bytes(b"text")
    except OSError:
        return  # a system that takes no such names
    (made,) = run_input.read_attachments([os.fsdecode(path)])
    assert len(made["file_name"]) == bounds.MAX_FILE_NAME_CHARS
    assert made["file_name"].endswith("a\ufffd.txt")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x00\x01", "UTF-8"),
        ("ä".encode("latin-1"), "UTF-8"),
        (b"BM" + bytes(100), "UTF-8"),
        (b"x" * (run_input.MAX_TEXT_BYTES + 1), "4 MiB"),
        (PNG + b"x" * run_input.MAX_IMAGE_BYTES, "3.75 MiB"),
    ],
)
def test_what_cannot_be_attached_is_told_in_a_line(tmp_path: Path, data: bytes, why: str) -> None:
    (tmp_path / "it").write_bytes(data)
    with pytest.raises(UsageError) as refused:
        run_input.read_attachments([str(tmp_path / "it")])
    assert why in str(refused.value)
    assert "it" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory"):
        run_input.read_attachments([str(tmp_path / "missing")])
    with pytest.raises(UsageError, match="Is a directory"):
        run_input.read_attachments([str(tmp_path)])
    with pytest.raises(UsageError, match="embedded null"):
        run_input.read_attachments([f"{tmp_path}/a\0b"])


def test_all_together_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * run_input.MAX_TEXT_BYTES)
    with pytest.raises(UsageError, match="22 MiB"):
        run_input.read_attachments([str(tmp_path / "a")] * 6)


def test_a_schema_is_a_json_object(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text('\ufeff{"type": "object"}')
    assert run_input.read_output_schema(str(path)) == {"type": "object"}
    for text, why in (
        ("{", "JSON"),
        ("[]", "object"),
        ('{"a": NaN}', "NaN"),
        ("[" * 9999, "JSON|nested"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=why):
            run_input.read_output_schema(str(path))


def test_a_system_prompt_is_text_that_says_something(tmp_path: Path) -> None:
    path = tmp_path / "system.md"
    path.write_text("be brief\n")
    assert run_input.read_system_prompt(str(path)) == "be brief\n"
    path.write_text(" \n")
    with pytest.raises(UsageError, match="empty"):
        run_input.read_system_prompt(str(path))


def test_the_bounds_are_those_of_the_server() -> None:
    assert run_input.MAX_TEXT_BYTES == bounds.MAX_PROMPT_BYTES
    assert run_input.MAX_IMAGE_BYTES == bounds.MAX_IMAGE_BYTES
    assert run_input.MAX_SCHEMA_BYTES == bounds.MAX_SCHEMA_BYTES
    assert run_input.MAX_NAME_CHARS == bounds.MAX_FILE_NAME_CHARS
    assert run_input.MAX_ALL_BYTES * 4 // 3 + bounds.MAX_PROMPT_BYTES // 2 < bounds.MAX_BODY_BYTES
