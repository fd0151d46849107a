"""The pages name the tools that there are, and what they configure is accepted: a reader can paste it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kedge.config.files import ConfigPaths
from kedge.config.load import Loaded, Loader
from kedge.tools.permissions.rules import parse_rule
from kedge.tools.registry import TOOLS, load_language_tools
from tests.docs.pages import all_pages, read
from tests.docs.test_codes import first_cells

EXAMPLES = [
    pytest.param(text, id=f"{page.stem}-{number}")
    for page in all_pages()
    for number, text in enumerate(re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL), 1)
]


def test_the_tools_are_all_listed_and_no_others() -> None:
    told = [name for cell in first_cells("docs/tools.md", "tool") for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(told) == sorted(tool.name for tool in (*TOOLS, *load_language_tools()))


def test_the_tools_that_run_side_by_side_are_those_that_only_read() -> None:
    told = re.search(r"that only read \(([^)]+)\)", read("docs/tools.md"))
    assert told
    assert set(re.findall(r"`(\w+)`", told[1])) == {
        tool.name for tool in (*TOOLS, *load_language_tools()) if tool.is_read_only
    }


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_of_a_configuration_is_accepted(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    variables = dict.fromkeys(re.findall(r"\$\{(\w+)\}", text), "value")
    loaded: Loaded = Loader(ConfigPaths(system=(), user=file)).load(tmp_path, variables)
    for rule in (*loaded.config.permissions.allow, *loaded.config.permissions.deny):
        parse_rule(rule, str(tmp_path), str(tmp_path))
