"""P15: the way out is orderly, and no signal loses what was acknowledged."""

from __future__ import annotations

import fcntl
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kedge.engine.engine import SHUTDOWN_S
from tests.server.client import Answer, Client, done
from tests.server.conftest import Start
from tests.server.process import Server


class Story:
    """A server with a session, and a run that does not end by itself."""

    def __init__(self, server: Server, directory: Path, prompt: str = "say before;hang") -> None:
        self.server = server
        self.client = server.client
        self.workspace = self.client.workspace(directory)
        self.session_id = self.client.session(self.workspace)
        with self.client.events(self.workspace) as events:
            events.until("caught_up")
            self.run_id = self.client.submit(self.workspace, self.session_id, prompt)
            events.until(lambda event: getattr(event.payload, "state", "") == "running")

    def leave(self, sig: signal.Signals = signal.SIGTERM) -> None:
        self.server.signal(sig)
        while done(self.client.get("/v1/health"))["status"] != "stopping":
            pass


def is_free(server: Server) -> bool:
    with (server.place.data_dir / "kedge.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return not Path(server.unix.path).exists()


def test_a_server_that_stops_neither_undoes_nor_redoes_nor_forks(start: Start, tmp_path: Path) -> None:
    story = Story(start(), tmp_path)
    client, workspace = story.client, story.workspace
    sessions: list[str] = []
    for _ in range(2):
        sessions.append(client.session(workspace))
        client.ended(workspace, client.submit(workspace, sessions[-1], "say it"))
    done(client.post(f"{workspace}/sessions/{sessions[0]}/undo", {}))
    story.leave()
    for session_id, what in ((sessions[0], "redo"), (sessions[1], "undo"), (sessions[1], "fork")):
        answer = client.post(f"{workspace}/sessions/{session_id}/{what}", {})
        assert (answer.status, answer.code) == (503, "shutting_down"), what
        assert int(answer.headers["retry-after"]) > 0
    story.server.signal(signal.SIGTERM)
    assert story.server.left() == 0
    client = start().client
    counts = [len(done(client.get(f"{workspace}/sessions/{each}/messages"))["messages"]) for each in sessions]
    assert counts == [0, 2], "nothing was done"
    assert len(done(client.get(f"{workspace}/sessions"))["sessions"]) == 3
    done(client.post(f"{workspace}/runs/{story.run_id}/cancel"))


class RequestDialogs(threading.Thread):
    """A request that waits, beside the test."""

    def __init__(self, client: Client, method: str, path: str) -> None:
        super().__init__(daemon=True)
        self.answer: Answer | None = None
        self._request = (client, method, path)
        self.start()

    def run(self) -> None:
        client, method, path = self._request
        self.answer = client.ask(method, path)


def test_acceptance_stops_runs_get_their_time_and_the_rest_is_resumed(start: Start, tmp_path: Path) -> None:
    story = Story(start(), tmp_path)
    client, workspace = story.client, story.workspace
    waiting = RequestDialogs(client, "GET", f"{workspace}/runs/{story.run_id}?wait=600")
    with client.events(workspace) as events:
        events.until("caught_up")
        began = time.monotonic()
        story.leave()
        body = {"session_id": story.session_id, "prompt": "say no", "run_id": "refused"}
        for answer in (client.post(f"{workspace}/agent", body), client.post(f"{workspace}/sessions", {})):
            assert (answer.status, answer.code) == (503, "shutting_down")
            assert int(answer.headers["retry-after"]) > 0
        assert done(client.get(f"{workspace}/runs/{story.run_id}"))["state"] == "running"  # reading goes on
        list(events)  # ended by the server, in order
    assert story.server.left() == 0
    took_s = time.monotonic() - began
    assert took_s >= SHUTDOWN_S - 0.5
    waiting.join(5)
    assert waiting.answer is not None
    assert (waiting.answer.status, waiting.answer.code) == (503, "shutting_down")
    assert is_free(story.server)

    client = start().client
    assert client.get(f"{workspace}/runs/refused").status == 404
    with client.events(workspace, after=0) as events:
        told = events.until("caught_up")
    attempts: list[Any] = [event.payload for event in told if event.type == "run"]
    assert {run.run_id for run in attempts} == {story.run_id}
    assert max(run.attempt for run in attempts) == 1  # an orderly leave is no attempt
    done(client.post(f"{workspace}/runs/{story.run_id}/cancel"))
    assert client.ended(workspace, story.run_id)["state"] == "cancelled"
    messages = done(client.get(f"{workspace}/sessions/{story.session_id}/messages"))["messages"]
    assert [message["parts"][0].get("text") for message in messages][:2] == ["say before;hang", "before"]


def test_a_run_that_ends_in_time_is_waited_for_and_nothing_else_is(start: Start, tmp_path: Path) -> None:
    story = Story(start(), tmp_path, "sleep 1;say done")
    began = time.monotonic()
    story.leave()
    assert story.server.left() == 0
    assert time.monotonic() - began < SHUTDOWN_S
    run = done(start().client.get(f"{story.workspace}/runs/{story.run_id}"))
    assert (run["state"], run["attempt"]) == ("completed", 1)


@pytest.mark.parametrize(
    "signals", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM), (signal.SIGHUP, signal.SIGINT)]
)
def test_a_second_signal_hastens_and_loses_nothing(
    start: Start, tmp_path: Path, signals: tuple[signal.Signals, signal.Signals]
) -> None:
    story = Story(start(), tmp_path)
    began = time.monotonic()
    story.leave(signals[0])
    story.server.signal(signals[1])
    assert story.server.left() == 0
    assert time.monotonic() - began < SHUTDOWN_S - 0.5
    assert is_free(story.server)
    client = start().client
    assert done(client.get(f"{story.workspace}/runs/{story.run_id}"))["state"] in ("queued", "running")
    done(client.post(f"{story.workspace}/runs/{story.run_id}/cancel"))
    assert client.ended(story.workspace, story.run_id)["state"] == "cancelled"


def test_a_delete_that_waits_for_ends_is_answered_and_finished_by_the_next_server(start: Start, tmp_path: Path) -> None:
    story = Story(start(), tmp_path, "stubborn 60")
    session = f"{story.workspace}/sessions/{story.session_id}"
    deleting = RequestDialogs(story.client, "DELETE", session)
    while story.client.get(session).status == 200:
        pass
    story.leave()
    story.server.signal(signal.SIGTERM)
    assert story.server.left() == 0
    deleting.join(5)
    assert deleting.answer is not None
    assert deleting.answer.status in (200, 503), deleting.answer
    client = start().client
    assert client.get(session).status == 404
    log = done(client.get(f"{story.workspace}/log"))["events"]
    assert [event["type"] for event in log][-2:] == ["run_complete", "session"]
