"""Stars as regular expressions whose time grows with the text, not with its power: some are made to hold us up."""

from __future__ import annotations

from collections.abc import Sequence


def starred(pieces: Sequence[str], character: str) -> str:
    """Expressions, with any number of `character` between two of them; each matches a certain number of those itself.

    A piece is taken where it is first found: more is left for those behind it than at any other place. A plain
    expression tries all places, which for `*a*a*a*a*b` takes for ever.
    """
    first, *rest = pieces
    if not rest:
        return first
    *middle, last = rest
    found = "".join(f"(?>{character}*?{piece})" for piece in middle if piece)
    return f"{first}{found}{character}*{last}"
