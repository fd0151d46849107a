"""Positions as servers count them, compared with a plain count of code units."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.lsp.messages import Position
from kedge.lsp.positions import LineIndex, PositionEncoding, path_to_uri, replace_surrogates, uri_to_path

ENCODINGS: list[PositionEncoding] = ["utf-8", "utf-16", "utf-32"]
CODECS = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}
TEXTS = st.lists(st.sampled_from(["a", "bc", "é", "€", "𝄞", "\r\n", "\n", "\r", "\u2028", "\x0b", "\t"])).map("".join)


def split_lines(text: str) -> list[str]:
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def count_units(text: str, encoding: str) -> int:
    codec, width = CODECS[encoding]
    return len(text.encode(codec)) // width


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(text=TEXTS, data=st.data())
def test_a_position_is_the_line_and_the_code_units_before_it(
    encoding: PositionEncoding, text: str, data: st.DataObject
) -> None:
    index, lines = LineIndex(text, encoding), split_lines(text)
    assert index.line_count == len(lines)
    assert [index.line(number) for number in range(len(lines))] == lines
    line = data.draw(st.integers(0, len(lines) - 1))
    characters = data.draw(st.integers(0, len(lines[line])))
    position = Position(line, count_units(lines[line][:characters], encoding))
    offset = index.to_offset(position)
    assert index.to_position(offset) == position
    assert text[:offset].endswith(lines[line][:characters])


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(text=TEXTS, line=st.integers(-2, 12), character=st.integers(-2, 12))
def test_a_position_outside_of_the_text_is_moved_into_it(
    encoding: PositionEncoding, text: str, line: int, character: int
) -> None:
    index = LineIndex(text, encoding)
    offset = index.to_offset(Position(line, character))
    assert 0 <= offset <= len(text)
    back = index.to_position(offset)
    if 0 <= line < index.line_count:
        assert back.line == line
        assert back.character <= max(character, 0)  # in front of a character that it is inside of


@given(text=TEXTS, data=st.data())
def test_all_encodings_lead_to_the_same_place(text: str, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, len(text)))
    indexes = [LineIndex(text, encoding) for encoding in ENCODINGS]
    places = [index.to_offset(index.to_position(offset)) for index in indexes]
    assert len(set(places)) == 1
    assert offset - places[0] in (0, 1)  # one only between \r and \n


@given(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1).map(
        lambda name: Path("/") / name.lstrip("/")
    )
)
def test_a_path_survives_its_uri(path: Path) -> None:
    assert uri_to_path(path_to_uri(path)) == path


def test_a_file_name_that_is_no_text_survives_its_uri() -> None:
    path = Path(b"/tmp/\xff.py".decode("utf-8", "surrogateescape"))
    assert path_to_uri(path) == "file:///tmp/%FF.py"
    assert uri_to_path("file:///tmp/%FF.py") == path


@pytest.mark.parametrize(
    "uri", ["https://example.com/a.py", "untitled:a", "file://host/a.py", "file:a", "file://[", ""]
)
def test_what_is_no_file_of_this_machine_has_no_path(uri: str) -> None:
    assert uri_to_path(uri) is None


def test_bytes_that_are_no_text_keep_their_places() -> None:
    text = b"a\xffb".decode("utf-8", "surrogateescape")
    assert replace_surrogates(text) == "a\ufffdb"
