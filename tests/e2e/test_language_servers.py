"""Language servers as users have them: after a crash, with a deleted workspace and at the end no process is left."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from kedge.protocol.events import Event
from kedge.protocol.lsp import LspEvent
from tests.e2e.home import Home
from tests.e2e.project import Project, call, step
from tests.server.client import LIMIT_S, done
from tests.server.process import Server
from tests.support.npm import install_packages
from tests.support.processes import is_alive

PACKAGES = Path(__file__).parents[1] / "lsp" / "typescript7"
# bash-language-server starts shellcheck for each text, basedpyright's launcher starts node.
SERVERS = {"basedpyright": "a.py", "ruff": "a.py", "bash-language-server": "a.sh"}
FILES = {"a.py": "import missing_module\nprint(unknown)\n", "a.sh": "#!/bin/bash\nfor i in $x; do echo $i; done\n"}


@pytest.fixture(scope="module")
def languages() -> dict[str, str]:
    """The environment of a server that finds them."""
    modules = install_packages("language-servers", PACKAGES)
    path = os.pathsep.join([str(Path(sys.executable).parent), str(modules / ".bin"), os.environ["PATH"]])
    return {"KEDGE_AGENT__LANGUAGE_SERVERS": "true", "PATH": path}


@pytest.fixture
def project(home: Home, languages: dict[str, str]) -> Generator[Project]:
    server = Server(home, home.popen("serve", module="kedge", env=languages))
    project = Project(server, home.models, home.directory / "shop")
    for name, text in FILES.items():
        (project.directory / name).write_text(text)
    yield project
    project.server.kill()


def start_all(project: Project) -> list[int]:
    """View a file of each server; return all processes when the servers are ready."""
    prompt = project.prompt(step(*(call("view", path=name) for name in FILES)))
    with project.client.events(project.workspace) as events:
        assert project.run(prompt).code == 0
        waiting = set(SERVERS)
        while waiting:
            ready = events.until(is_ready)[-1].payload
            waiting.discard(ready.name if isinstance(ready, LspEvent) else "")
    listed = list_servers(project)
    assert {each["name"]: each["state"] for each in listed} == dict.fromkeys(SERVERS, "ready")
    leaders = {each["pid"] for each in listed}
    processes = [pid for pid in list_processes() if find_session(pid) in leaders]
    assert len(processes) > len(leaders), "some have children"
    return processes


def is_ready(event: Event) -> bool:
    return isinstance(event.payload, LspEvent) and event.payload.state == "ready"


def list_servers(project: Project) -> list[dict[str, Any]]:
    return done(project.client.get(f"{project.workspace}/lsps"))["servers"]


def list_processes() -> list[int]:
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal()]


def find_session(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3])
    except OSError:
        return 0


@pytest.mark.slow
def test_after_a_crash_the_next_server_ends_the_language_servers_with_their_children(
    project: Project, home: Home
) -> None:
    processes = start_all(project)
    project.server.signal(signal.SIGKILL)
    assert project.server.process.wait(LIMIT_S) == -signal.SIGKILL
    project.server.kill()  # closes its pipes
    project.server = home.serve()
    assert [pid for pid in processes if is_alive(pid)] == []
    assert list_servers(project) == []
    assert project.server.stop() == 0


@pytest.mark.slow
def test_they_end_with_their_workspace_and_with_the_server(project: Project) -> None:
    processes = start_all(project)
    done(project.client.ask("DELETE", project.workspace))
    assert [pid for pid in processes if is_alive(pid)] == []
    processes = start_all(project)
    assert project.server.stop() == 0
    assert [pid for pid in processes if is_alive(pid)] == []


def test_a_repository_names_no_server_and_its_settings_are_ignored_unless_it_is_trusted(
    project: Project, home: Home, tmp_path: Path
) -> None:
    mark = tmp_path / "started"
    settings = f"[lsp.own]\ncommand = '/bin/sh'\nargs = ['-c', 'touch {mark}']\nfile_types = ['py']\n"
    settings += "[lsp.ruff]\nsettings = { lint = { enable = false } }\n[lsp.basedpyright]\nenabled = false\n"
    (project.directory / "kedge.toml").write_text(settings)
    start_all(project)
    assert not mark.exists()
    found = project.run(project.prompt(step(call("lsp_diagnostics", path="a.py"))), "--allow", "lsp_*")
    assert found.code == 0
    answer = done(project.client.get(f"{project.workspace}/config"))
    assert {each["key"] for each in answer["ignored"]} >= {"lsp.own.command", "lsp.basedpyright.enabled"}


def test_secrets_of_a_server_are_in_no_listing_and_no_log(project: Project, home: Home) -> None:
    """A server that prints its variables and then fails."""
    script = "echo planted-$TOKEN-secret >&2; echo planted-$TOKEN-secret; sleep 0.1; exit 3"
    config = f"[lsp.own]\ncommand = '/bin/sh'\nargs = ['-c', {json.dumps(script)}]\nfile_types = ['py']\n"
    file = home.config_dir / "kedge" / "config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(config + "env = { TOKEN = 'abcdefgh12345678' }\nsettings = { api.token = 'abcdefgh12345678' }\n")
    with project.client.events(project.workspace) as events:
        assert project.run(project.prompt(step(call("view", path="a.py")))).code == 0
        events.until(lambda event: isinstance(event.payload, LspEvent) and event.payload.state == "failed")
    (own,) = [each for each in list_servers(project) if each["name"] == "own"]
    assert "planted-…-secret" in own["stderr"]
    assert "exit code 3" in own["error"]
    shown = json.dumps([list_servers(project), done(project.client.get(f"{project.workspace}/config"))])
    assert project.server.stop() == 0
    assert "abcdefgh12345678" not in shown + home.log
