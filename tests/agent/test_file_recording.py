"""Which commands the workspace is looked at for: each look at a large tree takes its time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from kedge.config.schema import AgentConfig, Config
from kedge.engine.turn import TurnContext
from kedge.tools.registry import TOOLS
from tests.agent.driver import Driver
from tests.agent.test_tool_calls import call, results, rounds
from tests.support.harness import Kedge
from tests.support.model_server import ModelServer


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[TurnContext]:
    """One entry for each command that was watched."""
    seen: list[TurnContext] = []
    watching = TurnContext.watch_files

    @contextlib.asynccontextmanager
    async def counted(ctx: TurnContext, *args: Any, **kwargs: Any) -> AsyncGenerator[None]:
        seen.append(ctx)
        async with watching(ctx, *args, **kwargs):
            yield

    monkeypatch.setattr(TurnContext, "watch_files", counted)
    return seen


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer) -> AsyncGenerator[Driver]:
    async with Driver(kedge, model_server.base_url, tools=TOOLS) as driver:
        driver.config = Config(agent=AgentConfig(titles=False))
        yield driver


async def test_only_commands_that_may_change_something_are_watched(
    driver: Driver, kedge: Kedge, model_server: ModelServer, watched: list[TurnContext]
) -> None:
    harmless = ["ls -la", "echo said | wc -c && cat /dev/null", "false"]
    model_server.on(rounds(*([call("bash", command=command)] for command in harmless), [call("bash", command=": > x")]))
    session = await kedge.session()
    assert (await driver.ask("go", session, permissions="allow")).error is None
    assert len(watched) == 1
    said = await results(driver, session)
    assert [result.content for result in said[1:]] == ["5", "[exit code 1]", "(no output)"]
    changed = await kedge.store.files.changes(kedge.workspace_id, session)
    assert [Path(os.fsdecode(change.path)).name for change in changed] == ["x"]


async def test_a_job_makes_no_other_call_one_that_is_watched(
    driver: Driver, kedge: Kedge, model_server: ModelServer, watched: list[TurnContext]
) -> None:
    """What changes meanwhile may be the user's: it counts for none of these calls."""
    job = call("bash", command="mkfifo held && cat held", run_in_background=True)
    calls = [call("bash", command="ls"), call("job_output", job_id="x"), call("job_kill", job_id="x")]
    model_server.on(rounds([job], *([each] for each in calls)))
    assert (await driver.ask("go", permissions="allow")).error is None
    assert len(watched) == 1
