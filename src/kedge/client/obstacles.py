"""Why an undo, a redo or a fork leaves a file as it is, in words for people."""

from __future__ import annotations

WHY = {
    "changed": "was changed by somebody else since",
    "in_the_way": "something else has its place",
    "too_large": "was too large to keep",
    "special": "is no ordinary file",
    "not_kept": "is not kept any more",
    "background_job": "changed while a background job ran: by it, or by you",
    "interrupted": "changed around a crash of the server: by the command, or by you",
}
# It is not known who changed it: the file is left as it is, and the others are restored all the same.
UNSURE = frozenset({"background_job", "interrupted"})


def why(obstacle: str) -> str:
    """A newer server may know more."""
    return WHY.get(obstacle, obstacle.replace("_", " "))
