"""P10 after a power loss: commits may be gone, so every log gets a new id; when none can be, the id stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from kedge.store.sqlite import database
from kedge.store.sqlite.store import SqliteStore
from tests.store.stores import opened, place_in


async def log_ids(store: SqliteStore) -> list[str]:
    return [state.log_id for state in await store.workspaces()]


async def make_two_logs(directory: Path, synchronous: database.Synchronous, *, is_closed: bool) -> list[str]:
    """Two workspaces; then the store is closed, or its process dies."""
    store = SqliteStore.open(directory, synchronous=synchronous)
    await place_in(store)
    await store.open_workspace("/elsewhere")
    ids = await log_ids(store)
    if is_closed:
        await store.close()
    else:
        store.abandon()
    return ids


@pytest.fixture
def reboot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "boot_id", lambda: "the boot before")


async def reopened(directory: Path) -> list[str]:
    async with opened(directory) as place:
        return await log_ids(place.store)


@pytest.mark.usefixtures("reboot")
async def test_a_changed_boot_without_a_clean_close_gives_every_log_a_new_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await make_two_logs(tmp_path, "NORMAL", is_closed=False)
    monkeypatch.setattr(database, "boot_id", lambda: "the boot after")
    after = await reopened(tmp_path)
    assert len(after) == 2
    assert len({*before, *after}) == 4
    assert await reopened(tmp_path) == after


@pytest.mark.usefixtures("reboot")
async def test_a_clean_close_keeps_the_ids_over_a_reboot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = await make_two_logs(tmp_path, "NORMAL", is_closed=True)
    monkeypatch.setattr(database, "boot_id", lambda: "the boot after")
    assert await reopened(tmp_path) == before


@pytest.mark.usefixtures("reboot")
async def test_a_store_that_syncs_every_commit_keeps_the_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = await make_two_logs(tmp_path, "FULL", is_closed=False)
    monkeypatch.setattr(database, "boot_id", lambda: "the boot after")
    assert await reopened(tmp_path) == before


async def test_a_killed_process_keeps_the_ids(tmp_path: Path) -> None:
    before = await make_two_logs(tmp_path, "NORMAL", is_closed=False)
    assert await reopened(tmp_path) == before


async def test_a_clean_close_counts_for_one_opening_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed cleanly once, opened again and killed, then the power went: the id must change."""
    await make_two_logs(tmp_path, "NORMAL", is_closed=True)
    before = await make_two_logs(tmp_path, "NORMAL", is_closed=False)
    monkeypatch.setattr(database, "boot_id", lambda: "the boot after")
    assert not set(before) & set(await reopened(tmp_path))


async def test_where_the_system_names_no_boot_an_unclean_close_gives_new_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "boot_id", lambda: "")
    before = await make_two_logs(tmp_path, "NORMAL", is_closed=False)
    assert not set(before) & set(await reopened(tmp_path))
    closed = await make_two_logs(tmp_path, "NORMAL", is_closed=True)
    assert await reopened(tmp_path) == closed
