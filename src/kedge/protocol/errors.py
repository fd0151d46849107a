"""Errors that a caller can act on. Each has a stable `code`; the server gives each family its status.

KedgeError
├── NotFound            workspace_not_found, session_not_found, run_not_found, request_not_found   404
├── Conflict            run_id_conflict, session_busy, workspace_busy, not_queued                  409
├── Invalid             empty_prompt, invalid_run_id, invalid_text, invalid_request                422
├── TooLarge            prompt_too_large                                                           413
├── TooMany             too_many_runs                                                              429
└── Unavailable         shutting_down, store_unavailable                                           503
    └── StoreUnavailable    the disk is full or failing; nothing was written
"""

from __future__ import annotations

import msgspec


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every error answer."""

    code: str
    message: str


class KedgeError(Exception):
    """Something a caller did, or must know of; `message` is one line that says what to do."""

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


class StoreUnavailable(Unavailable):
    def __init__(self, reason: str) -> None:
        super().__init__("store_unavailable", f"nothing was stored: {reason}")
