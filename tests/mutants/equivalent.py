"""Mutations that change nothing that anybody could notice, each with its reason: they are not counted."""

from __future__ import annotations

# (path below src/kedge, the line as it is, the line as it would be): why
EQUIVALENT: dict[tuple[str, str, str], str] = {}
