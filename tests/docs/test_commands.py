"""Whoever types what the pages say gets what they say: real commands, a real server, and a scripted model."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from kedge.cli.completion import list_own_options, list_words
from kedge.cli.main import COMMANDS
from kedge.protocol.address import default_address
from tests.docs import stand_ins
from tests.docs.pages import LANGUAGES, blocks, fenced, for_readers, languages, read
from tests.docs.reader import Reader
from tests.e2e.home import Home, new_home
from tests.models.embedded import cache
from tests.support.model_control import ModelControl

PAGES = [page for page in for_readers() if [block for block in blocks(page) if not block.is_fresh]]
MCP_COMMANDS = """\
kedge mcp add time -- uvx mcp-server-time
kedge mcp add tracker --url https://mcp.example.com/mcp --header 'Authorization: Bearer ${TRACKER_TOKEN}'
kedge mcp add files --scope workspace -- npx -y @modelcontextprotocol/server-filesystem .
kedge mcp list     # state, number of tools, and the file that each comes from
kedge mcp test     # connects to each, and lists what it offers, with times
kedge mcp remove tracker"""
# All that is not run, and why not. Add to it only what really cannot be.
NOT_RUN = {
    ("README.md", "python3 dev.py test"): "runs all tests, this one too",
    ("docs/mcp.md", MCP_COMMANDS): "starts programs of the reader's machine, and needs servers on the internet",
}


@pytest.fixture
def home(model_control: ModelControl) -> Generator[Home]:
    with new_home(model_control) as home:
        yield home


@pytest.fixture
def reader(
    home: Home, model_control: ModelControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[Reader]:
    workspace = tmp_path / "project"
    workspace.mkdir()
    (workspace / "build.log").write_text("error: the date has no zone\n")
    (home.directory / "src" / "project").mkdir(parents=True)
    models = home.data_dir / "models"
    models.mkdir(parents=True)
    (models / "starter.gguf").symlink_to(cache.starter())
    programs = stand_ins.make_programs(tmp_path / "programs")
    env = {
        **home.env,
        "HOME": str(home.directory),
        "PATH": f"{programs}:{Path(sys.executable).parent}:{home.env['PATH']}",
        "LANG": "C.UTF-8",
    }
    monkeypatch.setenv("XDG_RUNTIME_DIR", env["XDG_RUNTIME_DIR"])
    socket = default_address(env["KEDGE_DATA_DIR"]).path
    reader = Reader(
        workspace, tmp_path, env, stand_ins.words(model_control.base_url, model_control.anthropic_url, socket)
    )
    yield reader
    reader.close()


@pytest.mark.parametrize("page", PAGES)
async def test_every_command_of_a_page_does_what_the_page_says(
    page: str, reader: Reader, model_control: ModelControl
) -> None:
    if page == "docs/http-api.md" and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    for block in blocks(page):
        if block.reason or block.is_fresh:
            continue
        model_control.reset()
        model_control.plan(**block.plan)
        await reader.play(block)


def test_what_is_not_run_is_listed_here_with_its_reason() -> None:
    found = {
        (page, step.command): block.reason
        for page in for_readers()
        for block in blocks(page)
        for step in block.steps
        if block.reason
    }
    assert found == NOT_RUN


def test_every_kind_of_block_is_read_by_some_test() -> None:
    """Configuration is loaded (`test_settings`), examples are run, the story is compared with what it prints."""
    found = {(language, page) for page in for_readers() for language in languages(page) if language not in LANGUAGES}
    elsewhere = {each for each in found if each[0] not in ("", "toml")}
    assert elsewhere == {
        ("python", "docs/client.md"),  # tests/client/test_docs.py
        ("python", "docs/providers-extending.md"),  # test_fresh.py, tests/e2e/test_packages.py
        ("ini", "docs/providers-extending.md"),
        ("yaml", "docs/ci.md"),  # test_ci.py
        ("text", "docs/story.md"),  # tests/cli/test_demo.py
    }


@pytest.mark.parametrize("page", for_readers())
def test_no_command_hides_in_a_block_of_another_kind(page: str) -> None:
    """`sh` and `console` are run; pictures in characters, and what Kedge prints, have no language or are `text`."""
    hidden = [
        line
        for language in ("", "text", "bash", "shell")
        for text in fenced(page, language)
        for line in text.splitlines()
        if re.match(r"(\$ |kedge |pip |curl |export )", line)
    ]
    assert hidden == []


@pytest.mark.parametrize("page", for_readers())
def test_a_command_in_the_text_exists_with_its_options(page: str) -> None:
    """What stands in a sentence, as `kedge run --timeout 600`, is not run, but could be."""
    prose = re.sub(r"^```.*?^```", "", read(page), flags=re.MULTILINE | re.DOTALL)
    for span in re.findall(r"`(kedge(?: [^`]+)?)`", prose):
        words = _words(span)
        name = next(iter(words[1:]), "")
        known = {*list_words(name)} if name in COMMANDS else {*list_own_options(), "--version", "--help", "--debug"}
        is_prompt = " " in name  # `kedge "fix the test"`
        assert is_prompt or name in COMMANDS or not name or name.startswith("-") or name.isupper(), f"{page}: {span}"
        options = {word.partition("=")[0] for word in words if word.startswith("--") and word != "--"}
        assert options <= {*known, "--help", "--debug"}, f"{page}: {span}"


def _words(span: str) -> list[str]:
    try:
        return shlex.split(span)
    except ValueError:  # a quote that is a part of it
        return span.split()
