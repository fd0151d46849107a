"""What was measured, as Markdown: a table a question, the best and the median of each peer, and how many times Kedge's.

What failed stays in the table with its reason: a peer that does not answer is not a fast one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from bench.measure import percentile

BASELINE = "kedge"
Unit = Literal["ms", "s", "MiB", "count"]
_PLACES: dict[Unit, int] = {"ms": 1, "s": 3, "MiB": 1, "count": 0}
_MOST_FAILURES = 2  # told of each peer; the rest is counted


@dataclass(frozen=True)
class Row:
    """One question. Its values are in `unit`; one that is answered in words has none."""

    title: str
    unit: Unit | None = None
    note: str = ""


@dataclass
class Cell:
    """What one peer said to one question."""

    row: Row
    peer: str
    values: list[float] = field(default_factory=list[float])
    others_cpus: list[float] = field(default_factory=list[float])  # how many CPUs others used meanwhile
    failures: list[str] = field(default_factory=list[str])  # a reason for each sample that does not count
    words: str = ""  # the answer to a question without numbers, or a remark

    @property
    def best(self) -> float:
        return min(self.values)

    @property
    def median(self) -> float:
        return percentile(self.values, 50)


def tables(cells: Sequence[Cell]) -> str:
    """All questions, in the order in which they came."""
    rows = dict.fromkeys(cell.row for cell in cells)
    return "\n".join(_table(row, [cell for cell in cells if cell.row == row]) for row in rows)


def _table(row: Row, cells: Sequence[Cell]) -> str:
    title = f"**{row.title}**" + (f", {row.unit}" if row.unit and row.unit != "count" else "")
    head = [title + (f". {row.note}" if row.note else ""), ""]
    if row.unit is None:
        lines = [_line("", "answer"), _line("---", "---"), *(_line(cell.peer, _remarks(cell)) for cell in cells)]
        return "\n".join([*head, *lines, ""])
    base = next((cell for cell in cells if cell.peer == BASELINE and cell.values), None)
    names = ("", "best", "median", "best, x Kedge", "median, x Kedge", "samples", "CPUs of others", "")
    lines = [_line(*names), _line(*["---"] * len(names)), *(_numbers(cell, row.unit, base) for cell in cells)]
    return "\n".join([*head, *lines, ""])


def _numbers(cell: Cell, unit: Unit, base: Cell | None) -> str:
    tried = len(cell.values) + len(cell.failures)
    told = [cell.peer, *["-"] * 4, f"{len(cell.values)} of {tried}" if tried else "-", "-", _remarks(cell)]
    if cell.values:
        told[1:3] = [f"{value:.{_PLACES[unit]}f}" for value in (cell.best, cell.median)]
    if cell.values and base is not None:
        told[3:5] = [_ratio(cell.best, base.best), _ratio(cell.median, base.median)]
    if cell.others_cpus:
        told[6] = f"{percentile(cell.others_cpus, 50):.2f}"
    return _line(*told)


def _ratio(value: float, base: float) -> str:
    return f"{value / base:.2f}" if base else "-"


def _remarks(cell: Cell) -> str:
    failures = [f"failed: {reason}" for reason in dict.fromkeys(cell.failures)]
    told, more = failures[:_MOST_FAILURES], len(failures) - _MOST_FAILURES
    return "; ".join(
        [*([cell.words] if cell.words else []), *told, *([f"and {more} other reasons"] if more > 0 else [])]
    )


def _line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
