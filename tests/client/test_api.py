"""`Client` and `AsyncClient`: the same promises for programs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Generator
from itertools import takewhile
from pathlib import Path

import pytest

from kedge.client import AsyncClient, Client
from kedge.client.errors import NotUnderstood, Refused, Unreachable
from kedge.protocol.events import CaughtUp, Event
from kedge.protocol.requests import AnswerReceipt, PermissionRequest
from kedge.protocol.runs import Receipt, RunEnd
from tests.server.process import Place, Server

LIMIT_S = 30


@pytest.fixture
def client(server: Server, tmp_path: Path) -> Generator[Client]:
    with Client.connect(str(tmp_path), host=str(server.unix)) as client:
        yield client


@pytest.fixture
async def aclient(server: Server, tmp_path: Path) -> AsyncGenerator[AsyncClient]:
    async with await AsyncClient.connect(str(tmp_path), host=str(server.unix)) as client:
        yield client


def test_a_run_yields_its_text_and_has_an_outcome(client: Client) -> None:
    running = client.run("say one two; say three", run_id="r")
    assert (running.run_id, running.outcome) == ("r", None)
    assert "".join(running) == "one two\n\nthree"
    assert running.outcome is not None
    assert (running.outcome["text"], running.outcome["run_id"]) == ("three", "r")


def test_a_failed_and_a_cancelled_run_say_so(client: Client) -> None:
    assert client.run("fail no paper").wait()["error"] == "no paper"
    session_id = client.create_session()["id"]
    client.submit("hang", session_id=session_id, run_id="c")
    assert client.cancel(session_id=session_id) == ["c"]
    assert client.run("hang", session_id=session_id, run_id="c").wait()["cancelled"] is True
    assert client.cancel(run_id="c") == ["c"]


def test_a_run_that_ended_long_ago_is_told_again(client: Client) -> None:
    session_id = client.create_session()["id"]
    first = client.run("say once", session_id=session_id, run_id="r")
    said = list(first)
    again = client.run("say once", session_id=session_id, run_id="r")
    assert "".join(again) == "".join(said)
    assert again.outcome == first.outcome


def test_events_are_the_log_and_then_what_happens(client: Client) -> None:
    client.run("say one").wait()
    told = list(takewhile(lambda event: event["type"] != "caught_up", client.events(after=0)))
    assert [event["seq"] for event in told] == list(range(1, len(told) + 1))
    live = client.events(after=told[-1]["seq"])
    assert next(live)["type"] == "caught_up"
    client.create_session("later")
    found = next(live)
    assert (found["seq"], found["payload"]["payload"]["title"]) == (told[-1]["seq"] + 1, "later")
    live.close()


def test_a_cursor_that_cannot_be_served_is_said(client: Client) -> None:
    events = client.events(after=10_000)
    assert next(events)["type"] == "stream_reset"
    events.close()


def test_sessions_are_listed_with_the_newest_first_and_searched(client: Client) -> None:
    client.create_session("old ä&")
    client.create_session("new")
    assert [session["title"] for session in client.sessions()] == ["new", "old ä&"]
    assert [session["title"] for session in client.sessions("ä&")] == ["old ä&"]
    assert [session["title"] for session in client.sessions(limit=1)] == ["new"]


def test_the_queue_is_arranged_and_the_mode_of_the_turn_is_switched(client: Client) -> None:
    session_id = client.create_session()["id"]
    for name, prompt in (("host", "hang"), ("a", "say a"), ("b", "say b"), ("c", "say c")):
        client.submit(prompt, session_id=session_id, run_id=name)
    client.promote("a", session_id=session_id)
    assert client.switch_mode("host", "plan")["mode"] == "plan"
    assert [run["run_id"] for run in client.move("c", session_id=session_id, before="b")] == ["a", "c", "b"]
    assert [(run["run_id"], run.get("mode")) for run in client.queue(session_id)][:2] == [("a", "plan"), ("c", None)]
    assert client.promote("b", session_id=session_id, on_busy="interrupt")["on_busy"] == "interrupt"
    assert client.run("hang", session_id=session_id, run_id="host").wait()["cancelled"] is True
    assert client.run("say c", session_id=session_id, run_id="c").wait()["text"] == "c"
    with pytest.raises(Refused) as caught:
        client.move("a", session_id=session_id)
    assert caught.value.code == "not_queued"


def test_a_session_is_undone_and_redone(client: Client) -> None:
    session_id = client.create_session()["id"]
    client.run("say one", session_id=session_id).wait()
    assert client.undo(session_id, dry_run=True)["files"] == []
    (prompt, _) = client.messages(session_id)
    client.undo(session_id, prompt["id"], restore="conversation")
    assert list(client.messages(session_id)) == []
    client.redo(session_id)
    assert len(list(client.messages(session_id))) == 2


def test_what_was_allowed_for_a_session_is_revoked(client: Client) -> None:
    session_id = client.create_session()["id"]
    client.submit("ask", session_id=session_id, run_id="r")
    request = next(event for event in client.events(after=0) if event["type"] == "permission_request")
    asked = request["payload"]["payload"]["id"]
    assert client.call("POST", "/permissions/grant", {"id": asked, "action": "allow_session"})["resolved"]
    assert [grant["id"] for grant in client.grants(session_id)] == [asked]
    client.revoke(asked, session_id=session_id)
    assert client.grants(session_id) == []


def test_a_refusal_has_the_code_of_the_contract(client: Client) -> None:
    with pytest.raises(Refused) as caught:
        client.submit("say x", session_id="nowhere")
    assert (caught.value.status, caught.value.code) == (404, "session_not_found")
    with pytest.raises(ValueError, match="run_id or session_id"):
        client.cancel()


async def test_async_a_run_yields_its_text_and_has_an_outcome(aclient: AsyncClient) -> None:
    async with asyncio.timeout(LIMIT_S):
        running = await aclient.run("say one two; say three")
        assert "".join([text async for text in running]) == "one two\n\nthree"
        assert isinstance(running.outcome, RunEnd)
        assert running.outcome.text == "three"


async def test_async_many_runs_at_once_are_kept_apart(aclient: AsyncClient) -> None:
    async with asyncio.timeout(LIMIT_S):
        runs = [await aclient.run(f"say number {n}") for n in range(10)]
        ends = await asyncio.gather(*(run.wait() for run in runs))
        assert [end.text for end in ends] == [f"number {n}" for n in range(10)]


async def test_async_cancel_and_repeat(aclient: AsyncClient) -> None:
    async with asyncio.timeout(LIMIT_S):
        session = await aclient.create_session()
        receipt = await aclient.submit("hang", session_id=session.id, run_id="c")
        assert not receipt.replayed
        assert await aclient.cancel(session_id=session.id) == ["c"]
        end = await (await aclient.run("hang", session_id=session.id, run_id="c")).wait()
        assert (end.cancelled, end.error) == (True, None)
        assert await aclient.cancel(run_id="c") == ["c"]
        with pytest.raises(ValueError, match="run_id or session_id"):
            await aclient.cancel()


async def test_async_events_are_structs_in_the_order_of_the_log(aclient: AsyncClient) -> None:
    async with asyncio.timeout(LIMIT_S):
        await (await aclient.run("say one")).wait()
        seqs: list[int | None] = []
        events = aclient.events(after=0)
        async for event in events:
            if isinstance(event.payload, CaughtUp):
                assert event.payload.seq == len(seqs)
                break
            seqs.append(event.seq)
        await events.aclose()
        assert seqs == list(range(1, len(seqs) + 1))
        assert len(await aclient.sessions(limit=1)) == 1


async def test_async_the_queue_grants_and_undos_are_structs(aclient: AsyncClient) -> None:
    session_id = (await aclient.create_session()).id
    for name, prompt in (("host", "ask; hang"), ("a", "say a"), ("b", "say b")):
        await aclient.submit(prompt, session_id=session_id, run_id=name)
    assert (await aclient.switch_mode("host", "plan")).mode == "plan"
    assert [run.run_id for run in await aclient.move("a", session_id=session_id)] == ["b", "a"]
    async for event in aclient.events(after=0):
        if isinstance(event.payload, PermissionRequest):
            grant = {"id": event.payload.id, "action": "allow_session"}
            assert (await aclient.call("POST", "/permissions/grant", grant, type=AnswerReceipt)).resolved
            break
    (granted,) = await aclient.grants(session_id)
    await aclient.revoke(granted.id, session_id=session_id)
    assert await aclient.grants(session_id) == []
    promoted = await aclient.promote("a", session_id=session_id, on_busy="interrupt")
    assert promoted.on_busy == "interrupt"
    for name in ("host", "a", "b"):
        await (await aclient.run("say " + name, session_id=session_id, run_id=name + "2")).wait()
    assert await aclient.queue(session_id) == []
    rewound = await aclient.undo(session_id, restore="conversation")
    assert rewound.id == session_id
    assert (await aclient.redo(session_id, dry_run=True)).id == session_id


async def test_async_a_refusal_has_the_code_of_the_contract(aclient: AsyncClient) -> None:
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(Refused) as caught:
            await aclient.submit("say x", session_id="nowhere")
        assert caught.value.code == "session_not_found"


async def test_async_a_server_that_is_gone_is_given_up_after_a_while(place: Place, tmp_path: Path) -> None:
    async with asyncio.timeout(LIMIT_S):
        server = await asyncio.to_thread(place.start)
        async with await AsyncClient.connect(str(tmp_path), host=str(server.unix), give_up_s=0.3) as client:
            await asyncio.to_thread(server.stop)
            with pytest.raises(Unreachable):
                await client.sessions()


async def test_async_a_killed_server_of_ours_is_started_again(here: Place, tmp_path: Path) -> None:
    async with asyncio.timeout(LIMIT_S), await AsyncClient.connect(str(tmp_path)) as client:
        session = await client.create_session("kept")
        events = client.events(after=0)
        assert (await anext(events)).seq == 1
        pid = int((here.data_dir / "kedge.lock").read_text().split()[-1])
        os.kill(pid, signal.SIGKILL)
        assert [found.id for found in await client.sessions()] == [session.id]
        other = await client.create_session("later")
        seen = [event async for event in take_until(events, 2)]
        await events.aclose()
        assert [event.seq for event in seen if event.seq is not None] == [2]
        assert other.title == "later"


async def take_until(events: AsyncGenerator[Event], seq: int) -> AsyncGenerator[Event]:
    async for event in events:
        yield event
        if event.seq == seq:
            return


async def test_an_answer_that_is_not_understood_is_an_error_of_the_client(aclient: AsyncClient) -> None:
    with pytest.raises(NotUnderstood):
        await aclient.call("GET", "/sessions", type=Receipt)
