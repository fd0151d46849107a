"""A bound on the parts of a TOML key, checked before parsing: `tomllib` takes quadratic time for `a.a.a.…`.

The scan is linear. It splits valid TOML into strings, comments and the rest exactly as a parser does; what comes after
the first error in a text does not matter, because a parser stops there.
"""

from __future__ import annotations

import re

MAX_PARTS = 32  # the keys of Kedge have five at most

_STRINGS_AND_COMMENTS = re.compile(
    r'"""(?:\\.|(?!""").)*+"{0,5}'
    r"|'''(?:(?!''').)*+'{0,5}"
    r'|"(?:\\.|[^"\\\n])*+"?'
    r"|'[^'\n]*+'?"
    r"|#[^\n]*+",
    re.DOTALL,
)
_KEY = re.compile(r"[A-Za-z0-9_\-. \t]++")


def line_of_deep_key(text: str) -> int | None:
    """The line of the first key with more than `MAX_PARTS` parts; None if there is none."""
    if text.count(".") < MAX_PARTS:
        return None
    plain = _STRINGS_AND_COMMENTS.sub(_replacement, text)
    for found in _KEY.finditer(plain):
        if found[0].count(".") >= MAX_PARTS:
            return plain.count("\n", 0, found.start()) + 1
    return None


def _replacement(found: re.Match[str]) -> str:
    """A string counts as one letter, so that quoted parts of a key stay together; lines keep their numbers."""
    return ("" if found[0].startswith("#") else "s") + "\n" * found[0].count("\n")
