"""The rows of the servers: every question to every peer that has one, in turns; the answers are cells of the table."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from bench.measure import percentile, wait_quiet
from bench.peers.servers import crash, fanout, prompts, reconnect, start
from bench.peers.servers.counts import FULL, Counts
from bench.peers.servers.running import ADAPTERS, NO_SERVER, Running, started
from bench.peers.setting import Contender, Setting
from bench.peers.table import Cell, Row
from tests.support.model_control import ModelControl


def measure(setting: Setting, counts: Counts = FULL) -> list[Cell]:
    model = ModelControl(urlsplit(setting.model_url).port or 0)
    servers = [contender for contender in setting.contenders if contender.name in ADAPTERS]
    found = [*_starts(servers, setting, counts), *_absent(setting)]
    with _all_running(servers) as running:
        wait_quiet(patience_s=setting.patience_s)
        found += _prompts(running, model, counts)
        wait_quiet(patience_s=setting.patience_s)
        found += _fan_outs(running, model, setting.rounds, counts)
        found += _reconnects(running, model, counts)
    return [*found, *_crashes(servers, model, counts)]


def _absent(setting: Setting) -> list[Cell]:
    """Those that are asked nothing more, with the reason."""
    names = [contender.name for contender in setting.contenders if contender.name in NO_SERVER]
    return [Cell(start.READY, name, words=NO_SERVER[name]) for name in names]


def _starts(servers: Sequence[Contender], setting: Setting, counts: Counts) -> list[Cell]:
    ready = {server.name: Cell(start.READY, server.name) for server in servers}
    idle = {server.name: Cell(start.IDLE, server.name) for server in servers}
    for _ in range(setting.rounds):
        for server in servers:
            wait_quiet(patience_s=setting.patience_s)
            with _failures_in(ready[server.name]):
                start.measure(server, ready[server.name], idle[server.name], counts)
    return [*ready.values(), *idle.values()]


@contextmanager
def _all_running(servers: Sequence[Contender]) -> Generator[list[Running]]:
    running: list[Running] = []
    try:
        for server in servers:
            with _failures_in(Cell(start.READY, server.name)):  # whoever cannot start has said so before
                running.append(started(server, ADAPTERS[server.name](server)))
        yield running
    finally:
        for each in running:
            each.process.stop()


def _prompts(running: Sequence[Running], model: ModelControl, counts: Counts) -> list[Cell]:
    asked: list[prompts.Asked] = []
    failed: list[Cell] = []
    for server in running:
        cell = Cell(Row("Server: first prompts"), server.name)
        with _failures_in(cell):
            asked.append(prompts.opened(server))
        failed += [cell] if cell.failures else []
    prompts.ask(asked, model, counts)
    for each in asked:
        each.desk.close()
    return [*failed, *prompts.cells(asked, counts)]


def _fan_outs(running: Sequence[Running], model: ModelControl, rounds: int, counts: Counts) -> list[Cell]:
    found: list[Cell] = []
    for readers in counts.readers:
        cells = {server.name: Cell(fanout.row(readers, counts.deltas), server.name) for server in running}
        shown: dict[str, list[fanout.Shown]] = {server.name: [] for server in running}
        for _ in range(rounds):
            for server in running:
                if server.adapter.no_fan_out:
                    cells[server.name].words = f"no such thing: {server.adapter.no_fan_out}"
                    continue
                with _failures_in(cells[server.name]):
                    shown[server.name].append(fanout.show(server, model, readers, counts.deltas))
        for name, each in shown.items():
            if each:
                wall_s = percentile([one.wall_s for one in each], 50)
                missing, doubled = max(one.missing for one in each), max(one.doubled for one in each)
                cells[name].values = [one.cpu_s for one in each]
                cells[name].words = f"all heard the end after {wall_s:.2f} s; {missing} deltas lost, {doubled} doubled"
        found += cells.values()
    return found


def _reconnects(running: Sequence[Running], model: ModelControl, counts: Counts) -> list[Cell]:
    found: list[Cell] = []
    for server in running:
        cell = Cell(reconnect.ROW, server.name)
        with _failures_in(cell):
            cell.words = f"{reconnect.cut_off(server, model, counts)} ({server.adapter.rejoining})"
        found.append(cell)
    return found


def _crashes(servers: Sequence[Contender], model: ModelControl, counts: Counts) -> list[Cell]:
    found: list[Cell] = []
    for server in servers:
        cell = Cell(crash.ROW, server.name)
        with _failures_in(cell):
            cell.words = str(crash.kill(server, model, counts))
        found.append(cell)
    return found


@contextmanager
def _failures_in(cell: Cell) -> Generator[None]:
    """Whatever a peer does, the others go on; that it failed stays in the table."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        cell.failures.append(f"{type(error).__name__}: {error}"[:300])
