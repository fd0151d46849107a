"""The judge: says of each thing that a call wants whether it may be done, a person is asked, or it is refused.

The order: yolo, deny rules, allow rules, a hook, the session's grants, what is harmless, and then a person. The mode
`plan` comes before all of it: it lets nothing be changed, whoever would allow it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from kedge.config.rules import BadRule
from kedge.config.schema import Mode, PermissionsConfig
from kedge.protocol.runs import Permissions, RunOptions
from kedge.tools.permissions import commands
from kedge.tools.permissions.decisions import Allow, Ask, Decision, Refuse
from kedge.tools.permissions.ground import Ground
from kedge.tools.permissions.law import PLANNING, Found, Law, Trouble
from kedge.tools.permissions.rules import Rule, parse_rule
from kedge.tools.port import Want

# Says what a user's own program decided: nothing, to leave it to the others.
Hook = Callable[[str, Want], Allow | Refuse | None]

MAX_LABEL_CHARS = 200


def effective_mode(configured: Mode, chosen: Mode | None, permissions: Permissions, *, is_skipped: bool) -> Mode:
    """The run's own mode, else the configured one. Whoever skips permissions does not skip `plan`: it is a promise."""
    mode = chosen or configured
    if mode != "plan" and (permissions == "allow" or is_skipped):
        return "yolo"
    return mode


class Judge:
    """One for each run. Raises BadRule when it is made of a rule that cannot be read."""

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
        hook: Hook | None = None,
    ) -> None:
        self.mode: Mode = effective_mode(config.mode, options.mode, permissions, is_skipped=is_skipped)
        self._ground = Ground(os.path.realpath(directory), None if scratch is None else os.path.realpath(scratch), home)
        self._deny = [self._parsed(rule) for rule in (*config.deny, *options.deny)]
        self._allow = [self._parsed(rule) for rule in (*config.allow, *options.allow)]
        self._grants: list[Rule] = []
        self._hook = hook
        self.grant(grants)

    def grant(self, rules: Sequence[str]) -> None:
        """Remember what a person just allowed for the session. One that cannot be read any more is forgotten."""
        for rule in rules:
            try:
                self._grants.append(self._parsed(rule))
            except BadRule:
                continue

    @property
    def hidden(self) -> Callable[[str], bool] | None:
        """Of a resolved path: whether a rule forbids to read it. None where no rule forbids any."""
        if self.mode == "yolo" or not any(rule.is_about("view", "read") for rule in self._deny):
            return None
        law = Law(self._ground, "view", self.mode, self._deny, (), ())
        return lambda path: isinstance(law.read(path), Refuse)

    def judge(self, tool: str, want: Want) -> Decision:
        decision = self._judged(tool, want)
        if isinstance(decision, Refuse):
            return decision
        if want.unheld and self.mode == "plan":
            return Refuse(why=f"{PLANNING}, and there is no sandbox that would see to it: {want.unheld}.")
        if want.unheld:
            return _without_sandbox(want, decision)
        if want.is_free and isinstance(decision, Ask) and self._may_pass(decision):
            return Allow(why="it runs in the sandbox", by="sandbox")
        return decision

    def changes_nothing(self, tool: str, wants: Sequence[Want]) -> bool:
        """Whether a call is a command that is known to be read-only, whatever rule or mode lets it happen."""
        if tool != "bash" or not all(want.kind == "execute" for want in wants):
            return False
        law = Law(self._ground, tool, "ask", (), (), ())  # without a rule, only what is harmless passes
        found = [commands.examine(law, want.subject, self._start(want)) for want in wants]
        return all(isinstance(each, Allow) or _only_reads(each) for each in found)

    def _may_pass(self, asked: Ask) -> bool:
        """What nobody may be asked about: not what might be something that a rule forbids."""
        return bool(asked.rules) or not self._deny

    def _judged(self, tool: str, want: Want) -> Decision:
        if self.mode == "yolo":
            return Allow(why="the mode is yolo", by="yolo")
        law = Law(self._ground, tool, self.mode, self._deny, self._allow, self._grants)
        if want.kind == "execute" and tool == "bash":
            found = commands.examine(law, want.subject, self._start(want))
        else:
            found = self._examine(law, want)
        if isinstance(found, Refuse):
            return found
        if self._hook is not None and not (isinstance(found, Allow) and found.by == "rule"):
            said = self._hook(tool, want)
            if isinstance(said, Refuse) or (said is not None and self.mode != "plan"):
                return said
        if isinstance(found, Allow):
            return found
        return _asked(want, found)

    def _examine(self, law: Law, want: Want) -> Found:
        match want.kind:
            case "read":
                return law.read(want.subject)
            case "write":
                return law.write(want.subject)
            case "fetch":
                return law.fetch(want.subject)
            case "execute":
                return law.tool()

    def _start(self, want: Want) -> str:
        """Where a command starts: a directory of the workspace, which the tool shows with it."""
        given: object = want.params.get("working_dir")
        return os.path.realpath(Path(self._ground.directory, given if isinstance(given, str) else "."))

    def _parsed(self, text: str) -> Rule:
        return parse_rule(text, self._ground.directory, self._ground.home)


def _only_reads(found: Refuse | list[Trouble]) -> bool:
    return isinstance(found, list) and all(trouble.is_read for trouble in found)


def _without_sandbox(want: Want, decision: Allow | Ask) -> Ask:
    """A sandbox was wanted for it: also who allows everything else is asked, and each time."""
    note = f"it would run without the sandbox: {want.unheld}"
    notes = (note, *(decision.notes if isinstance(decision, Ask) else ()))
    return Ask(label=_short("; ".join(notes)), notes=notes)


def _asked(want: Want, troubles: list[Trouble]) -> Ask:
    """One question for all that is in the way. It can be remembered only if all of it can."""
    notes = tuple(dict.fromkeys(trouble.note for trouble in troubles))
    rules: dict[str, None] = {}
    for trouble in troubles:
        if trouble.rule is None:
            rules = {}
            break
        rules[trouble.rule] = None
    return Ask(label=_short("; ".join(notes)) or want.description, notes=notes, rules=tuple(rules))


def _short(label: str) -> str:
    return label if len(label) <= MAX_LABEL_CHARS else label[: MAX_LABEL_CHARS - 1] + "…"
