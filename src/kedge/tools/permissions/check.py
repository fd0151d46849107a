"""Decide whether a command line runs freely, runs in the read-only sandbox, or needs the user's approval.

A line runs freely only if every simple command in it is allowed by a rule or a grant, or certainly only reads
(`find_exact_reads`). A line that seems to only read runs in the read-only sandbox. For everything else the user is
asked. Deny rules also apply to lines that cannot be read exactly: in doubt, the user is asked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from kedge.protocol.text_safety import shorten
from kedge.tools.permissions import git
from kedge.tools.permissions.context import Context, Shell, merge, show
from kedge.tools.permissions.denials import MAX_CODE_DEPTH, find_denials
from kedge.tools.permissions.paths import is_harmless_device, is_written_safely
from kedge.tools.permissions.policy import (
    PLANNING,
    Allow,
    Ask,
    Decision,
    Deny,
    Policy,
    Reason,
    Verdict,
    deny_by,
    rule_for_command,
)
from kedge.tools.permissions.readonly import NEEDS_PROC, find_exact_reads, find_loose_reads, is_filter, reads_files
from kedge.tools.permissions.rules import Rule
from kedge.tools.permissions.shell import TOO_COMPLEX, Command, Line, Redirect, Word, find_problem
from kedge.tools.permissions.shell_scanner import read_line
from kedge.tools.permissions.wrappers import (
    is_harmless_variable,
    is_powerful_variable,
    sets_powerful_variable,
    strip_bin,
    strip_plain_wrappers,
    unwrap,
)

MAX_WORDS = 1000  # of a line; each is checked as a path and as the start of a command
MAX_CHECKED_PARTS = 50  # of a line, one by one, to name those that are not allowed
MAX_WHY_CHARS = 1000
MAY_CHANGE = "may change files"
Approval = Literal["rule", "grant", "mode"]
_APPROVALS: dict[Approval, str] = {
    "rule": "the rules for its commands",
    "grant": "allowed for this session",
    "mode": "the mode allows the edit",
}
_SANDBOXED = "it runs in a read-only sandbox"
_SETS_VARIABLE = "sets an environment variable that other programs use"


def check_command(policy: Policy, text: str, directory: str, shell: Shell, *, unsandboxed: bool = False) -> Decision:
    """`directory`: where the command starts, resolved. `unsandboxed`: the model asked to run it without the sandbox."""
    if (rule := policy.find_whole_rule(policy.deny, "execute")) is not None:
        return deny_by(rule, "running commands")
    line = read_line(text, policy.roots.home)
    is_planning = policy.mode == "plan"
    if sum(len(command.words) for command in line.commands) > MAX_WORDS:
        rule = None if policy.deny or is_planning else policy.find_whole_rule(policy.allow, "execute")
        if rule is not None:
            return Allow(why=f"the rule {rule.text}", by="rule")
        why = f"the command has more than {MAX_WORDS:,} words"
        return Deny(why=f"{PLANNING}: {why}.") if is_planning else Ask.of([why], may_be_denied=bool(policy.deny))
    context = Context.of(policy, shell, line, directory)
    decision = _check_line(line, text, context, unsandboxed=unsandboxed)
    if isinstance(decision, Allow) or not line.is_list:
        return decision
    return _name_parts(decision, line, text, context, unsandboxed=unsandboxed)


def _check_line(line: Line, text: str, context: Context, *, unsandboxed: bool) -> Decision:
    policy, shell, is_planning = context.policy, context.shell, context.policy.mode == "plan"
    denied = find_denials(line, text, context)
    if isinstance(denied, Deny):
        return denied
    if not denied and not is_planning and (rule := policy.find_whole_rule(policy.allow, "execute")) is not None:
        return Allow(why=f"the rule {rule.text}", by="rule")
    free = merge([denied, _check_free(line, context, unsandboxed=unsandboxed)])
    if isinstance(free, Deny):
        return free
    by = _find_approval(line, context)
    if not free and by is not None and not is_planning:
        # Where only a redirection was approved, the commands were not.
        is_approved = any(_is_approved(command, context) for command in line.commands)
        return Allow(why=_APPROVALS[by], by=by, run_as="approved" if is_approved else "unapproved")
    if not free and by is None and not is_planning and not unsandboxed:
        readable = _find_readable(line, context)
        is_hidden = any(policy.roots.is_hidden_by_sandbox(path) for path in readable)
        if shell.has_sandbox and not is_hidden and not _only_shows_processes(line):
            return Allow(why=_SANDBOXED, run_as="sandboxed", readable=readable)
        return Allow(why="it only reads", run_as="unapproved")
    problem = find_problem(text)
    loose = merge([denied, [Reason(problem)] if problem else [], *_check_loose(line, context)])
    if not loose and free and policy.denies_some("read"):
        loose = [Reason(f"`{show(text)}` may read files that a rule denies", is_read=True)]
    if isinstance(loose, Deny):
        return loose
    if not loose and shell.has_sandbox and not unsandboxed:
        return Allow(why=_SANDBOXED, run_as="sandboxed", readable=_find_readable(line, context))
    asked = _ask(line, free, loose, is_planning=is_planning, may_be_denied=bool(denied))
    if is_planning and isinstance(asked, Ask):
        return msgspec.structs.replace(asked, readable=_find_readable(line, context, is_approved=True))
    return asked


def _only_shows_processes(line: Line) -> bool:
    """Whether it reads nothing but processes, which the sandbox would hide: `ps aux | grep x | head -n 5`."""
    others = [command for command in line.commands if command.words[0].text not in NEEDS_PROC]
    return not line.redirects and len(others) < len(line.commands) and all(is_filter(command) for command in others)


def only_reads(policy: Policy, text: str, directory: str, shell: Shell) -> bool:
    """Whether a command line certainly changes nothing, however it was approved."""
    line = read_line(text, policy.roots.home)
    if sum(len(command.words) for command in line.commands) > MAX_WORDS:
        return False
    found = _check_free(line, Context.of(policy, shell, line, directory), unsandboxed=False)
    return isinstance(found, list) and all(reason.is_read for reason in found)


def _ask(line: Line, free: list[Reason], loose: list[Reason], *, is_planning: bool, may_be_denied: bool) -> Deny | Ask:
    """Ask with the reasons to show, and the rules that would let the same line run freely the next time."""
    is_mixed = not line.not_plain and any(reason.needs_plain_line for reason in loose)
    shown = free if is_mixed else loose or free
    if is_planning and not all(reason.is_read for reason in shown):
        return Deny(why=f"{PLANNING}: {'; '.join(dict.fromkeys(reason.note for reason in shown))}.")
    needed = shown if is_planning else free  # in mode plan the user can only allow reading outside the workspace
    can_remember = line.is_list or is_planning
    return Ask.of([reason.note for reason in shown], needed if can_remember else (), may_be_denied=may_be_denied)


# What the model is told about a list of commands


def _name_parts(decision: Deny | Ask, line: Line, text: str, context: Context, *, unsandboxed: bool) -> Deny | Ask:
    """Add to the decision which parts of the line are the reason for it, and whether the others would be allowed."""
    parts = [*line.commands, *line.redirects]
    if len(parts) == 1 and isinstance(decision, Ask):
        return msgspec.structs.replace(decision, parts=(_describe_part(parts[0].text, decision.notes),))
    if not 1 < len(parts) <= MAX_CHECKED_PARTS:
        return decision
    checked = [(each, _check_line(_line_of([each]), text, context, unsandboxed=unsandboxed)) for each in parts]
    asked = [(each, found) for each, found in checked if isinstance(found, Ask)]
    free = [each for each, found in checked if isinstance(found, Allow)]
    others = ""
    if len(free) == len(parts):
        others = "Each part of the command would have been allowed alone: make separate calls."
    elif free and isinstance(_check_line(_line_of(free), text, context, unsandboxed=unsandboxed), Allow):
        others = "The rest of the command would have been allowed."
    if isinstance(decision, Ask):
        named = [_describe_part(each.text, found.notes) for each, found in asked]
        if not named:  # each is allowed alone, but one only in the sandbox, where the others cannot run
            reasons = merge([_check_free(line, context, unsandboxed=unsandboxed)])
            notes = dict.fromkeys(reason.note for reason in reasons) if isinstance(reasons, list) else ()
            named = [f"{note.removesuffix(f' {MAY_CHANGE}')} (together with the other parts)" for note in notes]
        return msgspec.structs.replace(decision, parts=tuple(named), others=others)
    denied = [(f"`{show(each.text)}`", found) for each, found in checked if isinstance(found, Deny)]
    more: list[str] = []
    if decision.by == "rule":
        more += [f"Also: {why}" for why in dict.fromkeys(found.why for _, found in denied) if why != decision.why]
        if asked:
            more.append(f"The user's approval is needed for {', '.join(f'`{show(each.text)}`' for each, _ in asked)}.")
    elif any(shown not in decision.why for shown, _ in denied):
        more.append(f"This is about {', '.join(shown for shown, _ in denied)}.")
    return msgspec.structs.replace(decision, why=shorten(" ".join([decision.why, *more]), MAX_WHY_CHARS), others=others)


def _describe_part(text: str, notes: Sequence[str]) -> str:
    shown = f"`{show(text)}`"
    whys = [note.removeprefix(shown).lstrip(": ") for note in notes]
    why = "; ".join(why for why in whys if why != MAY_CHANGE)
    return f"{shown} ({why})" if why else shown


def _line_of(parts: Sequence[Command | Redirect]) -> Line:
    return Line(
        commands=[part for part in parts if isinstance(part, Command)],
        redirects=[part for part in parts if isinstance(part, Redirect)],
    )


# Running freely


def _check_free(line: Line, context: Context, *, unsandboxed: bool) -> Deny | list[Reason]:
    """Reasons why a line may not run freely; none if each command is approved or certainly only reads."""
    if line.not_plain or not context.shell.is_bash:
        return [Reason(line.not_plain or "bash is not available, and another shell may read the command differently")]
    if line.has_control_flow and not line.commands:
        return [Reason(TOO_COMPLEX)]
    found: list[Verdict] = [_check_redirect(redirect, line, context) for redirect in line.redirects]
    for command in line.commands:
        if not _is_approved(command, context):
            if unsandboxed:
                found.append([_not_approved(command, "asks to run without the sandbox")])
            elif line.is_list:
                found.append(_check_exact(command, context, writes=_writes(line, context)))
            else:
                found.append([_not_approved(command, "is in a loop, condition or subshell")])
    return merge(found)


def _check_exact(command: Command, context: Context, *, writes: bool) -> Deny | list[Reason]:
    """Reasons why a command needs approval. `writes`: the line writes files, which may be settings that git obeys."""
    inner, wrappers = strip_plain_wrappers(command)
    name = inner.words[0].shown
    bare = Command((Word(strip_bin(name)), *inner.words[1:]))
    reads = None if inner.assigned or not inner.words[0].is_literal else find_exact_reads(bare.words)
    is_local = context.shell.programs.is_from_workspace(name, is_wrapped=bool(wrappers))
    is_local = is_local or _has_local_wrapper(wrappers, context)
    if reads is None or is_local or (bare.words[0].text == "cd" and len(reads) != 1):
        return [_not_approved(command)]
    is_git = bare.words[0].text == "git"
    hides = context.policy.denies_some("read") and reads_files(bare)
    if is_git and (writes or hides):
        return [_not_approved(command)]
    if is_git and reads and any(git.may_run_programs(path) for path in context.find_paths(reads[0]) or ()):
        return [Reason(f"`{show(command.text)}`: git settings of the repository may run programs")]
    found: list[Verdict] = []
    for word in reads:
        resolved = context.find_paths(word)
        if resolved is None:
            return [_not_approved(command)]
        if hides and any(os.path.isdir(path) for path in resolved):
            return [_not_approved(command)]
        found += [_check_command_read(context.policy, path) for path in resolved]
    return merge(found)


def _not_approved(command: Command, note: str = MAY_CHANGE) -> Reason:
    return Reason(f"`{show(command.text)}` {note}", rule_for_command(strip_plain_wrappers(command)[0]))


def _check_redirect(redirect: Redirect, line: Line, context: Context) -> Verdict:
    resolved = context.find_paths(redirect.target)
    if resolved is None:
        return [Reason("redirects to a file that is not known in advance")]
    if redirect.kind == "read":
        return merge([context.policy.check_read(path) for path in resolved if not is_harmless_device(path)])
    return merge([context.policy.check_write(path) for path in resolved if not _is_output(path, line)])


def _check_command_read(policy: Policy, path: str) -> Verdict:
    found = policy.check_read(path)
    return [] if isinstance(found, list) and policy.roots.is_system(path) else found


def _is_approved(command: Command, context: Context) -> bool:
    policy = context.policy
    if policy.mode == "plan":
        return False
    inner, wrappers = strip_plain_wrappers(command)
    forms = (command,) if _has_local_wrapper(wrappers, context) else (command, inner)
    rules = policy.command_rules((*policy.allow, *policy.grants))
    return any(_matches(rule, form) for form in forms for rule in rules)


def _has_local_wrapper(wrappers: list[str], context: Context) -> bool:
    is_from_workspace = context.shell.programs.is_from_workspace
    return any(is_from_workspace(name, is_wrapped=place > 0) for place, name in enumerate(wrappers))


def _writes(line: Line, context: Context) -> bool:
    return any(redirect.kind == "write" and not _is_device(redirect, line, context) for redirect in line.redirects)


def _matches(rule: Rule, command: Command) -> bool:
    is_plain = all(is_harmless_variable(word) for word in command.assigned)
    return rule.matches_words(command.words if is_plain else (*command.assigned, *command.words)) == "yes"


def _find_approval(line: Line, context: Context) -> Approval | None:
    """How the user approved any part of the line: by a rule, a grant, or the mode that lets a file be written."""
    policy = context.policy
    found: set[str] = set()
    for redirect in line.redirects:
        if redirect.kind == "write" and not _is_device(redirect, line, context):
            checked = [policy.check_write(path) for path in context.find_paths(redirect.target) or ()]
            found |= {each.by for each in checked if isinstance(each, Allow)}
    granted = [command for command in line.commands if _is_approved(command, context)]
    without_grants = msgspec.structs.replace(context, policy=msgspec.structs.replace(policy, grants=()))
    found |= {"rule" if _is_approved(command, without_grants) else "grant" for command in granted}
    return next((by for by in ("grant", "mode", "rule") if by in found), None)


def _is_device(redirect: Redirect, line: Line, context: Context) -> bool:
    return all(_is_output(path, line) for path in context.find_paths(redirect.target) or ("",))


def _is_output(path: str, line: Line) -> bool:
    """Whether a path is a device that only takes output. If the line reads a file, `/dev/stdout` may be that file."""
    reads = any(redirect.kind == "read" for redirect in line.redirects)
    return is_written_safely(path) or (is_harmless_device(path) and path != "/dev/stdin" and not reads)


# Running in the read-only sandbox


def _check_loose(line: Line, context: Context, depth: int = 0) -> Iterator[Verdict]:
    """Reasons why a line may not run in the read-only sandbox: it seems to write, or to read outside the workspace."""
    for word in filter(is_powerful_variable, line.assigned):
        yield [Reason(f"`{show(word.shown)}` {_SETS_VARIABLE}")]
    for redirect in line.redirects:
        if redirect.kind == "read" and context.find_paths(redirect.target) is None:
            continue  # the sandbox decides what it can read
        found = _check_redirect(redirect, line, context)
        if redirect.kind == "write" and not found and not _is_device(redirect, line, context):
            found = [Reason(f"changes {redirect.target.shown}")]
        yield found
    for command in line.commands:
        if command.words[0].text not in line.functions:
            yield from _check_loose_command(command, context, depth)


def _check_loose_command(command: Command, context: Context, depth: int) -> Iterator[Verdict]:
    shown = f"`{show(command.text)}`"
    name = command.words[0].shown
    if depth > MAX_CODE_DEPTH:
        yield [Reason(f"{shown} nests shells too deeply")]
    elif sets_powerful_variable(command):
        yield [Reason(f"{shown} {_SETS_VARIABLE}")]
    elif context.shell.programs.is_from_workspace(name):
        yield [Reason(f"{shown} runs a program from the workspace", rule_for_command(command))]
    elif (inner := unwrap(command)) is not None:
        commands, codes = inner
        for each in commands:
            yield from _check_loose_command(each, context, depth + 1)
        for code in codes:
            yield from _check_loose(read_line(code, context.policy.roots.home), context, depth + 1)
    else:
        bare = (Word(strip_bin(name)), *command.words[1:])
        reads = find_loose_reads(bare) if command.words[0].text is not None else None
        if reads is None:
            is_approved = _is_approved(command, context)
            note = "is allowed, but only in a list of plain commands" if is_approved else MAY_CHANGE
            rule = rule_for_command(command)
            yield [Reason(f"{shown} {note}", rule, needs_plain_line=is_approved)]
        else:
            for word in reads:
                yield _check_loose_path(word, context)


def _check_loose_path(word: Word, context: Context) -> Verdict:
    """Ask about a path outside the workspace if it exists; the sandbox hides it in any case."""
    resolved = context.find_paths(word) or ()
    found = [_check_command_read(context.policy, path) for path in resolved if os.path.exists(path)]
    if any(isinstance(each, Deny) for each in found):
        return merge(found)
    return found[0] if found and all(isinstance(each, list) and each for each in found) else []


def _find_readable(line: Line, context: Context, *, is_approved: bool = False) -> tuple[str, ...]:
    """Paths outside the workspace that the user, or the user's rules, allow this line to read."""
    words = [word for command in line.commands for word in command.words[1:]]
    words += [redirect.target for redirect in line.redirects]
    policy = context.policy
    resolved = {
        path for word in words for path in context.find_paths(word) or () if not policy.roots.is_free_to_read(path)
    }
    return tuple(sorted(path for path in resolved if is_approved or isinstance(policy.check_read(path), Allow)))
