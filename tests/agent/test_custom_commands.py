"""Custom commands: their files, model and sub-agent; what a denial and a hook do to a command in their text."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from msgspec.structs import replace

from kedge.config.schema import AgentConfig, Config, HookConfig, HooksConfig, PermissionsConfig
from kedge.protocol.events import SkillsChanged
from kedge.tools.registry import TOOLS
from tests.agent.driver import Driver
from tests.agent.test_custom_agents import write_agent
from tests.agent.test_skills import prompts_of, write_skill
from tests.support.harness import Kedge
from tests.support.model_server import ModelServer


@pytest.fixture
def workspace(kedge: Kedge) -> Path:
    return kedge.data.parent / "workspace"


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer, workspace: Path) -> AsyncGenerator[Driver]:
    async with Driver(kedge, model_server.base_url, tools=TOOLS) as driver:
        driver.config = Config(agent=AgentConfig(titles=False), trusted=(str(workspace),))
        yield driver


def write_command(workspace: Path, name: str, text: str) -> None:
    path = workspace / ".claude/commands" / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


async def test_files_are_inserted_if_they_may_be_read(
    driver: Driver, model_server: ModelServer, workspace: Path, tmp_path: Path
) -> None:
    (workspace / "style.md").write_text("Be brief.")
    (workspace / ".env").write_text("KEY=secret")
    (tmp_path / "outside.txt").write_text("not yours")
    (workspace / "link.txt").symlink_to(tmp_path / "outside.txt")
    write_command(workspace, "look", f"See @style.md @.env @link.txt @{tmp_path}/outside.txt @missing.md @$1")
    driver.config = replace(driver.config, permissions=PermissionsConfig(deny=("view(.env)",)))
    await driver.ask("/look style.md")
    prompt = prompts_of(model_server)[-1]
    assert prompt.count("Be brief.") == 2
    assert "KEY=secret" not in prompt
    assert "not yours" not in prompt
    assert "@missing.md" in prompt


async def test_a_command_may_name_the_model_unless_the_run_does(
    driver: Driver, model_server: ModelServer, workspace: Path
) -> None:
    write_command(workspace, "other", "---\nmodel: openai/other\n---\nGo.")
    write_command(workspace, "short", "---\nmodel: sonnet\n---\nGo.")
    for prompt, fields, model in (
        ("/other", {}, "other"),
        ("/short", {}, "tester"),
        ("/other", {"model": "openai/named"}, "named"),
    ):
        assert (await driver.ask(prompt, **fields)).error is None
        assert model_server.calls[-1].body["model"] == model


async def test_a_command_may_name_a_sub_agent(driver: Driver, model_server: ModelServer, workspace: Path) -> None:
    write_command(workspace, "review", "---\nagent: reviewer\n---\nReview $ARGUMENTS.")
    await driver.ask("/review it")
    assert prompts_of(model_server)[-1] == "Review it."  # it is not there
    write_agent(workspace, "reviewer", "You review.")
    await driver.ask("/review it")
    assert "Review it." in prompts_of(model_server)[-1]
    assert "reviewer" in prompts_of(model_server)[-1]


async def test_a_person_who_denies_a_command_ends_the_turn(
    driver: Driver, model_server: ModelServer, workspace: Path, kedge: Kedge
) -> None:
    write_command(workspace, "make", "Made: !`touch made`")
    session = await kedge.session()
    receipt = await kedge.send(session, "/make")
    request = await kedge.asked()
    await kedge.engine.answer_permission(kedge.workspace_id, request.id, "deny", "test")
    end = await kedge.end(receipt.run_id)
    assert (end.error, end.cancelled) == (None, False)
    assert not model_server.calls
    receipt = await kedge.send(session, "/make")
    request = await kedge.asked()
    await kedge.engine.answer_permission(kedge.workspace_id, request.id, "deny", "test", reason="not now")
    assert (await kedge.end(receipt.run_id)).error is None
    assert "not now" in prompts_of(model_server)[-1]
    assert not (workspace / "made").exists()


async def test_a_restart_while_a_command_waits_for_a_person_asks_the_same_again(
    driver: Driver, model_server: ModelServer, workspace: Path, kedge: Kedge
) -> None:
    write_command(workspace, "make", "Made: !`touch made && echo yes`")
    receipt = await kedge.send(await kedge.session(), "/make")
    request = await kedge.asked()
    await kedge.crash_and_start()
    (pending,) = await kedge.permissions()
    assert pending.id == request.id
    await kedge.engine.answer_permission(kedge.workspace_id, request.id, "allow", "test")
    assert (await kedge.end(receipt.run_id)).error is None
    assert "Made: yes" in prompts_of(model_server)[-1]


async def test_a_hook_guards_the_commands_in_a_text_too(
    driver: Driver, model_server: ModelServer, workspace: Path
) -> None:
    write_command(workspace, "make", "Made: !`touch made`")
    hook = HookConfig(matcher="bash", command="echo guarded >&2; exit 2")
    driver.config = replace(
        driver.config, permissions=PermissionsConfig(mode="yolo"), hooks=HooksConfig(pre_tool_use=(hook,))
    )
    await driver.ask("/make")
    assert not (workspace / "made").exists()
    assert "guarded" in prompts_of(model_server)[-1]


async def test_a_client_with_another_home_is_no_change_for_the_others(
    driver: Driver, workspace: Path, kedge: Kedge, tmp_path: Path
) -> None:
    write_skill(tmp_path / "other/.agents/skills", "theirs")
    session = await kedge.session()
    other = {**driver.env, "HOME": str(tmp_path / "other")}
    for env in (None, other, None, other):
        await driver.ask("go", session, env=env)
    assert "skills_event" not in kedge.watcher.types
    write_skill(workspace / ".kedge/skills", "new")
    await driver.ask("go", session, env=other)
    await kedge.seen(lambda event: event.payload == SkillsChanged(kedge.workspace_id))


async def test_clients_hear_of_changed_files_at_the_next_run(driver: Driver, workspace: Path, kedge: Kedge) -> None:
    session = await kedge.session()
    await driver.ask("one", session)
    write_skill(workspace / ".kedge/skills", "new")
    await driver.ask("two", session)
    await kedge.seen(lambda event: event.payload == SkillsChanged(kedge.workspace_id))
