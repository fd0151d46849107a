"""MCP servers in the interface: the list, prompts as commands, resources as mentions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from kedge.protocol.mcp_requests import McpPrompt, McpPromptArgument
from kedge.tui.mcp import mask_command, parse_arguments
from tests.e2e.home import Home
from tests.mcp.test_sdk_servers import NEW, SCRIPT
from tests.support.pip import install_requirement
from tests.tui.ui_driver import kedge


@pytest.fixture
def url() -> Generator[str]:
    """A server made with the SDK: tools, the prompt `greet`, and the resource note://today."""
    env = {**os.environ, "PYTHONPATH": str(install_requirement(NEW))}
    with subprocess.Popen([sys.executable, str(SCRIPT), "stream"], env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().decode().strip()
        finally:
            process.kill()


@pytest.fixture
def workspace(served: Home, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """A trusted workspace with that server and one that is not there."""
    config = served.directory / ".config" / "kedge" / "config.toml"
    places = [Path(served.env[name]) for name in ("XDG_CONFIG_HOME",) if name in served.env]
    file = places[0] / "kedge" / "config.toml" if places else config
    before = file.read_text() if file.exists() else None
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{before or ''}\ntrusted = ['{tmp_path}']\n")
    (tmp_path / "kedge.toml").write_text(f"mcp.sdk.url = '{url}'\nmcp.gone.url = 'http://127.0.0.1:9/mcp'\n")
    yield tmp_path
    if before is None:
        file.unlink()
    else:
        file.write_text(before)


@pytest.mark.slow
async def test_servers_are_listed_and_their_prompts_and_resources_are_used(workspace: Path) -> None:
    async with kedge(workspace, (150, 40)) as ui:
        await ui.until(lambda: "mcp:sdk:greet" in ui.app.chat.commands.all, "the prompt is a command")
        await ui.shows("1 of 2 ready (/mcp)")
        await ui.submit("/mcp")
        await ui.opens("McpDialog")
        await ui.shows("gone", "failed", "Connection refused", "5 tools · 1 prompt · 1 resource")
        await ui.press("down")
        await ui.shows("mcp_sdk_add")
        await ui.press("l")
        await ui.shows("works without a login")
        await ui.press("r")
        await ui.shows("mcp_sdk_add")
        await ui.press("escape")
        await ui.closes()
        await ui.until(lambda: "mcp:sdk:greet" in ui.app.chat.commands.all, "the prompt is there again")
        await ui.submit("/mcp:sdk:greet")
        await ui.shows("Usage: /mcp:sdk:greet NAME")
        await ui.submit("/mcp:sdk:greet Ada Lovelace")
        await ui.shows("Greet Ada Lovelace.", "FAKE-ANSWER-OK")
        await ui.idle()
        await ui.write("look at @sdk")
        await ui.shows("sdk:note://today")
        await ui.press("tab")
        await ui.until(lambda: ui.app.chat.editor.text == "look at @sdk:note://today ", "completed")
        await ui.press("enter")
        await ui.shows("▣ sdk:note://today")
        await ui.idle()
        await ui.submit("and @sdk:note://missing")
        await ui.shows("Not sent: @sdk:note://missing")
        assert "and @sdk:note://missing" in ui.app.chat.editor.text


def prompt_with(*names: str) -> McpPrompt:
    return McpPrompt(server="s", name="p", arguments=[McpPromptArgument(name=name) for name in names])


@pytest.mark.parametrize(
    ("names", "typed", "expected"),
    [
        ((), "anything", {}),
        (("a",), "", {}),
        (("a",), "all the words", {"a": "all the words"}),
        (("a", "b"), "one two three", {"a": "one", "b": "two three"}),
        (("a", "b"), "'one two' three", {"a": "one two", "b": "three"}),
        (("a", "b"), "b=two one", {"a": "one", "b": "two"}),
        (("a",), "it's one", {"a": "it's one"}),
        (("a",), "x=1", {"a": "x=1"}),
    ],
)
def test_arguments_of_a_prompt_are_in_order_or_named(names: tuple[str, ...], typed: str, expected: object) -> None:
    assert parse_arguments(prompt_with(*names), typed) == expected


@pytest.mark.parametrize("text", ["/review main", " \n/review main"])
def test_the_text_of_a_servers_prompt_runs_no_command(text: str) -> None:
    sent = mask_command(prompt_with(), text)
    assert sent.endswith(text)
    assert not sent.lstrip().startswith("/")
    assert mask_command(prompt_with(), "see /review") == "see /review"
