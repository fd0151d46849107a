"""Regular expressions for `*` wildcards that match in linear time, so that a hostile pattern cannot stall a match."""

from __future__ import annotations

from collections.abc import Sequence


def join_wildcards(pieces: Sequence[str], character: str) -> str:
    """Join regular expressions with "any number of `character`" between them. Each piece must match a fixed length.

    Each middle piece is an atomic group that matches at its first possible position. That is never worse for the pieces
    behind it, and avoids backtracking: a plain expression needs exponential time for `*a*a*a*a*b`.
    """
    first, *rest = pieces
    if not rest:
        return first
    *middle, last = rest
    found = "".join(f"(?>{character}*?{piece})" for piece in middle if piece)
    return f"{first}{found}{character}*{last}"
