"""What other runs do is no business of `kedge run`: neither their words, nor their errors, nor their ends (P8)."""

from __future__ import annotations

import subprocess
from collections.abc import Generator

import pytest

from kedge.client import Client
from tests.client.command import Kedge, finish, read_until
from tests.e2e.home import answer_of, asking, is_accepted
from tests.server.client import Events
from tests.server.process import Server
from tests.support.model_control import ModelControl

LONG = {"chunks": 6, "text": "the answer of another"}


@pytest.fixture
def events(server: Server, kedge: Kedge) -> Generator[Events]:
    """What happens in the workspace, from now on."""
    plain = server.client
    with plain.events(plain.workspace(kedge.workspace)) as events:
        yield events


def queued(kedge: Kedge, events: Events, run_id: str, *args: str) -> subprocess.Popen[bytes]:
    """A `kedge run` in the session that is used now, which is busy."""
    process = kedge.start("run", "--continue", "-q", "--run-id", run_id, *args)
    events.until(is_accepted(run_id))
    return process


@pytest.mark.parametrize("mode", ["--stream", "--no-stream"])
def test_continue_on_a_busy_session_prints_its_own_answer_only(
    kedge: Kedge, events: Events, models: ModelControl, gate: str, mode: str
) -> None:
    busy = kedge.start("run", asking(**LONG, gate=gate, gate_after=3), "--stream", "-q", "--run-id", "busy")
    read_until(busy.stdout, b"w2 ")
    ours = queued(kedge, events, "ours", asking(chunks=3, text="ours"), mode)
    behind = queued(kedge, events, "behind", asking(text="behind"), mode)
    models.release(gate)
    ends = [finish(process) for process in (busy, ours, behind)]
    assert [(end.code, end.err) for end in ends] == [(0, "")] * 3
    assert "w0 w1 w2 " + ends[0].out == answer_of(**LONG) + "\n"
    assert ends[1].out == "w0 w1 ours\n"
    assert ends[2].out == "behind\n"


@pytest.mark.parametrize("mode", ["--stream", "--no-stream", "--json"])
def test_the_error_and_the_end_of_the_run_before_ours_are_not_ours(
    kedge: Kedge, events: Events, models: ModelControl, gate: str, mode: str
) -> None:
    failing = kedge.start("run", asking(status=400, gate=gate), "-q", "--run-id", "failing")
    models.wait(held=gate)
    ours = queued(kedge, events, "ours", asking(text="ours"), mode)
    models.release(gate)
    failed, ended = finish(failing), finish(ours)
    assert (failed.code, failed.out) == (1, "")
    assert "planned failure" in failed.err
    assert (ended.code, ended.err) == (0, "")
    if mode == "--json":
        assert "failing" not in ended.out
        assert "planned failure" not in ended.out
    else:
        assert ended.out == "ours\n"


def test_a_failure_in_another_session_does_not_disturb_a_run_that_is_speaking(
    kedge: Kedge, models: ModelControl, gate: str
) -> None:
    ours = kedge.start("run", asking(chunks=4, gate=gate, gate_after=2), "--stream", "-q")
    read_until(ours.stdout, b"w1 ")
    assert kedge.run(asking(status=400)).code == 1
    assert kedge.run(asking(text="a foreign end")).out == "a foreign end\n"
    models.release(gate)
    ended = finish(ours)
    assert (ended.code, ended.out, ended.err) == (0, "w2 FAKE-ANSWER-OK\n", "")


def test_the_cancel_of_the_run_before_ours_is_not_ours(
    kedge: Kedge, client: Client, events: Events, models: ModelControl, gate: str
) -> None:
    held = kedge.start("run", asking(gate=gate), "-q", "--run-id", "held")
    models.wait(held=gate)
    ours = queued(kedge, events, "ours", asking(text="ours"))
    client.cancel(run_id="held")
    ends = finish(held), finish(ours)
    assert [(end.code, end.out, end.err) for end in ends] == [(130, "", ""), (0, "ours\n", "")]
