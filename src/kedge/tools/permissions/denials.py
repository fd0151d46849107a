"""Apply deny rules to a command line: deny what they name, and ask about what they may name.

They also apply to lines that are not plain: those are asked about if they contain the words of a rule.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from kedge.tools.permissions import git
from kedge.tools.permissions.context import Context, merge, show
from kedge.tools.permissions.paths import is_harmless_device, is_written_safely
from kedge.tools.permissions.policy import Deny, Reason, Verdict, deny_by
from kedge.tools.permissions.readonly import find_loose_reads, reads_files
from kedge.tools.permissions.rules import Rule
from kedge.tools.permissions.shell import Command, Line, Redirect, Word, find_problem
from kedge.tools.permissions.shell_scanner import read_line
from kedge.tools.permissions.wrappers import find_possible_code, find_possible_commands, unwrap

MAX_CODE_DEPTH = 4  # sh -c inside sh -c


def find_denials(line: Line, text: str, context: Context, depth: int = 0) -> Deny | list[Reason]:
    """Deny if a deny rule matches; otherwise a reason to ask for each part that one may match."""
    policy = context.policy
    rules = policy.command_rules(policy.deny)
    doubts: list[Verdict] = []
    for command in line.commands:
        for words in _find_forms(command):
            for rule in rules:
                match rule.matches_words(words):
                    case "yes":
                        return deny_by(rule, f"running `{show(' '.join(word.shown for word in words))}`")
                    case "maybe":
                        doubts.append(_doubt(command.text, rule))
                    case _:
                        pass
        if depth >= MAX_CODE_DEPTH:
            doubts += [_doubt(text, rule) for rule in rules]
        elif policy.deny:
            doubts += [
                find_denials(read_line(code, policy.roots.home), code, context, depth + 1)
                for code in find_possible_code(command.words)
            ]
        inner = unwrap(command) or ([], [])
        doubts += [_find_denied_paths(each, context) for each in (command, *inner[0])]
    doubts += [_deny_redirect(redirect, context) for redirect in line.redirects]
    if policy.denies_some("read") or policy.denies_some("write"):
        doubts += [_doubt_paths(word, context, word.shown) for word in line.others]
    if line.not_plain:
        doubts += [_doubt(text, rule) for rule in rules if find_problem(text) is not None or _mentions(text, rule)]
    return merge(doubts)


def _find_forms(command: Command) -> Iterator[Sequence[Word]]:
    """The commands that this one may come down to, behind wrappers and git's own options."""
    for words in find_possible_commands(command.words):
        yield words
        if words[0].text == "git":
            yield from git.strip_globals(words)


def _mentions(text: str, rule: Rule) -> bool:
    """Whether a text that cannot be read exactly has all the words of a rule, however they are quoted."""
    plain = re.sub(r"\\\n|[\\'\"${}]", "", text)
    texts = [plain, re.sub(r"(?<![\w-])python[\d.]*(?![\w-])", rule.python, plain)] if rule.python else [plain]
    words = [word.regex.pattern for word in rule.words or () if not word.is_any]
    patterns = [re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])") for pattern in words]
    return any(all(pattern.search(text) for pattern in patterns) for text in texts)


def _doubt(text: str, rule: Rule) -> list[Reason]:
    return [Reason(f"`{show(text)}` may match the deny rule {rule.text!r}")]


def _find_denied_paths(command: Command, context: Context) -> Deny | list[Reason]:
    """Deny a command that reads a denied path; reasons to ask if it may read or change one."""
    policy = context.policy
    if not policy.denies_some("read") and not policy.denies_some("write"):
        return []
    reads = find_loose_reads(command.words)
    found: list[Verdict] = []
    for word in command.words[1:] if reads is None else reads:
        resolved = context.find_paths(word)
        for path in resolved or ():
            if reads is not None and (rule := policy.find_denial("read", path)) is not None:
                return deny_by(rule, f"reading {path}")
            if reads is not None and policy.denies_some("read") and reads_files(command) and os.path.isdir(path):
                found.append([Reason(f"`{show(command.text)}` may read files that a rule denies", is_read=True)])
        if resolved is None and reads is not None and policy.denies_some("read"):
            found.append([Reason(f"`{show(command.text)}` reads files that are not known in advance", is_read=True)])
        if reads is None:
            found.append(_doubt_paths(word, context, command.text))
    return merge(found)


def _doubt_paths(word: Word, context: Context, text: str) -> list[Reason]:
    """A reason to ask if a word, or the value in it (`--to=x`, `-ox`), may be a path that a rule denies."""
    policy = context.policy
    if word.text is None:
        return [Reason(f"`{show(text)}` uses files that are not known in advance")]
    for candidate in dict.fromkeys((word.text, word.text.partition("=")[2], word.text[2:])):
        paths = context.find_paths(Word(candidate, is_glob=word.is_glob)) if candidate else ()
        if paths is None:
            return [Reason(f"`{show(text)}` uses files that are not known in advance")]
        rules = [policy.find_denial("read", path) or policy.find_denial("write", path) for path in paths]
        if (rule := next((rule for rule in rules if rule is not None), None)) is not None:
            return _doubt(text, rule)
    return []


def _deny_redirect(redirect: Redirect, context: Context) -> Verdict:
    found = context.find_paths(redirect.target)
    is_reopened = any(is_harmless_device(path) and not is_written_safely(path) for path in found or ())
    if (found is None or is_reopened) and context.policy.denies_some(redirect.kind):
        return [Reason("redirects to a file that is not known in advance")]
    for path in found or ():
        if (rule := context.policy.find_denial(redirect.kind, path)) is not None:
            return deny_by(rule, f"{'reading' if redirect.kind == 'read' else 'changing'} {path}")
    return []
