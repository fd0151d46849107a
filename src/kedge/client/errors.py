"""Errors of a client. The text of each is one line that says what is wrong and what to do.

ClientError
├── Dropped         the connection was lost or fell silent; trying again may help
├── InDoubt         it was lost during a request that must not be sent twice
├── Unreachable     the server did not answer for as long as the caller was ready to wait
├── SpawnFailed     a server could not be started
│   └── SpawnRefused    for a reason that the user can fix: the data directory, a file in it
├── NotAllowed      the server denies access, or could not prove that it is the user's own
├── NotUnderstood   the answer is not one that this client knows
└── Refused         the server answered with an error: `status`, `code`, `message`
"""

from __future__ import annotations


class ClientError(Exception):
    """Root of all errors that a client raises on purpose."""


class Dropped(ClientError):
    pass


class InDoubt(ClientError):
    def __init__(self, error: Dropped) -> None:
        super().__init__(
            f"Connection lost ({error}). The request may or may not have been carried out: check before you try again."
        )


class Unreachable(ClientError):
    pass


class SpawnFailed(ClientError):
    pass


class SpawnRefused(SpawnFailed):
    pass


class NotAllowed(ClientError):
    pass


class NotUnderstood(ClientError):
    pass


class Refused(ClientError):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
