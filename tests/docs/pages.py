"""The pages of the documentation, and the commands in them.

A fenced `sh` block must succeed. In a `console` block a line that begins with `$` is a command, and what follows it is
what it prints, with `…` for whatever differs. A comment before a block, which readers do not see, can say

    <!-- not run: REASON -->            what the block needs is not there in a test
    <!-- the model: text=hello -->      how the scripted model answers in this block (`tests.support.model_plan`)
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.server.process import ROOT
from tests.support.model_plan import directive

LANGUAGES = ("sh", "console")

_COMMENT = re.compile(r"<!-- (not run|the model): (.+) -->")


class Step(NamedTuple):
    """One thing to type: a whole `sh` block, or one command of a `console` block with what it prints."""

    command: str
    printed: str | None

    def expects(self) -> re.Pattern[str]:
        assert self.printed is not None
        lines = ["(?:.*\n)*" if line == "…" else _line(line) for line in self.printed.splitlines()]
        return re.compile("".join(lines))


class Block(NamedTuple):
    page: str
    line: int
    steps: list[Step]
    plan: dict[str, str]
    reason: str  # why it is not run

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def read(page: str) -> str:
    return (ROOT / page).read_text()


def all_pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def blocks(page: str) -> list[Block]:
    """The blocks of a page that hold commands, in order."""
    found: list[Block] = []
    lines = read(page).splitlines()
    at = 0
    while at < len(lines):
        language = lines[at].removeprefix("```") if lines[at].startswith("```") else None
        if language is None:
            at += 1
            continue
        end = lines.index("```", at + 1)
        if language in LANGUAGES:
            found.append(_block(page, at, language, lines[at + 1 : end], _comment(lines, at)))
        at = end + 1
    return found


def _comment(lines: list[str], at: int) -> str:
    above = next((line for line in reversed(lines[:at]) if line.strip()), "")
    return above if above.startswith("<!--") else ""


def _block(page: str, at: int, language: str, lines: list[str], comment: str) -> Block:
    told = _COMMENT.fullmatch(comment)
    assert told or not comment, f"{page}:{at}: the tests do not know what {comment} means"
    kind, rest = told.groups() if told else ("", "")
    return Block(
        page,
        at + 1,
        _console(lines) if language == "console" else [Step("\n".join(lines), None)],
        directive(f"[[fake {rest}]]") if kind == "the model" else {},
        rest if kind == "not run" else "",
    )


def _console(lines: list[str]) -> list[Step]:
    assert lines[0].startswith("$ "), lines[0]
    steps: list[Step] = []
    for line in lines:
        if line.startswith("$ "):
            steps.append(Step(line[2:], ""))
        else:
            command, printed = steps[-1]
            steps[-1] = Step(command, f"{printed}{line}\n")
    return steps


def _line(line: str) -> str:
    return re.escape(line).replace("…", ".*") + "\n"
