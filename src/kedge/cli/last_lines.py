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
    """The least that would have allowed it, then what was refused: last, so that no word of it passes for ours."""
    import shlex

    first, number = refused[0], len({(each.description, *each.rules) for each in refused})
    is_one = number == 1
    which = "a permission was refused in this run" if is_one else f"{number} permissions were refused in this run"
    if not first.rules or len(first.rules) > MOST_RULES or not all(rule.isprintable() for rule in first.rules):
        cure = "-y allows everything"
    else:
        rules = " ".join(f"--allow {shlex.quote(rule)}" for rule in first.rules)
        cure = f"{rules} allows {'it' if is_one else 'the first, -y everything'}"
    return f"{which} ({cure}): {one_line(first.description)}"


def summary(elapsed_s: float, usage: dict[str, Any]) -> str:
    """Empty for a run that used nothing: it did not get as far as a model."""
    taken, given, cost = usage.get("input_tokens", 0), usage.get("output_tokens", 0), usage.get("cost") or 0
    if not taken and not given and not cost:
        return ""
    about = "about " if usage.get("estimated") else ""
    return f"{elapsed_s:.1f} s, {about}{taken} tokens in, {given} out{f', {dollars(cost)}' if cost > 0 else ''}"
