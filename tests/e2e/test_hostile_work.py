"""Whatever a page, a repository or a model makes one session do, the others do not notice (P17)."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kedge.protocol.events import Event
from kedge.protocol.messages import MessageOf, ToolCall
from tests.e2e.home import Home
from tests.e2e.project import Project, call, step
from tests.server.process import Server

USUAL_S = 15.0  # a run takes a fifth of a second on a quiet machine; before there were bounds, it took for ever
PAGES = {
    "/codec": ("text/plain; charset=punycode", b"a" * (4 * 1024 * 1024) + b"-b"),
    "/markup": ("text/html", b"<a>" * (5 * 1024 * 1024 // 3)),
}


class Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        kind, body = PAGES[self.path]
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            pass  # the client had enough

    def log_message(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        pass


@pytest.fixture
def web() -> Generator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def server(home: Home) -> Generator[Server]:
    (home.config_dir / "kedge").mkdir(parents=True)
    (home.config_dir / "kedge" / "config.toml").write_text("[fetch]\nallow_private = true\n")
    server = home.serve()
    yield server
    server.kill()


@pytest.fixture
def theirs(home: Home, server: Server, tmp_path: Path) -> Project:
    return Project(server, home.models, tmp_path / "theirs")


@pytest.fixture
def ours(home: Home, server: Server, tmp_path: Path) -> Project:
    project = Project(server, home.models, tmp_path / "ours")
    seconds_of_a_run(project)  # what a first run loads is loaded
    return project


def seconds_of_a_run(project: Project) -> float:
    """A run that calls tools; it is at its end when the story says so."""
    prompt = project.prompt(step(call("view", path="shop/price.py")), step(call("ls")), text="Fine.")
    began = time.monotonic()
    with project.client.events(project.workspace) as events:
        run_id = project.client.submit(project.workspace, project.session(), prompt, permissions="allow")
        assert events.end_of(run_id)[-1].payload.text == "Fine."  # pyright: ignore[reportAttributeAccessIssue]
    return time.monotonic() - began


@contextmanager
def attack(project: Project, tool: str, *prompts: str) -> Generator[list[str]]:
    """A session for each prompt, all of which have called the tool."""
    with project.client.events(project.workspace) as events:
        runs = [
            project.client.submit(project.workspace, project.session(), prompt, permissions="allow")
            for prompt in prompts
        ]
        waiting = set(runs)

        def is_last_call(event: Event) -> bool:
            message = event.payload
            if isinstance(message, MessageOf):
                calls = [part for part in message.parts if isinstance(part, ToolCall) and part.name == tool]
                waiting.difference_update([message.run_id] if calls else [])
            return not waiting

        events.until(is_last_call)
    yield runs


def test_ten_pages_in_a_quadratic_codec(theirs: Project, ours: Project, web: str) -> None:
    prompt = theirs.prompt(step(*(call("fetch", url=f"{web}/codec") for _ in range(10))))
    with attack(theirs, "fetch", prompt) as (run_id,):
        assert seconds_of_a_run(ours) < USUAL_S
        assert seconds_of_a_run(ours) < USUAL_S
        assert theirs.ended(run_id)["state"] == "completed"
    assert [result.is_error for result in theirs.results(prompt)] == [False] * 10


def test_ten_pages_of_markup_also_after_a_cancel(theirs: Project, ours: Project, web: str) -> None:
    prompt = theirs.prompt(step(*(call("fetch", url=f"{web}/markup") for _ in range(10))))
    with attack(theirs, "fetch", prompt) as (run_id,):
        assert seconds_of_a_run(ours) < USUAL_S
        theirs.client.post(f"{theirs.workspace}/runs/{run_id}/cancel")
        assert theirs.ended(run_id)["state"] == "cancelled"
        assert seconds_of_a_run(ours) < USUAL_S


def test_edits_of_lines_of_a_megabyte(theirs: Project, ours: Project) -> None:
    (theirs.directory / "line.txt").write_text("ab" * 500_000)
    edit = call("edit", path="line.txt", old_string="ab" * 400_000 + "c", new_string="d")
    steps = [step(call("view", path="line.txt")), step(edit)]
    prompts = [theirs.prompt(*steps) for _ in range(8)]
    with attack(theirs, "edit", *prompts) as runs:
        assert seconds_of_a_run(ours) < USUAL_S
        assert seconds_of_a_run(ours) < USUAL_S
        for run_id in runs:
            assert theirs.ended(run_id)["state"] == "completed"
    for prompt in prompts:
        assert "old_string is not in line.txt" in theirs.results(prompt)[-1].content


def test_a_configuration_with_a_key_of_50_000_parts(theirs: Project, ours: Project) -> None:
    (theirs.directory / "kedge.toml").write_text("a." * 50_000 + "a = 1")
    runs = [theirs.client.submit(theirs.workspace, theirs.session(), "go") for _ in range(8)]
    assert seconds_of_a_run(ours) < USUAL_S
    for run_id in runs:
        run = theirs.ended(run_id)
        assert (run["state"], run["code"]) == ("failed", "bad_config")
        assert "kedge.toml:1: has a key of more than 32 parts" in run["error"]
