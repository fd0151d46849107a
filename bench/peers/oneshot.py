"""The rows of one-shot commands: how they start, a whole run cold and warm, one with a tool, their CPU and memory.

Cold is a run before which nothing of the peer is running. Warm is one beside a server of its own, where it has one. All
are asked in turns, and each round begins with another, so that a change of the machine's pace meets everyone alike.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from bench.measure import MIB
from bench.peers import sides
from bench.peers.commands import Ran, Runner, failure
from bench.peers.setting import Contender, Setting
from bench.peers.sides import Side
from bench.peers.table import Cell, Row

VERSION = Row("`--version`", "ms")
HELP = Row("`--help`", "ms")
RUN_COLD = Row("One-shot run, cold", "s")
RUN_WARM = Row("One-shot run, warm", "s")
CPU_COLD = Row("CPU of a one-shot run, cold", "s", "All processes, with those left behind until they have ended")
CPU_WARM = Row("CPU of a one-shot run, warm", "s", "With the server's share")
TOOL_COLD = Row("Run with one tool round, cold", "s", "The model asks for a file, and answers when it has seen it")
TOOL_WARM = Row("Run with one tool round, warm", "s")
PEAK_COLD = Row("Peak memory of a one-shot run, cold", "MiB", "All processes, what they share counted once")
PEAK_WARM = Row("Peak memory of a one-shot run, warm", "MiB", "With the server")

PROMPT = "Say hello."
ANSWER = "FAKE-ANSWER-OK"
_MEMORY_ROUNDS = 3  # it hardly differs
_NO_SERVER = "no server for its runs: as cold"

Figure = Callable[[Ran], float]


@dataclass(frozen=True)
class Question:
    """What is asked of a side, what it must say, and which figures of it go into which rows."""

    asked: Callable[[Side], list[str] | None]  # none: it cannot be asked that
    expected: Callable[[Side], str]
    cold: tuple[tuple[Row, Figure], ...]
    warm: tuple[tuple[Row, Figure], ...] = ()
    is_watched: bool = False


def _run(side: Side, prompt: str = PROMPT) -> list[str]:
    return side.contender.one_shot(prompt, side.served.port if side.served else None)


def _tool(side: Side) -> list[str] | None:
    return _run(side, side.tool_prompt) if side.contender.peer.tool else None


def _ms(ran: Ran) -> float:
    return ran.wall_s * 1e3


def _wall(ran: Ran) -> float:
    return ran.wall_s


def _cpu(ran: Ran) -> float:
    return ran.cpu_s


def _peak(ran: Ran) -> float:
    return ran.peak_bytes / MIB


QUESTIONS: dict[str, Question] = {
    "version": Question(
        lambda side: side.contender.command("--version"),
        lambda side: side.contender.peer.version,
        cold=((VERSION, _ms),),
    ),
    "help": Question(lambda side: side.contender.command("--help"), lambda _: "--help", cold=((HELP, _ms),)),
    "run": Question(
        _run,
        lambda _: ANSWER,
        cold=((RUN_COLD, _wall), (CPU_COLD, _cpu)),
        warm=((RUN_WARM, _wall), (CPU_WARM, _cpu)),
    ),
    "tool": Question(_tool, lambda _: sides.TOOL_ANSWER, cold=((TOOL_COLD, _wall),), warm=((TOOL_WARM, _wall),)),
    "memory": Question(_run, lambda _: ANSWER, cold=((PEAK_COLD, _peak),), warm=((PEAK_WARM, _peak),), is_watched=True),
}


def measure(setting: Setting, names: Sequence[str]) -> list[Cell]:
    """The cells of these questions, row by row."""
    with ExitStack() as servers:
        asked = sides.cold(setting)
        if any(QUESTIONS[name].warm for name in names):
            asked += sides.warm(setting, servers)
        order = [each.name for each in setting.contenders]
        asked.sort(key=lambda side: order.index(side.contender.name))  # a peer's two sides, one after the other
        runner = Runner({setting.model_pid, *(side.served.pid for side in asked if side.served)})
        return [cell for name in names for cell in _Asking(setting, runner, asked, name).cells()]


class _Asking:
    """One question, asked of all sides, round after round."""

    def __init__(self, setting: Setting, runner: Runner, asked: Sequence[Side], name: str) -> None:
        self._setting = setting
        self._runner = runner
        self._name = name
        self._question = QUESTIONS[name]
        self._sides = [side for side in asked if self._question.warm or not side.is_warm]
        self._cells = {
            (row, side.contender.name): Cell(row, side.contender.name)
            for side in self._sides
            for row, _ in self._figures(side)
        }

    def cells(self) -> list[Cell]:
        setting = self._setting
        rounds = min(setting.rounds, _MEMORY_ROUNDS) if self._question.is_watched else setting.rounds
        for i in range(-setting.warm_up, rounds):
            first = i % len(self._sides)
            for side in [*self._sides[first:], *self._sides[:first]]:
                self._ask(side, i)
        rows = [row for row, _ in (*self._question.cold, *self._question.warm)]
        return [self._cell(row, contender) for row in rows for contender in setting.contenders]

    def _figures(self, side: Side) -> tuple[tuple[Row, Figure], ...]:
        return self._question.warm if side.is_warm else self._question.cold

    def _ask(self, side: Side, number: int) -> None:
        name = side.contender.name
        command = self._question.asked(side)
        mine = [(self._cells[row, name], figure) for row, figure in self._figures(side)]
        if command is None:
            for cell, _ in mine:
                cell.words = side.contender.peer.remark
            return
        if side.failure:
            for cell, _ in mine:
                cell.failures.append(side.failure)
            return
        self._setting.quiet.wait()
        server = side.served.pid if side.served else None
        ran = self._runner.run(side.contender, command, server, is_watched=self._question.is_watched)
        why = failure(ran, self._question.expected(side), side.contender)
        heat = "warm" if side.is_warm else "cold"
        print(f"{self._name} {number + 1}: {name}, {heat}: {why or f'{ran.wall_s:.3f} s'}", file=sys.stderr, flush=True)
        if number < 0:
            return
        for cell, figure in mine:
            cell.others_cpus.append(ran.others_cpus)
            if why:
                cell.failures.append(why)
            else:
                cell.values.append(figure(ran))

    def _cell(self, row: Row, contender: Contender) -> Cell:
        """Where there is no server, warm is as cold."""
        if (cell := self._cells.get((row, contender.name))) is not None:
            return cell
        twin = self._question.cold[[warm for warm, _ in self._question.warm].index(row)][0]
        cell = self._cells[twin, contender.name]
        words = "; ".join(filter(None, [cell.words, _NO_SERVER]))
        return Cell(row, contender.name, cell.values, cell.others_cpus, cell.failures, words)
