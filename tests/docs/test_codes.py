"""The pages name every exit code and error code, and no others."""

from __future__ import annotations

import re

import pytest

from tests.docs import code
from tests.docs.pages import read


def test_the_code_says_the_codes_that_these_tests_look_for() -> None:
    assert {"run_not_found", "route_not_found", "session_busy", "not_json", "internal"} <= code.http_codes()
    assert {"no_model", "auth", "interrupted", "unsupported", "max_tokens"} <= code.run_codes()


@pytest.mark.parametrize("page", ["README.md", "docs/scripting.md"])
def test_a_table_of_exit_codes_has_all_of_them_and_no_others(page: str) -> None:
    told = {int(number) for cell in first_cells(page, "exit code") for number in re.findall(r"\d+", cell)}
    assert told == code.exit_codes()


@pytest.mark.parametrize("page", ["docs/scripting.md", "docs/troubleshooting.md", "docs/server.md", "docs/http-api.md"])
def test_an_exit_code_in_the_text_exists(page: str) -> None:
    told = {int(number) for number in re.findall(r"[Ee]xit code (\d+)", read(page))}
    assert told <= code.exit_codes()


def test_the_errors_of_http_are_all_listed_and_no_others() -> None:
    told = [word for row in rows("docs/http-api.md", "status") for word in re.findall(r"`([a-z_]+)`", row[1])]
    assert sorted(told) == sorted(code.http_codes())


def test_the_codes_of_failed_runs_are_all_listed_and_no_others() -> None:
    told = [word for cell in first_cells("docs/troubleshooting.md", "`code`") for word in re.findall(r"`(\w+)`", cell)]
    assert sorted([*told, "failed"]) == sorted(code.run_codes())


def first_cells(page: str, header: str) -> list[str]:
    return [row[0] for row in rows(page, header)]


def rows(page: str, header: str) -> list[list[str]]:
    """The cells of all tables whose first column has that header."""
    found: list[list[str]] = []
    for table in re.findall(r"(?:^\|.*\n)+", read(page), re.MULTILINE):
        head, _, *body = [[cell.strip() for cell in line.strip("|\n").split(" | ")] for line in table.splitlines()]
        if head[0] == header:
            found += body
    assert found, f"{page} has no table of {header}"
    return found
