"""The OpenAPI document tells the truth: about the table, the committed file, and a live server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kedge.server.openapi import document
from kedge.server.routes import ROUTES
from tests.server.client import Client, done
from tests.server.conftest import Start
from tests.server.process import ROOT

REGENERATE = "python -m kedge.server.openapi > docs/openapi.json"
LIMIT_S = 170  # it takes a tenth of that

# Each has a reason not to be asked by a machine.
LEFT_OUT = {
    "control_server": "would stop the server",
    "stream_events": "has no end",
    "get_openapi": "is where it starts from, and leaves out by itself",
}
CHECKS_LEFT_OUT = {
    "ensure_resource_availability": "takes the id of a request to a person for that of the workspace",
}


def test_the_committed_document_is_the_one_that_is_served(client: Client) -> None:
    served = client.get("/v1/openapi.json")
    assert served.headers["content-type"] == "application/json"
    assert served.body == document(ROUTES)
    assert served.body == (ROOT / "docs/openapi.json").read_bytes(), f"regenerate it: {REGENERATE}"


def test_the_document_is_printed_by_its_module() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "kedge.server.openapi"], cwd=ROOT, capture_output=True, check=True, timeout=30
    )
    assert printed.stdout == document(ROUTES)


def test_every_route_is_described_with_its_errors(client: Client) -> None:
    described = done(client.get("/v1/openapi.json"))
    assert described["openapi"].startswith("3.1.")
    names: list[str] = []
    for route in ROUTES:
        row: dict[str, Any] = described["paths"][route.path][route.method.lower()]
        names.append(row["operationId"])
        assert route.media_type in row["responses"][str(route.status)]["content"]
        assert {"401", "403", "503"} <= row["responses"].keys()
        assert ("404" in row["responses"]) == ("{" in route.path or 404 in route.errors)
        assert ({"400", "413", "415", "422"} <= row["responses"].keys()) == (route.body is not None)
    assert len(names) == len(set(names)) == sum(len(methods) for methods in described["paths"].values())


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 10)  # all of it is work, not waiting: a busy machine only makes it longer
def test_schemathesis_finds_nothing_against_a_live_server(start: Start, tmp_path: Path) -> None:
    """Also checks that the document is valid: it refuses one that is not."""
    server = start("--host", "tcp://127.0.0.1:0")
    url = f"http://{server.tcp.host}:{server.tcp.port}/v1/openapi.json"
    command = [sys.executable, "-m", "schemathesis.cli", "run", url]
    command += [f"--header=Authorization: Bearer {server.token}", "--max-examples=10", "--request-timeout=20"]
    command += ["--generation-database=none", "--no-color"]
    command += [f"--exclude-operation-id={name}" for name in LEFT_OUT]
    command += [f"--exclude-checks={','.join(CHECKS_LEFT_OUT)}"]
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SCHEMATHESIS_HOOKS": "tests.server.schemathesis_hooks",
        "KEDGE_TEST_SOCKET": server.unix.path,
    }
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-2000:]
    assert f"Selected: {len(ROUTES) - len(LEFT_OUT)}/" in result.stdout
    assert "Traceback" not in server.place.log
    assert server.stop() == 0
