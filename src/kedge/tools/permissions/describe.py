"""Tell the model what it may do in a run (the mode and the rules, in a few sentences), and why a call was refused."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kedge.protocol.text_safety import one_line, shorten
from kedge.tools.permissions.judge import Judge
from kedge.tools.permissions.policy import Ask
from kedge.tools.permissions.rules import Rule
from kedge.tools.sandbox.policy import SandboxUnavailable
from kedge.tools.sandbox.sandbox import Sandbox, can_sandbox_read_only

MAX_RULES = 12  # allowed or denied; of more, the number is told
MAX_RULE_CHARS = 80
MAX_PARTS = 5  # of a command line, in a refusal
MAX_REFUSAL_CHARS = 1500
_EVERYTHING = {
    "bash": "run any command",
    "view": "read any file",
    "read": "read any file",
    "edit": "edit any file",
    "write": "edit any file",
    "fetch": "fetch any URL",
}


def describe_permissions(judge: Judge, tools: Collection[str], sandbox: Sandbox, *, is_attended: bool) -> str:
    """Say what the model may do without asking, and what happens to the rest. Blocks: the sandbox may be tried.

    `tools`: the names of those that the run is offered. The text stays the same during a run: what a user allows for
    the session meanwhile is left out of it.
    """
    if judge.mode == "plan":
        return _describe_plan(judge, tools, is_attended=is_attended)
    problem = _find_sandbox_problem(sandbox) if "bash" in tools else ""
    commands = f"Every command {'asks the user first' if is_attended else 'is refused'}: {problem}." if problem else ""
    if judge.mode == "yolo":
        return _join("You may do everything here without asking.", commands)
    rules = judge.allow if is_attended else [*judge.allow, *judge.grants]
    if problem:
        rules = [rule for rule in rules if rule.name != "bash"]
    allowed = ["read files in the workspace"]
    if judge.mode in ("auto-edit", "auto") and "edit" in tools and not _covers_all(judge.deny, "edit", "write"):
        allowed = ["read and edit files in the workspace (not protected ones like `.git` or `conftest.py`)"]
    if "bash" in tools and not problem and not _covers_all([*rules, *judge.deny], "bash"):
        allowed.append(f"run {_describe_commands(judge, sandbox)}")
    return _join(
        f"Without asking you may: {', '.join([*allowed, *_list_rules(rules)])}.",
        commands,
        "Everything else asks the user first."
        if is_attended
        else "Everything else is refused in this run; do not try it.",
        _describe_denials(judge),
    )


def explain_refusal(asked: Ask) -> str:
    """Explain which parts were refused in an unattended run, and whether the rest would have been allowed."""
    named = list(asked.parts)
    if len(named) > MAX_PARTS:
        named = [*named[:MAX_PARTS], f"{len(named) - MAX_PARTS} more parts"]
    if named:
        what = " and ".join(filter(None, [", ".join(named[:-1]), named[-1]]))
        needs = (
            "needs a permission that this run does not have"
            if len(named) == 1
            else ("need permissions that this run does not have")
        )
        text = f"Refused: {what} {needs}."
    else:
        text = f"Refused: this call needs a permission that this run does not have: {'; '.join(asked.notes)}."
    return shorten(_join(text, asked.others), MAX_REFUSAL_CHARS)


def _describe_plan(judge: Judge, tools: Collection[str], *, is_attended: bool) -> str:
    allowed = ["read files in the workspace"]
    if "bash" in tools and can_sandbox_read_only() and not _covers_all(judge.deny, "bash"):
        allowed.append("run read-only commands, in a sandbox without network")
    allowed += _list_rules([rule for rule in judge.allow if rule.name in ("view", "read", "fetch")])
    return _join(
        f"Mode plan. You may: {', '.join(allowed)}.",
        f"Every change{' and every other command' if 'bash' in tools else ''} is refused.",
        f"Reading elsewhere and fetching {'asks the user first' if is_attended else 'is refused, too'}.",
        _describe_denials(judge),
    )


def _describe_commands(judge: Judge, sandbox: Sandbox) -> str:
    if judge.mode == "auto":
        return "commands in a sandbox that writes only below the workspace and $TMPDIR, and has no credentials"
    if sandbox.is_enabled and not sandbox.asks_user:
        return "commands in the sandbox"
    return "read-only commands" if judge.uses_sandbox and can_sandbox_read_only() else "simple read-only commands"


def _find_sandbox_problem(sandbox: Sandbox) -> str:
    try:
        sandbox.prepare()
    except SandboxUnavailable as error:
        return f"the configured sandbox is unavailable ({one_line(error.why, MAX_RULE_CHARS)})"
    return ""


def _describe_denials(judge: Judge) -> str:
    shown = _list_rules(judge.deny, is_denial=True)
    return f"Always refused: {', '.join(shown)}." if shown else ""


def _covers_all(rules: Sequence[Rule], *names: str) -> bool:
    return any(rule.name in names and rule.is_whole for rule in rules)


def _list_rules(rules: Sequence[Rule], *, is_denial: bool = False) -> list[str]:
    """The rules as the model can use them: the words of a command, `edit(src/**)`, the name of a tool."""
    whole = {rule.name for rule in rules if rule.is_whole}
    shown = dict.fromkeys(
        _show_rule(rule, is_denial=is_denial) for rule in rules if rule.is_whole or rule.name not in whole
    )
    listed = list(shown)[:MAX_RULES]
    return [*listed, f"and {len(shown) - MAX_RULES} more"] if len(shown) > MAX_RULES else listed


def _show_rule(rule: Rule, *, is_denial: bool) -> str:
    if rule.is_whole and not is_denial and rule.name in _EVERYTHING:
        return _EVERYTHING[rule.name]
    text = rule.text.strip()
    if rule.name == "bash" and not rule.is_whole:
        text = text.removeprefix("bash(").removesuffix(")")
    return f"`{one_line(text, MAX_RULE_CHARS).replace('`', chr(39))}`"


def _join(*sentences: str) -> str:
    return " ".join(filter(None, sentences))
