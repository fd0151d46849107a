"""Whether a command line may run, and how: freely, in the read-only sandbox, or only if the user approves it.

A line runs freely only if every simple command in it is allowed by a rule or a grant, or reads only and is written so
plainly that there is no doubt (`exact_reads`). A line that merely seems to read only runs in the read-only sandbox.
Everything else is asked. Rules that deny hold for what cannot be read, too: in doubt, the user is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from kedge.tools.permissions import git, suggestions
from kedge.tools.permissions.decisions import Allow, Ask, Decision, Refuse
from kedge.tools.permissions.ground import (
    MAX_DIRECTORIES,
    Directories,
    change_directory,
    is_harmless_device,
    resolve_all,
)
from kedge.tools.permissions.policy import PLANNING, Found, Policy, Reason, refuse
from kedge.tools.permissions.programs import Programs
from kedge.tools.permissions.readonly import NEEDS_PROC, exact_reads, loose_reads
from kedge.tools.permissions.rules import Rule
from kedge.tools.permissions.shell import Command, Line, Redirect, Word, find_problem, names
from kedge.tools.permissions.shell_scan import read_line
from kedge.tools.permissions.wrappers import (
    is_harmless_variable,
    is_powerful_variable,
    possible_code,
    possible_commands,
    sets_powerful_variable,
    strip_plain_wrappers,
    unwrap,
)

MAX_SHOWN_CHARS = 120
MAX_WORDS = 1000  # of a line: each is looked at as a path, and as the beginning of a command
MAX_CODE_DEPTH = 4  # sh -c inside sh -c
# They look at a directory, and not into its files.
_LISTING = names("ls du df tree find stat file realpath readlink echo printf basename dirname cd git")


Approval = Literal["rule", "grant", "mode"]
_APPROVALS: dict[Approval, str] = {
    "rule": "the rules for its commands",
    "grant": "allowed for this session",
    "mode": "the mode allows the edit",
}
_SANDBOXED = "it runs in a read-only sandbox"


class Shell(msgspec.Struct, frozen=True):
    """What runs the command line, and whether a read-only sandbox can be had for it."""

    programs: Programs
    is_bash: bool = True  # another shell may read the line in another way
    has_sandbox: bool = False


class _Paths(msgspec.Struct, frozen=True):
    """The paths that words may mean, from every directory that the command may be in."""

    policy: Policy
    directories: Directories

    def of(self, word: Word) -> tuple[str, ...] | None:
        if word.text is None:
            return None
        return resolve_all(self.directories, word.text, is_glob=word.is_glob)


def check_command(policy: Policy, text: str, directory: str, shell: Shell, *, unsandboxed: bool = False) -> Decision:
    """`directory`: where the command starts, resolved. `unsandboxed`: it was asked to run without the sandbox."""
    if (rule := policy.find_whole_rule(policy.deny, "execute")) is not None:
        return refuse(rule, "to run commands")
    line = read_line(text, policy.ground.home)
    is_planning = policy.mode == "plan"
    if sum(len(command.words) for command in line.commands) > MAX_WORDS:
        if (
            not policy.deny
            and not is_planning
            and (rule := policy.find_whole_rule(policy.allow, "execute")) is not None
        ):
            return Allow(why=f"the rule {rule.text}", by="rule")
        why = f"it has more than {MAX_WORDS:,} words"
        return Refuse(why=f"{PLANNING}: {why}.") if is_planning else Ask.of([why], is_doubtful=bool(policy.deny))
    paths = _Paths(policy, _find_directories(line, directory))
    denied = _find_denials(line, text, paths)
    if isinstance(denied, Refuse):
        return denied
    if not denied and not is_planning and (rule := policy.find_whole_rule(policy.allow, "execute")) is not None:
        return Allow(why=f"the rule {rule.text}", by="rule")
    free = _merge([denied, _check_free(line, paths, shell, unsandboxed=unsandboxed)])
    if isinstance(free, Refuse):
        return free
    by = _find_approval(line, paths)
    if not free and by is not None and not is_planning:
        return Allow(why=_APPROVALS[by], by=by)
    if not free and by is None and not is_planning and not unsandboxed:
        needs_proc = any(command.words[0].text in NEEDS_PROC for command in line.commands)
        if shell.has_sandbox and not needs_proc:
            return Allow(why=_SANDBOXED, run_as="sandboxed", readable=_find_readable(line, paths))
        return Allow(why="it only reads", run_as="unapproved")
    problem = find_problem(text)
    loose = _merge([denied, [Reason(problem)] if problem else [], *_check_loose(line, paths, shell)])
    if not loose and free and policy.denies_some("read"):
        note = "it may read what a rule forbids; the grep tool leaves that out"
        loose = [Reason(f"`{_show(text)}`: {note}", is_read=True)]
    if isinstance(loose, Refuse):
        return loose
    if not loose and shell.has_sandbox and not unsandboxed:
        return Allow(why=_SANDBOXED, run_as="sandboxed", readable=_find_readable(line, paths))
    asked = _ask(line, free, loose, is_planning=is_planning, is_doubtful=bool(denied))
    if is_planning and isinstance(asked, Ask):
        return msgspec.structs.replace(asked, readable=_find_readable(line, paths, is_approved=True))
    return asked


def only_reads(policy: Policy, text: str, directory: str, shell: Shell) -> bool:
    """Whether a command line certainly changes nothing, whoever lets it run."""
    line = read_line(text, policy.ground.home)
    if sum(len(command.words) for command in line.commands) > MAX_WORDS:
        return False
    found = _check_free(line, _Paths(policy, _find_directories(line, directory)), shell, unsandboxed=False)
    return isinstance(found, list) and all(reason.is_read for reason in found)


def _ask(line: Line, free: list[Reason], loose: list[Reason], *, is_planning: bool, is_doubtful: bool) -> Refuse | Ask:
    """The reasons that the user sees, and the rules that would let the same line run freely the next time."""
    is_beside = not line.not_plain and any(reason.is_beside for reason in loose)
    shown = free if is_beside else loose or free
    if is_planning and not all(reason.is_read for reason in shown):
        return Refuse(why=f"{PLANNING}: {'; '.join(dict.fromkeys(reason.note for reason in shown))}.")
    rules = [reason.rule for reason in free if reason.rule is not None]
    can_remember = line.is_list and len(rules) == len(free)
    return Ask.of([reason.note for reason in shown], rules if can_remember else (), is_doubtful=is_doubtful)


# running freely


def _check_free(line: Line, paths: _Paths, shell: Shell, *, unsandboxed: bool) -> Refuse | list[Reason]:
    """Why a line may not run freely: nothing, if each command is approved, or reads only beyond doubt."""
    if line.not_plain or not shell.is_bash:
        return [Reason(line.not_plain or "there is no bash to run it")]
    found: list[Found] = [_check_redirect(redirect, paths) for redirect in line.redirects]
    for command in line.commands:
        if not _is_approved(command, paths.policy):
            if unsandboxed:
                found.append([_not_approved(command, "it asks to run without the sandbox")])
            elif line.is_list:
                found.append(_check_exact(command, paths, shell))
            else:
                found.append([_not_approved(command, "beside a command that a rule allows, only in a plain list")])
    return _merge(found)


def _check_exact(command: Command, paths: _Paths, shell: Shell) -> Refuse | list[Reason]:
    inner, wrappers = strip_plain_wrappers(command)
    name = inner.words[0].shown
    bare = Command((Word(name.removeprefix("/usr").removeprefix("/bin/")), *inner.words[1:]))
    reads = None if inner.assigned or not inner.words[0].is_literal else exact_reads(bare.words)
    is_foreign = any(shell.programs.is_foreign(each) for each in (*wrappers, name))
    if reads is None or is_foreign or (bare.words[0].text == "cd" and len(reads) != 1):
        return [_not_approved(command)]
    found: list[Found] = []
    for word in reads:
        resolved = paths.of(word)
        if resolved is None:
            return [_not_approved(command)]
        if bare.words[0].text == "git" and any(git.may_run_programs(path) for path in resolved):
            return [Reason(f"`{_show(command.text)}`: the settings of the repository there may run programs")]
        if any(Path(path).is_dir() for path in resolved) and _reads_files(bare) and paths.policy.denies_some("read"):
            return [_not_approved(command)]
        found += [_check_command_read(paths.policy, path) for path in resolved]
    return _merge(found)


def _not_approved(command: Command, note: str = "not known to be read-only") -> Reason:
    return Reason(f"`{_show(command.text)}`: {note}", suggestions.rule_for_command(strip_plain_wrappers(command)[0]))


def _check_redirect(redirect: Redirect, paths: _Paths) -> Found:
    resolved = paths.of(redirect.target)
    if resolved is None:
        return [Reason("a redirection leads to a file that is not known")]
    check = paths.policy.check_write if redirect.kind == "write" else paths.policy.check_read
    return _merge([check(path) for path in resolved if not is_harmless_device(path)])


def _check_command_read(policy: Policy, path: str) -> Found:
    found = policy.check_read(path)
    return [] if isinstance(found, list) and policy.ground.is_system(path) else found


def _is_approved(command: Command, policy: Policy) -> bool:
    if policy.mode == "plan":
        return False
    rules = policy.command_rules((*policy.allow, *policy.grants))
    return any(_matches(rule, each) for each in (command, strip_plain_wrappers(command)[0]) for rule in rules)


def _matches(rule: Rule, command: Command) -> bool:
    is_plain = all(is_harmless_variable(word) for word in command.assigned)
    return rule.matches_words(command.words if is_plain else (*command.assigned, *command.words)) == "yes"


def _find_approval(line: Line, paths: _Paths) -> Approval | None:
    """Whether the user approved any of it: by a rule, a grant, or the mode that lets a file be written."""
    policy = paths.policy
    found: set[str] = set()
    for redirect in line.redirects:
        if redirect.kind == "write" and not _is_device(redirect, paths):
            checked = [policy.check_write(path) for path in paths.of(redirect.target) or ()]
            found |= {each.by for each in checked if isinstance(each, Allow)}
    granted = [command for command in line.commands if _is_approved(command, policy)]
    without_grants = msgspec.structs.replace(policy, grants=())
    found |= {"rule" if _is_approved(command, without_grants) else "grant" for command in granted}
    return next((by for by in ("grant", "mode", "rule") if by in found), None)


def _is_device(redirect: Redirect, paths: _Paths) -> bool:
    return all(is_harmless_device(path) for path in paths.of(redirect.target) or ("",))


# running in the sandbox


def _check_loose(line: Line, paths: _Paths, shell: Shell, depth: int = 0) -> Iterator[Found]:
    """Why a line may not run in the read-only sandbox: it seems to write, or to read outside the workspace."""
    for word in filter(is_powerful_variable, line.assigned):
        yield [Reason(f"`{_show(word.shown)}`: it sets a variable that other programs obey")]
    for redirect in line.redirects:
        if redirect.kind == "read" and paths.of(redirect.target) is None:
            continue  # the sandbox decides what it can read
        found = _check_redirect(redirect, paths)
        if redirect.kind == "write" and isinstance(found, Allow) and not _is_device(redirect, paths):
            found = [Reason(f"changes {redirect.target.shown}")]
        yield found
    for command in line.commands:
        if command.words[0].text not in line.functions:
            yield from _check_loose_command(command, paths, shell, depth)


def _check_loose_command(command: Command, paths: _Paths, shell: Shell, depth: int) -> Iterator[Found]:
    shown = f"`{_show(command.text)}`"
    name = command.words[0].shown
    if depth > MAX_CODE_DEPTH:
        yield [Reason(f"{shown}: shells are nested too deeply")]
    elif sets_powerful_variable(command):
        yield [Reason(f"{shown}: it sets a variable that other programs obey")]
    elif shell.programs.is_foreign(name):
        yield [Reason(f"{shown}: a program of the workspace", suggestions.rule_for_command(command))]
    elif (inner := unwrap(command)) is not None:
        commands, codes = inner
        for each in commands:
            yield from _check_loose_command(each, paths, shell, depth + 1)
        for code in codes:
            yield from _check_loose(read_line(code, paths.policy.ground.home), paths, shell, depth + 1)
    else:
        bare = (Word(name.removeprefix("/usr").removeprefix("/bin/")), *command.words[1:])
        reads = loose_reads(bare) if command.words[0].text is not None else None
        if reads is None:
            is_approved = _is_approved(command, paths.policy)
            note = "allowed, but only in a line of plain commands" if is_approved else "not known to be read-only"
            rule = suggestions.rule_for_command(command)
            yield [Reason(f"{shown}: {note}", rule, is_beside=is_approved)]
        else:
            for word in reads:
                yield _check_loose_path(word, paths)


def _check_loose_path(word: Word, paths: _Paths) -> Found:
    """A path outside the workspace is asked about if it is there; the sandbox hides it in any case."""
    resolved = paths.of(word) or ()
    found = [_check_command_read(paths.policy, path) for path in resolved if Path(path).exists()]
    if any(isinstance(each, Refuse) for each in found):
        return _merge(found)
    return found[0] if found and all(isinstance(each, list) and each for each in found) else []


def _find_readable(line: Line, paths: _Paths, *, is_approved: bool = False) -> tuple[str, ...]:
    """Paths outside the workspace that the user's rules, or the user, allow this line to read."""
    words = [word for command in line.commands for word in command.words[1:]]
    words += [redirect.target for redirect in line.redirects]
    policy = paths.policy
    resolved = {path for word in words for path in paths.of(word) or () if not policy.ground.is_free_to_read(path)}
    return tuple(sorted(path for path in resolved if is_approved or isinstance(policy.check_read(path), Allow)))


# rules that deny


def _find_denials(line: Line, text: str, paths: _Paths, depth: int = 0) -> Refuse | list[Reason]:
    """Refuse what a deny rule names; a reason to ask for each thing that one may name."""
    policy = paths.policy
    rules = policy.command_rules(policy.deny)
    doubts: list[Found] = []
    for command in line.commands:
        for words in _forms(command):
            for rule in rules:
                match rule.matches_words(words):
                    case "yes":
                        return refuse(rule, f"to run `{_show(' '.join(word.shown for word in words))}`")
                    case "maybe":
                        doubts.append(_doubt(command.text, rule))
                    case _:
                        pass
        if policy.deny and depth < MAX_CODE_DEPTH:
            doubts += [
                _find_denials(read_line(code, policy.ground.home), code, paths, depth + 1)
                for code in possible_code(command.words)
            ]
        inner = unwrap(command) or ([], [])
        doubts += [_find_denied_paths(each, paths) for each in (command, *inner[0])]
    doubts += [_deny_redirect(redirect, paths) for redirect in line.redirects]
    doubts += [_doubt_paths(word, paths, word.shown) for word in line.others]
    if line.not_plain:
        doubts += [_doubt(text, rule) for rule in rules if find_problem(text) is not None or _mentions(text, rule)]
    return _merge(doubts)


def _forms(command: Command) -> Iterator[Sequence[Word]]:
    for words in possible_commands(command.words):
        yield words
        if words[0].text == "git":
            yield from git.without_globals(words)


def _mentions(text: str, rule: Rule) -> bool:
    """Whether a text that cannot be read exactly has all the words of a rule, however they are quoted."""
    plain = re.sub(r"\\\n|[\\'\"${}]", "", text)
    patterns = [word.regex.pattern for word in rule.words or () if not word.is_any]
    return all(re.search(rf"(?<![\w-])(?:{pattern})(?![\w-])", plain) for pattern in patterns)


def _doubt(text: str, rule: Rule) -> list[Reason]:
    return [Reason(f"`{_show(text)}`: it may be what the rule {rule.text!r} forbids")]


def _find_denied_paths(command: Command, paths: _Paths) -> Refuse | list[Reason]:
    """A command that reads a denied path is refused; one that may read or change one is asked about."""
    policy = paths.policy
    if not policy.denies_some("read") and not policy.denies_some("write"):
        return []
    reads = loose_reads(command.words)
    found: list[Found] = []
    for word in command.words[1:] if reads is None else reads:
        resolved = paths.of(word)
        for path in resolved or ():
            if reads is not None and (rule := policy.find_denial("read", path)) is not None:
                return refuse(rule, f"to read {path}")
            if reads is not None and policy.denies_some("read") and _reads_files(command) and Path(path).is_dir():
                note = "it may read what a rule forbids; the grep tool leaves that out"
                found.append([Reason(f"`{_show(command.text)}`: {note}", is_read=True)])
        if resolved is None and reads is not None and policy.denies_some("read"):
            found.append([Reason(f"`{_show(command.text)}`: which files it reads is not known", is_read=True)])
        if reads is None:
            found.append(_doubt_paths(word, paths, command.text))
    return _merge(found)


def _doubt_paths(word: Word, paths: _Paths, text: str) -> list[Reason]:
    for path in paths.of(word) or ():
        rule = paths.policy.find_denial("read", path) or paths.policy.find_denial("write", path)
        if rule is not None:
            return _doubt(text, rule)
    return []


def _deny_redirect(redirect: Redirect, paths: _Paths) -> Found:
    for path in paths.of(redirect.target) or ():
        if (rule := paths.policy.find_denial(redirect.kind, path)) is not None:
            return refuse(rule, f"to {'read' if redirect.kind == 'read' else 'change'} {path}")
    return []


def _reads_files(command: Command) -> bool:
    name = command.words[0].shown.rpartition("/")[2]
    return name not in _LISTING or (name == "git" and any(word.text == "grep" for word in command.words))


# helpers


def _find_directories(line: Line, directory: str) -> Directories:
    """The directories that the commands of a line may run in; None: not known."""
    found: Directories = frozenset({directory})
    targets: list[str] = []
    for command in line.commands:
        for words in possible_commands(command.words):
            name = words[0].text
            if name == "cd":
                if len(words) != 2 or words[1].text in (None, "", "-") or words[1].is_glob:
                    return None
                targets.append(words[1].shown)
            elif name in ("pushd", "popd"):
                return None
        if command.words[0].text in ("source", ".", "eval"):
            return None
    for _ in range(min(len(targets), MAX_DIRECTORIES)):
        before = found
        for target in dict.fromkeys(targets):
            found = change_directory(found, target)
        if found == before:
            break
    return found


def _merge(found: Sequence[Found]) -> Refuse | list[Reason]:
    reasons: list[Reason] = []
    for each in found:
        if isinstance(each, Refuse):
            return each
        if isinstance(each, list):
            reasons += each
    return reasons


def _show(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= MAX_SHOWN_CHARS else flat[: MAX_SHOWN_CHARS - 1] + "…"
