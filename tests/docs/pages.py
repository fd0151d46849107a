"""The pages of the documentation, and the commands in them.

A fenced `sh` block must succeed. In a `console` block a line that begins with `$` is a command, and what follows it is
what it prints, with `…` for whatever differs. Comments before a block, which readers do not see, can say

    <!-- the model: text=hello -->             how the scripted model answers in this block (`tests.support.model_plan`)
    <!-- at a terminal: Provider: → openai -->  each line is typed at a terminal; when that is seen, this is entered
    <!-- left running: listening -->           it is left alone as soon as it says that
    <!-- in a fresh environment -->            where nothing is installed yet (`test_fresh.py`)
    <!-- not run: REASON -->                   what the block needs cannot be had in a test (`test_commands.py`)
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tests.server.process import ROOT
from tests.support.model_plan import directive

LANGUAGES = ("sh", "console")

_COMMENT = re.compile(r"<!-- (not run|the model|at a terminal|left running|in a fresh environment)(?:: (.+))? -->")


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
    told: dict[str, str]  # by the comments

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def reason(self) -> str:
        """Why it is not run."""
        return self.told.get("not run", "")

    @property
    def plan(self) -> dict[str, str]:
        return directive(f"[[fake {self.told['the model']}]]") if "the model" in self.told else {}

    @property
    def is_fresh(self) -> bool:
        return "in a fresh environment" in self.told

    @property
    def answers(self) -> list[tuple[str, str]] | None:
        """What is waited for at a terminal, and what is entered then; None: no terminal is needed."""
        if "at a terminal" not in self.told:
            return None
        pairs = [pair.partition(" → ") for pair in self.told["at a terminal"].split(", ")]
        return [(seen, keys) for seen, _, keys in pairs]


def read(page: str) -> str:
    return (ROOT / page).read_text()


def all_pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def for_readers() -> list[str]:
    """The README and every page of the documentation but the decisions."""
    return ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md"))]


def blocks(page: str) -> list[Block]:
    """The blocks of a page that hold commands, in order."""
    return [
        _block(page, at, language, body, comments)
        for at, language, body, comments in _fences(page)
        if language in LANGUAGES
    ]


def fenced(page: str, language: str) -> list[str]:
    """The text of every block in that language; of those without one where it is empty."""
    return ["".join(f"{line}\n" for line in body) for _, found, body, _ in _fences(page) if found == language]


def languages(page: str) -> set[str]:
    return {language for _, language, _, _ in _fences(page)}


def _fences(page: str) -> list[tuple[int, str, list[str], list[str]]]:
    found: list[tuple[int, str, list[str], list[str]]] = []
    lines = read(page).splitlines()
    at = 0
    while at < len(lines):
        if not lines[at].startswith("```"):
            at += 1
            continue
        end = lines.index("```", at + 1)
        found.append((at + 1, lines[at].removeprefix("```"), lines[at + 1 : end], _comments(lines, at)))
        at = end + 1
    return found


def _comments(lines: list[str], at: int) -> list[str]:
    first = at
    while first and lines[first - 1].startswith("<!--"):
        first -= 1
    return lines[first:at]


def _block(page: str, line: int, language: str, body: list[str], comments: list[str]) -> Block:
    told: dict[str, str] = {}
    for comment in comments:
        match = _COMMENT.fullmatch(comment)
        assert match, f"{page}:{line}: the tests do not know what {comment} means"
        told[match[1]] = match[2] or ""
    return Block(page, line, _console(body) if language == "console" else [Step("\n".join(body), None)], told)


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
