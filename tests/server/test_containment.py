"""A crash in a handler, a stream or a turn is that request's or run's alone: the server lives, and keeps secrets."""

from __future__ import annotations

import asyncio
import http.client
import logging
import shutil
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import pytest

from kedge.protocol.api import Health
from kedge.server.http import Request, Response, Route, StreamResponse
from tests.server.client import Events, connect
from tests.server.conftest import Start, short_dir
from tests.server.in_process import Inside, serving

SECRET = "hunter2"


async def broken(request: Request) -> Response:
    del request
    raise RuntimeError(f"the password is {SECRET}")


async def unspeakable(request: Request) -> Response:
    del request
    return Response(object())


async def half_a_story(request: Request) -> StreamResponse:
    del request

    async def chunks() -> AsyncGenerator[bytes]:
        yield b"data: the beginning\n\n"
        raise RuntimeError(f"the password is {SECRET}")

    return StreamResponse(chunks())


BROKEN = [
    Route("GET", "/v1/broken", broken, Health),
    Route("GET", "/v1/unspeakable", unspeakable, Health),
    Route("GET", "/v1/half-a-story", half_a_story, str),
]


@pytest.fixture
def directory() -> Generator[Path]:
    directory = short_dir()
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
async def inside(directory: Path) -> AsyncGenerator[Inside]:
    async with serving(directory, *BROKEN) as inside:
        yield inside


@pytest.mark.parametrize("path", ["/v1/broken", "/v1/unspeakable"])
async def test_a_handler_that_breaks_fails_its_request_alone(
    inside: Inside, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await inside.ask(inside.client.get, path)
    assert answer.status == 500
    assert SECRET not in str(answer)
    assert answer.json == {"code": "internal", "message": "Internal error. The server's log has the details."}
    assert any(record.levelno == logging.ERROR and record.exc_info for record in caplog.records)
    assert (await inside.ask(inside.client.get, "/v1/health")).status == 200
    await inside.until(lambda: inside.metrics.open_requests == 0)


async def test_a_stream_that_breaks_is_seen_to_be_incomplete(inside: Inside, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(http.client.IncompleteRead):
        await inside.ask(inside.client.get, "/v1/half-a-story")
    assert any(record.message == "a stream broke off" for record in caplog.records)
    assert (await inside.ask(inside.client.get, "/v1/health")).status == 200


async def test_who_leaves_a_stream_is_forgotten_at_once(inside: Inside, tmp_path: Path) -> None:
    client = inside.client
    workspace = await inside.ask(client.workspace, tmp_path)
    feed = inside.engine.feed(workspace.rpartition("/")[2])
    streams: list[Events] = [await inside.ask(client.events, workspace) for _ in range(3)]
    for stream in streams:
        await inside.ask(stream.until, "caught_up")
    assert len(feed.cursors) == 3
    for stream in streams:
        stream.close()
    await inside.until(lambda: not feed.cursors)
    await inside.until(lambda: inside.metrics.open_requests == 0)


async def test_who_stops_reading_and_leaves_is_forgotten_too(inside: Inside, tmp_path: Path) -> None:
    """Its story waits in the middle of a send, with more to tell."""
    client = inside.client
    workspace = await inside.ask(client.workspace, tmp_path)
    session_id = await inside.ask(client.session, workspace)
    run_id = await inside.ask(client.submit, workspace, session_id, f"fail {'x' * 1_000_000}")
    await inside.ask(client.ended, workspace, run_id)
    feed = inside.engine.feed(workspace.rpartition("/")[2])
    with connect(client.address) as sock:
        sock.sendall(f"GET {workspace}/events?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await inside.until(lambda: any(cursor.seq > 0 for cursor in feed.cursors))
    await inside.until(lambda: not feed.cursors)
    await inside.until(lambda: inside.metrics.open_requests == 0)


async def test_who_waits_for_a_run_and_leaves_is_forgotten(inside: Inside, tmp_path: Path) -> None:
    client = inside.client
    workspace = await inside.ask(client.workspace, tmp_path)
    run_id = await inside.ask(client.submit, workspace, await inside.ask(client.session, workspace), "hang")
    with connect(client.address) as sock:
        sock.sendall(f"GET {workspace}/runs/{run_id}?wait=600 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await inside.until(lambda: inside.metrics.open_requests == 1)
    await inside.until(lambda: inside.metrics.open_requests == 0)
    assert not inside.engine.is_idle  # the run is not the client's (P4)


async def test_who_is_cut_off_after_sending_a_prompt_has_a_run(inside: Inside, tmp_path: Path) -> None:
    client = inside.client
    workspace = await inside.ask(client.workspace, tmp_path)
    session_id = await inside.ask(client.session, workspace)
    body = f'{{"session_id": "{session_id}", "prompt": "say hello", "run_id": "mine"}}'
    head = f"POST {workspace}/agent HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with connect(client.address) as sock:
        sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    async with asyncio.timeout(30):
        while (await inside.ask(client.get, f"{workspace}/runs/mine")).status == 404:
            pass
    assert (await inside.ask(client.ended, workspace, "mine"))["state"] == "completed"


def test_a_turn_that_breaks_fails_its_run_alone(start: Start, tmp_path: Path) -> None:
    client = start().client
    workspace = client.workspace(tmp_path)
    session_id = client.session(workspace)
    for prompt in ("raise boom", "exit", "fail softly"):
        with client.events(workspace) as events:
            events.until("caught_up")
            run_id = client.submit(workspace, session_id, prompt)
            end: Any = events.end_of(run_id)[-1].payload
        assert client.ended(workspace, run_id)["state"] == "failed"
        assert end.error
        assert client.ended(workspace, client.submit(workspace, session_id, "say alive"))["state"] == "completed"
