"""`kedge mcp add`, `list` and `remove` as people type them: real processes, real files, no server."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest


class Shell:
    def __init__(self, root: Path) -> None:
        self.workspace = root / "project"
        self.user = root / "config" / "kedge" / "config.toml"
        self.shared = self.workspace / "kedge.toml"
        self.workspace.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KEDGE_", "XDG_"))}
        places = {"XDG_CONFIG_HOME": str(root / "config"), "XDG_CONFIG_DIRS": str(root / "etc")}
        self.env = {**kept, **places, "KEDGE_DATA_DIR": str(root / "data")}

    def __call__(self, *args: str, command: str = "mcp") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kedge", command, *args],
            cwd=self.workspace,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def ok(self, *args: str) -> str:
        done = self(*args)
        assert done.returncode == 0, done
        return done.stdout

    def refused(self, *args: str) -> str:
        """Return the line that is printed; the code is that of wrong usage."""
        done = self(*args)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert done.stderr.startswith("kedge: ")
        assert done.stderr.count("\n") == 1
        return done.stderr

    def list(self) -> dict[str, Any]:
        return {row["name"]: row for row in json.loads(self.ok("list", "--json"))}


@pytest.fixture
def mcp(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_a_program_is_added_with_its_own_options_and_other_lines_stay(mcp: Shell) -> None:
    mcp.user.parent.mkdir(parents=True)
    mcp.user.write_text("# mine\nmodel = 'a/b'  # keep\n\n[tui]\ntheme = 'auto'\n")
    mcp.ok("add", "files", "-e", "ROOT=/data=x", "--timeout", "5", "--", "npx", "-y", "server", "--url", "/tmp/a b")
    text = mcp.user.read_text()
    assert text.startswith("# mine\nmodel = 'a/b'  # keep\n\n[tui]\ntheme = 'auto'\n")
    assert tomllib.loads(text)["mcp"]["files"] == {
        "command": "npx",
        "args": ["-y", "server", "--url", "/tmp/a b"],
        "env": {"ROOT": "/data=x"},
        "timeout_s": 5.0,
    }
    row = mcp.list()["files"]
    assert (row["target"], row["file"], row["enabled"]) == ("npx -y server --url '/tmp/a b'", str(mcp.user), True)


@pytest.mark.parametrize(
    "args",
    [("--url", "https://docs.example/mcp"), ("https://docs.example/mcp",), ("-t", "http", "https://docs.example/mcp")],
)
def test_an_address_is_added(mcp: Shell, args: tuple[str, ...]) -> None:
    mcp.ok("add", "docs", "-H", "Authorization: Bearer ${TOKEN}", "-H", "X-A:b", *args)
    assert tomllib.loads(mcp.user.read_text())["mcp"]["docs"] == {
        "url": "https://docs.example/mcp",
        "headers": {"Authorization": "Bearer ${TOKEN}", "X-A": "b"},
    }
    assert stat.S_IMODE(mcp.user.stat().st_mode) == 0o600


WRONG = [
    ("add",),
    ("add", "x"),
    ("add", "a.b", "--", "y"),
    ("add", "x", "--url", "https://a.example", "--", "y"),
    ("add", "x", "--url", "ftp://a.example"),
    ("add", "x", "--url", "https://a.example", "-e", "A=b"),
    ("add", "x", "-H", "A: b", "--", "y"),
    ("add", "x", "-e", "planted-secret", "--", "y"),
    ("add", "x", "-H", "planted-secret", "--", "y"),
    ("add", "x", "--scope", "planet", "--", "y"),
    ("add", "x", "--timeout", "0", "--", "y"),
    ("add", "x", "-t", "http", "--", "y"),
    ("add", "x", "--scope", "workspace", "-e", "API_TOKEN=planted-secret", "--", "y"),
    ("remove",),
    ("remove", "x"),
    ("list", "x"),
    ("lst",),
    (),
]


@pytest.mark.parametrize("args", WRONG, ids=" ".join)
def test_wrong_usage_is_one_line_and_changes_nothing(mcp: Shell, args: tuple[str, ...]) -> None:
    assert "planted" not in mcp.refused(*args)
    assert not mcp.user.exists()
    assert not mcp.shared.exists()


def test_a_name_is_used_once_unless_it_is_to_be_replaced(mcp: Shell) -> None:
    mcp.ok("add", "x", "-e", "A=b", "--", "first")
    mcp.refused("add", "x", "--", "second")
    mcp.ok("add", "x", "--force", "--", "second")
    assert tomllib.loads(mcp.user.read_text())["mcp"] == {"x": {"command": "second"}}


def test_a_server_of_the_workspace_says_that_it_needs_trust(mcp: Shell) -> None:
    done = mcp("add", "x", "--scope", "workspace", "--", "./run.sh")
    assert done.returncode == 0
    assert "kedge config trust" in done.stderr
    assert mcp.list() == {}
    assert mcp("trust", command="config").returncode == 0
    assert mcp.list()["x"]["file"] == str(mcp.shared)
    mcp.ok("remove", "x")
    assert mcp.list() == {}


def test_a_server_of_mcp_json_is_listed_and_is_disabled_instead_of_removed(mcp: Shell) -> None:
    (mcp.workspace / ".mcp.json").write_text('{"mcpServers": {"x": {"command": "run"}}}')
    assert "kedge config trust" in mcp("list").stderr
    mcp("trust", command="config")
    assert mcp.list()["x"]["file"].endswith(".mcp.json")
    hint = mcp.refused("remove", "x").rstrip().rpartition("kedge config ")[2].partition(". See")[0]
    assert mcp(*hint.split(), command="config").returncode == 0
    assert mcp.list()["x"]["state"] == "disabled"


def test_secrets_are_masked_in_the_list(mcp: Shell) -> None:
    mcp.ok("add", "a", "-e", "A=planted-1", "--", "run", "--token", "planted-2", "--api-key=planted-3")
    mcp.ok("add", "b", "-H", "X: planted-4", "https://a.example/mcp?key=planted-5")
    for done in (mcp("list"), mcp("list", "--json")):
        assert "planted" not in done.stdout + done.stderr


def test_a_broken_server_can_be_removed(mcp: Shell) -> None:
    mcp.user.parent.mkdir(parents=True)
    mcp.user.write_text("[mcp.x]\ncommand = 'a'\nurl = 'https://a.example'\n")
    assert "both" in mcp.refused("list")
    mcp.ok("remove", "x")
    assert mcp.list() == {}
