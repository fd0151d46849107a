"""Who wants a sandbox is asked before a command runs without one, in every mode; a run that plans writes nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kedge.config.schema import PermissionsConfig, SandboxConfig, SandboxMode
from kedge.protocol.requests import Answer, PermissionRequest
from kedge.protocol.runs import Mode, Permissions, RunOptions
from kedge.tools.registry import TOOLS
from kedge.tools.sandbox import bubblewrap, landlock
from tests.agent.driver import Driver
from tests.support.harness import Kedge
from tests.support.model_plan import Plan, PlannedCall
from tests.support.model_server import ModelServer
from tests.tools.sandbox.cells import BACKENDS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is a sandbox only on Linux")

WHY = "there is none on this machine"


@pytest.fixture
async def driver(kedge: Kedge, model_server: ModelServer) -> AsyncGenerator[Driver]:
    async with Driver(kedge, model_server.base_url, tools=TOOLS) as driver:
        configure(driver, mode="auto")
        yield driver


@pytest.fixture
def no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    for backend in (landlock, bubblewrap):
        monkeypatch.setattr(backend, "find_problem", lambda: WHY)


def configure(driver: Driver, permissions: PermissionsConfig | None = None, **sandbox: Any) -> None:
    driver.config = msgspec.structs.replace(
        driver.config, sandbox=SandboxConfig(**sandbox), permissions=permissions or PermissionsConfig()
    )


def commands(*words: str) -> list[Plan]:
    calls = [Plan(text="", tool_calls=(PlannedCall("bash", {"command": command}),)) for command in words]
    return [*calls, Plan(text="done")]


async def request(kedge: Kedge) -> PermissionRequest:
    asked = await kedge.asked()
    assert isinstance(asked, PermissionRequest)
    return asked


async def answer(kedge: Kedge, asked: PermissionRequest, action: str) -> None:
    await kedge.store.answer(kedge.workspace_id, "permission", asked.id, Answer(action=action, by="tester"))


def workspace(kedge: Kedge) -> Path:
    return kedge.data.parent / "workspace"


@pytest.mark.usefixtures("no_backend")
class TestWhereThereIsNone:
    @pytest.mark.parametrize("command", ["touch made", "echo x > made", "ls"])
    async def test_a_person_is_asked_about_every_command(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, command: str
    ) -> None:
        """Also about commands that would need no approval in a sandbox."""
        model_server.on(commands(command))
        receipt = await kedge.send(await kedge.session(), "go")
        asked = await request(kedge)
        assert asked.description.startswith(f"WITHOUT the sandbox ({WHY}")
        assert asked.params["without_sandbox"].startswith(WHY)
        assert asked.params["label"].startswith(f"runs without the sandbox ({WHY}")
        assert not (workspace(kedge) / "made").exists()
        await answer(kedge, asked, "allow")
        assert (await kedge.end(receipt.run_id)).text == "done"
        assert (workspace(kedge) / "made").exists() == (command != "ls")

    async def test_what_was_allowed_for_the_session_is_asked_again(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer
    ) -> None:
        model_server.on(commands("touch made", "touch made"))
        receipt = await kedge.send(await kedge.session(), "go")
        first = await request(kedge)
        await answer(kedge, first, "allow_session")
        second = await request(kedge)
        assert second.id != first.id
        await answer(kedge, second, "allow")
        assert (await kedge.end(receipt.run_id)).text == "done"

    @pytest.mark.parametrize("permissions", ["deny", "allow"])
    async def test_a_run_that_nobody_watches_goes_without_the_command(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, permissions: Permissions
    ) -> None:
        """Also one that allows everything: it relies on the sandbox."""
        model_server.on(commands("touch made"))
        session = await kedge.session()
        assert (await driver.ask("go", session, permissions=permissions)).text == "done"
        [result] = await kedge.results(session)
        assert result.is_error
        assert result.metadata == {"refused": "unattended" if permissions == "deny" else "no_sandbox"}
        assert not (workspace(kedge) / "made").exists()

    async def test_who_skips_all_questions_is_asked_this_one(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer
    ) -> None:
        configure(driver, PermissionsConfig(mode="yolo"), mode="auto", ask=False)
        model_server.on(commands("touch made"))
        receipt = await kedge.send(await kedge.session(), "go")
        await answer(kedge, await request(kedge), "deny")
        await kedge.end(receipt.run_id)
        assert not (workspace(kedge) / "made").exists()

    async def test_a_run_that_plans_runs_no_commands(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer
    ) -> None:
        configure(driver)
        model_server.on(commands("ls"))
        session = await kedge.session()
        await driver.ask("go", session, options=RunOptions(mode="plan"))
        [result] = await kedge.results(session)
        assert result.is_error
        assert "only plans" in result.content
        assert result.metadata == {"refused": "mode"}


class TestWhereThereIsOne:
    @pytest.fixture(params=BACKENDS)
    def backend(self, request: pytest.FixtureRequest) -> SandboxMode:
        return request.param

    async def test_what_is_asked_does_not_change(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, backend: SandboxMode
    ) -> None:
        configure(driver, mode=backend)
        outside = kedge.data.parent / "outside"
        outside.touch()
        model_server.on(commands(f"echo x > made; echo x > {outside}"))
        receipt = await kedge.send(await kedge.session(), "go")
        asked = await request(kedge)
        assert "without_sandbox" not in asked.params
        await answer(kedge, asked, "allow")
        await kedge.end(receipt.run_id)
        assert (workspace(kedge) / "made").exists()
        assert outside.read_text() == ""

    async def test_it_is_not_asked_where_that_is_configured(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, backend: SandboxMode
    ) -> None:
        configure(driver, mode=backend, ask=False)
        model_server.on(commands("touch made; $UNKNOWN"))
        assert (await driver.ask("go")).text == "done"
        assert (workspace(kedge) / "made").exists()

    async def test_what_a_rule_forbids_or_might_forbid_is_not_let_through(
        self, driver: Driver, kedge: Kedge, model_server: ModelServer, backend: SandboxMode
    ) -> None:
        configure(driver, PermissionsConfig(deny=("bash(git push *)",)), mode=backend, ask=False)
        model_server.on(commands("git push", "touch made; git $UNKNOWN"))
        session = await kedge.session()
        await driver.ask("go", session, permissions="deny")
        forbidden, unsure = await kedge.results(session)
        assert (forbidden.metadata or {})["refused"] == "rule"
        assert unsure.metadata == {"refused": "unattended"}
        assert not (workspace(kedge) / "made").exists()

    @pytest.mark.parametrize("mode", ["plan", "ask"])
    async def test_what_nobody_approved_changes_nothing_by_construction(
        self,
        driver: Driver,
        kedge: Kedge,
        model_server: ModelServer,
        backend: SandboxMode,
        mode: Mode,
        trap: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Although nothing is configured. `git status` is known to be read-only; what a repository has git run with
        it is known to nobody."""
        monkeypatch.setattr(bubblewrap if backend == "landlock" else landlock, "find_problem", lambda: WHY)
        configure(driver)
        model_server.on(commands("git status"))
        session = await kedge.session()
        await driver.ask("go", session, permissions="deny", options=RunOptions(mode=mode))
        [result] = await kedge.results(session)
        assert "trap.sh" in result.content
        assert not (workspace(kedge) / "made").exists()
        assert not (kedge.data.parent / "outside").exists()
        assert trap.stat().st_mode & 0o777 == 0o755

    @pytest.fixture
    def trap(self, kedge: Kedge) -> Path:
        """What git runs when it is asked for the state of the workspace."""
        here = workspace(kedge)
        trap = here / "trap.sh"
        trap.write_text(f"#!/bin/sh\ntouch {here}/made\necho x > {here}/../outside\nchmod 777 {trap}\n")
        trap.chmod(0o755)
        subprocess.run(["git", "init", "-q"], cwd=here, check=True)
        subprocess.run(["git", "config", "core.fsmonitor", str(trap)], cwd=here, check=True)
        return trap
