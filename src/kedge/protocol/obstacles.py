"""Why an undo, a redo or a fork does not restore a file, for people."""

from __future__ import annotations

_DESCRIPTIONS = {
    "changed": "changed since by someone else",
    "in_the_way": "something else is at that path",
    "too_large": "too large to keep",
    "special": "not a regular file",
    "not_kept": "no longer kept",
    "background_job": "changed while a background job ran: by the job, or by you",
    "interrupted": "changed around a crash of the server: by the command, or by you",
}
# The change may be the user's own: the file is left as it is, and the others are restored.
UNSURE = frozenset({"background_job", "interrupted"})


def describe_obstacle(obstacle: str) -> str:
    """A newer server may send obstacles that are not in the table."""
    return _DESCRIPTIONS.get(obstacle, obstacle.replace("_", " "))
