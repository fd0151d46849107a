"""A person's own command: run without a model and without asking, watched, never repeated, seen by the model."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from kedge.protocol.errors import Invalid, TooLarge
from kedge.protocol.events import Event
from kedge.protocol.messages import Delta, Finish, Message, MessageOf, ShellCommand
from tests.agent.driver import Driver
from tests.support.harness import Kedge
from tests.support.model_server import ModelServer
from tests.support.reader import LIMIT_S

ENV = {"PATH": os.environ["PATH"]}


@pytest.fixture
async def driver(kedge: Kedge) -> AsyncGenerator[Driver]:
    async with Driver(kedge, "http://127.0.0.1:9", env=ENV) as driver:  # there is no model
        yield driver


def command_of(message: Message) -> ShellCommand:
    [part] = message.parts
    assert isinstance(part, ShellCommand)
    return part


def says(text: str) -> Callable[[Event], bool]:
    def matches(event: Event) -> bool:
        return isinstance(event.payload, Delta) and event.payload.kind == "tool_output" and text in event.payload.text

    return matches


async def test_it_runs_in_the_workspace_and_its_output_is_the_runs_text(driver: Driver) -> None:
    session_id = await driver.kedge.session()
    end = await driver.ask("pwd; echo err >&2; exit 3", session_id, kind="shell")
    assert (end.error, end.cancelled) == (None, False)
    [message] = await driver.kedge.messages(session_id)
    assert (message.role, message.id) == ("user", end.message_id)
    directory = driver.kedge.engine.feed(driver.kedge.workspace_id).path
    assert command_of(message) == ShellCommand("pwd; echo err >&2; exit 3", f"{directory}\nerr", 3)
    assert end.text == f"{directory}\nerr"
    assert end.usage.input_tokens == 0


async def test_what_a_person_typed_may_have_control_characters_in_it(driver: Driver) -> None:
    end = await driver.ask("printf %s '\x1b\x08' | od -An -tx1", kind="shell")
    assert end.text.split() == ["1b", "08"]


async def test_it_has_the_callers_environment_and_none_of_our_secrets(driver: Driver) -> None:
    env = {**ENV, "COLOUR": "green", "KEDGE_TOKEN": "secret"}
    end = await driver.ask('echo "$COLOUR-$KEDGE_TOKEN-"', kind="shell", env=env)
    assert end.text == "green--"


async def test_its_output_is_watched_while_it_runs(driver: Driver, tmp_path: Path) -> None:
    kedge = driver.kedge
    session_id = await kedge.session()
    os.mkfifo(tmp_path / "gate")
    await kedge.send(session_id, f"echo first; cat {tmp_path}/gate; echo last", "r", kind="shell")
    await kedge.seen(says("first"))
    [shown] = await kedge.messages(session_id)
    assert command_of(shown).exit_code is None
    assert command_of(shown).command.startswith("echo first")
    created = [e.payload for e in await kedge.log() if isinstance(e.payload, MessageOf)]
    assert [command_of(message).output for message in created] == [""]
    await asyncio.to_thread((tmp_path / "gate").write_text, "through\n")
    assert (await kedge.end("r")).text == "first\nthrough\nlast"


async def test_a_cancel_ends_it_and_keeps_what_it_said(driver: Driver) -> None:
    kedge = driver.kedge
    session_id = await kedge.session()
    await kedge.send(session_id, "echo begun; sleep 300", "r", kind="shell")
    await kedge.seen(says("begun"))
    await kedge.cancel(session_id)
    end = await kedge.end("r")
    assert (end.cancelled, end.error) == (True, None)
    command, closing = await kedge.messages(session_id)
    assert command_of(command) == ShellCommand("echo begun; sleep 300", "begun\n[Canceled before it finished.]", None)
    assert closing.parts == [Finish("canceled")]


async def test_one_that_is_cancelled_in_the_queue_never_runs(driver: Driver, tmp_path: Path) -> None:
    kedge = driver.kedge
    session_id = await kedge.session()
    await kedge.send(session_id, "echo begun; sleep 300", "first", kind="shell")
    await kedge.seen(says("begun"))
    await kedge.send(session_id, f"touch {tmp_path}/ran", "second", kind="shell")
    await kedge.cancel(session_id)
    assert (await kedge.end("second")).cancelled
    await kedge.end("first")
    assert not (tmp_path / "ran").exists()
    never = [m for m in await kedge.messages(session_id) if m.run_id == "second"]
    assert command_of(never[0]) == ShellCommand(f"touch {tmp_path}/ran", "[Cancelled before it began.]", None)


@pytest.mark.parametrize("is_orderly", [True, False], ids=["stopped", "crashed"])
async def test_after_its_server_is_gone_it_is_not_repeated(driver: Driver, tmp_path: Path, is_orderly: bool) -> None:
    kedge = driver.kedge
    session_id = await kedge.session()
    await kedge.send(session_id, f"echo x >> {tmp_path}/ran; echo begun; sleep 300", "r", kind="shell")
    await kedge.seen(says("begun"))
    await (kedge.restart() if is_orderly else kedge.crash_and_start())
    end = await kedge.end("r")
    assert (end.code, end.cancelled) == ("interrupted", False)
    assert (tmp_path / "ran").read_text() == "x\n"
    command = command_of((await kedge.messages(session_id))[0])
    assert command.exit_code is None
    assert "The server stopped while this was running" in command.output


async def test_what_it_leaves_in_the_background_becomes_a_job(driver: Driver) -> None:
    end = await driver.ask("sleep 300 & echo started", kind="shell")
    [job] = driver.agent.jobs.of(driver.kedge.workspace_id).list()
    assert end.text.startswith("started\n[still running in the background: sleep (")
    assert end.text.endswith(f"it is job {job.id}]")
    assert job.is_running
    await job.command.end()
    async with asyncio.timeout(LIMIT_S):
        await job.command.finished.wait()


async def test_a_long_output_is_cut_in_the_middle_and_kept_in_a_file(driver: Driver) -> None:
    end = await driver.ask("seq 1 20000", kind="shell")
    assert end.text.startswith("1\n2\n")
    assert end.text.endswith("\n20000")
    assert 14_000 < len(end.text) < 17_000


async def test_a_signal_is_told_as_shells_do(driver: Driver) -> None:
    session_id = await driver.kedge.session()
    await driver.ask("kill -KILL $$", session_id, kind="shell")
    assert command_of((await driver.kedge.messages(session_id))[0]).exit_code == 137


async def test_what_is_no_command_is_refused(driver: Driver) -> None:
    session_id = await driver.kedge.session()
    for command, error, code in (
        (" \n", Invalid, "empty_prompt"),
        ("echo \0", Invalid, "invalid_text"),
        ("x" * 100_001, TooLarge, "prompt_too_large"),
    ):
        with pytest.raises(error) as refused:
            await driver.kedge.send(session_id, command, kind="shell")
        assert refused.value.code == code


async def test_the_model_sees_it_with_the_next_prompt(kedge: Kedge, model_server: ModelServer) -> None:
    async with Driver(kedge, model_server.base_url) as driver:
        session_id = await kedge.session()
        await driver.ask("echo the-answer-is-42; exit 7", session_id, kind="shell", env=ENV)
        await driver.ask("What did it say?", session_id)
        [call] = model_server.calls
        sent = str(call.body["messages"])
        assert "$ echo the-answer-is-42; exit 7" in sent
        assert "ended with exit code 7" in sent
        assert sent.index("the-answer-is-42") < sent.index("What did it say?")
