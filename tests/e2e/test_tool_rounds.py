"""A whole task with real tools on a real server, on every wire; and the server killed at every step of it (P13)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Generator
from typing import Any

import pytest

from kedge.config.schema import WireName
from kedge.protocol.messages import Delta, Message, ToolCall, ToolResult
from kedge.protocol.requests import PermissionRequest
from tests.client.command import Kedge
from tests.e2e.home import Home, log_of
from tests.server.client import Client, done
from tests.server.process import Server
from tests.support.invariants import check_all_ended, check_log, ends_of, final_messages
from tests.support.model_control import ModelControl, model_thread
from tests.support.model_server import HOST
from tests.support.wires import WIRES, environ

KEY = "planted.key.of.this.test.5c1f"
PROMPT = "mend the greeting"
STEPS = 4
CALLS = 6  # in the steps below

# Kills: before each step and each call begins, and when it is done but not yet told. After each the next server must
# know what to do.
PLACES = [
    f"{transaction}.begin=kill@{count}"
    for transaction in ("create_message", "checkpoint")
    for count in range(1, STEPS + CALLS + 1)
]


@pytest.fixture(scope="module")
def models() -> Generator[ModelControl]:
    """By the conversation: a run that was killed and resumed is answered as if nothing had happened."""
    with model_thread() as models:
        models.on(
            {"text": "I look.", "tool_calls": [_call("view", path="greet.py"), _call("view", path="test_greet.py")]},
            {"text": "", "tool_calls": [_call("bash", command="printf x >> effects; python3 test_greet.py")]},
            {
                "text": "",
                "reasoning": "hm",
                "signature": "signed",
                "tool_calls": [
                    _call("view", path="greet.py"),
                    _call("edit", path="greet.py", old_string="helo", new_string="hello"),
                    _call("bash", command="printf y >> effects; python3 test_greet.py && echo passed"),
                ],
            },
            {"text": "Mended, and the test passes."},
            prompt=PROMPT,
        )
        yield models


def _call(name: str, **params: Any) -> dict[str, Any]:
    return {"name": name, "input": params}


class Task:
    """A directory with a mistake in it, and a server that is to have it mended."""

    def __init__(self, home: Home, wire: WireName) -> None:
        self.home = home
        self.directory = home.directory / "work"
        self.directory.mkdir()
        (self.directory / "greet.py").write_text('def greet():\n    return "helo"\n')
        (self.directory / "test_greet.py").write_text('from greet import greet\n\nassert greet() == "hello"\n')
        self.env = {**environ(wire, home.models, KEY, "fake-model"), "NO_PROXY": HOST}

    def serve(self, **env: str) -> Server:
        return Server(self.home, self.home.popen("serve", module="kedge", env={**self.env, **env}))

    def submit(self, client: Client) -> str:
        """The run is sent without an environment: so a resumed one has the same."""
        workspace = client.workspace(self.directory)
        session = client.session(workspace, "named")
        client.submit(workspace, session, PROMPT, run_id="task", permissions="allow")
        return workspace

    @property
    def effects(self) -> str:
        path = self.directory / "effects"
        return path.read_text() if path.exists() else ""


def answered(messages: list[Message]) -> dict[str, ToolResult]:
    """The result of each call of the steps that count; every one has exactly one."""
    whole = [message for message in messages if message.role != "assistant" or _reason(message) != "interrupted"]
    calls = [part for message in whole for part in message.parts if isinstance(part, ToolCall)]
    results = [part for message in whole for part in message.parts if isinstance(part, ToolResult)]
    known = {result.tool_call_id: result for result in results}
    assert sorted(call.id for call in calls) == sorted(result.tool_call_id for result in results), (calls, results)
    return {call.id: known[call.id] for call in calls}


def _reason(message: Message) -> str | None:
    return getattr(message.parts[-1], "reason", None) if message.parts else None


@pytest.mark.parametrize("wire", WIRES)
def test_a_task_is_found_read_run_mended_and_checked(home: Home, wire: WireName) -> None:
    task = Task(home, wire)
    server = task.serve()
    workspace = task.submit(server.client)
    assert server.client.ended(workspace, "task")["state"] == "completed"
    log = log_of(server.client, workspace)
    check_log(log)
    assert ends_of(log)["task"].text == "Mended, and the test passes."
    results = list(answered(list(final_messages(log).values())).values())
    assert len(results) == CALLS
    assert "AssertionError" in results[2].content
    assert "passed" in results[5].content
    assert '"hello"' in (task.directory / "greet.py").read_text()
    assert task.effects == "xy"

    listings = [server.client.get(path).body for path in ("/v1/metrics", f"{workspace}/runs", f"{workspace}/sessions")]
    assert server.stop() == 0
    seen = json.dumps([str(event) for event in log]) + server.place.log
    assert KEY not in seen
    assert KEY.encode() not in b"".join(listings)
    stored = [path for path in home.data_dir.rglob("*") if path.is_file()]
    assert [path.name for path in stored if KEY.encode() in path.read_bytes()] == []
    used = [call for call in home.models.stats()["calls"] if KEY in str(call["headers"])]
    assert used, "and yet it was used"


# What is resumed is the same on every wire: they take turns.
@pytest.mark.parametrize(("place", "wire"), list(zip(PLACES, itertools.cycle(WIRES), strict=False)))
def test_killed_anywhere_the_task_goes_on_and_nothing_is_done_twice(home: Home, wire: WireName, place: str) -> None:
    task = Task(home, wire)
    first = task.serve(KEDGE_FAILPOINT=place)
    try:
        task.submit(first.client)
        first.process.wait(timeout=30)
    finally:
        first.kill()
    assert first.process.returncode == -9, "it was there"

    server = task.serve()
    try:
        client = server.client
        workspace = client.workspace(task.directory)
        run = client.ended(workspace, "task")
        assert (run["state"], run["attempt"]) == ("completed", 2)
        log = log_of(client, workspace)
    finally:
        assert server.stop() == 0
    check_log(log)
    check_all_ended(log)
    assert ends_of(log)["task"].text == "Mended, and the test passes."
    results = list(answered(list(final_messages(log).values())).values())
    assert len(results) == CALLS
    interrupted = [result.name for result in results if "Interrupted" in result.content]
    if place.startswith("create_message"):
        assert interrupted in ([], ["view"]), "what had not begun is done now; only another may have been at work"
    skipped = [result.name for result in results if result.content.startswith("Not run")]
    assert interrupted or not skipped, "only what is behind an interrupted call is not run"
    assert task.effects == ("x" if "bash" in skipped else "xy"), "never twice, and never forgotten"
    assert "edit" in skipped or '"hello"' in (task.directory / "greet.py").read_text()


def test_a_person_says_no_and_then_yes(home: Home) -> None:
    task = Task(home, "chat")
    server = task.serve()
    home.models.on(
        {"text": "", "tool_calls": [_call("view", path="greet.py"), _call("bash", command="rm greet.py")]},
        {"text": "never said"},
        prompt="remove it",
    )
    try:
        client = server.client
        workspace = client.workspace(task.directory)
        session = client.session(workspace, "named")

        def answered_with(action: str, prompt: str, run_id: str) -> str:
            with client.events(workspace) as events:
                client.submit(workspace, session, prompt, run_id=run_id)
                request = events.until("permission_request")[-1].payload
                assert isinstance(request, PermissionRequest)
                done(client.post(f"{workspace}/permissions/grant", {"id": request.id, "action": action}))
                return ends_of(events.end_of(run_id))[run_id].text

        assert answered_with("deny", "remove it", "first") == ""
        assert (task.directory / "greet.py").exists()
        home.models.on(
            {"text": "", "tool_calls": [_call("edit", path="greet.py", old_string="helo", new_string="hello")]},
            {"text": "mended instead"},
            prompt="mend it then",
        )
        assert answered_with("allow", "mend it then", "second") == "mended instead"
        assert '"hello"' in (task.directory / "greet.py").read_text()
        messages = list(final_messages(log_of(client, workspace)).values())
        assert [result.is_error for result in answered(messages).values()] == [False, True, False]
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("flags", "code", "is_made"), [([], 4, False), (["-y"], 0, True), (["--allow", "bash(touch *)"], 0, True)]
)
def test_a_script_is_refused_what_needs_leave_and_its_exit_code_says_so(
    home: Home, flags: list[str], code: int, is_made: bool
) -> None:
    task = Task(home, "chat")
    home.models.on(
        {"text": "", "tool_calls": [_call("bash", command="touch made")]}, {"text": "as far as I may"}, prompt="make it"
    )
    ran = Kedge(home, task.directory).run("make it", *flags)
    assert (ran.code, ran.out) == (code, "as far as I may\n")
    assert (task.directory / "made").exists() == is_made


def test_a_server_that_is_asked_to_leave_lets_the_next_one_go_on(home: Home) -> None:
    task = Task(home, "chat")
    first = task.serve()
    home.models.on(
        {"text": "", "tool_calls": [_call("bash", command="printf x >> effects; echo begun; sleep 60")]},
        {"text": "told"},
        prompt=f"{PROMPT} slowly",
    )
    client = first.client
    workspace = client.workspace(task.directory)
    session = client.session(workspace, "named")
    with client.events(workspace) as events:
        client.submit(workspace, session, f"{PROMPT} slowly", run_id="slow", permissions="allow")
        events.until(lambda event: isinstance(event.payload, Delta) and "begun" in event.payload.text)
    done(client.post("/v1/control", {"command": "shutdown"}))
    assert first.left() == 0
    server = task.serve()
    try:
        client = server.client
        workspace = client.workspace(task.directory)
        assert client.ended(workspace, "slow")["state"] == "completed"
        (result,) = answered(list(final_messages(log_of(client, workspace)).values())).values()
    finally:
        assert server.stop() == 0
    assert result.is_error
    assert "Interrupted" in result.content
    assert task.effects == "x"
