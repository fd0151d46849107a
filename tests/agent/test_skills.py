"""Skills: what the model is told of them, loads and may read, and what a prompt `/name` runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kedge.config.schema import AgentConfig, Config, ModelConfig, PermissionsConfig, ProviderConfig
from kedge.protocol.messages import text_of
from kedge.protocol.requests import PermissionRequest
from kedge.tools.registry import TOOLS
from tests.agent.driver import Driver
from tests.agent.test_tool_calls import call, results, rounds
from tests.support.harness import Kedge
from tests.support.model_plan import Plan, PlannedCall
from tests.support.model_server import ModelServer


@pytest.fixture
def workspace(kedge: Kedge) -> Path:
    return kedge.data.parent / "workspace"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    return path


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer, home: Path, workspace: Path) -> AsyncGenerator[Driver]:
    env = {"OPENAI_BASE_URL": model_server.base_url, "OPENAI_API_KEY": "k" * 20, "KEDGE_MODEL": "openai/tester"}
    env |= {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    async with Driver(kedge, model_server.base_url, tools=TOOLS, env=env) as driver:
        driver.config = Config(agent=AgentConfig(titles=False), trusted=(str(workspace),))
        yield driver


def write_skill(directory: Path, name: str, body: str = "Do it.", **fields: str) -> Path:
    path = directory / name / "SKILL.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"name: {name}", f"description: {fields.pop('description', f'For {name}.')}"]
    lines += [f"{key.replace('_', '-')}: {value}" for key, value in fields.items()]
    path.write_text("\n".join(["---", *lines, "---", body]))
    return path


def load(name: str) -> PlannedCall:
    return PlannedCall("skill", {"name": name})


def system_of(model_server: ModelServer, index: int = -1) -> str:
    return model_server.calls[index].body["messages"][0]["content"]


def tools_of(model_server: ModelServer, index: int = -1) -> dict[str, Any]:
    return {tool["function"]["name"]: tool["function"] for tool in model_server.calls[index].body["tools"]}


def prompts_of(model_server: ModelServer) -> list[str]:
    return [each["content"] for each in model_server.calls[-1].body["messages"] if each["role"] == "user"]


class TestCatalog:
    async def test_nothing_is_said_of_skills_where_there_are_none(
        self, driver: Driver, model_server: ModelServer
    ) -> None:
        await driver.ask("go")
        assert "# Skills" not in system_of(model_server)
        assert "skill" not in tools_of(model_server)
        assert "agent" not in tools_of(model_server)["agent"]["parameters"]["properties"]

    async def test_names_and_descriptions_are_in_the_prompt_and_the_text_is_not(
        self, driver: Driver, model_server: ModelServer, workspace: Path, home: Path
    ) -> None:
        write_skill(workspace / ".agents/skills", "pdf", "SECRET-BODY", description="Use when: a PDF [any] is there")
        write_skill(home / ".claude/skills", "deploy")
        await driver.ask("go")
        assert "- pdf: Use when: a PDF [any] is there" in system_of(model_server)
        assert "- deploy: For deploy." in system_of(model_server)
        assert "SECRET-BODY" not in system_of(model_server)

    async def test_an_untrusted_directory_brings_no_skill(
        self, driver: Driver, model_server: ModelServer, workspace: Path, home: Path
    ) -> None:
        driver.config = replace(driver.config, trusted=())
        write_skill(workspace / ".kedge/skills", "evil")
        write_skill(home / ".agents/skills", "mine")
        await driver.ask("/evil now")
        assert "evil" not in system_of(model_server)
        assert "- mine:" in system_of(model_server)
        assert prompts_of(model_server) == ["/evil now"]

    async def test_a_skill_that_appears_is_told_and_the_beginning_stays_the_same(
        self, driver: Driver, model_server: ModelServer, workspace: Path, kedge: Kedge
    ) -> None:
        first = write_skill(workspace / ".kedge/skills", "first")
        session = await kedge.session()
        await driver.ask("one", session)
        write_skill(workspace / ".kedge/skills", "second")
        first.unlink()
        await driver.ask("two", session)
        assert system_of(model_server) == system_of(model_server, 0)
        assert tools_of(model_server) == tools_of(model_server, 0)
        assert "- second: For second." in prompts_of(model_server)[-1]
        assert "first" in prompts_of(model_server)[-1]
        await driver.ask("three", session)
        assert prompts_of(model_server)[-1] == "three"

    async def test_many_skills_take_a_bounded_part_of_the_window(
        self, driver: Driver, model_server: ModelServer, home: Path
    ) -> None:
        window = 100_000
        models = {"tester": ModelConfig(context_window=window)}
        driver.config = replace(driver.config, providers={"openai": ProviderConfig(models=models)})
        await driver.ask("go")
        without = len(system_of(model_server))
        for number in range(200):
            write_skill(home / ".agents/skills", f"skill-{number:03}", description="word " * 200)
        await driver.ask("go")
        grown = len(system_of(model_server)) - without
        assert 4_000 < grown <= window * 4 * 0.02 + 10
        assert all(f"- skill-{number:03}" in system_of(model_server) for number in range(200))

    async def test_a_skill_for_people_only_is_neither_told_nor_loaded(
        self, driver: Driver, model_server: ModelServer, workspace: Path, kedge: Kedge
    ) -> None:
        write_skill(workspace / ".kedge/skills", "open")
        write_skill(workspace / ".kedge/skills", "release", "Only if asked.", disable_model_invocation="true")
        model_server.on(rounds([load("release")]), prompt="go")
        session = await kedge.session()
        await driver.ask("go", session)
        assert "release" not in system_of(model_server)
        (result,) = await results(driver, session)
        assert result.is_error
        await driver.ask("/release 1.2", session)
        assert "Only if asked." in prompts_of(model_server)[-1]


class TestLoading:
    async def test_the_model_gets_the_text_the_directory_and_the_files(
        self, driver: Driver, model_server: ModelServer, home: Path, kedge: Kedge
    ) -> None:
        directory = write_skill(home / ".claude/skills", "pdf", "See ${CLAUDE_SKILL_DIR}/forms.md.").parent
        (directory / "forms.md").write_text("the forms")
        (directory / "scripts").mkdir()
        (directory / "scripts/fill.py").touch()
        model_server.on(rounds([load("pdf")], [call("view", path=str(directory / "forms.md"))]))
        session = await kedge.session()
        end = await driver.ask("go", session, permissions="deny")
        assert end.error is None
        loaded, viewed = await results(driver, session)
        assert f"See {directory}/forms.md." in loaded.content
        assert "- forms.md" in loaded.content
        assert "- scripts/fill.py" in loaded.content
        assert "the forms" in viewed.content

    async def test_only_what_is_in_the_directory_of_a_skill_may_be_read(
        self, driver: Driver, model_server: ModelServer, home: Path, kedge: Kedge
    ) -> None:
        directory = write_skill(home / ".claude/skills", "pdf").parent
        (home / "secret.txt").write_text("no")
        (directory / "link.txt").symlink_to(home / "secret.txt")
        (directory / ".env").write_text("KEY=1")
        paths = [directory / "link.txt", directory / "../../settings.json", directory / ".env", home / "secret.txt"]
        model_server.on(rounds([call("view", path=str(path)) for path in paths]))
        session = await kedge.session()
        await driver.ask("go", session, permissions="deny")
        assert all(result.is_error for result in await results(driver, session))
        model_server.on(rounds([call("write", path=str(directory / "new.md"), content="x")]))
        await driver.ask("go", session, permissions="deny")
        assert not (directory / "new.md").exists()

    async def test_an_unknown_name_is_answered_with_the_nearest(
        self, driver: Driver, model_server: ModelServer, home: Path, kedge: Kedge
    ) -> None:
        write_skill(home / ".claude/skills", "pdf-forms")
        model_server.on(rounds([load("pdf-form")]))
        session = await kedge.session()
        await driver.ask("go", session)
        (result,) = await results(driver, session)
        assert result.is_error
        assert "pdf-forms" in result.content

    async def test_the_text_is_that_of_now(
        self, driver: Driver, model_server: ModelServer, home: Path, kedge: Kedge
    ) -> None:
        path = write_skill(home / ".claude/skills", "pdf", "old")
        session = await kedge.session()
        await driver.ask("one", session)
        path.write_text(path.read_text().replace("old", "new text"))
        model_server.on(rounds([load("pdf")]))
        await driver.ask("two", session)
        assert "new text" in (await results(driver, session))[0].content

    async def test_loaded_skills_are_named_in_a_summary(
        self, driver: Driver, model_server: ModelServer, home: Path, kedge: Kedge
    ) -> None:
        write_skill(home / ".claude/skills", "pdf")
        model_server.on(rounds([load("pdf")]), prompt="begin it")
        session = await kedge.session()
        await driver.ask("begin it", session)
        assert (await driver.ask("", session, kind="summarize")).error is None
        await driver.ask("two", session)
        sent = "\n".join(str(each["content"]) for each in model_server.calls[-1].body["messages"][1:])
        assert "Skills in use" in sent
        assert "- pdf" in sent


class TestCommandsInText:
    async def test_a_command_is_run_and_its_output_takes_its_place(
        self, driver: Driver, model_server: ModelServer, workspace: Path, kedge: Kedge
    ) -> None:
        (workspace / "notes.txt").write_text("remember")
        write_skill(workspace / ".kedge/skills", "look", "Notes: !`cat notes.txt`")
        model_server.on(rounds([load("look")]), prompt="go")
        session = await kedge.session()
        await driver.ask("go", session)
        assert "Notes: remember" in (await results(driver, session))[0].content
        await driver.ask("/look", session)
        assert "Notes: remember" in prompts_of(model_server)[-1]

    @pytest.mark.parametrize("prompt", ["/make it", "load it"])
    async def test_a_command_that_changes_something_is_asked_for(
        self, driver: Driver, model_server: ModelServer, workspace: Path, kedge: Kedge, prompt: str
    ) -> None:
        write_skill(workspace / ".kedge/skills", "make", "Made: !`touch made && echo yes`")
        model_server.on(rounds([load("make")]), prompt="load it")
        receipt = await kedge.send(await kedge.session(), prompt)
        request = await kedge.asked()
        assert isinstance(request, PermissionRequest)
        assert request.tool == "bash" or request.action == "execute"
        assert "touch made" in request.description
        assert not (workspace / "made").exists()
        await kedge.engine.answer_permission(kedge.workspace_id, request.id, "allow", "test")
        assert (await kedge.end(receipt.run_id)).error is None
        assert (workspace / "made").exists()

    @pytest.mark.parametrize("prompt", ["/make it", "load it"])
    async def test_where_nobody_can_be_asked_the_text_says_that_it_was_not_run(
        self, driver: Driver, model_server: ModelServer, workspace: Path, kedge: Kedge, prompt: str
    ) -> None:
        write_skill(workspace / ".kedge/skills", "make", "Made: !`touch made`. Go on.")
        model_server.on(rounds([load("make")]), prompt="load it")
        await driver.ask(prompt, permissions="deny")
        assert not (workspace / "made").exists()
        sent = str(model_server.calls[-1].body["messages"])
        assert "Not run: touch made" in sent
        assert "Go on." in sent

    async def test_arguments_are_no_shell(
        self, driver: Driver, model_server: ModelServer, workspace: Path, kedge: Kedge
    ) -> None:
        write_skill(workspace / ".kedge/skills", "say", 'Said: !`echo "$1" $2`')
        driver.config = replace(driver.config, permissions=PermissionsConfig(mode="yolo"))
        await driver.ask("/say '$(touch a)`touch b`\"; touch c; \"' ';touch d'")
        assert list(workspace.glob("?")) == []
        assert 'Said: $(touch a)`touch b`"; touch c; " ;touch d' in prompts_of(model_server)[-1]

    async def test_allowed_tools_spare_questions_while_the_skill_is_at_work(
        self, driver: Driver, model_server: ModelServer, workspace: Path, kedge: Kedge
    ) -> None:
        write_skill(workspace / ".kedge/skills", "make", "Make.", allowed_tools="Bash(touch:*) Bash Frobnicate")
        model_server.on(rounds([call("bash", command="touch made")]), prompt="/make")
        model_server.on(rounds([call("bash", command="touch more; rm made")]), prompt="again")
        session = await kedge.session()
        await driver.ask("/make", session, permissions="deny")
        assert (workspace / "made").exists()
        model_server.on(rounds([call("bash", command="touch later")]), prompt="plain")
        await driver.ask("plain", session, permissions="deny")
        assert not (workspace / "later").exists()

    async def test_a_deny_rule_wins_over_allowed_tools(
        self, driver: Driver, model_server: ModelServer, workspace: Path
    ) -> None:
        write_skill(workspace / ".kedge/skills", "make", "!`touch made`", allowed_tools="Bash(touch:*)")
        driver.config = replace(driver.config, permissions=PermissionsConfig(deny=("bash(touch *)",)))
        await driver.ask("/make")
        assert not (workspace / "made").exists()


class TestRunningByName:
    async def test_a_prompt_runs_a_skill_with_its_arguments(
        self, driver: Driver, model_server: ModelServer, workspace: Path, kedge: Kedge
    ) -> None:
        write_skill(workspace / ".claude/skills", "review", "Review $1 against $2.")
        session = await kedge.session()
        await driver.ask("/review main 'my branch'", session)
        assert "Review main against my branch." in prompts_of(model_server)[-1]
        (message,) = [each for each in await kedge.messages(session) if each.role == "user"]
        assert text_of(message.parts) == "/review main 'my branch'", "people see what they typed"

    async def test_what_names_nothing_is_a_plain_prompt(
        self, driver: Driver, model_server: ModelServer, workspace: Path
    ) -> None:
        write_skill(workspace / ".claude/skills", "review", user_invocable="false")
        for prompt in ("/review x", "/etc/hosts is wrong", "/", "see /review"):
            await driver.ask(prompt)
            assert prompts_of(model_server)[-1] == prompt

    async def test_the_text_stays_the_same_for_the_whole_session(
        self, driver: Driver, model_server: ModelServer, workspace: Path, kedge: Kedge
    ) -> None:
        path = write_skill(workspace / ".claude/skills", "review", "first text")
        session = await kedge.session()
        await driver.ask("/review", session)
        path.unlink()
        await kedge.crash_and_start()
        await driver.ask("next", session)
        assert "first text" in prompts_of(model_server)[0]

    async def test_a_steered_prompt_is_expanded_when_it_joins(
        self, driver: Driver, model_server: ModelServer, workspace: Path, kedge: Kedge
    ) -> None:
        write_skill(workspace / ".claude/skills", "review", "the review text")
        model_server.on([Plan(text="", tool_calls=(call("ls"),), gate="here"), Plan(text="done")], prompt="go")
        session = await kedge.session()
        first = await kedge.send(session, "go")
        await model_server.until(lambda calls: any(each.held for each in calls))
        await kedge.send(session, "/review", on_busy="steer")
        model_server.release("here")
        await kedge.end(first.run_id)
        assert "the review text" in prompts_of(model_server)[-1]
