"""The story over the wire: cursors, filters and frames (section 4 of the contract, P9, P10)."""

from __future__ import annotations

from typing import Any

import pytest

from kedge.protocol.events import Event
from tests.server.client import Client, Events, done


@pytest.fixture
def session_id(client: Client, workspace: str) -> str:
    """A session with one finished run in it."""
    session_id = client.session(workspace)
    client.ended(workspace, client.submit(workspace, session_id, "say hello you"))
    return session_id


def control(events: Events) -> list[Any]:
    """What a subscriber is told before it is live, without the events of the log."""
    return [event.payload for event in events.until("caught_up") if event.seq is None]


def seqs(events: list[Event]) -> list[int]:
    return [event.seq for event in events if event.seq is not None]


def head_of(client: Client, workspace: str) -> int:
    return done(client.get(f"{workspace}/log"))["head"]


def test_a_stream_is_not_cached_not_buffered_and_says_what_it_is(client: Client, workspace: str) -> None:
    with client.events(workspace) as events:
        headers = events.response.headers
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-store", "no")


def test_head_of_a_stream_ends(client: Client, workspace: str) -> None:
    said = client.said(f"HEAD {workspace}/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert said.startswith(b"HTTP/1.1 200 ")
    assert said.endswith(b"\r\n\r\n")


@pytest.mark.usefixtures("session_id")
def test_without_a_cursor_the_story_begins_now(client: Client, workspace: str) -> None:
    head = head_of(client, workspace)
    with client.events(workspace) as events:
        seen = events.until("caught_up")
        assert [event.type for event in seen] == ["connected", "caught_up"]
        connected: Any = seen[0].payload
        caught_up: Any = seen[1].payload
        assert (connected.head, connected.after, caught_up.seq) == (head, head, head)
        session = client.session(workspace, "new")
        (event,) = events.until("session")
        assert (event.seq, getattr(event.payload, "id", None)) == (head + 1, session)


@pytest.mark.usefixtures("session_id")
def test_from_zero_everything_is_told_without_gap(client: Client, workspace: str) -> None:
    head = head_of(client, workspace)
    with client.events(workspace, after=0) as events:
        assert seqs(events.until("caught_up")) == list(range(1, head + 1))


@pytest.mark.usefixtures("session_id")
def test_the_last_event_id_wins_over_after(client: Client, workspace: str) -> None:
    head = head_of(client, workspace)
    with client.events(workspace, after=0, headers={"Last-Event-ID": str(head - 2)}) as events:
        assert seqs(events.until("caught_up")) == [head - 1, head]


@pytest.mark.usefixtures("session_id")
def test_a_cursor_ahead_of_the_head_is_told_and_the_story_goes_on_from_there(client: Client, workspace: str) -> None:
    head = head_of(client, workspace)
    with client.events(workspace, after=head + 10) as events:
        connected, reset, caught_up = control(events)
        assert (connected.head, connected.after) == (head, head + 10)
        assert (reset.reason, reset.head, caught_up.seq) == ("ahead", head, head)
        client.session(workspace)
        assert seqs(events.until("session")) == [head + 1]


@pytest.mark.usefixtures("session_id")
def test_a_cursor_of_another_log_is_told(client: Client, workspace: str) -> None:
    head = head_of(client, workspace)
    with client.events(workspace, after=3, log_id="another") as events:
        _, reset, caught_up = control(events)
        assert (reset.reason, reset.head, caught_up.seq) == ("other_log", head, head)


@pytest.mark.usefixtures("session_id")
def test_a_cursor_of_this_log_is_served_and_a_log_without_cursor_is_no_matter(client: Client, workspace: str) -> None:
    log = done(client.get(f"{workspace}/log"))
    with client.events(workspace, after=1, log_id=log["log_id"]) as events:
        assert seqs(events.until("caught_up")) == list(range(2, log["head"] + 1))
    with client.events(workspace, log_id="another") as events:
        assert [event.type for event in events.until("caught_up")] == ["connected", "caught_up"]


def test_a_session_alone_can_be_followed(client: Client, workspace: str, session_id: str) -> None:
    other = client.session(workspace, "other")
    with client.events(workspace, after=0, session_id=session_id) as events:
        told = events.until("caught_up")
        caught_up: Any = told[-1].payload
        assert caught_up.seq == head_of(client, workspace)  # also of what it did not tell
        client.ended(workspace, client.submit(workspace, other, "say nothing for us"))
        run_id = client.submit(workspace, session_id, "say more")
        told += events.end_of(run_id)
    ids = {getattr(event.payload, "session_id", None) or getattr(event.payload, "id", None) for event in told}
    assert ids - {None} == {session_id}


def test_two_clients_are_told_the_same_bytes_live_and_later(client: Client, workspace: str, session_id: str) -> None:
    with client.events(workspace) as first, client.events(workspace) as second:
        first.until("caught_up")
        second.until("caught_up")
        run_id = client.submit(workspace, session_id, "say one two three;tool name output of it;retry x;say done")
        first.end_of(run_id)
        second.end_of(run_id)
    assert [frame.raw for frame in first.frames] == [frame.raw for frame in second.frames]
    assert any(frame.event.type == "message_delta" for frame in first.frames)
    start = first.frames[0].event.payload
    with client.events(workspace, after=getattr(start, "head", None)) as later:
        later.until("caught_up")
    assert later.log_frames == first.log_frames
    assert all(frame.startswith(b"id: ") for frame in first.log_frames)


def test_who_comes_in_the_middle_gets_what_is_pending_and_being_written(
    client: Client, workspace: str, session_id: str
) -> None:
    with client.events(workspace) as events:
        events.until("caught_up")
        asking = client.submit(workspace, session_id, "ask tool output")
        events.until("permission_request")
        writing = client.submit(workspace, client.session(workspace), "tool slow some output hang")
        events.until(lambda event: getattr(event.payload, "text", "") == "hang ")
    with client.events(workspace) as late:
        told = late.until("caught_up")
        assert [event.type for event in told] == ["connected", "permission_request", "message", "caught_up"]
        assert [event.seq for event in told] == [None] * 4
        message: Any = told[2].payload
        assert (message.run_id, message.parts[0].content) == (writing, "some output hang ")
        for run_id in (asking, writing):
            done(client.post(f"{workspace}/runs/{run_id}/cancel"))
        late.end_of(writing)


def test_subscribers_are_counted_until_they_leave(client: Client, workspace: str) -> None:
    streams = [client.events(workspace) for _ in range(5)]
    for stream in streams:
        stream.until("caught_up")
    assert client.metric("kedge_subscribers") >= 5
    for stream in streams:
        stream.close()
    while client.metric("kedge_subscribers") > 0:  # the server must notice; the test's limit bounds the wait
        pass
