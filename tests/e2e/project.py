"""A real repository with a small program that has a mistake in it, and the words for the tasks that are done there."""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from kedge.config.schema import WireName
from kedge.protocol.events import Event
from kedge.protocol.messages import Delta, Message, ToolCall, ToolResult
from kedge.protocol.requests import PermissionRequest, QuestionRequest
from tests.client.command import Done, Kedge
from tests.e2e.home import Home, log_of
from tests.server.client import Client, done
from tests.server.process import Server
from tests.support.invariants import check_log, final_messages
from tests.support.model_control import ModelControl
from tests.support.model_server import HOST
from tests.support.wires import conversation, environ

UNITTEST = "python3 -m unittest"
FILES = {
    ".gitignore": "__pycache__/\n",
    "shop/__init__.py": "",
    "shop/price.py": 'def total(prices):\n    """What all of it costs."""\n    return sum(prices) - 1\n',
    "tests/__init__.py": "",
    "tests/test_price.py": (
        "import unittest\n\nfrom shop.price import total\n\n\n"
        "class TotalTest(unittest.TestCase):\n"
        "    def test_total(self):\n        self.assertEqual(total([1, 2, 3]), 6)\n"
    ),
}


def call(name: str, **params: Any) -> dict[str, Any]:
    return {"name": name, "input": params}


def step(*calls: dict[str, Any], text: str = "", **plan: Any) -> dict[str, Any]:
    return {"text": text, "tool_calls": list(calls), **plan}


def bash(command: str, **params: Any) -> dict[str, Any]:
    return call("bash", command=command, **params)


def edit(old: str, new: str, path: str = "shop/price.py") -> dict[str, Any]:
    return call("edit", path=path, old_string=old, new_string=new)


class Project:
    """A workspace on a server, seen by the command and by another client. Each has prompts of its own."""

    def __init__(self, server: Server, models: ModelControl, directory: Path) -> None:
        self.server = server
        self.models = models
        self.directory = directory
        self.kedge = Kedge(server.place, directory)
        directory.mkdir(exist_ok=True)
        for name, text in FILES.items():
            path = directory / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        for words in (["init", "-q"], ["add", "."], [*_AUTHOR, "commit", "-q", "-m", "begin"]):
            subprocess.run(["git", *words], cwd=directory, check=True)

    @property
    def client(self) -> Client:
        return self.server.client

    @property
    def workspace(self) -> str:
        return self.client.workspace(self.directory)

    def session(self) -> str:
        return self.client.session(self.workspace, "named")

    def prompt(self, *steps: Mapping[str, Any], words: str = "do it", text: str = "All done.") -> str:
        """A prompt that the model works on in these steps, and then answers with the text; also after a restart."""
        prompt = f"{words} {secrets.token_hex(6)}"
        self.models.on(*steps, {"text": text}, prompt=prompt)
        return prompt

    def run(self, prompt: str, *args: str, wire: WireName = "chat", env: Mapping[str, str] | None = None) -> Done:
        return self.kedge.run(prompt, *args, env={**wire_env(wire, self.models), **(env or {})})

    def submit(self, session: str, prompt: str, run_id: str, **fields: object) -> None:
        self.client.submit(self.workspace, session, prompt, run_id=run_id, **fields)

    def ended(self, run_id: str) -> dict[str, Any]:
        return self.client.ended(self.workspace, run_id)

    def asked(self, run_id: str, kind: str = "permission", after: str = "") -> dict[str, Any]:
        """What a person is asked by this run (next after that request), as a client lists it that comes only now."""
        with self.client.events(self.workspace, after=0) as events:
            events.until(lambda event: run_id == _asking(event, after))
        listed = done(self.client.get(f"{self.workspace}/{kind}s"))[f"{kind}s"]
        (request,) = [request for request in listed if request["run_id"] == run_id]
        return request

    def grant(self, request: Mapping[str, Any], action: str) -> dict[str, Any]:
        return done(self.client.post(f"{self.workspace}/permissions/grant", {"id": request["id"], "action": action}))

    def log(self) -> list[Event]:
        """All of it, and nothing is wrong with it."""
        log = log_of(self.client, self.workspace)
        check_log(log)
        return log

    def messages(self, prompt: str) -> list[Message]:
        """Those of the run that this prompt began, in order."""
        runs = done(self.client.get(f"{self.workspace}/runs"))["runs"]
        (run_id,) = [run["run_id"] for run in runs if prompt in run["prompt"]]
        return [message for message in final_messages(self.log()).values() if message.run_id == run_id]

    def results(self, prompt: str) -> list[ToolResult]:
        """Of its calls, in the order of the calls; those that run side by side end as they like."""
        parts = [part for message in self.messages(prompt) for part in message.parts]
        results: list[ToolResult] = [part for part in parts if isinstance(part, ToolResult)]
        calls: list[str] = [part.id for part in parts if isinstance(part, ToolCall)]
        return sorted(results, key=lambda result: calls.index(result.tool_call_id))

    def requests(self, prompt: str) -> list[dict[str, Any]]:
        """What the model was sent for this prompt, step by step."""
        bodies = [made["body"] for made in self.models.stats()["calls"]]
        return [body for body in bodies if prompt in json.dumps(conversation(body))]

    def status(self) -> list[str]:
        """What git says has changed."""
        told = subprocess.run(
            ["git", "status", "--porcelain"], cwd=self.directory, check=True, capture_output=True, text=True
        )
        return told.stdout.splitlines()

    @property
    def price(self) -> str:
        return (self.directory / "shop/price.py").read_text()

    @property
    def passes(self) -> bool:
        return subprocess.run(UNITTEST.split(), cwd=self.directory, capture_output=True, check=False).returncode == 0


_AUTHOR = ["-c", "user.name=Tests", "-c", "user.email=tests@example.com"]


def wire_env(wire: WireName, models: ModelControl, key: str = "key-for-tests") -> dict[str, str]:
    if wire == "chat":
        return {"OPENAI_API_KEY": key}
    return {**environ(wire, models, key, "fake-model"), "NO_PROXY": HOST}


def repair() -> list[dict[str, Any]]:
    """Find, read, see it fail, mend it wrongly, see that, mend it, see it pass: the steps of a whole task."""
    return [
        step(call("grep", pattern="def total"), call("glob", pattern="**/test_*.py"), text="I look for it."),
        step(
            call("view", path="shop/price.py"), call("view", path="tests/test_price.py"), reasoning="hm", signature="s"
        ),
        step(bash(UNITTEST)),
        step(edit("sum(prices) - 1", "sum(prices) + 1"), bash(UNITTEST), text="Perhaps so.", input_piece=3),
        step(edit("sum(prices) + 1", "sum(prices)"), bash(UNITTEST)),
    ]


def says(words: str) -> Callable[[Event], bool]:
    """Whether an event shows a command that says these words; the command itself is shown, too, and is not meant."""
    return lambda event: (
        isinstance(event.payload, Delta) and event.payload.kind == "tool_output" and words in event.payload.text
    )


def _asking(event: Event, after: str) -> str | None:
    """The run that asks a person with this event, if it is not that request."""
    request = event.payload
    if not isinstance(request, (PermissionRequest, QuestionRequest)) or request.id == after:
        return None
    return request.run_id


@contextlib.contextmanager
def at_home(home: Home, config: str = "", **env: str) -> Generator[Project]:
    """A project on a server of a user who wrote this; DIRECTORY stands for the project's."""
    directory = home.directory / "shop"
    if config:
        file = home.config_dir / "kedge" / "config.toml"
        file.parent.mkdir(parents=True)
        file.write_text(config.replace("DIRECTORY", str(directory)))
    project = Project(serve(home, **env), home.models, directory)
    try:
        yield project
        assert project.server.stop() == 0
    finally:
        project.server.kill()


def serve(home: Home, **env: str) -> Server:
    return Server(home, home.popen("serve", module="kedge", env=env))
