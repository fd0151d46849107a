"""The place of every key, found exactly, whatever strings, comments and nested values hold."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given

from kedge.config.toml_layout import TomlLayout
from tests.config.documents import Written, documents, paths_of

pytestmark = pytest.mark.slow


@given(documents())
def test_every_key_is_found_and_nothing_else_is(written: Written) -> None:
    assert set(TomlLayout(written.text).paths()) == paths_of(tomllib.loads(written.text))


@given(documents())
def test_every_key_is_found_in_its_line(written: Written) -> None:
    layout = TomlLayout(written.text)
    assert {path: layout.line_of(path) for path in written.line_of} == written.line_of


@given(documents())
def test_line_ends_of_another_system_change_no_line(written: Written) -> None:
    layout = TomlLayout(written.text.replace("\n", "\r\n"))
    assert {path: layout.line_of(path) for path in written.line_of} == written.line_of


@given(documents())
def test_the_value_of_an_entry_is_what_is_cut_out(written: Written) -> None:
    document = tomllib.loads(written.text)
    for entry in TomlLayout(written.text).entries:
        value = document
        for name in entry.path:
            value = value[name]  # pyright: ignore[reportArgumentType]
        cut = written.text[entry.value_start : entry.value_end]
        assert tomllib.loads(f"x = {cut}") == {"x": value}


def test_a_key_that_is_not_there_has_the_line_of_the_table_around_it() -> None:
    layout = TomlLayout('# first\n[agent]\nmax_steps = 1\n[providers."a.b"]\n')
    assert layout.line_of(("agent", "max_steps")) == 3
    assert layout.line_of(("agent", "titles")) == 2
    assert layout.line_of(("providers", "a.b", "base_url")) == 4
    assert layout.line_of(("model",)) == 0
