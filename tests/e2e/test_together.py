"""Several clients of one workspace: the same story for all, and nobody's run belongs to a connection (P4, P6, P9)."""

from __future__ import annotations

import json
import socket
import subprocess

import pytest

from kedge.client import Client
from kedge.protocol.events import AgentEvent
from tests.client.command import Kedge, finish, read_until
from tests.e2e.home import answer_of, asking, is_accepted, log_of
from tests.server.client import Client as Plain
from tests.server.client import done
from tests.server.process import Server
from tests.support.invariants import check_all_ended, check_log, check_same_story, ends_of, runs_of, state_of
from tests.support.model_control import ModelControl
from tests.support.model_plan import AT_ONCE, NEVER


@pytest.fixture
def plain(server: Server) -> Plain:
    return server.client


@pytest.fixture
def workspace(plain: Plain, kedge: Kedge) -> str:
    return plain.workspace(kedge.workspace)


def begun(kedge: Kedge, gate: str, *args: str) -> subprocess.Popen[bytes]:
    """A run "a" that has said "w0 w1 " and waits there for the gate."""
    prompt = asking(chunks=4, gate=gate, gate_after=2)
    process = kedge.start("run", prompt, "--stream", "-q", "--run-id", "a", *args)
    assert read_until(process.stdout, b"w1 ") == b"w0 w1 "
    return process


REST = b"w2 FAKE-ANSWER-OK\n"


def test_two_clients_see_the_same_frames_in_the_same_order(kedge: Kedge, plain: Plain, workspace: str) -> None:
    with plain.events(workspace, after=0) as one, plain.events(workspace, after=0) as other:
        one.until("caught_up")
        other.until("caught_up")
        assert kedge.run(asking(chunks=20, piece=2), "--run-id", "a").code == 0
        assert kedge.run("-C", asking(status=400), "--run-id", "b").code == 1
        assert kedge.run(asking(reasoning="hm", text="last"), "--run-id", "c").code == 0
        for events in (one, other):
            events.end_of("c")
    shown = [[frame.raw for frame in events.frames if frame.event.type != "heartbeat"] for events in (one, other)]
    assert shown[0] == shown[1]
    assert b"message_delta" in b"".join(shown[0])
    with plain.events(workspace, after=0) as late:
        late.until("caught_up")
    check_same_story(one.log_frames, late.log_frames)
    assert len(one.log_frames) == len(late.log_frames)
    check_log(log_of(plain, workspace))


def test_another_clients_cancel_ends_the_run_and_is_an_error_for_nobody(
    kedge: Kedge, client: Client, plain: Plain, workspace: str, models: ModelControl, gate: str
) -> None:
    left = sum(call["is_gone"] for call in models.stats()["calls"])
    with plain.events(workspace) as events:
        process = begun(kedge, gate)
        assert client.cancel(run_id="a") == ["a"]
        end = finish(process)
        heard = events.end_of("a")
    assert (end.code, end.out, end.err) == (130, "\n", ""), "the line that was open is ended, and that is all"
    assert not [event for event in heard if isinstance(event.payload, AgentEvent)]
    told = ends_of(heard)["a"]
    assert (told.cancelled, told.error, told.text) == (True, None, "w0 w1 ")
    models.wait(gone=left + 1)  # the model is not kept talking


def test_a_cancel_right_after_the_receipt_is_not_lost(
    kedge: Kedge, client: Client, plain: Plain, workspace: str
) -> None:
    session_id = client.create_session()["id"]
    for number in range(20):
        is_slow = number % 4 < 2
        client.submit(asking(hang_after=AT_ONCE if is_slow else NEVER), session_id=session_id, run_id=f"r{number}")
        hit = client.cancel(**({"run_id": f"r{number}"} if number % 2 else {"session_id": session_id}))
        assert hit or not is_slow
        # An answer may be faster than its cancel; then it stands.
        assert plain.ended(workspace, f"r{number}")["state"] == ("cancelled" if hit else "completed")
    assert kedge.run("-s", session_id, asking(), "-q").out == "FAKE-ANSWER-OK\n"
    check_log(log_of(plain, workspace))


def test_cancelling_an_idle_session_poisons_nothing(kedge: Kedge, client: Client) -> None:
    session_id = client.create_session()["id"]
    assert client.cancel(session_id=session_id) == []
    first = kedge.run("-s", session_id, asking(text="first"), "-q")
    assert (first.code, first.out) == (0, "first\n")
    assert client.cancel(session_id=session_id) == []
    second = kedge.run("-s", session_id, asking(text="second"), "-q")
    assert (second.code, second.out, second.err) == (0, "second\n", "")


def test_a_run_goes_on_when_the_connection_of_its_request_is_cut(
    plain: Plain, workspace: str, models: ModelControl, server: Server
) -> None:
    session_id = plain.session(workspace)
    body = {"session_id": session_id, "prompt": asking(text="all the same"), "run_id": "a", "env": server.place.env}
    data = json.dumps(body).encode()
    head = f"POST {workspace}/agent HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with plain.events(workspace) as events:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(server.unix.path)
            sock.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        events.until(is_accepted("a"))
        again = done(plain.post(f"{workspace}/agent", body), 202)
        heard = events.end_of("a")
    assert again["replayed"]
    assert ends_of(heard)["a"].text == "all the same"
    prompts = [call["body"]["messages"][-1]["content"] for call in models.stats()["calls"]]
    assert prompts.count(body["prompt"]) == 1


def test_one_client_is_killed_and_the_other_sees_the_run_finish(
    kedge: Kedge, plain: Plain, workspace: str, models: ModelControl, gate: str
) -> None:
    session_id = plain.session(workspace)
    with plain.events(workspace) as events:
        process = begun(kedge, gate, "-s", session_id)
        process.kill()
        finish(process)
        models.release(gate)
        end = ends_of(events.end_of("a"))["a"]
    whole = answer_of(chunks=4)
    assert (state_of(end), end.text) == ("completed", whole)
    prompt = asking(chunks=4, gate=gate, gate_after=2)
    again = kedge.run(prompt, "--run-id", "a", "-s", session_id, "--stream", "-q")
    assert (again.code, again.out, again.err) == (0, f"{whole}\n", ""), "who comes back gets all of it"


def test_a_follow_up_that_was_accepted_before_the_cancel_never_answers(
    kedge: Kedge, client: Client, plain: Plain, workspace: str, models: ModelControl, gate: str
) -> None:
    session_id = client.create_session()["id"]
    follow_up = asking(text=f"after {gate}")
    first = begun(kedge, gate, "-s", session_id)
    with plain.events(workspace) as events:
        second = kedge.start("run", follow_up, "-s", session_id, "--run-id", "b", "-q")
        events.until(is_accepted("b"))
    assert sorted(client.cancel(session_id=session_id)) == ["a", "b"]
    ends = finish(first), finish(second)
    assert [(end.code, end.err) for end in ends] == [(130, "")] * 2
    assert ends[1].out == ""
    later = kedge.run("-s", session_id, asking(text="later"), "-q")
    assert (later.code, later.out) == (0, "later\n"), "what was accepted after the cancel runs"
    asked = json.dumps(models.stats()["calls"])
    assert f"after {gate}" not in asked, "not even as a part of the conversation"
    log = log_of(plain, workspace)
    check_log(log)
    check_all_ended(log)


def test_two_workspaces_do_not_see_each_other(
    kedge: Kedge, plain: Plain, workspace: str, server: Server, models: ModelControl, gate: str
) -> None:
    beside = kedge.workspace / "beside"
    beside.mkdir()
    other = Kedge(server.place, beside)
    theirs = plain.workspace(beside)
    with plain.events(theirs, after=0) as events:
        events.until("caught_up")
        process = begun(kedge, gate)
        # The same name is another run there, and no session is found to be continued.
        assert other.run("-C", asking(text="beside"), "--run-id", "a", "-q").out == "beside\n"
        heard = events.end_of("a")
        models.release(gate)
        assert finish(process).out.encode() == REST
        other.run("-C", asking(text="and again"), "--run-id", "b", "-q")
        heard += events.end_of("b")
    sessions = [done(plain.get(f"{each}/sessions"))["sessions"] for each in (workspace, theirs)]
    assert [len(found) for found in sessions] == [1, 1]
    assert gate not in repr(heard)
    check_log([event for event in heard if event.seq is not None])
    assert runs_of(log_of(plain, workspace)) == {"a"}
