"""The page that says how each promise is tested is true: every promise, files that exist, and that cite it."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import read
from tests.docs.test_codes import rows
from tests.server.process import ROOT

PAGE = "docs/promises.md"
LINK = re.compile(r"\]\(\.\./(tests/[\w/.]+\.py)\)")
PROMISES = {re.findall(r"P\d+", row[0])[0]: LINK.findall(row[-1]) for row in rows(PAGE, "promise")}


def test_every_promise_of_the_contract_is_there_in_its_order() -> None:
    promised = re.findall(r"^\*\*(P\d+) —", read("docs/contract.md"), re.MULTILINE)
    assert list(PROMISES) == promised == [f"P{number}" for number in range(1, 19)]


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_has_tests_that_cite_it(promise: str) -> None:
    files = PROMISES[promise]
    assert files
    for file in files:
        text = (ROOT / file).read_text()
        cited = {int(number) for number in re.findall(r"\bP(\d+)\b", text)}
        for first, last in re.findall(r"\bP(\d+) to P(\d+)\b", text):
            cited |= {*range(int(first), int(last) + 1)}
        assert int(promise[1:]) in cited, f"{file} does not name {promise}"
        assert re.search(r"^ *(async )?def test_", text, re.MULTILINE), f"{file} has no tests"


def test_no_test_of_the_contract_by_number_is_left_out() -> None:
    named = {file for files in PROMISES.values() for file in files}
    by_number = {f"tests/contract/{path.name}" for path in (ROOT / "tests" / "contract").glob("test_p*.py")}
    assert by_number <= named
