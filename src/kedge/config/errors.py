"""What can be wrong with a configuration. A problem is one line that names the place, the key, and what to write.

KedgeError (protocol/errors.py)
└── Invalid
    ├── BadConfig       bad_config: files or variables that cannot be used, with all their problems
    └── CannotSet       bad_setting: a change that was refused; nothing was written
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kedge.protocol.errors import Invalid


class Problem(msgspec.Struct, frozen=True):
    """`where` is a file, or the environment; `line` counts from 1, and is 0 where there are no lines."""

    where: str
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        place = f"{self.where}:{self.line}" if self.line else self.where
        return f"{place}: {self.key}: {self.message}" if self.key else f"{place}: {self.message}"


class BadConfig(Invalid):
    def __init__(self, problems: Sequence[Problem]) -> None:
        first, *more = problems
        others = f" (and {len(more)} more; 'kedge config show' lists them)" if more else ""
        super().__init__("bad_config", f"{first}{others}")
        self.problems = tuple(problems)


class CannotSet(Invalid):
    def __init__(self, message: str) -> None:
        super().__init__("bad_setting", message)
