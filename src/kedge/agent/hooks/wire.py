"""The format of hooks: names of tools, what a hook gets on standard input, and what its output means. No IO.

It is that of Claude Code, as Codex describes it in JSON schemas, so that hooks written for them work here unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from kedge.config.schema import HookConfig
from kedge.protocol.messages import replace_surrogates
from kedge.protocol.runs import Mode, Permissions

HookEvent = Literal[
    "SessionStart",
    "UserPromptSubmit",
    "PreToolUse",
    "PermissionRequest",
    "PostToolUse",
    "PostToolUseFailure",
    "Stop",
    "SubagentStop",
    "RunComplete",
    "PreCompact",
    "Notification",
]

MAX_CONTEXT_CHARS = 10_000  # of what one hook tells the model
MAX_REASON_CHARS = 2_000
BLOCKS = 2  # the exit code

# What other agents call the tools. A matcher may have these names, and hooks are told them.
_OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "bash": ("Bash",),
    "view": ("Read",),
    "edit": ("Edit",),
    "multiedit": ("MultiEdit", "Edit"),
    "write": ("Write",),
    "ls": ("LS",),
    "glob": ("Glob",),
    "grep": ("Grep",),
    "fetch": ("WebFetch",),
    "download": ("WebFetch", "Write"),
    "web_search": ("WebSearch",),
    "todos": ("TodoWrite",),
    "question": ("AskUserQuestion",),
    "agent": ("Task", "Agent"),
    "job_output": ("BashOutput",),
    "job_kill": ("KillShell", "KillBash"),
    "skill": ("Skill",),
}
_FILE = {"path": "file_path"}
_OTHER_PARAMS: dict[str, dict[str, str]] = {
    **dict.fromkeys(("view", "edit", "multiedit", "write", "download"), _FILE),
    "grep": {"include": "glob"},
    "agent": {"title": "description"},
    "job_output": {"job_id": "bash_id"},
    "job_kill": {"job_id": "shell_id"},
}
_MODES: dict[str, str] = {"plan": "plan", "auto-edit": "acceptEdits", "yolo": "bypassPermissions"}
_ASYNC = re.compile(r'^\{\s*"async"\s*:\s*true\b[^\n]*\s*')  # "do not wait for me": the answer is behind it
_LIST = re.compile(r"[A-Za-z0-9_ |,]+")


def find_match(matcher: str, names: Sequence[str]) -> str | None:
    """Return the first of the names that a matcher matches, or None. An empty one or `*` matches all."""
    matcher = matcher.strip()
    if matcher in ("", "*"):
        return names[0] if names else ""
    if _LIST.fullmatch(matcher):
        listed = re.split(r"\s*[|,]\s*", matcher)
        return next((name for name in names if name in listed), None)
    pattern = re.compile(matcher)
    return next((name for name in names if pattern.search(name)), None)


def list_names(tool: str, servers: Iterable[str] = ()) -> list[str]:
    """Return the names of a tool: those of other agents first. `servers`: names of MCP servers."""
    for server in servers:
        if tool.startswith(prefix := f"mcp_{server}_"):
            return [f"mcp__{server}__{tool.removeprefix(prefix)}", tool]
    return [*_OTHER_NAMES.get(tool, ()), tool]


def translate_input(tool: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's input with the parameter names that go with the tool's `name`."""
    renamed = {} if name == tool else _OTHER_PARAMS.get(tool, {})
    return {renamed.get(key, key): value for key, value in given.items()}


def describe_response(tool: str, name: str, shown: Mapping[str, Any], content: str) -> dict[str, Any]:
    """Return a call's result as a hook gets it. `shown`: the input as it gets it."""
    response: dict[str, Any] = {"content": content}
    if name != tool and tool == "bash":
        response |= {"stdout": content, "stderr": "", "interrupted": False}
    elif "file_path" in shown:
        response |= {"filePath": shown["file_path"], "success": True}
    return response


def describe_mode(mode: Mode, permissions: Permissions) -> str:
    return _MODES.get(mode) or ("dontAsk" if permissions == "deny" else "default")


class HookRun(NamedTuple):
    """What a command did. `problem` says why it has no exit code."""

    exit_code: int | None
    stdout: str
    stderr: str
    problem: str = ""


class HookOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one hook wants."""

    decision: Literal["", "allow", "deny", "ask"] = ""
    reason: str = ""
    context: str = ""  # for the model
    input: dict[str, Any] | None = None
    message: str = ""  # for people
    stops: str | None = None  # why the run is to end
    failure: str = ""  # for people: it did not work


def read_output(event: HookEvent, hook: HookConfig, run: HookRun) -> HookOutput:
    """Return what the exit code and the output of a hook mean."""
    if run.exit_code == 0:
        text = _ASYNC.sub("", run.stdout.strip(), count=1)
        if text.startswith("{"):
            return _read_json(event, hook, text)
        takes_text = event in ("UserPromptSubmit", "SessionStart")
        return HookOutput(context=_shorten(text, MAX_CONTEXT_CHARS) if takes_text else "")
    said = _shorten(run.stderr.strip(), MAX_REASON_CHARS)
    if run.exit_code == BLOCKS:
        return HookOutput(decision="deny", reason=said or "it gave no reason")
    what = run.problem or f"exit code {run.exit_code}"
    return _fail(hook, f"{what}: {said}" if said else what)


def _fail(hook: HookConfig, why: str) -> HookOutput:
    if hook.on_failure == "block":
        return HookOutput(decision="deny", reason=f"the hook failed ({why})", failure=why)
    return HookOutput(failure=why)


def _read_json(event: HookEvent, hook: HookConfig, text: str) -> HookOutput:
    try:
        wire = _decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return _fail(hook, f"its output cannot be used: {error}"[:200])
    own = wire.hookSpecificOutput or _Specific()
    decision, reason = _find_decision(event, wire, own)
    if decision == "deny":
        reason = reason or wire.systemMessage or ""
    stops = None if wire.continue_ else _shorten(wire.stopReason or reason or "it gave no reason", MAX_REASON_CHARS)
    return HookOutput(
        decision=decision,
        reason=_shorten(reason, MAX_REASON_CHARS) or ("it gave no reason" if decision in ("deny", "ask") else ""),
        context=_shorten(own.additionalContext or "", MAX_CONTEXT_CHARS),
        input=_clean(own.updatedInput) if event == "PreToolUse" and decision != "deny" else None,
        message=_shorten(wire.systemMessage or "", MAX_REASON_CHARS),
        stops=stops,
    )


def _find_decision(event: HookEvent, wire: _Wire, own: _Specific) -> tuple[Literal["", "allow", "deny", "ask"], str]:
    if event == "PreToolUse" and own.permissionDecision is not None:
        decision = "" if own.permissionDecision == "defer" else own.permissionDecision
        return decision, own.permissionDecisionReason or wire.reason or ""
    if event == "PermissionRequest" and own.decision is not None:
        return own.decision.behavior, own.decision.message or ""
    if wire.decision == "block":
        return "deny", wire.reason or ""
    if wire.decision == "approve" and event == "PreToolUse":
        return "allow", wire.reason or ""
    return "", ""


class _Behavior(msgspec.Struct, frozen=True):
    behavior: Literal["allow", "deny"]
    message: str | None = None


class _Specific(msgspec.Struct, frozen=True):
    permissionDecision: Literal["allow", "deny", "ask", "defer"] | None = None  # noqa: N815 - names of the format
    permissionDecisionReason: str | None = None  # noqa: N815
    updatedInput: dict[str, Any] | None = None  # noqa: N815
    additionalContext: str | None = None  # noqa: N815
    decision: _Behavior | None = None


class _Wire(msgspec.Struct, frozen=True):
    continue_: bool = msgspec.field(default=True, name="continue")
    stopReason: str | None = None  # noqa: N815
    suppressOutput: bool | None = None  # noqa: N815 - has no effect: output is never shown to people
    systemMessage: str | None = None  # noqa: N815
    decision: Literal["approve", "block"] | None = None
    reason: str | None = None
    hookSpecificOutput: _Specific | None = None  # noqa: N815


# Created at import: creating a decoder in several threads at once is not safe (see `config.load`).
_decode = msgspec.json.Decoder(_Wire).decode


def _shorten(text: str, most: int) -> str:
    text = replace_surrogates(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _clean(value: Any) -> Any:
    match value:
        case str():
            return replace_surrogates(value)
        case {**fields}:
            return {_clean(name): _clean(each) for name, each in fields.items()}
        case [*items]:
            return [_clean(item) for item in items]
        case _:
            return value
