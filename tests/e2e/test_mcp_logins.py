"""`kedge mcp test`, `login` and `logout` with a real server, and a run whose MCP server wants a login."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.client.command import Kedge
from tests.e2e.home import Home, asking
from tests.mcp.oauth_parts import play_browser
from tests.mcp.oauth_server import OAuthServer


class Remote:
    """An MCP server that wants a login, in a thread of its own."""

    def __init__(self) -> None:
        self.server = OAuthServer()
        self._loop = asyncio.new_event_loop()
        self._is_ready, self._end = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    async def _run(self) -> None:
        async with self.server.run():
            self._is_ready.set()
            await self._end.wait()

    def __enter__(self) -> OAuthServer:
        self._thread.start()
        assert self._is_ready.wait(30)
        return self.server

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def remote() -> Generator[OAuthServer]:
    with Remote() as server:
        yield server


@pytest.fixture
def kedge(home: Home, tmp_path: Path, remote: OAuthServer) -> Kedge:
    kedge = Kedge(home, tmp_path)
    assert kedge("mcp", "add", "remote", remote.url).code == 0
    return kedge


def read_url(login: subprocess.Popen[bytes]) -> str:
    """Return the address that `kedge mcp login` prints."""
    assert login.stderr is not None
    for line in login.stderr:
        if line.strip().startswith(b"http://"):
            return line.decode().strip()
    raise AssertionError("no address was printed")


def state_of(kedge: Kedge) -> dict[str, Any]:
    (row,) = json.loads(kedge("mcp", "list", "--json").out)
    return row


def test_a_login_in_the_browser_makes_a_server_usable_until_the_logout(kedge: Kedge, remote: OAuthServer) -> None:
    before = kedge("mcp", "test", "remote")
    assert before.code == 1
    assert "kedge mcp login remote" in before.err
    assert state_of(kedge)["state"] == "needs_login"
    login = kedge.start("mcp", "login", "remote", "--no-browser")
    asyncio.run(play_browser(read_url(login)))
    out, err = login.communicate(timeout=60)
    assert login.returncode == 0, err
    assert out == b"Logged in to remote.\n"
    after = kedge("mcp", "test", "remote", "--json")
    assert after.code == 0, after
    assert json.loads(after.out)[0]["ok"]
    assert state_of(kedge)["state"] == "ready"
    stored = kedge.place.data_dir / "credentials.json"
    assert "access-1" in stored.read_text()
    assert stored.stat().st_mode & 0o077 == 0
    log = (kedge.place.data_dir / "server.log").read_text()
    assert "access-1" not in log + after.out + after.err
    assert kedge("mcp", "logout", "remote").code == 0
    assert "access-1" not in stored.read_text()
    assert remote.revoked == ["refresh-1"]
    assert kedge("mcp", "test", "remote").code == 1


def test_a_login_goes_on_after_its_server_was_killed_and_nothing_is_lost(kedge: Kedge, remote: OAuthServer) -> None:
    first = kedge.start("mcp", "login", "remote", "--no-browser")
    asyncio.run(play_browser(read_url(first)))
    assert first.wait(60) == 0
    first.communicate()
    stored = kedge.place.data_dir / "credentials.json"
    before = json.loads(stored.read_text())["mcp"]
    again = kedge.start("mcp", "login", "remote", "--no-browser")
    read_url(again)
    pid = kedge.server_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert json.loads(stored.read_text())["mcp"] == before
    asyncio.run(play_browser(read_url(again)))  # the command began anew at the next server
    _, err = again.communicate(timeout=60)
    assert again.returncode == 0, err
    assert len(remote.clients) == 1
    assert kedge("mcp", "test", "remote").code == 0


def test_a_server_that_wants_a_login_costs_a_run_its_tools_and_nothing_else(kedge: Kedge, remote: OAuthServer) -> None:
    done = kedge.run("-q", asking(text="done without it"))
    assert (done.code, done.out) == (0, "done without it\n"), done
    assert state_of(kedge)["state"] == "needs_login"
    refused = kedge("mcp", "login", "other")
    assert refused.code == 2
    assert "other" in refused.err


def test_a_refused_login_is_one_line(kedge: Kedge, remote: OAuthServer) -> None:
    remote.must_deny = True
    login = kedge.start("mcp", "login", "remote", "--no-browser")
    asyncio.run(play_browser(read_url(login)))
    _, err = login.communicate(timeout=60)
    assert login.returncode == 1
    assert b"access_denied" in err
    assert err.strip().count(b"\n") == 0
