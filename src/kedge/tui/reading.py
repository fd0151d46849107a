"""What the server has stored, read into the book beside the stream: what that tells meanwhile is newer, and stays."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from kedge.client.errors import Refused
from kedge.client.http1 import escape, query

if TYPE_CHECKING:
    from kedge.client import AsyncClient
    from kedge.tui.state.session import Page
    from kedge.tui.state.workspace import Book

PAGE = 1000  # of messages, runs or sessions: the most that one answer holds
MAX_AGENTS = 100  # of one session, the newest: each takes three requests


async def read_workspace(client: AsyncClient, book: Book) -> None:
    """Its sessions, and the runs that are open."""
    from kedge.protocol import api

    for state in ("running", "queued"):
        book.read_runs((await client.call("GET", f"/runs{query(state=state)}", type=api.Runs)).runs)
    book.read_sessions((await client.call("GET", f"/sessions{query(limit=PAGE)}", type=api.Sessions)).sessions)


async def read_page(client: AsyncClient, book: Book, session_id: str) -> None:
    """A session's messages and runs."""
    page: Page | None = None
    while page is None or book.pages.get(session_id) is not page:  # forgotten while it was read
        page = book.page(session_id)
        await _fill(client, page)


async def read_surroundings(client: AsyncClient, book: Book, session_id: str) -> None:
    """What its page can be shown without: the files that it changed, and what its sub-agents did."""
    await read_files(client, book, session_id)
    waiting, left = [session_id], MAX_AGENTS
    while waiting and left > 0:
        for child in book.children_of(waiting.pop(0))[-left:]:
            left -= 1
            waiting.append(child)
            if not book.page(child).is_read:
                with contextlib.suppress(Refused):  # deleted meanwhile
                    await read_page(client, book, child)


async def read_totals(client: AsyncClient, book: Book, session_id: str) -> None:
    """What a session took, and changed, so far: asked when a run of it has ended."""
    from kedge.protocol.sessions import SessionDetails

    details = await client.call("GET", f"/sessions/{escape(session_id)}", type=SessionDetails)
    if page := book.pages.get(session_id):
        page.usage = details.usage
    await read_files(client, book, session_id)


async def read_files(client: AsyncClient, book: Book, session_id: str) -> None:
    from kedge.protocol.files import SessionFiles

    page = book.pages.get(session_id)
    if page is None:
        return
    before = dict(page.files)
    found = await client.call("GET", f"/sessions/{escape(session_id)}/files", type=SessionFiles)
    heard = {path: file for path, file in page.files.items() if file is not before.get(path)}
    page.files = {file.path: file for file in found.files} | heard


async def _fill(client: AsyncClient, page: Page) -> None:
    from kedge.protocol import api
    from kedge.protocol.messages import Message
    from kedge.protocol.sessions import SessionDetails

    session = f"/sessions/{escape(page.session_id)}"
    runs = await client.call("GET", f"/runs{query(session_id=page.session_id, limit=PAGE)}", type=api.Runs)
    messages: list[Message] = []
    as_of: int | None = None
    after: str | None = None
    while True:
        answer = await client.call("GET", f"{session}/messages{query(after=after, limit=PAGE)}", type=api.Messages)
        as_of = answer.as_of_seq if as_of is None else as_of
        messages += answer.messages
        if len(answer.messages) < PAGE:
            break
        after = answer.messages[-1].id
    page.read_runs(runs.runs)
    page.read(messages, as_of)
    page.usage = (await client.call("GET", session, type=SessionDetails)).usage
