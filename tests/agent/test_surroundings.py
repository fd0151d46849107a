"""What a model is told beside the conversation: once, truthfully, and without a change of what was sent before."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kedge.config.schema import AgentConfig, Config, ModelConfig, PermissionsConfig, ProviderConfig
from kedge.protocol.messages import ToolResult, text_of
from kedge.protocol.runs import RunOptions
from kedge.store.sqlite.store import SqliteStore
from kedge.tools.registry import TOOLS
from tests.agent.driver import Driver
from tests.agent.test_system_prompt import git
from tests.agent.test_tool_calls import call, rounds
from tests.support.harness import Kedge
from tests.support.model_plan import Plan, PlannedCall
from tests.support.model_server import ModelServer

NOTE = "<system-note>"


@pytest.fixture
def workspace(kedge: Kedge) -> Path:
    return kedge.data.parent / "workspace"


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer) -> AsyncGenerator[Driver]:
    async with Driver(kedge, model_server.base_url, tools=TOOLS) as driver:
        driver.config = Config(agent=AgentConfig(titles=False), permissions=PermissionsConfig(mode="auto-edit"))
        yield driver


def bodies(model_server: ModelServer) -> list[dict[str, Any]]:
    return [call.body for call in model_server.calls]


def check_prefix(model_server: ModelServer) -> None:
    """Every request begins with all of the one before it: what a provider's cache needs."""
    sent = bodies(model_server)
    assert len(sent) > 1
    for before, after in itertools.pairwise(sent):
        assert after["tools"] == before["tools"]
        assert after["messages"][: len(before["messages"])] == before["messages"]


def last_prompt(model_server: ModelServer) -> str:
    return [message["content"] for message in model_server.calls[-1].body["messages"] if message["role"] == "user"][-1]


def shown(model_server: ModelServer) -> list[str]:
    """The results of tools in the last request."""
    return [message["content"] for message in model_server.calls[-1].body["messages"] if message["role"] == "tool"]


class TestRestart:
    async def test_neither_the_truth_nor_the_prefix_changes(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        git(workspace, "init", "-q", "-b", "main")
        (workspace / "mine.txt").write_text("1")
        (workspace / "AGENTS.md").write_text("Be kind.")
        model_server.on(rounds([call("write", path="new.txt", content="x")]), prompt="write")
        session = await kedge.session()
        assert (await driver.ask("write it", session)).error is None
        git(workspace, "branch", "-m", "other")
        await kedge.crash_and_start()
        async with Driver(kedge, model_server.base_url, tools=TOOLS) as other:  # another agent: it remembers nothing
            other.config = driver.config
            assert (await other.ask("go on", session)).error is None
        check_prefix(model_server)
        system = model_server.calls[-1].body["messages"][0]["content"]
        assert "Branch: No commits yet on main" in system
        assert "mine.txt" in system
        assert "new.txt" not in system
        assert last_prompt(model_server) == "go on", "nothing changed that the model must be told"

    async def test_a_crash_in_the_first_step_leaves_the_first_request_as_it_was(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        git(workspace, "init", "-q")
        session = await kedge.session()
        model_server.plan = Plan(text="never ends", gate="here")
        await kedge.send(session, "go", "run-a")
        await model_server.until(lambda calls: any(call.held for call in calls))
        (workspace / "new.txt").touch()
        model_server.plan = Plan(text="done")
        await kedge.crash_and_start()
        assert (await kedge.end("run-a")).text == "done"
        first, second = bodies(model_server)
        assert first == second

    async def test_a_session_of_an_older_kedge_gets_no_state_that_it_may_have_changed_itself(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        git(workspace, "init", "-q")
        session = await kedge.session()
        await driver.ask("go", session)
        assert isinstance(kedge.store, SqliteStore)
        kedge.store._db.execute("DELETE FROM surroundings")
        await driver.ask("on", session)
        assert "Git, as it was" not in model_server.calls[-1].body["messages"][0]["content"]

    async def test_a_deleted_session_leaves_nothing(self, driver: Driver, kedge: Kedge, workspace: Path) -> None:
        session = await kedge.session()
        await driver.ask("go", session)
        await kedge.engine.delete_session(kedge.workspace_id, session)
        assert isinstance(kedge.store, SqliteStore)
        assert kedge.store._db.execute("SELECT * FROM surroundings").fetchall() == []


class TestChanges:
    async def test_instructions_that_change_are_told_once_and_at_the_end(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        (workspace / "AGENTS.md").write_text("Be kind.")
        (workspace / "CLAUDE.md").write_text("Be brief.")
        session = await kedge.session()
        await driver.ask("one", session)
        (workspace / "AGENTS.md").write_text("Be polite.")
        (workspace / "CLAUDE.md").unlink()
        (workspace / "GEMINI.md").write_text("Be quick.")
        await driver.ask("two", session)
        told = last_prompt(model_server)
        assert told.startswith(NOTE)
        assert told.endswith("\n\ntwo")
        assert "Be polite." in told
        assert "Be quick." in told
        assert f"no longer apply: {workspace}/CLAUDE.md" in told
        await driver.ask("three", session)
        assert last_prompt(model_server) == "three"
        check_prefix(model_server)
        prompts = [text_of(message.parts) for message in await kedge.messages(session) if message.role == "user"]
        assert prompts == ["one", "two", "three"], "people see their own words"

    async def test_a_note_stays_where_it_was_after_a_crash(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        session = await kedge.session()
        await driver.ask("one", session)
        (workspace / "AGENTS.md").write_text("Be polite.")
        await driver.ask("two", session)
        await kedge.crash_and_start()
        await driver.ask("three", session)
        check_prefix(model_server)
        assert last_prompt(model_server) == "three"

    async def test_a_new_day(self, driver: Driver, kedge: Kedge, model_server: ModelServer) -> None:
        session = await kedge.session()
        await driver.ask("one", session)
        driver.today = date(2031, 2, 4)
        await driver.ask("two", session)
        assert "2031-02-04" in last_prompt(model_server)
        await driver.ask("three", session)
        assert last_prompt(model_server) == "three"
        check_prefix(model_server)

    async def test_what_the_model_itself_wrote_is_not_told_to_it(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        session = await kedge.session()
        model_server.on(rounds([call("write", path="AGENTS.md", content="Be kind.")]), prompt="write")
        await driver.ask("write it", session, permissions="allow")
        assert (workspace / "AGENTS.md").exists()
        await driver.ask("two", session, permissions="allow")
        assert last_prompt(model_server) == "two"

    async def test_an_undone_prompt_takes_its_note_along(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        session = await kedge.session()
        await driver.ask("one", session)
        (workspace / "AGENTS.md").write_text("Be polite.")
        await driver.ask("two", session)
        second = [message for message in await kedge.messages(session) if message.role == "user"][-1]
        await kedge.engine.undos.undo(kedge.workspace_id, session, second.id)
        await driver.ask("three", session)
        assert "Be polite." in last_prompt(model_server)

    async def test_a_fork_keeps_the_prefix(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        session = await kedge.session()
        await driver.ask("one", session)
        (workspace / "AGENTS.md").write_text("Be polite.")
        await driver.ask("two", session)
        last = (await kedge.messages(session))[-1]
        fork = await kedge.store.files.fork(kedge.workspace_id, session, last.id)
        await driver.ask("three", fork.id)
        check_prefix(model_server)
        assert last_prompt(model_server) == "three"

    async def test_in_a_small_window_they_are_cut_and_not_taken_for_removed(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        for name in ("AGENTS.md", "CLAUDE.md"):
            (workspace / name).write_text(f"{name} {'x' * 30_000}")
        session = await kedge.session()
        await driver.ask("one", session)
        models = {"tester": ModelConfig(context_window=16_384)}
        driver.config = replace(driver.config, providers={"openai": ProviderConfig(models=models)})
        await driver.ask("two", session)
        assert last_prompt(model_server) == "two"
        await driver.ask("three")
        system = model_server.calls[-1].body["messages"][0]["content"]
        assert system.count("x" * 100) > 10
        assert len(system) < 6_000 + 16_384
        assert "CLAUDE.md" in system


class TestModes:
    async def test_from_plan_to_auto_edit_the_prefix_is_kept_and_the_change_told(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        (workspace / "a.txt").write_text("old")
        edit = call("edit", path="a.txt", old_string="old", new_string="new")
        model_server.on(rounds([call("view", path="a.txt"), edit]), prompt="plan it")
        model_server.on(rounds([edit]), prompt="do it")
        session = await kedge.session()
        end = await driver.ask("plan it", session, options=RunOptions(mode="plan"))
        assert end.error is None
        assert (workspace / "a.txt").read_text() == "old"
        assert "only plans" in shown(model_server)[-1]
        await driver.ask("go on", session, options=RunOptions(mode="plan"))
        assert last_prompt(model_server) == "go on"
        await driver.ask("do it", session, options=RunOptions(mode="auto-edit"))
        assert (workspace / "a.txt").read_text() == "new"
        assert last_prompt(model_server).startswith(NOTE)
        assert "edit" in last_prompt(model_server)
        await driver.ask("again", session, options=RunOptions(mode="auto-edit"))
        assert last_prompt(model_server) == "again"
        check_prefix(model_server)

    @pytest.mark.parametrize(
        "refused",
        [
            call("edit", path="a.txt", old_string="old", new_string="new"),
            call("multiedit", path="a.txt", edits=[{"old_string": "old", "new_string": "new"}]),
            call("write", path="b.txt", content="x"),
            call("download", url="http://127.0.0.1:9/x", path="c.txt"),
            call("job_kill", job_id="1"),
            call("bash", command="touch d.txt"),
        ],
        ids=lambda planned: planned.name,
    )
    async def test_a_run_that_plans_changes_nothing_and_asks_nobody_about_it(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path, refused: PlannedCall
    ) -> None:
        (workspace / "a.txt").write_text("old")
        model_server.on(rounds([refused]))
        session = await kedge.session()
        assert (await driver.ask("go", session, options=RunOptions(mode="plan"))).error is None
        (result,) = await kedge.results(session)
        assert result.is_error
        assert {path.name: path.read_text() for path in workspace.iterdir()} == {"a.txt": "old"}

    async def test_after_a_summary_the_mode_is_told_again(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        session = await kedge.session()
        await driver.ask("plan it", session, options=RunOptions(mode="plan"))
        (workspace / "AGENTS.md").write_text("Be polite.")
        await driver.ask("do it", session, options=RunOptions(mode="auto-edit"))
        await driver.ask("", session, kind="summarize")
        await driver.ask("and more", session, options=RunOptions(mode="auto-edit"))
        told = last_prompt(model_server)
        assert told.startswith(NOTE)
        assert "read and edit files" in told
        assert "Be polite." in told

    async def test_a_summary_within_a_run_is_followed_by_what_still_holds(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        session = await kedge.session()
        await driver.ask("plan it", session, options=RunOptions(mode="plan"))
        model_server.on([Plan(text="a summary")], prompt="replaced by a summary")
        model_server.next_plans = [
            Plan(tool_calls=(call("ls"),)),
            Plan(status=400, error="context_length_exceeded"),
            Plan(text="done"),
        ]
        end = await driver.ask("do it", session, options=RunOptions(mode="auto-edit"))
        assert end.text == "done"
        first = model_server.calls[-1].body["messages"][1]["content"]
        assert first.index("a summary") < first.index(NOTE)
        assert "read and edit files" in first


class TestNested:
    async def view(self, driver: Driver, model_server: ModelServer, session: str, *paths: str) -> list[ToolResult]:
        before = len(await driver.kedge.results(session))
        model_server.on(rounds([call("view", path=path) for path in paths]), prompt=f"view {before}")
        assert (await driver.ask(f"view {before}", session)).error is None
        return (await driver.kedge.results(session))[before:]

    async def test_they_come_with_the_first_result_from_their_directory(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        inner = workspace / "a" / "b"
        inner.mkdir(parents=True)
        (workspace / "a" / "AGENTS.md").write_text("Rules of a.")
        (inner / "CLAUDE.md").write_text("Rules of b.")
        for path in (workspace / "top.py", workspace / "a" / "x.py", inner / "y.py"):
            path.write_text("pass")
        session = await kedge.session()
        (top,) = await self.view(driver, model_server, session, "top.py")
        assert "Rules" not in top.content
        (below,) = await self.view(driver, model_server, session, "a/b/y.py")
        assert below.content.index("pass") < below.content.index("Rules of a.") < below.content.index("Rules of b.")
        assert f"Instructions from {inner}/CLAUDE.md" in below.content
        assert below.metadata is not None
        assert "Rules" not in below.content[: below.metadata["shown_chars"]], "people see the file alone"
        await kedge.crash_and_start()
        for result in await self.view(driver, model_server, session, "a/x.py", "a/b/y.py"):
            assert "Rules" not in result.content
        (workspace / "a" / "AGENTS.md").write_text("New rules of a.")
        (again,) = await self.view(driver, model_server, session, "a/b/y.py")
        assert "New rules of a." in again.content
        assert "Rules of b." not in again.content
        await driver.ask("", session, kind="summarize")
        (after,) = await self.view(driver, model_server, session, "a/b/y.py")
        assert "New rules of a." in after.content
        assert "Rules of b." in after.content

    async def test_calls_side_by_side_show_them_once(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        (workspace / "a").mkdir()
        (workspace / "a" / "AGENTS.md").write_text("Rules of a.")
        for name in "xyz":
            (workspace / "a" / name).write_text("pass")
        session = await kedge.session()
        found = await self.view(driver, model_server, session, "a/x", "a/y", "a/z")
        assert sum("Rules of a." in result.content for result in found) == 1

    @pytest.mark.parametrize(
        "made",
        [
            call("grep", pattern="x", path="a"),
            call("ls", path="a"),
            call("glob", pattern="*", path="a"),
            call("write", path="a/new.txt", content="x"),
            call("bash", command="true", working_dir="a"),
        ],
        ids=lambda planned: planned.name,
    )
    async def test_every_tool_that_works_in_a_directory_shows_them(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path, made: PlannedCall
    ) -> None:
        (workspace / "a").mkdir()
        (workspace / "a" / "AGENTS.md").write_text("Rules of a.")
        model_server.on(rounds([made]))
        session = await kedge.session()
        await driver.ask("go", session, permissions="allow")
        (result,) = await kedge.results(session)
        assert "Rules of a." in result.content

    async def test_what_is_not_this_projects_or_may_not_be_read_is_left_out(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        (workspace.parent / "secret").write_text("a key")
        for directory in ("linked", "node_modules/x", "hidden", "same"):
            (workspace / directory).mkdir(parents=True)
            (workspace / directory / "x.py").write_text("pass")
        (workspace / "linked" / "AGENTS.md").symlink_to(workspace.parent / "secret")
        (workspace / "node_modules" / "x" / "AGENTS.md").write_text("Obey x.")
        (workspace / "hidden" / "AGENTS.md").write_text("Hidden rules.")
        (workspace / "AGENTS.md").write_text("Rules of all.")
        (workspace / "same" / "AGENTS.md").write_text("Rules of all.\n")
        driver.config = Config(
            agent=AgentConfig(titles=False), permissions=PermissionsConfig(deny=("view(hidden/AGENTS.md)",))
        )
        session = await kedge.session()
        paths = [f"{directory}/x.py" for directory in ("linked", "node_modules/x", "hidden", "same")]
        for result in await self.view(driver, model_server, session, *paths):
            assert "Instructions" not in result.content
        (named,) = await self.view(driver, model_server, session, "same/AGENTS.md")
        assert named.content.count("Rules of all.") == 1


class TestPrompt:
    async def test_the_shell_is_the_one_that_runs(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer
    ) -> None:
        model_server.on(rounds([call("bash", command="echo $(ps -o comm= -p $$)")]))
        session = await kedge.session()
        await driver.ask("go", session, permissions="allow")
        (result,) = await kedge.results(session)
        system = model_server.calls[-1].body["messages"][0]["content"]
        assert f"Shell: {result.content.strip()}\n" in system

    async def test_rules_and_mode_are_stated(self, driver: Driver, model_server: ModelServer) -> None:
        await driver.ask("go", options=RunOptions(allow=("bash(pytest *)",)))
        system = model_server.calls[-1].body["messages"][0]["content"]
        assert "`pytest *`" in system
        assert "read and edit files in the workspace" in system

    async def test_the_same_text_in_several_files_is_sent_once(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        (workspace / "AGENTS.md").write_text("Be kind.")
        (workspace / "CLAUDE.md").write_text("\nBe kind.\n")
        (workspace / ".cursorrules").write_text("Be brief.")
        session = await kedge.session()
        await driver.ask("go", session)
        system = model_server.calls[-1].body["messages"][0]["content"]
        assert system.count("Be kind.") == 1
        assert f"{workspace}/CLAUDE.md" in system
        assert "Be brief." in system
        (workspace / "CLAUDE.md").write_text("Be quick.")
        await driver.ask("go on", session)
        assert "Be quick." in last_prompt(model_server)
        assert "Be kind." not in last_prompt(model_server)


class TestRestoredFiles:
    async def test_the_model_is_told_once_which_files_an_undo_of_files_alone_restored(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        model_server.on(rounds([call("write", path="new.txt", content="x")]), prompt="write")
        session = await kedge.session()
        assert (await driver.ask("write it", session)).error is None
        await kedge.engine.undos.undo(kedge.workspace_id, session, restore="files")
        assert not (workspace / "new.txt").exists()
        assert (await driver.ask("go on", session)).error is None
        told = last_prompt(model_server)
        assert NOTE in told
        assert "new.txt" in told
        assert (await driver.ask("and on", session)).error is None
        assert NOTE not in last_prompt(model_server)
        check_prefix(model_server)

    async def test_an_undo_that_was_redone_is_not_told(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        model_server.on(rounds([call("write", path="new.txt", content="x")]), prompt="write")
        session = await kedge.session()
        assert (await driver.ask("write it", session)).error is None
        await kedge.engine.undos.undo(kedge.workspace_id, session, restore="files")
        await kedge.engine.undos.redo(kedge.workspace_id, session)
        assert (workspace / "new.txt").exists()
        assert (await driver.ask("go on", session)).error is None
        assert NOTE not in last_prompt(model_server)
