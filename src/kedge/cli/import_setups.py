"""`kedge import`: find set-ups of other agents, and take over what the user picks. Needs no server."""

from __future__ import annotations

import os
import re
import sys

from kedge.cli.common import EXIT_FAILED, EXIT_OK, EXIT_USAGE, find_directory, run_command
from kedge.cli.options import Options, UsageError, named
from kedge.cli.output import print_error, print_json, print_table
from kedge.protocol.text_safety import one_line, visible_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from kedge.imports.items import Agent, Item, Problem
    from kedge.imports.take_over import Outcome, Target

HELP = """\
usage: kedge import [OPTION ...] [ID ...]

Find set-ups of Claude Code, Codex, opencode, Crush and Gemini CLI: MCP servers, permission rules, hooks, skills,
commands, agents and instructions. At a terminal you choose what to take over; in a script name IDs (the start of one is
enough, like claude/mcp), or use --all. Nothing of theirs is changed, nothing of yours is overwritten, and secrets are
not copied.

      --from AGENTS           look only for these: claude,codex,opencode,crush,gemini
      --all                   take over everything that can be
      --dry-run               only show what would be taken over
      --json                  print JSON
  -c, --cwd DIR               workspace directory (default: the current directory)
  -h, --help                  show this help
"""
FLAGS = named("--all", "--dry-run", "--json")
VALUES = named("--from", "-c --cwd")
CONNECTS = False
_TITLES = {"claude": "Claude Code", "codex": "Codex", "opencode": "opencode", "crush": "Crush", "gemini": "Gemini CLI"}
_KINDS = {
    "mcp": "MCP server",
    "allow": "allow rule",
    "deny": "deny rule",
    "mode": "mode",
    "hook": "hook",
    "skill": "skill",
    "command": "command",
    "agent": "agent",
    "instructions": "instructions",
}
_STATES = {
    "new": "",
    "used": "already used where it is",
    "known": "already there",
    "conflict": "not taken over",
    "left_out": "cannot be taken over",
}
_SELECTION = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
MAX_SHOWN_CHARS = 60


def run(argv: list[str]) -> int:
    from kedge.config.errors import BadConfig

    try:
        return run_command(argv, help_text=HELP, flags=FLAGS, values=VALUES, action=_import, connects=CONNECTS)
    except BadConfig as error:
        for problem in error.problems:
            print_error(str(problem), EXIT_USAGE)
        return EXIT_USAGE


def _import(options: Options) -> int:
    from pathlib import Path

    from kedge.config.files import ConfigPaths
    from kedge.imports.sources import Places, find_items
    from kedge.imports.take_over import Target, compare_items, take_over

    project = Path(os.path.realpath(find_directory(options.get("cwd"))))
    paths = ConfigPaths.from_env()
    home = Path(os.environ.get("HOME") or Path.home())
    places = Places(home, paths.user.parent.parent, project, os.environ)
    found, reader = find_items(places, _read_agents(options))
    target = Target(paths, project)
    items = compare_items(found, target)
    new = [item for item in items if item.state == "new"]
    chosen = _choose_by_options(new, items, options)
    asks = chosen is None and os.isatty(0) and os.isatty(1) and not options.has("json") and not options.has("dry-run")
    if not options.has("json"):
        _print_items(items, new, target)
        _print_problems(reader.problems)
    if asks and new:
        chosen = _ask(new)
    is_dry = options.has("dry-run")
    picked = new if chosen is None and is_dry else chosen or []
    outcomes = [] if is_dry else take_over(picked, target)
    if options.has("json"):
        _print_json(items, picked if is_dry else [], outcomes, reader.problems, target)
    else:
        _print_outcomes(outcomes, picked if is_dry else [], target)
        if new and chosen is None and not asks and not is_dry:
            print("\nTake them over with: kedge import --all, or: kedge import ID ...")
    return EXIT_FAILED if any(each.error for each in outcomes) else EXIT_OK


def _read_agents(options: Options) -> tuple[Agent, ...]:
    from kedge.imports.items import AGENTS

    given = options.get("from")
    if given is None:
        return AGENTS
    names = [name.strip() for name in given.split(",") if name.strip()]
    for name in names:
        if name not in AGENTS:
            raise UsageError(f"Unknown agent {name!r} (choose from {', '.join(AGENTS)})")
    return tuple(agent for agent in AGENTS if agent in names)


def _choose_by_options(new: Sequence[Item], items: Sequence[Item], options: Options) -> list[Item] | None:
    """Return the items that the arguments name; None if they name none."""
    if options.has("all"):
        if options.words:
            raise UsageError("Use --all, or name IDs, not both")
        return list(new)
    if not options.words:
        return None
    for word in options.words:
        if not any(_matches(item, word) for item in items):
            raise UsageError(f"Nothing was found with the ID {word!r}; kedge import --dry-run lists all")
    return [item for item in new if any(_matches(item, word) for word in options.words)]


def _matches(item: Item, word: str) -> bool:
    return item.id == word or item.id.startswith(f"{word.rstrip('/')}/")


def _print_items(items: Sequence[Item], new: Sequence[Item], target: Target) -> None:
    if not items:
        print("Nothing was found of Claude Code, Codex, opencode, Crush or Gemini CLI.")
        return
    numbers = {item.id: number for number, item in enumerate(new, 1)}
    for agent in dict.fromkeys(item.agent for item in items):
        print(f"\n{_TITLES[agent]}")
        print_table([_make_row(item, numbers, target) for item in items if item.agent == agent])


def _make_row(item: Item, numbers: dict[str, int], target: Target) -> tuple[str, str, str, str]:
    where = "" if item.scope == "user" else " (project)"
    note = "; ".join(filter(None, [_STATES[item.state], item.note]))
    number = str(numbers[item.id]) if item.id in numbers else "-"
    return number, f"{_KINDS[item.kind]}{where}", one_line(item.name, MAX_SHOWN_CHARS), one_line(note, 100)


def _print_problems(problems: Sequence[Problem]) -> None:
    for problem in problems:
        print_error(visible_line(f"{problem.path} {problem.why}"), EXIT_OK)


def _ask(new: Sequence[Item]) -> list[Item]:
    """Ask which to take over: numbers and ranges, all, or nothing."""
    while True:
        print("\nTake over which? Numbers like 1-3 5, all, or nothing (Enter): ", end="", flush=True)
        answer = sys.stdin.readline()
        words = answer.replace(",", " ").split()
        if not words:
            print()
            return []
        if words == ["all"]:
            return list(new)
        chosen = _read_numbers(words, len(new))
        if chosen is not None:
            return [new[number - 1] for number in chosen]
        print_error(f"Write numbers from 1 to {len(new)}, all, or nothing", EXIT_OK)


def _read_numbers(words: Sequence[str], most: int) -> list[int] | None:
    chosen: dict[int, None] = {}
    for word in words:
        found = _SELECTION.fullmatch(word)
        if found is None:
            return None
        first, last = int(found[1]), int(found[2] or found[1])
        if not 1 <= first <= last <= most:
            return None
        chosen |= dict.fromkeys(range(first, last + 1))
    return list(chosen)


def _print_outcomes(outcomes: Sequence[Outcome], would: Sequence[Item], target: Target) -> None:
    if outcomes or would:
        print()
    for item in would:
        print(visible_line(f"would add {item.id} to {target.file_of(item)}"))
    for outcome in outcomes:
        if outcome.error:
            print_error(visible_line(f"{outcome.item.id} was not taken over: {outcome.error}"), EXIT_FAILED)
        else:
            print(visible_line(f"added {outcome.item.id} to {outcome.target}"))
            if outcome.item.kind == "mcp" and outcome.item.note:
                print_error(visible_line(f"{outcome.item.name}: {outcome.item.note}"), EXIT_OK)
    if any(outcome.item.scope == "workspace" and not outcome.error for outcome in outcomes):
        print_error("What was added to the project has an effect in a trusted directory: kedge config trust", EXIT_OK)


def _print_json(
    items: Sequence[Item],
    would: Sequence[Item],
    outcomes: Sequence[Outcome],
    problems: Sequence[Problem],
    target: Target,
) -> None:
    def describe(item: Item) -> dict[str, Any]:
        return {
            "id": item.id,
            "agent": item.agent,
            "kind": item.kind,
            "name": item.name,
            "scope": item.scope,
            "path": item.path,
            "target": str(target.file_of(item)),
            "state": item.state,
            "note": item.note,
        }

    print_json(
        {
            "found": [describe(item) for item in items],
            "would_add": [item.id for item in would],
            "added": [outcome.item.id for outcome in outcomes if not outcome.error],
            "failed": [{"id": each.item.id, "error": each.error} for each in outcomes if each.error],
            "problems": [{"path": each.path, "problem": each.why} for each in problems],
        }
    )
