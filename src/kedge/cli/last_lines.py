"""How a run that is followed ends on the command line: its exit code, and the last lines on standard error."""

from __future__ import annotations

from kedge.cli.common import EXIT_CANCELLED, EXIT_FAILED, EXIT_OK, EXIT_REFUSED, EXIT_USAGE, one_line
from kedge.protocol.formats import dollars

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kedge.client.asking import Refusal

MOST_RULES = 3  # in one suggestion
USAGE_CODES = ("no_model", "bad_config")  # ends of runs that only their user can mend


def exit_code_of_end(end: dict[str, Any], refused: list[Refusal]) -> int:
    """The exit code of a run that ended like this (section 5 of the contract); `refused` are its denied permissions."""
    if end.get("cancelled"):
        return EXIT_CANCELLED
    if end.get("error") is not None:
        return EXIT_USAGE if end.get("code") in USAGE_CODES else EXIT_FAILED
    return EXIT_REFUSED if refused else EXIT_OK


def explanation_of_end(end: dict[str, Any], refused: list[Refusal], *, with_options: bool) -> str | None:
    """The line that goes with that code; None: there is nothing to explain. `with_options`: name those of `kedge run`
    that would have allowed what was refused."""
    if end.get("cancelled"):
        return None
    if (error := end.get("error")) is not None:
        return " ".join(error.split()) or "the run failed"
    if not refused:
        return None
    return refusal(refused) if with_options else what_was_refused(refused)


def refusal(refused: list[Refusal]) -> str:
    """The least that would have allowed it, then what was refused: last, so that no word of it passes for ours."""
    import shlex

    first, more = refused[0], _count_others(refused)
    if not first.rules or len(first.rules) > MOST_RULES or not all(rule.isprintable() for rule in first.rules):
        cure = "-y allows everything"
    else:
        rules = " ".join(f"--allow {shlex.quote(rule)}" for rule in first.rules)
        cure = f"{rules} allows {'the first, -y everything' if more else 'it'}"
    return f"{_count_refused(more)} ({cure}): {one_line(first.description)}"


def what_was_refused(refused: list[Refusal]) -> str:
    return f"{_count_refused(_count_others(refused))}: {one_line(refused[0].description)}"


def _count_refused(more: int) -> str:
    return f"{more + 1} permissions were refused in this run" if more else "a permission was refused in this run"


def _count_others(refused: list[Refusal]) -> int:
    """How many different ones there are beside the first."""
    return len({(each.description, *each.rules) for each in refused}) - 1


def summary(elapsed_s: float, usage: dict[str, Any]) -> str:
    """Empty for a run that used nothing: it did not get as far as a model."""
    taken, given, cost = usage.get("input_tokens", 0), usage.get("output_tokens", 0), usage.get("cost") or 0
    if not taken and not given and not cost:
        return ""
    about = "about " if usage.get("estimated") else ""
    return f"{elapsed_s:.1f} s, {about}{taken} tokens in, {given} out{f', {dollars(cost)}' if cost > 0 else ''}"
