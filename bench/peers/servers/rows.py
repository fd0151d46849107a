"""The rows of the servers: every question to every peer that has one, in turns; the answers are cells of the table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from bench.measure import percentile
from bench.peers.servers import crash, fanout, prompts, reconnect, start
from bench.peers.servers.counts import FULL, Counts
from bench.peers.servers.running import ADAPTERS, NO_SERVER, Running, started
from bench.peers.setting import Contender, Setting
from bench.peers.table import Cell, Row

_REASON_CHARS = 200


def measure(setting: Setting, names: Sequence[str], counts: Counts = FULL) -> list[Cell]:
    """The cells of these questions, row by row. The servers have homes of their own."""
    directory = setting.directory / "servers"
    peers = [contender.peer for contender in setting.contenders if contender.name in ADAPTERS]
    contenders = [Contender.ready(peer, directory, setting.model.base_url) for peer in peers]
    return [cell for name in names for cell in QUESTIONS[name](contenders, setting, counts)]


def _starts(contenders: Sequence[Contender], setting: Setting, counts: Counts) -> list[Cell]:
    ready = {each.name: Cell(start.READY, each.name) for each in contenders}
    idle = {each.name: Cell(start.IDLE, each.name) for each in contenders}
    for i in range(-setting.warm_up, setting.rounds):
        for each in contenders:
            setting.quiet.wait()
            cells = (ready[each.name], idle[each.name])
            with _told(f"start {i + 1}", each.name, cells[0]):
                values = start.measure(each, counts)
                for cell, value in zip(cells, values, strict=True):
                    cell.values += [value] if i >= 0 else []
    absent = [each.name for each in setting.contenders if each.name in NO_SERVER]
    return [*ready.values(), *(Cell(start.READY, name, words=NO_SERVER[name]) for name in absent), *idle.values()]


def _prompts(contenders: Sequence[Contender], setting: Setting, counts: Counts) -> list[Cell]:
    asked: list[prompts.Asked] = []
    failed: list[Cell] = []
    with _all_running(contenders) as running:
        for server in running:
            cell = Cell(Row("Server: first prompts"), server.name)
            with _told("first prompts", server.name, cell):
                asked.append(prompts.opened(server))
            failed += [cell] if cell.failures else []
        setting.quiet.wait()
        prompts.ask(asked, setting.model, counts)
        return [*failed, *prompts.cells(asked, counts)]


def _fan_outs(contenders: Sequence[Contender], setting: Setting, counts: Counts) -> list[Cell]:
    with _all_running(contenders) as running:
        return [cell for readers in counts.readers for cell in _fan_out(running, setting, counts, readers)]


def _fan_out(running: Sequence[Running], setting: Setting, counts: Counts, readers: int) -> list[Cell]:
    cells = {server.name: Cell(fanout.row(readers, counts.deltas), server.name) for server in running}
    shown: dict[str, list[fanout.Shown]] = {server.name: [] for server in running}
    for i in range(setting.rounds):
        for server in running:
            cell = cells[server.name]
            if readers > 1 and server.adapter.no_fan_out:
                cell.words = f"no such thing: {server.adapter.no_fan_out}"
                continue
            setting.quiet.wait()
            with _told(f"{readers} readers {i + 1}", server.name, cell):
                shown[server.name].append(fanout.show(server, setting.model, readers, counts.deltas))
    for name, each in shown.items():
        if each:
            cells[name].values = [one.cpu_s for one in each]
            cells[name].words = _losses(each)
    return list(cells.values())


def _losses(shown: Sequence[fanout.Shown]) -> str:
    """The median of the time, and the worst of what was lost."""
    wall_s = percentile([one.wall_s for one in shown], 50)
    missing, doubled = max(one.missing for one in shown), max(one.doubled for one in shown)
    if thrown_out := max(one.thrown_out for one in shown):
        return f"{thrown_out} readers were thrown out, and had missed up to {missing:,} deltas"
    return f"all had the end after {wall_s:.2f} s; {missing:,} deltas lost, {doubled:,} doubled"


def _reconnects(contenders: Sequence[Contender], setting: Setting, counts: Counts) -> list[Cell]:
    cells = {each.name: Cell(reconnect.ROW, each.name) for each in contenders}
    with _all_running(contenders) as running:
        for server in running:
            cell = cells[server.name]
            with _told("reconnect", server.name, cell):
                kept = reconnect.cut_off(server, setting.model, counts)
                cell.words = f"{kept} (by {server.adapter.rejoining})"
    return list(cells.values())


def _crashes(contenders: Sequence[Contender], setting: Setting, counts: Counts) -> list[Cell]:
    cells = [Cell(crash.ROW, each.name) for each in contenders]
    for each, cell in zip(contenders, cells, strict=True):
        with _told("kill", each.name, cell):
            cell.words = str(crash.kill(each, setting.model, counts))
    return cells


Question = Callable[[Sequence[Contender], Setting, Counts], list[Cell]]
QUESTIONS: dict[str, Question] = {
    "server-start": _starts,
    "server-prompts": _prompts,
    "server-readers": _fan_outs,
    "server-reconnect": _reconnects,
    "server-kill": _crashes,
}


@contextmanager
def _all_running(contenders: Sequence[Contender]) -> Generator[list[Running]]:
    running: list[Running] = []
    try:
        for each in contenders:
            with _told("start", each.name, Cell(start.READY, each.name)):  # its row says whether it can
                running.append(started(each, ADAPTERS[each.name](each)))
        yield running
    finally:
        for each in running:
            each.stop()


@contextmanager
def _told(what: str, name: str, cell: Cell) -> Generator[None]:
    """Whatever a peer does, the others go on; that it failed stays in the table."""
    failed = len(cell.failures)
    try:
        yield
    except Exception as error:  # noqa: BLE001 - a peer may fail in any way
        cell.failures.append(f"{error or type(error).__name__}"[:_REASON_CHARS])
    outcome = cell.failures[-1] if len(cell.failures) > failed else "done"
    print(f"{what}: {name}: {outcome}", file=sys.stderr, flush=True)
