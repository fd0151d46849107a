"""Errors of the configuration. A `Problem` is one line that names the file, the key and what to write instead.

KedgeError (protocol/errors.py)
└── Invalid
    ├── BadConfig       bad_config: invalid files or variables, with all their problems
    └── CannotSet       bad_setting: a rejected change; nothing was written
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kedge.protocol.errors import Invalid


class Problem(msgspec.Struct, frozen=True):
    """`where` is a file or a variable. `line` counts from 1; 0 means no line."""

    where: str
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        where = f"{self.where}:{self.line}" if self.line else self.where
        return f"{where}: {self.key}: {self.message}" if self.key else f"{where}: {self.message}"


class BadConfig(Invalid):
    def __init__(self, problems: Sequence[Problem]) -> None:
        first, *more = problems
        others = f" (and {len(more)} more; run 'kedge config show' to see them)" if more else ""
        super().__init__("bad_config", f"{first}{others}")
        self.problems = tuple(problems)


class CannotSet(Invalid):
    def __init__(self, message: str) -> None:
        super().__init__("bad_setting", message)
