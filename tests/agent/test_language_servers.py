"""Language servers in a run: new errors follow an edit, and tools are offered where a server is installed."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest

from kedge.config.schema import AgentConfig, Config, LspServerConfig
from kedge.lsp.known_servers import KNOWN_SERVERS
from kedge.protocol.requests import PermissionRequest
from kedge.protocol.runs import RunOptions
from kedge.tools.registry import TOOLS
from tests.agent.driver import KEY, Driver
from tests.agent.test_tool_calls import call, results, rounds
from tests.support.harness import Kedge
from tests.support.model_server import ModelServer

ONLY_RUFF = {server.name: LspServerConfig(enabled=False) for server in KNOWN_SERVERS if server.name != "ruff"}


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer) -> AsyncGenerator[Driver]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.defpath])
    env = {
        "OPENAI_BASE_URL": model_server.base_url,
        "OPENAI_API_KEY": KEY,
        "KEDGE_MODEL": "openai/tester",
        "PATH": path,
    }
    async with Driver(kedge, model_server.base_url, tools=TOOLS, env=env) as driver:
        driver.config = Config(agent=AgentConfig(titles=False), lsp=ONLY_RUFF)
        yield driver


@pytest.fixture
def file(kedge: Kedge) -> Path:
    path = kedge.data.parent / "workspace" / "a.py"
    path.write_text("x = 1\ny = 2\n")
    return path


def offered(model_server: ModelServer, number: int = 0) -> list[str]:
    return [tool["function"]["name"] for tool in model_server.calls[number].body["tools"]]


async def wait_for_server(driver: Driver) -> None:
    """Until the server that a view started is ready, and knows the file."""
    languages = await driver.agent.languages()
    workspace = languages._workspaces[driver.kedge.workspace_id]
    await workspace.reporter.wait()


async def test_new_errors_follow_the_result_of_an_edit(
    driver: Driver, kedge: Kedge, model_server: ModelServer, file: Path
) -> None:
    file.write_text("x = 1\nprint(old)\n")
    session = await kedge.session()
    model_server.on(rounds([call("view", path="a.py")]))
    await driver.ask("look", session, permissions="allow")
    await wait_for_server(driver)
    model_server.on(rounds([call("edit", path="a.py", old_string="x = 1", new_string="x = new")], text="done"))
    await driver.ask("go", session, permissions="allow")
    _, edited = await results(driver, session)
    assert "a.py:1:5: error: Undefined name `new` [F821]" in edited.content
    assert "old" not in edited.content.partition("New errors")[2], "it was there before"
    assert edited.metadata is not None
    assert [(each["path"], each["line"]) for each in edited.metadata["diagnostics"]] == [("a.py", 1)]


async def test_errors_of_a_file_that_was_not_viewed_are_not_new(
    driver: Driver, kedge: Kedge, model_server: ModelServer, file: Path
) -> None:
    """The server is started by the first edit; what the edits broke is told when it is ready."""
    file.write_text("x = 1\nprint(old)\n")
    session = await kedge.session()
    edits = [
        [call("edit", path="a.py", old_string="x = 1", new_string="x = new")],
        [call("edit", path="a.py", old_string="x = new", new_string="x = newer")],
    ]
    for step in edits:
        model_server.on(rounds(step))
        await driver.ask("go", session, permissions="allow")
        languages = await driver.agent.languages()
        workspace = languages._workspaces[driver.kedge.workspace_id]
        await workspace.servers.find_ready(file, 30)
    told = "".join(result.content.partition("New errors")[2] for result in await results(driver, session))
    assert "`newer`" in told
    assert "`old`" not in told


async def test_a_correct_edit_has_nothing_to_say(
    driver: Driver, kedge: Kedge, model_server: ModelServer, file: Path
) -> None:
    session = await kedge.session()
    model_server.on(rounds([call("view", path="a.py")]))
    await driver.ask("look", session, permissions="allow")
    await wait_for_server(driver)
    model_server.on(rounds([call("edit", path="a.py", old_string="x = 1", new_string="x = 3")]))
    await driver.ask("go", session, permissions="allow")
    _, edited = await results(driver, session)
    assert "error" not in edited.content
    assert file.read_text() == "x = 3\ny = 2\n"


async def test_a_rename_is_asked_once_for_all_files_and_undone_as_one(
    driver: Driver, kedge: Kedge, model_server: ModelServer
) -> None:
    """ruff renames nothing; basedpyright does."""
    driver.config = msgspec.structs.replace(
        driver.config, lsp=ONLY_RUFF | {"basedpyright": LspServerConfig(), "ruff": LspServerConfig(enabled=False)}
    )
    workspace = kedge.data.parent / "workspace"
    (workspace / "lib.py").write_text("def f():\n    return 1\n")
    (workspace / "main.py").write_text("from lib import f\nf()\n")
    session = await kedge.session()
    model_server.on(rounds([call("lsp_rename", path="lib.py", line=1, symbol="f", new_name="first")]))
    receipt = await kedge.send(session, "go", permissions="ask")
    asked = await kedge.asked()
    assert isinstance(asked, PermissionRequest)
    assert asked.params["paths"] == ["lib.py", "main.py"]
    assert "+from lib import first" in asked.params["diff"]
    await kedge.engine.answer_permission(kedge.workspace_id, asked.id, "allow", by="tester")
    await kedge.end(receipt.run_id)
    (result,) = await results(driver, session)
    assert not result.is_error, result.content
    assert (workspace / "lib.py").read_text() == "def first():\n    return 1\n"
    assert (workspace / "main.py").read_text() == "from lib import first\nfirst()\n"
    await kedge.engine.undos.undo(kedge.workspace_id, session)
    assert (workspace / "lib.py").read_text() == "def f():\n    return 1\n"
    assert (workspace / "main.py").read_text() == "from lib import f\nf()\n"


async def test_a_rename_is_refused_in_plan_mode_and_by_a_rule(
    driver: Driver, kedge: Kedge, model_server: ModelServer, file: Path
) -> None:
    rename = call("lsp_rename", path="a.py", line=1, symbol="x", new_name="z")
    for options in (RunOptions(mode="plan"), RunOptions(deny=("lsp_rename",))):
        model_server.on(rounds([rename]))
        await driver.ask("go", permissions="allow", options=options)
        assert file.read_text() == "x = 1\ny = 2\n"


async def test_tools_are_offered_where_a_server_is_installed_for_a_file_of_the_workspace(
    driver: Driver, kedge: Kedge, model_server: ModelServer, file: Path
) -> None:
    model_server.on(rounds())
    await driver.ask("go")
    assert "lsp_diagnostics" in offered(model_server)
    file.unlink()
    await driver.ask("go")
    assert not [name for name in offered(model_server, 1) if name.startswith("lsp_")]


async def test_the_tools_of_a_session_stay_the_same(
    driver: Driver, kedge: Kedge, model_server: ModelServer, file: Path
) -> None:
    session = await kedge.session()
    model_server.on(rounds())
    await driver.ask("go", session)
    file.unlink()
    await driver.ask("go on", session)
    assert offered(model_server, 0) == offered(model_server, 1)


async def test_one_line_switches_them_off(driver: Driver, kedge: Kedge, model_server: ModelServer, file: Path) -> None:
    driver.config = Config(agent=AgentConfig(titles=False, language_servers=False))
    model_server.on(rounds([call("view", path="a.py")]))
    await driver.ask("go")
    assert not [name for name in offered(model_server) if name.startswith("lsp_")]
    languages = await driver.agent.languages()
    assert (await languages.describe(kedge.workspace_id)).servers == []
