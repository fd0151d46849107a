"""What `kedge run` says at the end on standard error: what was refused, and what it took."""

from __future__ import annotations

from kedge.cli.common import one_line
from kedge.protocol.money import dollars

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kedge.client.asking import Refusal

MOST_RULES = 3  # in one suggestion


def refusal(refused: list[Refusal]) -> str:
    """What was refused, and the least that would have allowed it."""
    import shlex

    first, more = refused[0], len({(each.description, *each.rules) for each in refused}) - 1
    which = f"{one_line(first.description)}{f', and {more} more' if more else ''}"
    told = f"a permission was refused in this run: {which}"
    if not first.rules or len(first.rules) > MOST_RULES or not all(rule.isprintable() for rule in first.rules):
        return f"{told}; -y allows what it asks for"
    rules = " ".join(f"--allow {shlex.quote(rule)}" for rule in first.rules)
    return f"{told}; {rules} allows {'the first, -y all' if more else 'it'}"


def summary(elapsed_s: float, usage: dict[str, Any]) -> str:
    """Empty for a run that used nothing: it did not get as far as a model."""
    taken, given, cost = usage.get("input_tokens", 0), usage.get("output_tokens", 0), usage.get("cost") or 0
    if not taken and not given and not cost:
        return ""
    about = "about " if usage.get("estimated") else ""
    return f"{elapsed_s:.1f} s, {about}{taken} tokens in, {given} out{f', {dollars(cost)}' if cost > 0 else ''}"
