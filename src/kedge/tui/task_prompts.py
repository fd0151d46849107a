"""Prompts that commands of the interface send: text for the model."""

from __future__ import annotations

INIT = """\
Write AGENTS.md in the root of this project: what an engineer who has never seen it must know to work in it. If the \
file is there already, keep what is still right, correct what is wrong, and add what is missing.

Find out before you write: read the README, the build and test configuration, the CI workflows, the instructions of \
other agents (CLAUDE.md, .cursorrules, .github/copilot-instructions.md and the like), and enough of the source to see \
how it is organized. State only what you have seen.

Include, as far as it applies: the commands to install, build, run, check and test, and to run a single test; the \
layout of the source in a few lines; conventions that are not obvious (names, errors, types, tests, commits); traps. \
Leave out what any engineer knows and what a look at the tree shows. Stay below 60 lines.\
"""

_REVIEW = """\
Review {what}. Do not change any file.

Read the diff, then the code around it, as far as you need it to judge. Look for defects first: wrong results, \
unhandled cases and errors, races, security, lost data, broken callers. Then for missing tests, and for code that is \
more complicated than what it does.

Report findings in the order of their weight. For each: file and line, what goes wrong in which case, and how to fix \
it. Verify each finding in the code before you report it, and leave out matters of taste. If there are none, say so.\
"""
_UNCOMMITTED = (
    "the uncommitted changes of this repository (git status, git diff HEAD, and files that git does not track yet). "
    "If there are none, review the last commit"
)
_SINCE = "what this branch changes compared with {base} (git diff {base}...HEAD), and the uncommitted changes"


def make_init_prompt(wishes: str) -> str:
    return f"{INIT}\n\nThe user adds: {wishes}" if wishes else INIT


def make_review_prompt(base: str) -> str:
    """Return the prompt of a review: against a branch or commit, or else of the uncommitted changes."""
    return _REVIEW.format(what=_SINCE.format(base=base) if base else _UNCOMMITTED)
