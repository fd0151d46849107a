"""One key is changed, and nothing else: not a comment, not a blank, not a line."""

from __future__ import annotations

import difflib
import tomllib
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kedge.config.errors import CannotSet
from kedge.config.keys import format_key, parse_key
from kedge.config.toml_edit import format_value, remove_key, set_key
from kedge.config.toml_layout import TomlLayout
from tests.config.documents import NAMES, Written, documents

PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map(tuple)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
JSON: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
)


def lines_lost(before: str, after: str) -> list[str]:
    return [line[2:] for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line.startswith("- ")]


@given(JSON)
def test_a_value_is_read_back_as_it_was_written(value: Any) -> None:
    text = f"x = {format_value(value)}"
    assert "\n" not in text
    assert tomllib.loads(text) == {"x": value}


@given(st.lists(TEXTS, min_size=1, max_size=4).map(tuple))
def test_a_key_is_read_back_as_it_was_spelled(path: tuple[str, ...]) -> None:
    assert parse_key(format_key(path)) == path


@pytest.mark.slow
@given(documents(), PATHS, JSON)
def test_setting_a_key_changes_that_key_and_no_other_line(made: Written, path: tuple[str, ...], value: Any) -> None:
    before = tomllib.loads(made.text)
    try:
        after = set_key(made.text, path, value)
    except CannotSet:
        assert not is_open(before, path), "a key that could be set was refused"
        return
    assert tomllib.loads(after) == put(before, path, value)
    assert len(lines_lost(made.text, after)) <= 1 + value_lines(made, path)


@given(documents(), PATHS)
def test_removing_a_key_takes_it_and_nothing_else(made: Written, path: tuple[str, ...]) -> None:
    before = tomllib.loads(made.text)
    try:
        after = remove_key(made.text, path)
    except CannotSet:
        assert holds_array(at(before, path)) or not isinstance(at(before, path), dict)
        return
    if at(before, path) is None:
        assert after == made.text
    else:
        assert full(tomllib.loads(after)) == full(without(before, path))
        comments = [line for line in made.text.splitlines() if line.strip().startswith("#") and "'''" not in made.text]
        assert '"""' in made.text or set(comments) <= set(after.splitlines())


@pytest.mark.slow
@given(documents(), PATHS, JSON)
def test_what_was_set_can_be_removed_again(made: Written, path: tuple[str, ...], value: Any) -> None:
    if not is_open(tomllib.loads(made.text), path) or at(tomllib.loads(made.text), path) is not None:
        return
    removed = remove_key(set_key(made.text, path, value), path)
    assert full(tomllib.loads(removed)) == full(tomllib.loads(made.text))


@pytest.mark.slow
@example("")
@example("# only a comment\n")
@example("\n[agent]\n")
@given(documents().map(lambda made: made.text))
def test_a_first_key_finds_its_place_above_all_tables(text: str) -> None:
    document = tomllib.loads(text)
    assert tomllib.loads(set_key(text, ("new_key",), "x")) == {**document, "new_key": "x"}


@pytest.mark.parametrize(
    ("before", "key", "value", "after"),
    [
        ("", "model", "a/b", 'model = "a/b"\n'),
        ('model = "x"  # why\n', "model", "a/b", 'model = "a/b"  # why\n'),
        ("model = 'x'", "small_model", "y", "model = 'x'\nsmall_model = \"y\"\n"),
        ("# mine\n\n# the agent\n[agent]\n", "model", "x", '# mine\n\nmodel = "x"\n\n# the agent\n[agent]\n'),
        ("[agent]\ntitles = 1 # y\n\n[x]\n", "agent.max_steps", 3, "[agent]\ntitles = 1 # y\nmax_steps = 3\n\n[x]\n"),
        ("[agent] # it\n\n", "agent.max_steps", 3, "[agent] # it\nmax_steps = 3\n\n"),
        ("a = 1\n", "agent.max_steps", 3, "a = 1\n\n[agent]\nmax_steps = 3\n"),
        ("agent.titles = true\na = 1\n", "agent.max_steps", 3, "agent.titles = true\nagent.max_steps = 3\na = 1\n"),
        ("agent = { titles = true }\n", "agent.max_steps", 3, "agent = { titles = true, max_steps = 3 }\n"),
        ("agent = {}\n", "agent.max_steps", 3, "agent = { max_steps = 3 }\n"),
        ("x = [\n 1,\n # two\n 2\n] # list\ny = 1\n", "x", [3], "x = [3] # list\ny = 1\n"),
        ("[p.a]\nx = 1\n", "p.b.y", 2, "[p.a]\nx = 1\n\n[p.b]\ny = 2\n"),
        ("a = 1\r\nb = 2\r\n", "c", 3, "a = 1\r\nb = 2\r\nc = 3\r\n"),
        ('[p."x.y"]\nk = 1\n', 'p."x.y".k', 2, '[p."x.y"]\nk = 2\n'),
    ],
)  # fmt: skip
def test_a_key_is_set_where_a_person_would_set_it(before: str, key: str, value: Any, after: str) -> None:
    assert set_key(before, parse_key(key), value) == after


@pytest.mark.parametrize(
    ("before", "key", "after"),
    [
        ("a = 1 # gone\n# stays\nb = 2\n", "a", "# stays\nb = 2\n"),
        ("a = [\n1,\n]\nb = 2\n", "a", "b = 2\n"),
        ("t = { a = 1, b = 2 }\n", "t.a", "t = { b = 2 }\n"),
        ("t = { a = 1, b = 2 }\n", "t.b", "t = { a = 1 }\n"),
        ("t = { a = 1 }\n", "t.a", "t = {  }\n"),
        ("# p\n[p.a]\nx = 1\n[p.b]\ny = 1\n", "p.a", "# p\n[p.b]\ny = 1\n"),
        ("[p]\nx = 1\n", "p.x", "[p]\n"),
        ("a = 1\n", "b", "a = 1\n"),
    ],
)
def test_a_key_is_removed_with_its_line(before: str, key: str, after: str) -> None:
    assert remove_key(before, parse_key(key)) == after


@pytest.mark.parametrize(
    ("text", "key", "why"),
    [
        ("a = 1\n", "a.b", "a is not a table"),
        ("[a]\nb = 1\n", "a", "a is a table"),
        ("[[a]]\nb = 1\n", "a.b", "a is not a table"),
    ],
)
def test_what_cannot_be_set_is_refused_with_a_reason(text: str, key: str, why: str) -> None:
    with pytest.raises(CannotSet, match=why):
        set_key(text, parse_key(key), 2)


def at(values: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if not isinstance(values, dict) or name not in values:
            return None
        values = cast("dict[str, Any]", values)[name]
    return values


def is_open(values: dict[str, Any], path: tuple[str, ...]) -> bool:
    """Whether nothing but tables stands on the way to a key, and none in its place."""
    on_the_way = [at(values, path[:length]) for length in range(1, len(path))]
    return all(isinstance(each, dict | None) for each in on_the_way) and not holds_table(at(values, path))


def put(values: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    inner = value if len(path) == 1 else put(values.get(path[0], {}), path[1:], value)
    return {**values, path[0]: inner}


def without(values: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    if len(path) == 1:
        return {name: value for name, value in values.items() if name != path[0]}
    return {**values, path[0]: without(values[path[0]], path[1:])}


def full(values: Any) -> Any:
    if not isinstance(values, dict):
        return values
    found = {name: full(value) for name, value in cast("dict[str, Any]", values).items()}
    return {name: value for name, value in found.items() if value != {}}


def holds_table(value: Any) -> bool:
    match value:
        case dict():
            return True
        case list():
            return any(map(holds_table, cast("list[Any]", value)))
        case _:
            return False


def holds_array(value: Any) -> bool:
    match value:
        case list():
            return True
        case dict():
            return any(map(holds_array, cast("dict[str, Any]", value).values()))
        case _:
            return False


def value_lines(made: Written, path: tuple[str, ...]) -> int:
    """How many lines the value takes that is replaced."""
    found = [each for each in TomlLayout(made.text).entries if each.path == path]
    return sum(made.text.count("\n", each.value_start, each.value_end) for each in found)
