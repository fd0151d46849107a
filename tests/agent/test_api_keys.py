"""A refused key is looked up again inside the same run, which ends once (P8); no key is found anywhere after it."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from kedge.config.schema import AgentConfig, Config, ProviderConfig
from kedge.models.keys.credentials import CREDENTIALS_FILE
from kedge.protocol.runs import RunEnd
from tests.agent.driver import Driver
from tests.support.model_plan import Plan
from tests.support.model_server import ModelServer

OLD, NEW, HEADER = "old.planted.key.0001", "new.planted.key.0002", "header.planted.0003"


def configured(driver: Driver, **settings: str) -> None:
    provider = ProviderConfig(api_key_command=settings.get("command"), headers={"X-Gateway": HEADER})
    driver.config = Config(agent=AgentConfig(titles=False), providers={"openai": provider})


async def ask(driver: Driver, model_server: ModelServer, session: str) -> RunEnd:
    env = {"OPENAI_BASE_URL": model_server.base_url, "PATH": os.environ["PATH"]}
    return await driver.ask("go", session, env=env, model="openai/tester", permissions="deny")


def sent_keys(model_server: ModelServer) -> list[str]:
    return [call.headers["authorization"].removeprefix("Bearer ") for call in model_server.calls]


def store(data: Path, key: str) -> None:
    path = data / CREDENTIALS_FILE
    path.write_text(json.dumps({"version": 1, "providers": {"openai": {"api_key": key}}}))
    path.chmod(0o600)


async def found_nowhere(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    await driver.kedge.shutdown()
    files = [path for path in driver.kedge.data.rglob("*") if path.is_file() and path.name != CREDENTIALS_FILE]
    stored = b"".join(path.read_bytes() for path in files)
    seen = b"".join(frame.raw for frame in driver.kedge.watcher.frames)
    assert b"openai/tester" in stored  # the files are those of these runs
    for key in (OLD, NEW, HEADER):
        assert key.encode() not in stored
        assert key.encode() not in seen
        assert key not in caplog.text


async def test_a_command_is_asked_again_and_the_run_goes_on(
    driver: Driver, model_server: ModelServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    printed = shlex.quote(str(tmp_path / "printed"))
    configured(driver, command=f"if [ -e {printed} ]; then echo {NEW}; else touch {printed}; echo {OLD}; fi")
    model_server.next_plans = [Plan(status=401, message=f"{OLD} of {HEADER} has expired"), Plan(text="fine")]
    session = await driver.kedge.session()
    end = await ask(driver, model_server, session)
    assert (end.text, end.error) == ("fine", None)
    assert sent_keys(model_server) == [OLD, NEW]
    assert [(event.type, event.code) for event in await driver.agent_events()] == [("retry", "auth")]
    assert await driver.assistant_messages(session) == [("fine", "end_turn")]
    assert (await ask(driver, model_server, session)).error is None
    assert sent_keys(model_server)[2:] == [NEW]  # remembered, until it is refused
    await found_nowhere(driver, caplog)


async def test_a_command_is_asked_again_also_when_the_list_of_models_is_refused(
    driver: Driver, model_server: ModelServer, tmp_path: Path
) -> None:
    printed = shlex.quote(str(tmp_path / "printed"))
    configured(driver, command=f"if [ -e {printed} ]; then echo {NEW}; else touch {printed}; echo {OLD}; fi")
    model_server.expired_key = OLD
    env = {"OPENAI_BASE_URL": model_server.base_url, "PATH": os.environ["PATH"]}
    end = await driver.ask("go", env=env)  # which names no model
    assert end.error is None
    assert sent_keys(model_server) == [NEW]
    told = [(event.type, event.code) for event in await driver.agent_events() if event.type != "notice"]
    assert told == [("retry", "auth")]


async def test_a_key_that_was_stored_meanwhile_is_taken(
    driver: Driver, model_server: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    configured(driver)
    store(driver.kedge.data, OLD)
    model_server.next_plans = [Plan(status=401)]
    session = await driver.kedge.session()
    assert (await ask(driver, model_server, session)).code == "auth"
    store(driver.kedge.data, NEW)
    assert (await ask(driver, model_server, session)).error is None
    assert sent_keys(model_server) == [OLD, NEW]
    await found_nowhere(driver, caplog)


async def test_a_second_refusal_is_the_end(
    driver: Driver, model_server: ModelServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    count = shlex.quote(str(tmp_path / "count"))
    configured(driver, command=f"echo x >> {count}; echo {OLD}")
    model_server.plan = Plan(status=401, message=f"no {OLD}")
    end = await ask(driver, model_server, await driver.kedge.session())
    assert end.code == "auth"
    assert end.error is not None
    assert "check OPENAI_API_KEY" in end.error
    assert len(model_server.calls) == 2
    assert (tmp_path / "count").read_text() == "x\nx\n"
    assert [event.type for event in await driver.agent_events()] == ["retry", "error"]
    await found_nowhere(driver, caplog)


async def test_a_command_that_fails_ends_the_run_before_any_call(driver: Driver, model_server: ModelServer) -> None:
    configured(driver, command=f"echo {OLD}; exit 7")
    end = await ask(driver, model_server, await driver.kedge.session())
    assert end.code == "bad_config"
    assert end.error is not None
    assert "'openai' failed with exit code 7" in end.error
    assert OLD not in end.error
    assert len(model_server.calls) == 0


async def test_a_command_for_a_key_is_not_found_in_the_workspace(driver: Driver, model_server: ModelServer) -> None:
    """An activated environment puts a directory of the workspace first in PATH, and commands can write there."""
    root = driver.kedge.data.parent
    planted, own = root / "workspace/.venv/bin", root / "bin"
    for directory, key in ((planted, OLD), (own, NEW)):
        directory.mkdir(parents=True)
        (directory / "print-key").write_text(f"#!/bin/sh\necho {key}\n")
        (directory / "print-key").chmod(0o755)
    configured(driver, command="print-key")
    env = {"OPENAI_BASE_URL": model_server.base_url, "PATH": f"{planted}:{own}:{os.environ['PATH']}"}
    session = await driver.kedge.session()
    end = await driver.ask("go", session, env=env, model="openai/tester", permissions="deny")
    assert end.error is None
    assert sent_keys(model_server) == [NEW]
