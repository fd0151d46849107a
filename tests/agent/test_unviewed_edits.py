"""Edits of files that the model has not viewed: safe beside a user who edits the same file, and undone like others."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from kedge.tools.registry import TOOLS
from tests.agent.driver import Driver
from tests.agent.test_tool_calls import call, results, rounds
from tests.support.harness import Kedge
from tests.support.model_control import ModelControl
from tests.support.model_server import ModelServer


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer) -> AsyncGenerator[Driver]:
    async with Driver(kedge, model_server.base_url, tools=TOOLS) as driver:
        yield driver


@pytest.fixture
def file(kedge: Kedge) -> Path:
    path = kedge.data.parent / "workspace" / "a.py"
    path.write_text("x = 1\ny = 2\n")
    return path


EDIT = call("edit", path="a.py", old_string="x = 1", new_string="x = 3")


async def test_it_is_undone_to_what_was_there(
    driver: Driver, kedge: Kedge, model_server: ModelServer, file: Path
) -> None:
    model_server.on(rounds([EDIT]))
    session = await kedge.session()
    assert (await driver.ask("go", session, permissions="allow")).error is None
    assert file.read_text() == "x = 3\ny = 2\n"
    await kedge.engine.undos.undo(kedge.workspace_id, session)
    assert file.read_text() == "x = 1\ny = 2\n"


async def test_a_change_of_the_user_while_the_permission_is_asked_stays(
    driver: Driver, kedge: Kedge, model_server: ModelServer, file: Path
) -> None:
    """What a person allowed was the change of another text."""
    model_server.on(rounds([EDIT], [EDIT]))
    session = await kedge.session()
    receipt = await kedge.send(session, "go", permissions="ask")
    first = await kedge.asked()
    file.write_text("x = 1  # mine\ny = 2\n")
    await kedge.engine.answer_permission(kedge.workspace_id, first.id, "allow", by="tester")
    second = await kedge.asked()
    assert file.read_text() == "x = 1  # mine\ny = 2\n"
    await kedge.engine.answer_permission(kedge.workspace_id, second.id, "allow", by="tester")
    assert (await kedge.end(receipt.run_id)).text == "done"
    refused, done = await results(driver, session)
    assert (refused.is_error, done.is_error) == (True, False)
    assert "changed meanwhile" in refused.content
    assert file.read_text() == "x = 3  # mine\ny = 2\n"


async def test_what_was_edited_but_not_viewed_is_known_after_a_restart(
    kedge: Kedge, model_control: ModelControl, file: Path
) -> None:
    session = await kedge.session()
    calls = [
        {"name": "edit", "input": EDIT.input},
        {"name": "write", "input": {"path": "a.py", "content": ""}},
    ]
    for way in ("start", "again"):
        model_control.on(
            {"text": "", "tool_calls": calls[:1] if way == "start" else calls[1:]}, {"text": "done"}, prompt=way
        )
        async with Driver(kedge, model_control.base_url, tools=TOOLS) as driver:
            if way == "again":
                await kedge.restart()
            assert (await driver.ask(way, session, permissions="allow")).text == "done"
    edited, written = await kedge.results(session)
    assert not edited.is_error
    assert "has not been read" in written.content
    assert file.read_text() == "x = 3\ny = 2\n"
