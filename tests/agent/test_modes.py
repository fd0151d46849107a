"""A switch of the mode holds from the next call on, and the model is told; mode `auto` stays inside the sandbox."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kedge.config.schema import ModelConfig, PermissionsConfig, ProviderConfig, SandboxMode
from kedge.files.listing import CannotScan
from kedge.protocol.errors import Invalid
from kedge.protocol.events import Event
from kedge.protocol.requests import Answer, PermissionRequest, RequestResolution
from kedge.protocol.runs import Mode, RunOptions
from kedge.tools.registry import TOOLS
from kedge.tools.sandbox import bubblewrap, landlock
from tests.agent.driver import Driver
from tests.agent.test_surroundings import check_prefix
from tests.agent.test_tool_calls import call, results, rounds
from tests.support.harness import Kedge
from tests.support.model_plan import Plan
from tests.support.model_server import ModelServer
from tests.tools.sandbox.cells import BACKENDS

PRICED = ModelConfig(input_price=1.0, output_price=1.0)
LIMITED = RunOptions(mode="auto", max_cost=5.0)


@pytest.fixture
def workspace(kedge: Kedge) -> Path:
    return kedge.data.parent / "workspace"


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer, tmp_path: Path) -> AsyncGenerator[Driver]:
    env = {
        "OPENAI_BASE_URL": model_server.base_url,
        "OPENAI_API_KEY": "the-key-of-the-tests",
        "KEDGE_MODEL": "openai/tester",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(tmp_path / "home"),
        "HARMLESS": "kept",
    }
    (tmp_path / "home").mkdir()
    async with Driver(kedge, model_server.base_url, tools=TOOLS, env=env) as driver:
        configure(driver, providers={"openai": ProviderConfig(models={"tester": PRICED})})
        yield driver


def configure(driver: Driver, **changes: Any) -> None:
    driver.config = replace(driver.config, **changes)


async def send(kedge: Kedge, text: str, session: str) -> str:
    return (await kedge.send(session, text, options=RunOptions(mode="ask"))).run_id


async def switch(kedge: Kedge, run_id: str, mode: Mode) -> None:
    await kedge.store.switch_mode(kedge.workspace_id, run_id, mode)


async def answer(kedge: Kedge, request: object, action: str) -> None:
    assert isinstance(request, PermissionRequest)
    await kedge.store.answer(kedge.workspace_id, "permission", request.id, Answer(action=action, by="tester"))


async def resolution(kedge: Kedge, request: object) -> tuple[str, str]:
    assert isinstance(request, PermissionRequest)

    def matches(event: Event) -> bool:
        return isinstance(event.payload, RequestResolution) and event.payload.id == request.id

    found = (await kedge.seen(matches)).payload
    assert isinstance(found, RequestResolution)
    return found.action, found.by


async def refusals(driver: Driver, session: str) -> list[str | None]:
    return [(result.metadata or {}).get("refused") for result in await results(driver, session)]


class TestSwitching:
    async def test_a_request_that_the_new_mode_allows_is_resolved_and_later_calls_do_not_ask(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        model_server.on(rounds([call("write", path="a", content="1")], [call("write", path="b", content="2")]))
        session = await kedge.session()
        run_id = await send(kedge, "write", session)
        request = await kedge.asked()
        await switch(kedge, run_id, "auto-edit")
        assert await resolution(kedge, request) == ("allow", "mode")
        assert (await kedge.end(run_id)).text == "done"
        assert [(workspace / name).read_text() for name in "ab"] == ["1", "2"]
        assert not await kedge.permissions()

    async def test_a_request_that_mode_plan_forbids_is_refused_and_the_turn_goes_on(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        model_server.on(rounds([call("write", path="a", content="1")], [call("bash", command="touch b")]))
        session = await kedge.session()
        run_id = await send(kedge, "write", session)
        request = await kedge.asked()
        await switch(kedge, run_id, "plan")
        assert await resolution(kedge, request) == ("deny", "mode")
        assert (await kedge.end(run_id)).text == "done"
        assert await refusals(driver, session) == ["mode", "mode"]
        assert not list(workspace.iterdir())

    async def test_the_answer_of_a_mode_that_the_run_no_longer_has_allows_nothing(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        model_server.on(rounds([call("bash", command="touch a")]))
        session = await kedge.session()
        run_id = await send(kedge, "touch", session)
        request = await kedge.asked()
        # As after a crash right behind the answer: the mode has been switched back since.
        given = Answer(action="allow", by="mode")
        await kedge.store.answer(kedge.workspace_id, "permission", request.id, given)
        assert (await kedge.end(run_id)).text == "done"
        assert await refusals(driver, session) == ["mode"]
        assert not list(workspace.iterdir())

    async def test_a_request_about_which_the_new_mode_asks_too_stays_open(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        model_server.on(rounds([call("bash", command="touch a")], [call("write", path="b", content="2")]))
        session = await kedge.session()
        run_id = await send(kedge, "touch", session)
        request = await kedge.asked()
        await switch(kedge, run_id, "auto-edit")
        assert [each.id for each in await kedge.permissions()] == [request.id]
        await answer(kedge, request, "allow")
        await kedge.end(run_id)
        assert sorted(path.name for path in workspace.iterdir()) == ["a", "b"]

    async def test_the_model_is_told_with_the_next_request_and_the_prefix_stays(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer
    ) -> None:
        model_server.on(rounds([call("write", path="a", content="1")], [call("ls")]), prompt="write")
        session = await kedge.session()
        run_id = await send(kedge, "write", session)
        await kedge.asked()
        await switch(kedge, run_id, "plan")
        await kedge.end(run_id)
        told = [str(message["content"]) for message in model_server.calls[1].body["messages"]]
        assert "<system-note>" in told[-1]
        assert "Mode plan" in told[-1]
        assert "<system-note>" not in "".join(told[1:-1])
        check_prefix(model_server)
        await driver.ask("and now?", session, options=RunOptions(mode="ask"))
        assert "From now on" in str(model_server.calls[-1].body["messages"][-1]["content"])

    async def test_the_resumed_run_keeps_the_mode(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        model_server.on(rounds([call("bash", command="touch a")], [call("write", path="b", content="2")]))
        session = await kedge.session()
        run_id = await send(kedge, "touch", session)
        request = await kedge.asked()
        await switch(kedge, run_id, "auto-edit")
        await kedge.crash_and_start()
        await answer(kedge, request, "allow")
        assert (await kedge.end(run_id)).text == "done"
        assert (workspace / "b").read_text() == "2"

    async def test_sub_agents_follow(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, tmp_path: Path
    ) -> None:
        outside = tmp_path / "outside"
        outside.write_text("secret of the outside")
        model_server.on(rounds([call("agent", prompt="look", title="look")]), prompt="delegate")
        model_server.on(rounds([call("view", path=str(outside))]), prompt="look")
        session = await kedge.session()
        run_id = await send(kedge, "delegate", session)
        request = await kedge.asked()
        assert isinstance(request, PermissionRequest)
        assert request.run_id == run_id
        await switch(kedge, run_id, "yolo")
        assert await resolution(kedge, request) == ("allow", "mode")
        assert (await kedge.end(run_id)).text == "done"


class TestAutoWithoutItsConditions:
    async def test_without_a_limit_on_cost_the_run_fails_with_one_line(self, driver: Driver) -> None:
        end = await driver.ask("hello", options=RunOptions(mode="auto"))
        assert end.code == "max_cost_required"
        assert "agent.max_cost" in (end.error or "")
        assert "\n" not in (end.error or "")

    async def test_without_a_limit_on_cost_no_run_is_switched_to_it(self, driver: Driver, workspace: Path) -> None:
        check = driver.agent.check_mode
        with pytest.raises(Invalid) as refused:
            await check("auto", RunOptions(), workspace, None)
        assert refused.value.code == "max_cost_required"
        await check("auto", RunOptions(max_cost=1.0), workspace, None)
        await check("yolo", RunOptions(), workspace, None)
        configure(driver, agent=replace(driver.config.agent, max_cost=1.0))
        await check("auto", RunOptions(), workspace, None)

    async def test_a_limit_that_was_set_during_the_run_holds_once_it_is_switched(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer
    ) -> None:
        model_server.on(rounds([call("write", path="a", content="1")], [call("ls")], [call("ls", path=".")]))
        session = await kedge.session()
        run_id = await send(kedge, "write", session)
        await kedge.asked()
        configure(driver, agent=replace(driver.config.agent, max_cost=1e-9))
        await switch(kedge, run_id, "auto")
        assert (await kedge.end(run_id)).code == "max_cost"

    @pytest.mark.parametrize("permissions", ["ask", "deny"])
    async def test_without_a_sandbox_it_works_as_ask_and_says_so(
        self,
        driver: Driver,
        kedge: Kedge,
        model_server: ModelServer,
        workspace: Path,
        monkeypatch: pytest.MonkeyPatch,
        permissions: Any,
    ) -> None:
        for backend in (landlock, bubblewrap):
            monkeypatch.setattr(backend, "find_problem", lambda: "there is none on this machine")
        model_server.on(rounds([call("write", path="a", content="1")]))
        session = await kedge.session()
        receipt = await kedge.send(session, "write", options=LIMITED, permissions=permissions)
        if permissions == "ask":
            await answer(kedge, await kedge.asked(), "allow")
        await kedge.end(receipt.run_id)
        assert (workspace / "a").exists() == (permissions == "ask")
        notices = [event for event in await driver.agent_events() if event.type == "notice"]
        assert [notice.details for notice in notices] == [{"mode": "ask"}]
        assert "there is none on this machine" in (notices[0].message or "")

    async def test_where_changes_cannot_be_undone_it_works_as_ask_and_says_so(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            raise CannotScan("it has over 1,000,000 files")

        monkeypatch.setattr("kedge.files.versions.list_files", refuse)
        model_server.on(rounds([call("bash", command="touch a")]))
        session = await kedge.session()
        receipt = await kedge.send(session, "touch", options=LIMITED)
        await answer(kedge, await kedge.asked(), "deny")
        await kedge.end(receipt.run_id)
        notices = [event.message or "" for event in await driver.agent_events() if event.type == "notice"]
        assert any("1,000,000 files" in notice for notice in notices)

    async def test_a_home_directory_is_not_made_writable(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        model_server.on(rounds([call("bash", command="touch .bashrc")]))
        session = await kedge.session()
        env = {"HOME": str(workspace), "OPENAI_BASE_URL": model_server.base_url, "OPENAI_API_KEY": "the-key"}
        receipt = await kedge.send(session, "touch", options=LIMITED, env=env, model="openai/tester")
        await answer(kedge, await kedge.asked(), "deny")
        await kedge.end(receipt.run_id)
        assert not (workspace / ".bashrc").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="there is a sandbox only on Linux")
@pytest.mark.parametrize("backend", BACKENDS)
class TestAuto:
    @pytest.fixture(autouse=True)
    def only_this_backend(self, backend: SandboxMode, monkeypatch: pytest.MonkeyPatch) -> None:
        other = {"landlock": bubblewrap, "bubblewrap": landlock}[backend]
        monkeypatch.setattr(other, "find_problem", lambda: "another one is tried")

    async def test_commands_and_edits_inside_the_workspace_are_done_without_asking(
        self, driver: Driver, model_server: ModelServer, workspace: Path
    ) -> None:
        script = "for i in 1 2; do echo $i > made$i; done; python3 -c \"open('made3', 'w')\"; rm made1"
        first, second = call("bash", command=script), call("write", path="d/new", content="x")
        model_server.on(rounds([first], [second], [call("bash", command="echo y > d/y")]))
        assert (await driver.ask("go", options=LIMITED)).text == "done"
        assert sorted(path.name for path in workspace.iterdir()) == ["d", "made2", "made3"]
        assert sorted(path.name for path in (workspace / "d").iterdir()) == ["new", "y"]

    async def test_every_change_can_be_undone(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        (workspace / "old").write_text("before")
        write = call("write", path="b", content="x")
        model_server.on(rounds([call("bash", command="rm old; echo new > new")], [write]))
        session = await kedge.session()
        await driver.ask("go", session, options=LIMITED)
        await kedge.engine.undos.undo(kedge.workspace_id, session)
        assert [(path.name, path.read_text()) for path in workspace.iterdir()] == [("old", "before")]

    async def test_a_command_that_writes_outside_is_stopped_by_the_kernel(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, tmp_path: Path
    ) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        code = f"open({str(outside / 'made')!r}, 'w')"
        model_server.on(rounds([call("bash", command=f'python3 -c "{code}"')]))
        session = await kedge.session()
        await driver.ask("go", session, options=LIMITED)
        (result,) = await results(driver, session)
        assert not list(outside.iterdir())
        assert (result.metadata or {})["exit_code"] != 0
        assert "unsandboxed" in result.content  # how the model can have the user asked

    async def test_no_way_out_is_left_to_a_command(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path, tmp_path: Path
    ) -> None:
        outside, home = tmp_path / "outside", tmp_path / "home"
        (home / ".ssh").mkdir()
        for secret in (home / ".ssh" / "id_ed25519", kedge.data / "secret-of-kedge"):
            secret.write_text("a-secret")
        outside.mkdir()
        (outside / "kept").write_text("as it was")
        (workspace / "way").symlink_to(outside, target_is_directory=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "s"))
            listener.listen()
            talk = f"import socket; socket.socket(socket.AF_UNIX).connect({str(tmp_path / 's')!r})"
            tries = [
                f"cat {home}/.ssh/id_ed25519",
                f"cat {kedge.data}/secret-of-kedge",
                "echo x > way/made",
                f"ln -s {outside}/kept link && echo x > link",
                f"ln {outside}/kept hard && echo x > hard",
                f"rm {outside}/kept",
                f"mv {outside}/kept taken",
                f"nohup setsid sh -c 'echo x > {outside}/late' && cat {outside}/late",
                f"git -c core.fsmonitor='touch {outside}/by-git' init -q . ; git -c core.pager='touch {outside}/p' log",
                f"kill -9 {os.getpid()}",
                f'python3 -c "{talk}"',
            ]
            lines = "\n".join(f"( {each} ) && echo got-out-{i}" for i, each in enumerate(tries) if i != 8)
            model_server.on(rounds([call("bash", command=f"touch x\n{lines}\n( {tries[8]} )\ntrue")]))
            session = await kedge.session()
            assert (await driver.ask("go", session, options=LIMITED)).text == "done"
        (result,) = await results(driver, session)
        assert (workspace / "x").exists(), result.content
        assert "got-out" not in result.content
        assert "a-secret" not in result.content
        assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("kept", "as it was")]
        assert not await kedge.permissions()

    async def test_what_leaves_the_sandbox_asks(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, tmp_path: Path
    ) -> None:
        model_server.on(
            rounds(
                [call("bash", command=f"touch {tmp_path}/made", unsandboxed=True)],
                [call("write", path=str(tmp_path / "made2"), content="x")],
                [call("write", path="conftest.py", content="x")],
                [call("view", path=str(tmp_path / "home"))],
            )
        )
        session = await kedge.session()
        await driver.ask("go", session, options=LIMITED, permissions="deny")
        assert await refusals(driver, session) == ["unattended"] * 4
        assert not (tmp_path / "made").exists()

    async def test_deny_rules_come_before_the_mode(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, workspace: Path
    ) -> None:
        (workspace / ".env").write_text("secret")
        configure(driver, permissions=PermissionsConfig(deny=("bash(git push *)", "view(**/.env)")))
        read = call("bash", command="python3 -c 'print(open(\".env\").read())'")
        model_server.on(rounds([call("bash", command="git push origin")], [read]))
        session = await kedge.session()
        await driver.ask("go", session, options=LIMITED, permissions="deny")
        assert await refusals(driver, session) == ["rule", "unattended"]

    async def test_commands_have_no_credentials_and_the_network_of_the_configuration(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer
    ) -> None:
        port = model_server.base_url.split(":")[2].split("/")[0]
        connect = f"""python3 -c 'import socket; socket.create_connection(("127.0.0.1", {port})); print("online")'"""
        model_server.on(rounds([call("bash", command="touch x; env")], [call("bash", command=f"touch y; {connect}")]))
        session = await kedge.session()
        await driver.ask("go", session, options=LIMITED)
        environment, network = [result.content for result in await results(driver, session)]
        assert "HARMLESS=kept" in environment
        assert "the-key-of-the-tests" not in environment
        assert network == "online"

        configure(driver, sandbox=replace(driver.config.sandbox, network=False))
        again = call("bash", command=f"touch z; {connect}")
        model_server.on([Plan(text="", tool_calls=(again,)), Plan(text="done")], prompt="offline")
        await driver.ask("offline", session, options=LIMITED)
        assert "online" not in (await results(driver, session))[-1].content.splitlines()

    async def test_a_rule_runs_a_command_as_configured(
        self, driver: Driver, model_server: ModelServer, tmp_path: Path
    ) -> None:
        configure(driver, permissions=PermissionsConfig(allow=(f"bash(touch {tmp_path}/*)",)))
        model_server.on(rounds([call("bash", command=f"touch {tmp_path}/by-rule")]))
        await driver.ask("go", options=LIMITED)
        assert (tmp_path / "by-rule").exists()
