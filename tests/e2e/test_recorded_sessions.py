"""Whole tasks in real projects, with the answers of sessions that were recorded once.

A recording (`recorded/NAME.json`) has the command, the model's answers, and what came of them: the Git blobs of the
changed files, and the characters that were sent to the model.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kedge.protocol.messages import ToolResult
from tests.client.command import Kedge
from tests.e2e.home import Home
from tests.support import sdists
from tests.support.model_control import ModelControl, model_thread
from tests.support.wires import prompt_text

pytestmark = pytest.mark.slow

LIMIT_S = 150.0
MARGIN = 1.05  # prompts name paths and the machine, which differ a little
SUMMARY = "replaced by a summary"  # words of the request for one
IGNORED = "__pycache__/\n*.egg-info/\n.pytest_cache/\n.hypothesis/\n"

# A test run waits in the pipe "door", if there is one: there the server is killed.
DOOR_PLUGIN = """
import os, signal

def pytest_collection_finish():
    if os.path.exists("door"):
        open("door", "w").close()
        signal.pause()
"""


class Recording(msgspec.Struct, frozen=True):
    release: str  # of the project
    options: list[str]  # of `kedge run`
    window: int
    prompt: str
    answers: list[dict[str, Any]]
    changed: dict[str, str]
    input_chars: int
    summary: str = ""


@pytest.fixture(scope="module")
def models() -> Generator[ModelControl]:
    """Of these tests alone: they count requests."""
    with model_thread() as models:
        yield models


class Replay:
    """A project's tree, and a model that gives the recorded answers in order."""

    def __init__(self, home: Home, name: str) -> None:
        file = Path(__file__).parent / "recorded" / f"{name}.json"
        self.recording = recording = msgspec.json.decode(file.read_bytes(), type=Recording)
        self.models = home.models
        self.tree = sdists.unpack(recording.release, home.directory)
        with (self.tree / ".gitignore").open("a") as ignored:
            ignored.write(IGNORED)
        self.git("init", "-q")
        self.commit()
        self.kedge = Kedge(home, self.tree)
        config = home.config_dir / "kedge" / "config.toml"
        config.parent.mkdir(parents=True)
        config.write_text(f"[providers.openai.models.fake-model]\ncontext_window = {recording.window}\n")
        self.env = self._install(home.directory / "site")
        self.models.reset()
        self.models.enforce_window(recording.window)
        if recording.summary:
            self.models.on(with_usage({"text": recording.summary}), prompt=SUMMARY)

    def start(self, *answers: dict[str, Any]) -> subprocess.Popen[bytes]:
        self.models.plan_next(*map(with_usage, answers or self.recording.answers))
        return self.kedge.start("run", "--json", *self.recording.options, self.recording.prompt, env=self.env)

    def git(self, *args: str) -> str:
        author = ["-c", "user.name=Tests", "-c", "user.email=tests@example.com"]
        told = subprocess.run(["git", *author, *args], cwd=self.tree, check=True, capture_output=True, text=True)
        return told.stdout

    def commit(self) -> None:
        self.git("add", "--all", "--force")
        self.git("commit", "-q", "-m", "begin")

    def changed(self) -> dict[str, str]:
        """The Git blobs of all files that differ from the commit."""
        self.git("add", "--all")
        lines = self.git("diff", "--cached", "--raw", "--abbrev=16", "--no-renames").splitlines()
        return {line.split("\t")[1]: line.split()[3] for line in lines}

    def finish(self, process: subprocess.Popen[bytes]) -> list[ToolResult]:
        """Wait for the run, and check what comes of every recording. Returns the results of the calls."""
        recording = self.recording
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
        assert process.returncode == 0, err.decode()
        events = [json.loads(line) for line in out.splitlines()]
        assert events[-1]["payload"]["payload"]["text"] == recording.answers[-1]["text"]
        assert self.changed() == recording.changed

        told = self.models.stats()
        requests = [call["body"] for call in told["calls"]]
        assert len(requests) == len(recording.answers) + bool(recording.summary)
        assert told["refused_as_too_long"] == 0
        for before, after in itertools.pairwise(requests):
            if not (is_for_summary(before) or is_for_summary(after)):
                assert prompt_text(after).startswith(prompt_text(before))
        input_chars = sum(len(prompt_text(request)) for request in requests)
        more = f"{input_chars} characters were sent instead of {recording.input_chars}; if that is right, record it"
        assert input_chars <= recording.input_chars * MARGIN, more
        return list(results_of(events))

    def _install(self, site: Path) -> dict[str, str]:
        """Make the project importable, as if it was installed; returns the environment for that."""
        name, _, version = self.recording.release.rpartition("-")
        metadata = site / f"{name}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (site / "door_plugin.py").write_text(DOOR_PLUGIN)
        return {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": f"{self.tree / 'src'}:{site}",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # those of our tests, which shuffle and time others
            "PYTEST_PLUGINS": "door_plugin",
            "PYTEST_ADDOPTS": "",
        }


def with_usage(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "output_tokens": len(json.dumps(answer)) // 4}


def is_for_summary(request: dict[str, Any]) -> bool:
    return SUMMARY in json.dumps(request["messages"][-1])


def results_of(events: list[dict[str, Any]]) -> Iterator[ToolResult]:
    """Of all messages as they were at last."""
    messages = {e["payload"]["payload"]["id"]: e["payload"]["payload"] for e in events if e["type"] == "message"}
    for message in messages.values():
        if message["role"] == "tool":
            yield from (msgspec.convert(part, ToolResult) for part in message["parts"] if part["type"] == "tool_result")


def is_failed(result: ToolResult) -> bool:
    return result.is_error or bool((result.metadata or {}).get("exit_code"))


def test_a_bug_is_found_and_fixed(home: Home) -> None:
    replay = Replay(home, "fix")
    file = replay.tree / "boltons" / "dictutils.py"
    correct = file.read_text()
    line = "return type(self) == type(other) and self.data == other.data"
    assert correct.count(line) == 1
    file.write_text(correct.replace(line, line.replace("==", "!=", 1)))
    replay.commit()
    results = replay.finish(replay.start())
    assert not [result for result in results if is_failed(result)]
    before, after = [result.content for result in results if " passed" in result.content]
    assert "failed" in before
    assert "failed" not in after
    assert file.read_text() == correct


@pytest.mark.parametrize("name", ["feature", "small_window", "summary"])
def test_a_task_is_done_within_the_rules_and_the_window(home: Home, name: str) -> None:
    replay = Replay(home, name)
    results = replay.finish(replay.start())
    assert not [result for result in results if is_failed(result)]
    runs = [result.content for result in results if " passed" in result.content]
    assert len(runs) >= 2
    assert not [told for told in runs if "failed" in told]


def test_a_task_goes_on_when_the_server_is_killed_during_a_test_run(home: Home, gate: str) -> None:
    replay = Replay(home, "rename")
    killed_at = 3
    answers = list(replay.recording.answers)
    answers[killed_at] = {**answers[killed_at], "gate": gate}
    process = replay.start(*answers)
    home.models.wait(held=gate)
    door = replay.tree / "door"
    os.mkfifo(door)
    home.models.release(gate)
    door.open().close()  # the test run is there
    pid = replay.kedge.server_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    door.unlink()
    results = replay.finish(process)
    interrupted, behind = [result for result in results if is_failed(result)]
    assert interrupted.content.startswith("Interrupted")
    assert behind.content.startswith("Not run")
    assert replay.kedge.server_pid() not in (pid, None)
