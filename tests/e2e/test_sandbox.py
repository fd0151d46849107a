"""The sandbox of a whole Kedge: a run that may do everything does it in the workspace, and cannot drive its server."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.project import Project, bash, step
from tests.server.process import Server
from tests.support.model_control import ModelControl
from tests.tools.sandbox.cells import BACKENDS, PYTHON

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is a sandbox only on Linux")

SPEAK = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print('spoken')"


@pytest.fixture
def project(server: Server, models: ModelControl, tmp_path: Path) -> Project:
    return Project(server, models, tmp_path / "shop")


def deeds(project: Project, outside: Path) -> dict[str, str]:
    place = project.server.place
    return {
        "inside": "echo kept > made && cat made",
        "outside": f"echo changed > {outside} && echo written",
        "server": f'{PYTHON} -I -S -c "{SPEAK}" {place.socket_path}',
        "data": f"head -c 15 {place.data_dir}/kedge.db",
    }


def said(project: Project, mode: str, outside: Path, *args: str) -> dict[str, str]:
    todo = deeds(project, outside)
    prompt = project.prompt(*(step(bash(command)) for command in todo.values()), text="That was it.")
    done = project.run(prompt, *args, env={"KEDGE_SANDBOX__MODE": mode})
    assert (done.code, done.out) == (0, "That was it.\n"), done
    return dict(zip(todo, (result.content for result in project.results(prompt)), strict=True))


def test_without_one_all_of_it_goes(project: Project, tmp_path: Path) -> None:
    assert said(project, "off", tmp_path / "outside", "-y") == {
        "inside": "kept",
        "outside": "written",
        "server": "spoken",
        "data": "SQLite format 3",
    }


@pytest.mark.parametrize("mode", BACKENDS)
def test_in_one_a_run_that_may_do_everything_stays_in_its_workspace(
    project: Project, tmp_path: Path, mode: str
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("as it was")
    told = said(project, mode, outside, "-y")
    assert told["inside"] == "kept"
    # It may have written to a /tmp of its own.
    assert outside.read_text() == "as it was"
    assert "spoken" not in told["server"]
    assert "SQLite" not in told["data"]
