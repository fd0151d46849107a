"""Decide about each access of a tool call: allow it, ask the user, or deny it.

In this order: yolo allows, deny rules deny, allow rules allow, the session's grants allow, harmless accesses are
allowed, and the user is asked about the rest. Mode `plan` comes first: it denies all changes. Hooks come before (they
may deny a call in every mode) and after it (they may answer for the user): see `agent/hooks`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kedge.config.rules import BadRule
from kedge.config.schema import PermissionsConfig
from kedge.protocol.runs import Mode, Permissions, RunOptions
from kedge.tools.permissions.check import check_command, only_reads
from kedge.tools.permissions.context import Programs, Shell
from kedge.tools.permissions.paths import Roots, is_secret
from kedge.tools.permissions.policy import PLANNING, Allow, Ask, Decision, Deny, Policy, Verdict
from kedge.tools.permissions.rules import Rule, parse_rule
from kedge.tools.port import Access
from kedge.tools.process.spawn import find_shell


def effective_mode(configured: Mode, chosen: Mode | None, permissions: Permissions, *, is_skipped: bool) -> Mode:
    """The run's own mode, else the configured one. Skipping permissions does not skip mode `plan`."""
    mode = chosen or configured
    if mode != "plan" and (permissions == "allow" or is_skipped):
        return "yolo"
    return mode


class Judge:
    """Decides for one run. Raises BadRule for a rule that cannot be parsed."""

    def __init__(
        self,
        config: PermissionsConfig,
        options: RunOptions,
        permissions: Permissions,
        *,
        directory: Path,
        scratch: Path | None = None,
        home: str | None = None,
        grants: Sequence[str] = (),
        is_skipped: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.mode: Mode
        self._configured: Mode = config.mode
        self._permissions: Permissions = permissions
        self._is_skipped = is_skipped
        self.choose_mode(options.mode)
        self._roots = Roots(os.path.realpath(directory), None if scratch is None else os.path.realpath(scratch), home)
        self.deny = [self._parse(rule) for rule in (*config.deny, *options.deny)]
        self.allow = [self._parse(rule) for rule in (*config.allow, *options.allow)]
        self.grants: list[Rule] = []  # what the user allowed for the session
        self.skill_directories: Sequence[str] = ()  # resolved; their files may be read without asking
        self.uses_sandbox = config.unapproved == "sandbox"  # for commands that were not approved
        self._env = os.environ if env is None else env
        self.grant(grants)

    def choose_mode(self, chosen: Mode | None) -> None:
        """Judge in this mode from now on; None: in the configured one."""
        self.mode = effective_mode(self._configured, chosen, self._permissions, is_skipped=self._is_skipped)

    def grant(self, rules: Sequence[str]) -> None:
        """Add the rules that the user allowed for the session; those that cannot be parsed are dropped."""
        for rule in rules:
            try:
                self.grants.append(self._parse(rule))
            except BadRule:
                continue

    @property
    def is_hidden(self) -> Callable[[str], bool] | None:
        """A function that says of a resolved path whether a rule denies reading it; None where no rule denies any."""
        if self.mode == "yolo" or not any(rule.is_about("view", "read") for rule in self.deny):
            return None
        policy = Policy(self._roots, "view", self.mode, self.deny, (), ())
        return lambda path: isinstance(policy.check_read(path), Deny)

    def judge(self, tool: str, access: Access) -> Decision:
        decision = self._decide(tool, access)
        if isinstance(decision, Deny):
            return decision
        if isinstance(decision, Allow) and decision.run_as == "sandboxed":
            return decision
        if access.sandbox_problem and self.mode == "plan":
            return Deny(why=f"{PLANNING}, and no sandbox can enforce that here: {access.sandbox_problem}.")
        if access.sandbox_problem:
            return _ask_without_sandbox(access, decision)
        if (
            access.is_preapproved
            and isinstance(decision, Ask)
            and not decision.may_be_denied
            and not access.unsandboxed
        ):
            return Allow(why="it runs in the sandbox", by="sandbox")
        if self.mode == "auto" and self._is_contained(tool, access, decision):
            return Allow(why="the mode is auto, and it runs in the sandbox", by="mode", run_as="contained")
        return decision

    def _is_contained(self, tool: str, access: Access, decision: Allow | Ask) -> bool:
        """Whether mode `auto` runs a command in the sandbox that writes to the workspace.

        That sandbox does not know deny rules for files: where there are any, people are asked as in mode `ask`.
        """
        if tool != "bash" or access.kind != "execute" or access.unsandboxed:
            return False
        policy = Policy(self._roots, tool, self.mode, self.deny, (), ())
        if policy.denies_some("read") or policy.denies_some("write"):
            return False
        if isinstance(decision, Ask):
            return not decision.may_be_denied
        return decision.by == "mode"  # it only writes a file

    def changes_nothing(self, tool: str, accesses: Sequence[Access]) -> bool:
        """Whether a call is a command that certainly only reads, whichever rule or mode allows it."""
        if tool != "bash" or not all(access.kind == "execute" for access in accesses):
            return False
        policy = Policy(self._roots, tool, "ask", (), (), ())
        return all(only_reads(policy, access.subject, self._start(access), self._shell(access)) for access in accesses)

    def _decide(self, tool: str, access: Access) -> Decision:
        if self.mode == "yolo":
            return Allow(why="the mode is yolo", by="yolo")
        policy = Policy(self._roots, tool, self.mode, self.deny, self.allow, self.grants)
        if access.kind == "execute" and tool == "bash":
            return check_command(
                policy, access.subject, self._start(access), self._shell(access), unsandboxed=access.unsandboxed
            )
        decision = _make_decision(_check(policy, access), access)
        if isinstance(decision, Ask) and access.kind == "read" and self._is_of_skill(access.subject):
            return Allow(why="it belongs to a skill")
        return decision

    def _is_of_skill(self, path: str) -> bool:
        return not is_secret(path) and any(Path(path).is_relative_to(each) for each in self.skill_directories)

    def _shell(self, access: Access) -> Shell:
        has_sandbox = access.can_sandbox and (self.uses_sandbox or self.mode == "plan")
        return Shell(self._programs, is_bash=self._has_bash, has_sandbox=has_sandbox)

    @functools.cached_property
    def _programs(self) -> Programs:
        return Programs(self._env.get("PATH") or os.defpath, self._roots.directory, self._roots.scratch)

    @functools.cached_property
    def _has_bash(self) -> bool:
        scratch = None if self._roots.scratch is None else Path(self._roots.scratch)
        return Path(find_shell(self._env, Path(self._roots.directory), scratch)).name == "bash"

    def _start(self, access: Access) -> str:
        """The directory in which a command starts."""
        given: object = access.params.get("working_dir")
        return os.path.realpath(Path(self._roots.directory, given if isinstance(given, str) else "."))

    def _parse(self, text: str) -> Rule:
        return parse_rule(text, self._roots.directory, self._roots.home)


def _check(policy: Policy, access: Access) -> Verdict:
    match access.kind:
        case "read":
            return policy.check_read(access.subject)
        case "write":
            return policy.check_write(access.subject)
        case "fetch":
            return policy.check_fetch(access.subject)
        case "search":
            return policy.check_search(access.subject)
        case "execute":
            return policy.check_tool(says_read_only=access.says_read_only)


def _make_decision(verdict: Verdict, access: Access) -> Decision:
    if not isinstance(verdict, list):
        return verdict
    ask = Ask.of([reason.note for reason in verdict], verdict)
    return ask if ask.label else Ask.of([access.description])


def _ask_without_sandbox(access: Access, decision: Allow | Ask) -> Ask:
    """The configured sandbox is unavailable: the user is asked each time, whatever else would allow the command."""
    note = f"runs without the sandbox ({access.sandbox_problem})"
    return Ask.of([note, *(decision.notes if isinstance(decision, Ask) else ())])
