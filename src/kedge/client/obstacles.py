"""Why an undo, a redo or a fork leaves a file as it is, in words for people."""

from __future__ import annotations

WHY = {
    "changed": "was changed by somebody else since",
    "in_the_way": "something else has its place",
    "too_large": "was too large to keep",
    "special": "is no ordinary file",
    "not_kept": "is not kept any more",
}


def why(obstacle: str) -> str:
    """A newer server may know more."""
    return WHY.get(obstacle, obstacle.replace("_", " "))
