"""What is published of the schema is what the schema says, and the page's own examples hold."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from typing import Any

import jsonschema_rs
import pytest

from kedge.config.schema import json_schema
from kedge.config.schema_tree import find_problems, iter_leaves
from tests.config.reference_page import PAGE, SCHEMA, page

REGENERATE = "regenerate it: python -m tests.config.reference_page"
EXAMPLES: list[str] = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_page_lists_the_keys_that_there_are() -> None:
    assert PAGE.read_text() == page(), REGENERATE


def test_the_published_schema_is_the_one_that_is_printed() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "kedge", "config", "schema"], capture_output=True, check=True, timeout=30
    )
    assert printed.stdout.decode() == json_schema()
    assert SCHEMA.read_text() == json_schema(), REGENERATE


def test_every_key_says_what_it_is_for() -> None:
    assert [path for path, leaf in iter_leaves() if not leaf.description] == []


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_the_page_is_valid(example: str) -> None:
    assert list(find_problems(tomllib.loads(example))) == []
    jsonschema_rs.validate(json.loads(json_schema()), tomllib.loads(example))


@pytest.mark.parametrize(
    "document",
    [
        {"modle": "x"},
        {"model": 1},
        {"agent": {"max_steps": 0}},
        {"agent": {"summarize_at": 1.5}},
        {"permissions": {"mode": "yola"}},
        {"permissions": {"deny": "all"}},
        {"providers": {"x": {"base_ur": "y"}}},
        {"providers": {"x": {"models": {"m": {"tools": "yes"}}}}},
    ],
)
def test_what_we_refuse_an_editor_marks(document: dict[str, Any]) -> None:
    assert list(find_problems(document))
    assert not jsonschema_rs.is_valid(json.loads(json_schema()), document)
