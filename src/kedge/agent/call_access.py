"""What a call is about to touch: joined for one question, and compared after it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kedge.tools.permissions.policy import Ask, Decision, Deny
from kedge.tools.port import Access


def list_subjects(accesses: Sequence[Access]) -> list[tuple[str, str, object]]:
    """Return what a person allowed: the paths, commands and URLs, and the change of a file."""
    return [(access.kind, access.subject, access.params.get("diff")) for access in accesses]


def join_accesses(accesses: Sequence[Access]) -> Access:
    """Return one access for several files that a call changes, so that a person is asked once."""
    shown = [str(access.params.get("path", access.subject)) for access in accesses]
    diffs = [str(access.params.get("diff", "")) for access in accesses]
    return Access(
        kind=accesses[0].kind,
        subject=accesses[0].subject,
        description=f"change {len(shown)} files: {', '.join(shown)}",
        params={"path": shown[0], "paths": shown, "diff": "".join(diffs)},
        parts=tuple(accesses),
    )


def join_decisions(decisions: Sequence[Decision]) -> Decision:
    """Return the strictest one, with the questions joined."""
    refusal = next((each for each in decisions if isinstance(each, Deny)), None)
    asks = [each for each in decisions if isinstance(each, Ask)]
    return refusal or (_join_asks(asks) if len(asks) > 1 else asks[0] if asks else decisions[0])


def _join_asks(asks: Sequence[Ask]) -> Ask:
    """Return one question; it remembers rules only if each of its parts has some."""
    rules = [rule for each in asks for rule in each.rules] if all(each.rules for each in asks) else []
    always = [rule for each in asks for rule in each.always_rules] if all(each.always_rules for each in asks) else []
    return Ask(
        label=asks[0].label,
        notes=tuple(dict.fromkeys(note for each in asks for note in each.notes)),
        rules=tuple(dict.fromkeys(rules)),
        always_rules=tuple(dict.fromkeys(always)),
        may_be_denied=any(each.may_be_denied for each in asks),
    )


def find_paths(accesses: Sequence[Access]) -> frozenset[Path]:
    return frozenset(Path(access.subject) for access in accesses if access.kind in ("read", "write"))


def find_path(accesses: Sequence[Access]) -> Path | None:
    return next((Path(access.subject) for access in accesses if access.kind in ("read", "write")), None)
