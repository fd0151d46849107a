"""Errors that a caller can act on. Each has a stable `code`, listed in docs/http-api.md, and each class an HTTP status.

KedgeError
├── NotFound                404 no such workspace, session, run, message or request
├── Conflict                409 not possible now, or not with this id
│   └── SessionBusy             a run of the session is open
├── Invalid                 422 well-formed but wrong
├── TooLarge                413
├── TooMany                 429
└── Unavailable             503 nothing was done; try again later
    ├── ShuttingDown            the server is stopping
    └── StoreUnavailable        the disk is full or failing; nothing was written
"""

from __future__ import annotations

import msgspec


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every error response."""

    code: str
    message: str


class KedgeError(Exception):
    """`message` is one line for the user that says what to do."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def body(self) -> ErrorBody:
        return ErrorBody(self.code, self.message)


class NotFound(KedgeError):
    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"{what}_not_found", f"there is no {what} {name!r} here")


class Conflict(KedgeError):
    pass


class SessionBusy(Conflict):
    def __init__(self, active_run_id: str) -> None:
        super().__init__("session_busy", f"the session is busy with run {active_run_id}; wait, queue or cancel it")
        self.active_run_id = active_run_id


class Invalid(KedgeError):
    pass


class TooLarge(KedgeError):
    pass


class TooMany(KedgeError):
    pass


class Unavailable(KedgeError):
    pass


class ShuttingDown(Unavailable):
    def __init__(self) -> None:
        super().__init__("shutting_down", "the server is stopping; try again in a few seconds")


class StoreUnavailable(Unavailable):
    def __init__(self, reason: str) -> None:
        super().__init__("store_unavailable", f"nothing was stored: {reason}")
