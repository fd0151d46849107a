"""What a growing history must not slow down: every statement of every transaction and listing uses an index."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kedge.protocol.runs import Submission
from kedge.store.port import Committed, Retention, Store
from kedge.store.sqlite.store import SqliteStore
from tests.store.test_log import tell_a_rich_story
from tests.support.harness import Kedge
from tests.support.stores import Sqlite

GROWING = ("runs", "prompts", "messages", "parts", "events", "requests", "sessions", "drafts")
# Indexes of what is open, pending or being forgotten: they do not grow with the history.
OF_NOW = ("runs_open", "requests_pending", "sessions_deleted")

Statements = dict[str, Any]


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Statements:
    """Every statement that any connection runs, with the arguments of its first use."""
    seen: Statements = {}

    class Recording(sqlite3.Connection):
        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            seen.setdefault(sql, parameters)
            return super().execute(sql, parameters)

        def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
            rows = list(parameters)
            if rows:
                seen.setdefault(sql, rows[0])
            return super().executemany(sql, rows)

    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Recording))
    return seen


async def test_no_statement_scans_what_grows(tmp_path: Path, statements: Statements) -> None:
    async with Kedge(Sqlite(), tmp_path) as kedge:
        statements.clear()  # those of the migrations, which run once
        session_id, _ = await tell_a_rich_story(kedge)
        await list_everything(kedge, session_id)
        assert len(statements) > 60
        assert isinstance(kedge.store, SqliteStore)
        plans = explain(kedge.store._db, statements)
    scans = {sql: step for sql, steps in plans.items() for step in steps if is_scan(step)}
    assert scans == {}


async def test_pages_of_messages_and_of_the_log_are_not_sorted(tmp_path: Path, statements: Statements) -> None:
    """They come from an index in their order: a page costs what it holds, however long the history is."""
    async with Kedge(Sqlite(), tmp_path) as kedge:
        session_id = await kedge.session()
        await kedge.send(session_id, "say hello", "run-1")
        await kedge.end("run-1")
        statements.clear()
        await kedge.store.messages(kedge.workspace_id, session_id, limit=10)
        await kedge.store.read_log(kedge.workspace_id, 0, 10)
        await kedge.store.read_log(kedge.workspace_id, 0, 10, session_id)
        assert isinstance(kedge.store, SqliteStore)
        paged = {sql: args for sql, args in statements.items() if "LIMIT ?" in sql}
        plans = explain(kedge.store._db, paged)
    assert len(plans) == 3
    assert [step for steps in plans.values() for step in steps if "TEMP B-TREE" in step] == []


async def test_a_listing_by_state_and_a_story_of_one_session_read_only_what_they_show(
    tmp_path: Path, statements: Statements
) -> None:
    async with Kedge(Sqlite(), tmp_path) as kedge:
        session_id = await kedge.session()
        statements.clear()
        await kedge.store.runs(kedge.workspace_id, None, "failed")
        await kedge.store.read_log(kedge.workspace_id, 0, 10, session_id)
        assert isinstance(kedge.store, SqliteStore)
        listings = {sql: args for sql, args in statements.items() if "ORDER BY seq" in sql and "LIMIT ?" in sql}
        plans = explain(kedge.store._db, listings)
    steps = {sql.split(" FROM ")[-1].split()[0]: steps[0] for sql, steps in plans.items()}
    assert steps["runs"].endswith("(workspace_id=? AND state=?)")
    assert steps["events"].endswith("(workspace_id=? AND session_id=? AND seq>?)")


async def list_everything(kedge: Kedge, session_id: str) -> None:
    store, workspace_id = kedge.store, kedge.workspace_id
    await store.runs(workspace_id)
    await store.runs(workspace_id, session_id, "completed")
    await store.runs(workspace_id, None, "failed")
    await store.sessions(workspace_id)
    await store.session_status(workspace_id, session_id)
    first = (await store.messages(workspace_id, session_id, limit=1)).messages[0]
    await store.messages(workspace_id, session_id, first.id, 10)
    await store.history(workspace_id, session_id)
    await store.pending_requests(workspace_id, "permission")
    await store.grants(workspace_id, session_id)
    await store.session_cost(workspace_id, session_id)
    await store.cost_grants(workspace_id, session_id, "spending")
    await store.day_cost()
    await store.read_log(workspace_id, 0, 100)
    await store.read_log(workspace_id, 0, 100, session_id)
    await store.retain(Retention())
    await store.recover()
    await delete_everything(store)


async def delete_everything(store: Store) -> None:
    def tell_nobody(_: Sequence[Committed]) -> None:
        """The engine would run what is only here to be deleted."""

    store.on_commit = tell_nobody
    other = (await store.open_workspace("/elsewhere")).workspace.id
    deleted = (await store.create_session(other, "to be deleted")).id
    await store.accept(other, "run-1", Submission(session_id=deleted, prompt="hello"))
    await store.begin_delete_session(other, deleted)
    await store.end_delete_session(other, deleted)
    await store.retain(Retention(max_bytes=0, receipts_s=-1))
    await store.delete_workspace(other)


def explain(db: sqlite3.Connection, statements: Mapping[str, Any]) -> dict[str, list[str]]:
    """SQLite's own plan of each statement, step by step."""
    assert db.row_factory is sqlite3.Row
    return {
        sql: [row["detail"] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", args).fetchall()]
        for sql, args in dict(statements).items()
        if sql.split()[0] in ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")
    }


def is_scan(step: str) -> bool:
    match step.split():
        case ["SCAN", table, *rest]:
            return table in GROWING and not any(name in rest for name in OF_NOW)
        case _:
            return False
