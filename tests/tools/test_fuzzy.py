"""Finding a file by a few characters of its name: what somebody most likely means comes first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.tools.search.file_index import rank_names

NAMES = [
    "README.md",
    "docs/reading.md",
    "src/",
    "src/app/",
    "src/app/main.py",
    "src/app/main_test.py",
    "src/domain/remainder.py",
    "src/app/file_name_parser.py",
    "src/appfile.py",
    "tests/main/",
    "tests/main/test_app.py",
]


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("main", ["tests/main/", "src/app/main.py", "src/app/main_test.py"]),
        ("main.py", ["src/app/main.py"]),
        ("MAIN.PY", ["src/app/main.py"]),
        ("read", ["README.md", "docs/reading.md"]),
        ("fnp", ["src/app/file_name_parser.py"]),
        ("src/app/", ["src/app/", "src/app/main.py"]),
        ("src/", ["src/", "src/app/"]),
        ("apmain", ["src/app/main.py"]),
        ("name", ["src/app/file_name_parser.py"]),
    ],
)
def test_the_likeliest_comes_first(typed: str, first: list[str]) -> None:
    assert rank_names(NAMES, typed, 10)[: len(first)] == first


def test_nothing_typed_lists_what_is_near_the_top() -> None:
    assert rank_names(NAMES, "", 2) == ["README.md", "src/"]


def test_what_is_not_in_a_name_in_its_order_does_not_fit() -> None:
    assert rank_names(NAMES, "niam", 10) == []
    assert rank_names(NAMES, "(.*", 10) == []


@given(st.lists(st.text("abAB/_.", min_size=1, max_size=12), unique=True), st.text("abAB/_.", max_size=4))
def test_exactly_the_names_with_these_characters_in_order_are_found(names: list[str], typed: str) -> None:
    def fits(name: str) -> bool:
        rest = iter(name.casefold())
        return all(char in rest for char in typed.casefold())

    assert set(rank_names(names, typed, 1_000)) == {name for name in names if fits(name)}


@pytest.mark.timeout(10)
def test_names_that_are_made_to_be_slow_cost_little() -> None:
    names = ["a" * 200 + "/" + "a" * 200] * 1_000
    assert rank_names(names, "a" * 20 + "b", 10) == []
    assert rank_names(names, "a" * 300_000, 10) == []
