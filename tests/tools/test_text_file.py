"""Reading and replacing in files keeps every byte that was not meant."""

from __future__ import annotations

import codecs
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kedge.tools.errors import ToolError
from kedge.tools.text.text_file import MAX_EDIT_BYTES, BinaryFile, decode_text, read_text_file

ENDS = st.sampled_from(["\n", "\r\n"])
BOMS = [b"", codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE]


@given(st.binary(max_size=200))
def test_bytes_that_are_text_come_back_as_they_were(data: bytes) -> None:
    try:
        text, encoding = decode_text(data)
    except BinaryFile:
        assert b"\0" in data
        return
    assert encoding.encode(text) == data


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.text(alphabet="abcé😀 ", max_size=5), ENDS), min_size=1, max_size=8),
    st.text(alphabet="xy\n", max_size=6),
    st.data(),
)
def test_only_the_span_changes_whatever_the_lines_end_with(
    tmp_path: Path, lines: list[tuple[str, str]], new: str, data: st.DataObject
) -> None:
    path = tmp_path / "f"
    path.write_bytes("".join(line + end for line, end in lines).encode())
    file = read_text_file(path, "f")
    start = data.draw(st.integers(0, len(file.text)))
    end = data.draw(st.integers(start, len(file.text)))
    raw = file.replace_spans([(start, end, new)])
    assert raw.replace("\r\n", "\n") == file.text[:start] + new + file.text[end:]
    untouched_head = file.text[:start].count("\n")
    assert raw.split("\n")[:untouched_head] == file.raw.split("\n")[:untouched_head]
    untouched_tail = file.text[end:].count("\n")
    if untouched_tail:
        assert raw.split("\n")[-untouched_tail:] == file.raw.split("\n")[-untouched_tail:]


def test_new_lines_end_like_the_lines_they_replace(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"one\r\ntwo\r\nthree\r\n")
    file = read_text_file(path, "f")
    assert file.replace_spans([(0, 3, "1\n1.5")]) == "1\r\n1.5\r\ntwo\r\nthree\r\n"


def test_broken_utf8_and_latin1_keep_their_bytes() -> None:
    text, encoding = decode_text("é".encode() + b"\xff!")
    assert text.startswith("é")
    assert encoding.encode(text.replace("!", "?")) == "é".encode() + b"\xff?"
    text, encoding = decode_text(b"caf\xe9")
    assert (text, encoding.encode(text + "\xfc")) == ("café", b"caf\xe9\xfc")


def test_a_character_that_the_encoding_lacks_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"caf\xe9")
    file = read_text_file(path, "f")
    with pytest.raises(ToolError, match=r"latin-1.*'😀'"):
        file.encode_text("😀")


@pytest.mark.parametrize("bom", BOMS)
def test_a_byte_order_mark_is_not_part_of_the_text(bom: bytes) -> None:
    name = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}.get(bom, "utf-8")
    assert decode_text(bom + "a😀".encode(name))[0] == "a😀"


def test_what_is_no_text_file_is_refused_without_waiting(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\x7fELF\0\0")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"")
    os.truncate(tmp_path / "large", MAX_EDIT_BYTES + 1)
    for name, why in [
        ("binary", "binary"),
        ("pipe", "is a pipe, a socket or a device"),
        ("large", "over 10 MiB"),
        (".", "is a directory"),
        ("none", "does not exist"),
    ]:
        with pytest.raises(ToolError, match=why):
            read_text_file(tmp_path / name, name)
