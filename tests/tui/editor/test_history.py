"""Earlier prompts: walked and searched, kept between lives, shared by two interfaces; and drafts after a crash."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kedge.tui.editor import history as module
from kedge.tui.editor.draft import Chip, Content, Draft
from kedge.tui.editor.history import EditorStore, History, state_directory
from tests.tui.editor.harness import EditorApp, typing


def remembering(directory: Path, *prompts: str) -> EditorStore:
    store = EditorStore(directory, "/workspace")
    for prompt in prompts:
        store.history.add(Content(prompt))
    return store


def texts(history: History) -> list[str]:
    return [each.text for each in history.entries()]


async def test_up_and_down_walk_and_what_was_being_written_is_at_the_end(tmp_path: Path) -> None:
    async with typing(EditorApp(store=remembering(tmp_path, "one", "two"))) as ui:
        await ui.type("mine")
        await ui.press("up")
        assert ui.text == "two"
        await ui.press("up")
        assert ui.text == "one"
        await ui.press("up")
        assert ui.text == "one"
        await ui.press("down", "down")
        assert ui.text == "mine"
        await ui.press("down")
        assert ui.text == "mine"


async def test_within_many_lines_the_arrows_move_the_cursor_first(tmp_path: Path) -> None:
    async with typing(EditorApp(store=remembering(tmp_path, "old"))) as ui:
        await ui.type("a\\\nb")
        await ui.press("up")
        assert ui.text == "a\nb"
        await ui.press("up")
        assert ui.text == "old"
        await ui.press("down")
        assert ui.text == "a\nb"


async def test_sending_an_earlier_prompt_leaves_what_was_being_written(tmp_path: Path) -> None:
    store = remembering(tmp_path, "one", "two")
    async with typing(EditorApp(store=store)) as ui:
        await ui.type("mine")
        await ui.press("up")
        await ui.type("x")  # two → twox
        await ui.press("up")
        await ui.press("enter")
        assert ui.app.submitted == [Draft("one")]
        assert ui.text == "mine"
        assert "twox" in texts(store.history)


async def test_a_search_finds_and_what_it_replaces_can_be_yanked(tmp_path: Path) -> None:
    async with typing(EditorApp(store=remembering(tmp_path, "fix the parser", "write docs", "fix tests"))) as ui:
        await ui.type("fix")
        await ui.press("ctrl+r")
        assert ui.app.popup == ["fix tests", "fix the parser"]
        await ui.type(" the")
        await ui.until(lambda: ui.app.popup == ["fix the parser"])
        await ui.press("enter")
        assert (ui.text, ui.app.submitted, ui.app.popup) == ("fix the parser", [], [])
        assert list(ui.editor.kills) == ["fix the"]
        await ui.press("ctrl+underscore")
        assert ui.text == "fix the"


async def test_a_search_that_is_left_changes_nothing(tmp_path: Path) -> None:
    async with typing(EditorApp(store=remembering(tmp_path, "one", "two"))) as ui:
        await ui.press("ctrl+r")
        assert ui.app.popup == ["two", "one"]
        await ui.press("escape")
        assert (ui.text, ui.app.popup, ui.app.escapes) == ("", [], 0)
        await ui.type("zzz")
        await ui.press("ctrl+r")
        assert ui.app.told
        await ui.press("enter")
        assert ui.app.submitted == [Draft("zzz")]


async def test_what_is_sent_is_known_to_the_next_interface(tmp_path: Path) -> None:
    async with typing(EditorApp(store=EditorStore(tmp_path, "/a"))) as ui:
        await ui.type("first\n")
    async with typing(EditorApp(store=EditorStore(tmp_path, "/b"))) as ui:
        await ui.press("up")
        assert ui.text == "first"


def test_two_write_at_once_and_every_line_is_whole(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from kedge.tui.editor.history import History\n"
        "from kedge.tui.editor.draft import Content\n"
        "history = History(Path(sys.argv[1]))\n"
        "for n in range(200): history.add(Content(f'{sys.argv[2]} {n} ' + 'x' * 50))\n"
    )
    path = tmp_path / "history"
    running = [subprocess.Popen([sys.executable, "-c", code, str(path), who]) for who in ("a", "b")]
    assert [process.wait(timeout=60) for process in running] == [0, 0]
    found = texts(History(path))
    for who in ("a", "b"):
        assert [text.split()[1] for text in found if text.startswith(who)] == [str(n) for n in range(200)]


def test_it_is_bounded_private_and_forgives_broken_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 10)
    path = tmp_path / "state" / "history"
    history = History(path)
    for n in range(25):
        history.add(Content(f"prompt {n}"))
    with path.open("ab") as file:
        file.write(b'{"text": "cut\n\xff\xfe\n{"other": 1}\n')
    assert texts(History(path))[-1] == "prompt 24"
    assert len(path.read_bytes().splitlines()) <= 20
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    long = "y" * (module.MAX_ENTRY_CHARS + 1)
    history.add(Content(long))
    assert texts(history)[-1] == long
    assert long not in texts(History(path))


def test_an_entry_comes_back_with_its_pastes() -> None:
    history = History()
    content = Content("see [Pasted text #1, 12 lines]", (Chip("[Pasted text #1, 12 lines]", "long"),))
    history.add(content)
    assert history.entries() == [content]


def test_a_directory_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = History(tmp_path / "file" / "history")
    history.add(Content("one"))
    assert texts(history) == ["one"]
    EditorStore(tmp_path / "file", "/a").save_drafts([Content("x")], 1)


async def test_a_draft_is_kept_at_the_end_and_is_there_again(tmp_path: Path) -> None:
    async with typing(EditorApp(store=EditorStore(tmp_path, "/a"))) as ui:
        await ui.type("half a pro")
        await ui.paste("line\n" * 12)
        content = ui.editor.content
    async with typing(EditorApp(store=EditorStore(tmp_path, "/b"))) as ui:
        assert ui.text == ""
    async with typing(EditorApp(store=EditorStore(tmp_path, "/a"))) as ui:
        assert ui.editor.content == content
        await ui.paste("line\n" * 13)
        assert [chip.label for chip in ui.editor.content.chips] == [
            "[Pasted text #1, 12 lines]",
            "[Pasted text #2, 13 lines]",
        ]


async def test_a_draft_outlives_a_crash_also_one_on_its_way(tmp_path: Path) -> None:
    store = EditorStore(tmp_path, "/a")
    async with typing(EditorApp(store=store)) as ui:
        await ui.type("sent\n")
        await ui.type("typed")
        kept = tmp_path / "drafts"
        await ui.until(lambda: kept.is_dir() and bool(list(kept.glob("*.draft"))))
        ui.editor.saver.save()
        await ui.app.workers.wait_for_complete()
        [file] = kept.glob("*.draft")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        file.rename(kept / file.name.replace(f".{os.getpid()}.", f".{_gone()}."))
        assert [each.text for each in EditorStore(tmp_path, "/a").take_over_drafts()] == ["sent", "typed"]
        assert EditorStore(tmp_path, "/a").take_over_drafts() == []


def _gone() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(timeout=30)
    return process.pid


async def test_what_another_living_interface_writes_is_its_own(tmp_path: Path) -> None:
    store = EditorStore(tmp_path, "/a")
    store.save_drafts([Content("theirs")], 1)
    [file] = (tmp_path / "drafts").glob("*.draft")
    file.rename(file.with_name(file.name.replace(f".{os.getpid()}.", f".{os.getppid()}.")))
    async with typing(EditorApp(store=EditorStore(tmp_path, "/a"))) as ui:
        assert ui.text == ""


def test_of_two_saves_the_newer_counts_whatever_their_order(tmp_path: Path) -> None:
    store = EditorStore(tmp_path, "/a")
    threads = [threading.Thread(target=store.save_drafts, args=([Content(str(n))], n)) for n in (3, 1, 2)]
    for thread in threads:
        thread.start()
        thread.join()
    assert store.take_over_drafts() == [Content("3")]
    store.save_drafts([Content(" ")], 4)
    assert list((tmp_path / "drafts").iterdir()) == []


def test_state_is_beside_chosen_data_or_where_programs_keep_it(tmp_path: Path) -> None:
    assert state_directory("/data", {}) == Path("/data/interface")
    assert state_directory(None, {"KEDGE_DATA_DIR": "/d", "XDG_STATE_HOME": "/s"}) == Path("/d/interface")
    assert state_directory(None, {"XDG_STATE_HOME": str(tmp_path)}) == tmp_path / "kedge"
    assert state_directory(None, {}) == Path.home() / ".local/state/kedge"
