"""Language servers in the interface: the sidebar, the list, new errors below an edit, and a rename that is asked."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.e2e.home import Home
from tests.e2e.project import call, step
from tests.server.process import Server
from tests.support.model_control import ModelControl
from tests.tui.ui_driver import kedge

FILES = {"lib.py": "def name() -> int:\n    return 1\n", "use.py": "from lib import name\n\nprint(name())\n"}


@pytest.fixture
def workspace(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """Files in Python, and a server that finds ruff and basedpyright."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    for name, value in home.env.items():
        monkeypatch.setenv(name, value)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {"KEDGE_AGENT__LANGUAGE_SERVERS": "true", "PATH": path}
    server = Server(home, home.popen("serve", module="kedge", env=env))
    yield tmp_path
    assert server.stop() == 0


@pytest.mark.slow
async def test_state_errors_and_a_rename_are_shown(workspace: Path, models: ModelControl) -> None:
    models.on(step(call("view", path="use.py"), call("view", path="lib.py")), {"text": "seen"}, prompt="look at it")
    wrong = call("edit", path="use.py", old_string="print(name())", new_string="print(nam())")
    models.on(step(wrong), {"text": "changed"}, prompt="break it")
    models.on(step(call("view", path="use.py")), {"text": "as before"}, prompt="look again")
    rename = call("lsp_rename", path="lib.py", line=1, symbol="name", new_name="title")
    models.on(step(rename), {"text": "renamed"}, prompt="rename it")
    async with kedge(workspace, (150, 44)) as ui:
        await ui.submit("/lsp")
        await ui.opens("LspDialog")
        await ui.shows("No language server was started yet")
        await ui.press("escape")
        await ui.closes()
        await ui.submit("look at it")
        await ui.shows("seen", "Language servers (/lsp)", "basedpyright  ready", "ruff  ready")
        await ui.submit("rename it")
        await ui.opens("PermissionDialog")
        await ui.shows("lib.py", "use.py", "+ def title() -> int:", "+ from lib import title", "+ print(title())")
        await ui.press("a")
        await ui.shows("renamed", "name → title in lib.py:1")
        await ui.idle()
        assert "title()" in (workspace / "use.py").read_text()
        (workspace / "use.py").write_text(FILES["use.py"])
        (workspace / "lib.py").write_text(FILES["lib.py"])
        await ui.submit("look again")
        await ui.shows("as before")
        await ui.idle()
        await ui.submit("break it")
        await ui.opens("PermissionDialog")
        await ui.press("a")
        await ui.shows("new error", "✗ use.py:3", "nam", "changed")
        await ui.shows("1 error")
        await ui.submit("/lsp")
        await ui.opens("LspDialog")
        await ui.shows("basedpyright", "ruff", "1 error", "Root: the workspace", "Process:")
        await ui.press("r")
        await ui.shows("0 errors")
