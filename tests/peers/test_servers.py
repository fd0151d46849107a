"""The questions that servers are asked, asked of Kedge's own: what the comparison says of it is true."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from bench.peers.known import KEDGE
from bench.peers.quiet import Quiet
from bench.peers.servers import crash, fanout, reconnect, rows
from bench.peers.servers.counts import Counts
from bench.peers.servers.port import Delta, Ended, Whole
from bench.peers.servers.running import View, running
from bench.peers.setting import Contender, Setting
from bench.peers.table import tables
from tests.support.model_control import ModelControl, model_thread

FEW = Counts(prompts=6, span=2, block=4, deltas=50, readers=(1, 3), settle_s=0, cut_deltas=40, pace_ms=10, killed_s=30)


@pytest.fixture
def model() -> Generator[ModelControl]:
    with model_thread() as model:
        yield model


@pytest.fixture
def home() -> Generator[Path]:
    """Its name is short, because that of a socket below it may have about a hundred characters."""
    with tempfile.TemporaryDirectory(prefix="kp-") as directory:
        yield Path(directory)


def test_a_reader_that_was_cut_off_loses_nothing_and_many_readers_all_get_everything(
    home: Path, model: ModelControl
) -> None:
    with running(Contender.ready(KEDGE, home, model.base_url)) as server:
        assert reconnect.cut_off(server, model, FEW) == reconnect.Kept(
            deltas=40, missing=0, doubled=0, is_abandoned=False, is_whole=True, is_end_told=True
        )
        shown = fanout.show(server, model, readers=3, deltas=50)
        assert (shown.missing, shown.doubled, shown.thrown_out) == (0, 0, 0)
        assert shown.cpu_s > 0


def test_after_a_kill_the_prompt_ends_once_the_queued_one_runs_and_the_next_is_answered(
    home: Path, model: ModelControl
) -> None:
    left = crash.kill(Contender.ready(KEDGE, home, model.base_url), model, FEW)
    assert left == crash.Aftermath(
        is_kept=True,
        ends=("completed",),
        is_asked_again=True,
        no_queue="",
        has_queued_run=True,
        is_next_answered=True,
        orphans=0,
    )


def test_each_prompt_is_counted_and_each_row_is_told(home: Path, model: ModelControl) -> None:
    contender = Contender.ready(KEDGE, home, model.base_url)
    setting = Setting(home, (contender,), model, model_pid=0, rounds=1, warm_up=0, quiet=Quiet(0))
    cells = rows.measure(setting, ["server-start", "server-prompts"], FEW)
    assert [cell.failures for cell in cells] == [[]] * len(cells)
    assert {cell.row.title: len(cell.values) for cell in cells} == {
        "Server: ready after its start": 1,
        "Server: idle memory": 1,
        "Server: prompt to accepted, warm": 6,
        "Server: prompt to end, warm, prompts 1 to 2": 2,
        "Server: prompt to end, warm, prompts 5 to 6": 2,
        "Server: memory after 6 prompts": 1,
    }
    assert "| kedge |" in tables(cells)


def test_words_that_are_missing_or_twice_are_counted() -> None:
    assert fanout.losses("w0 w1 w2 the-end", 4) == (0, 0)
    assert fanout.losses("w0 w2 w2 the-end", 4) == (1, 1)
    assert fanout.losses("", 4) == (4, 0)


def test_a_reader_drops_what_it_is_told_twice_only_where_the_server_says_where_it_belongs() -> None:
    view = View("w0 w1 ")
    for told in (Whole("w0 ", is_final=False), Delta("w1 w2 ", offset=3), Delta("w3 "), Ended("completed")):
        view.take(told)
    assert view.text == "w0 w1 w2 w3 "
    assert (view.final, view.ends) == (None, ["completed"])
